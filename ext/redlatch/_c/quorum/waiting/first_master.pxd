cimport cython

from redlatch._c.quorum.quorum cimport Quorum


@cython.final
cdef class FirstMaster:
    cdef public long long round_ns
    cdef dict _deprioritised

    cpdef int first_of(self, Quorum quorum, bytes key, long long now_ns) except -2
    cpdef deprioritise(self, int index, long long now_ns)
