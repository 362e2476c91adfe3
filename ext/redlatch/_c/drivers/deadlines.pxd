# The types of src/redlatch/drivers/deadlines.py when it is compiled; the fields are described there.

cimport cython

from redlatch._c.protocol.ballot cimport Ballot


@cython.final
cdef class Deadlines:
    cdef dict _queues

    cpdef add(self, Ballot ballot, long long now_ns)
