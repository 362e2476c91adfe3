# Types for src/redlatch/votes/units.py when it is compiled.


cdef class Clock:
    cpdef long long now(self) except -1


cpdef long long drift_ns(long long ttl_ms, double drift_factor)
