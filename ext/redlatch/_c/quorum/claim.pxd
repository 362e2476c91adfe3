# Types for src/redlatch/quorum/claim.py when it is compiled. The fields are described there.


cdef class Claim:
    cdef readonly object name
    cdef public int state
    cdef readonly object ticket

    cdef _begin(self, name)
    cpdef to_claimed(self, ticket)
    cpdef to_waiting(self)
    cpdef to_asking(self)
    cpdef to_held(self)
    cpdef bint to_releasing(self) except -1
    cpdef to_settling(self)
    cpdef bint to_resent(self, ticket)
    cpdef bint to_undoing(self, ticket)
    cpdef to_free(self)
