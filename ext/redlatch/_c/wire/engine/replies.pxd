# Types for src/redlatch/wire/engine/replies.py.

cimport cython


cpdef bint begins_line(bytes tail) except -1


cpdef parse_line(reader, bytes line)


@cython.locals(end=Py_ssize_t, rest=bytes, begins=bint)
cpdef tuple read_push(bytes data, Py_ssize_t start)
