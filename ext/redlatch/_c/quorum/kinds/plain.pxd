cimport cython

from redlatch._c.quorum.kinds.kind cimport Kind


@cython.final
cdef class Plain(Kind):
    pass
