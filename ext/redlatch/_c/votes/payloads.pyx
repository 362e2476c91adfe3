"""The bytes of commands: `src/redlatch/votes/payloads.py` describes the functions.

A command of a plain lock is `begin`, key, `middle`, token, `end`, with the lengths before key and token.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

# Digits of the largest number.
cdef enum:
    DIGITS = 20


cdef Py_ssize_t write(char *written, unsigned long long number) noexcept:
    """Write a number in decimal to the end of `written`; return where it begins."""
    cdef Py_ssize_t at = DIGITS
    while True:
        at -= 1
        written[at] = <char> (48 + number % 10)
        number //= 10
        if not number:
            return at


cdef char *put(char *to, const char *data, Py_ssize_t size) noexcept:
    memcpy(to, data, size)
    return to + size


cdef char *put_length(char *to, Py_ssize_t size) noexcept:
    """Write "$size\\r\\n"."""
    cdef char written[DIGITS]
    cdef Py_ssize_t at = write(written, size)
    to[0] = b"$"
    to = put(to + 1, written + at, DIGITS - at)
    return put(to, b"\r\n", 2)


cdef char *put_string(char *to, bytes data) noexcept:
    """Write a string with its length before it."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    to = put(put_length(to, size), PyBytes_AS_STRING(data), size)
    return put(to, b"\r\n", 2)


cdef Py_ssize_t room(bytes data) noexcept:
    """Return how many bytes a string takes, with its length."""
    cdef char written[DIGITS]
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    return size + 5 + DIGITS - write(written, size)


cdef bytes command(bytes begin, bytes key, bytes middle, bytes token, bytes end):
    if key is None or token is None:
        raise TypeError("bytes are needed, not None")
    cdef Py_ssize_t fixed = PyBytes_GET_SIZE(begin) + PyBytes_GET_SIZE(middle) + PyBytes_GET_SIZE(end)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, fixed + room(key) + room(token))
    cdef char *to = PyBytes_AS_STRING(made)
    to = put_string(put(to, PyBytes_AS_STRING(begin), PyBytes_GET_SIZE(begin)), key)
    to = put_string(put(to, PyBytes_AS_STRING(middle), PyBytes_GET_SIZE(middle)), token)
    put(to, PyBytes_AS_STRING(end), PyBytes_GET_SIZE(end))
    return made


# The end of SET for the last ttl: most clients use only a few.
cdef long long last_ttl_ms = -1
cdef bytes last_end = b""


cpdef bytes set_nx(bytes key, bytes token, long long ttl_ms):
    global last_ttl_ms, last_end
    if ttl_ms != last_ttl_ms:
        last_end = b"$2\r\nNX\r\n$2\r\nPX\r\n$%d\r\n%d\r\n" % (len(str(ttl_ms)), ttl_ms)
        last_ttl_ms = ttl_ms
    return command(b"*6\r\n$3\r\nSET\r\n", key, b"", token, last_end)


cpdef bytes delifeq(bytes key, bytes token):
    return command(b"*3\r\n$7\r\nDELIFEQ\r\n", key, b"", token, b"")


cpdef bytes delex(bytes key, bytes token):
    return command(b"*4\r\n$5\r\nDELEX\r\n", key, b"$4\r\nIFEQ\r\n", token, b"")


cpdef bytes strings(bytes begin, list arguments):
    if begin is None:
        raise TypeError("bytes are needed, not None")
    cdef Py_ssize_t size = PyBytes_GET_SIZE(begin)
    cdef bytes argument
    for argument in arguments:
        if argument is None:
            raise TypeError("bytes are needed, not None")
        size += room(argument)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, size)
    cdef char *to = put(PyBytes_AS_STRING(made), PyBytes_AS_STRING(begin), PyBytes_GET_SIZE(begin))
    for argument in arguments:
        to = put_string(to, argument)
    return made


cpdef bytes joined(bytes first, bytes second):
    if first is None or second is None:
        raise TypeError("bytes are needed, not None")
    cdef Py_ssize_t size = PyBytes_GET_SIZE(first)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, size + PyBytes_GET_SIZE(second))
    cdef char *to = put(PyBytes_AS_STRING(made), PyBytes_AS_STRING(first), size)
    put(to, PyBytes_AS_STRING(second), PyBytes_GET_SIZE(second))
    return made


cpdef bytes digits(unsigned long long number):
    cdef char written[DIGITS]
    cdef Py_ssize_t at = write(written, number)
    return PyBytes_FromStringAndSize(written + at, DIGITS - at)
