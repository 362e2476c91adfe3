cimport cython

from redlatch._c.votes.payloads cimport joined


@cython.final
cdef class Tokens:
    cdef object _draw
    cdef list _stock
    cdef bytes _client_token
    cdef object _label_of_now
    cdef bytes _label
    cdef long long _label_until_ns

    cpdef bytes take(self, long long now_ns)
    cpdef bytes take_plain(self)
    cpdef bytes client_token(self)
