# Types for src/redlatch/locks/core.py when it is compiled. The fields are described there.


cdef class Core:
    cdef object __weakref__
    cdef public object _shared
    cdef public object _hold
    cdef public long long _ttl_ms
    cdef public object _timeout
    cdef public object upkeep
