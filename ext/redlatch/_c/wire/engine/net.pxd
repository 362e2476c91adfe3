# Declarations of net.pyx.

cimport cython

from redlatch._c.votes.units cimport Clock


cdef struct Wire:
    int fd           # the socket, or -1
    bint tls         # whether the socket is a TLS socket
    char *unsent     # the send buffer
    size_t start     # index of the first unsent byte in `unsent`
    size_t end       # index after the last unsent byte in `unsent`
    size_t room      # size of `unsent` in bytes
    char *came       # the receive buffer, of ROOM bytes
    ssize_t result   # of the last system call: a number of bytes, 0 at the end of the stream, or -errno


cdef extern from "poll.h" nogil:
    struct pollfd:
        int fd
        short events
        short revents


@cython.final
cdef class BootClock(Clock):
    pass


@cython.final
cdef class Wires:
    cdef Wire *wires         # `count` of them
    cdef pollfd *polled      # one entry for each wire, then one for the wake-up pipe
    cdef int count
    cdef int wake_in
    cdef int wake_out
    cdef list tls            # the SSLSocket of each, or None
    cdef public bint taken
    cdef public long long gil_patience_ns
    cdef public long long busy_until_ns
    cdef long long usual_ns  # how long a wait for replies usually takes
    cdef long long back_ns   # when the last poll returned, before the GIL was taken again

    # for the engine
    cpdef int fileno(self, int index) except? -1
    cpdef stage(self, int index, bytes data)
    cpdef Py_ssize_t unsent(self, int index) except -1
    cpdef list send(self)
    cpdef bint wait(self, long long timeout_ns) except -1
    cpdef collect(self, int index)
    cpdef receive(self, int index)
    cpdef long long usual_gil_patience_ns(self) except -1
    cpdef bint stands_at(self, bytes data, Py_ssize_t start, bytes line) except -1

    # internal
    cdef _make_room(self, int count)
    cdef Wire *_at(self, int index) except NULL
    cdef void _offer_all(self) noexcept nogil
    cdef int _poll(self, long long timeout_ns) noexcept nogil
    cdef void _offer(self, Wire *wire) noexcept nogil
    cdef object _offer_tls(self, int index)
    cdef void _serve(self) noexcept nogil
