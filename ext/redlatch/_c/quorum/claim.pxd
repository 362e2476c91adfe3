# Types for src/redlatch/quorum/claim.py when it is compiled. The fields are described there.


cdef class Claim:
    cdef readonly object name
    cdef public int state
    cdef readonly object ticket
    cdef public object entered
    cdef public int others
    cdef public bint awaited

    cdef _begin(self, name)
    cdef _to_claimed(self, ticket)
    cpdef leave(self)
    cpdef follow(self, ticket)
    cpdef to_waiting(self)
    cdef _to_asking(self)
    cdef _to_held(self)
    cdef bint _to_releasing(self) except -1
    cpdef to_unconfirmed(self)
    cdef bint _to_resent(self, ticket)
    cdef bint _to_undoing(self, ticket)
    cdef _to_free(self)
