# Types for src/redlatch/quorum/effects.py when it is compiled. The fields are described there.

cimport cython


@cython.final
cdef class Send:
    cdef readonly list ballots     # of Ballot


@cython.final
cdef class Pause:
    cdef readonly long long until_ns


@cython.final
cdef class Answer:
    cdef readonly object value


cdef class Call:
    cpdef end(self)
    cpdef recover(self, driver, error)
