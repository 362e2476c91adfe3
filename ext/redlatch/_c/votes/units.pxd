# Types for src/redlatch/votes/units.py.

cimport cython


cdef class Clock:
    cpdef long long now(self) except -1


@cython.final
cdef class Durations:
    cdef long long[40] _counts
    cdef long long _sum_ns

    @cython.locals(place=int, bound=cython.longlong)
    cpdef count(self, long long duration_ns)


cpdef long long drift_ns(long long ttl_ms, double drift_factor)
