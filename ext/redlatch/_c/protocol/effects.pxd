# The types of src/redlatch/protocol/effects.py when it is compiled; the fields are described there.

cimport cython


@cython.final
cdef class Tell:
    cdef readonly list ballots     # of Ballot


@cython.final
cdef class Pause:
    cdef readonly long long until_ns


@cython.final
cdef class Answer:
    cdef readonly bint value
