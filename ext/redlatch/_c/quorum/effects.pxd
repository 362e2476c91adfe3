cimport cython


@cython.final
cdef class Send:
    cdef readonly list ballots


@cython.final
cdef class Pause:
    cdef readonly long long until_ns


@cython.final
cdef class Answer:
    cdef readonly object value


cdef class Call:
    cpdef end(self)
    cpdef recover(self, driver, error)
