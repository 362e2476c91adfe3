cimport cython

from redlatch._c.quorum.hold cimport Hold


@cython.final
cdef class UnqueuedHolds:
    cdef object _groups
    cdef Py_ssize_t _size
    cdef Py_ssize_t _most
    cdef object _sweeping

    cpdef note(self, list holds, long long now_ns)
    @cython.locals(hold=Hold, group=list, found=dict)
    cpdef list holds(self)
    @cython.locals(hold=Hold, group=list, looked=list, counting=dict)
    cdef _sweep(self, long long now_ns)
