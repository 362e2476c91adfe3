# Types for src/redlatch/votes/durations.py when it is compiled. The fields are described there.

cimport cython


@cython.final
cdef class Durations:
    cdef long long[40] _counts
    cdef long long _sum_ns

    @cython.locals(place=int, bound=cython.longlong)
    cpdef count(self, long long duration_ns)
