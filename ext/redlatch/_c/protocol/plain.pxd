# The types of src/redlatch/protocol/plain.py when it is compiled.

cimport cython

from redlatch._c.protocol.kind cimport Kind


@cython.final
cdef class Plain(Kind):
    pass
