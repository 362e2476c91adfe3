cimport cython


@cython.final
cdef class Outage:
    cdef readonly long long since_ns
    cdef public object error
    cdef long long _gave_up_ns
    cdef long long _gave_up_before_ns

    cpdef give_up(self, long long started_ns)
    cpdef long long rides_until_ns(self, long long patience_ns, long long began_ns, long long until_ns)
    cpdef bint known(self, long long patience_ns, long long began_ns, long long until_ns, long long now_ns)
