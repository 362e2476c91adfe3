# Types for src/redlatch/drivers/lifecycle.py.

cimport cython


@cython.final
cdef class Lifecycle:
    cdef public bint usable
    cdef public bint closing
    cdef public bint closed
    cdef public bint forked
    cdef public dict undialled
