# The types of src/redlatch/drivers/deadlines.py when it is compiled; the fields are described there.

cimport cython

from redlatch._c.protocol.ballot cimport Ballot


@cython.final
cdef class Deadlines:
    cdef dict _queues
    cdef long long _patience
    cdef list _queue
    cdef int _added

    @cython.locals(patience=cython.longlong)
    cpdef add(self, Ballot ballot, long long now_ns)
    @cython.locals(queue=list, ballot=Ballot, decided=Py_ssize_t)
    cdef _sweep(self)
