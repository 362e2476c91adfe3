# The types of src/redlatch/quorum/waiting/unqueued_holds.py when it is compiled.

cimport cython

from redlatch._c.quorum.hold cimport Hold


@cython.final
cdef class UnqueuedHolds:
    cdef object _groups            # deque of lists of Hold
    cdef Py_ssize_t _size
    cdef Py_ssize_t _most
    cdef object _sweeping

    cpdef note(self, list holds, long long now_ns)
    @cython.locals(hold=Hold, group=list, found=dict)
    cpdef list holds(self)
    @cython.locals(hold=Hold, group=list, looked=list, counting=dict)
    cdef _sweep(self, long long now_ns)
