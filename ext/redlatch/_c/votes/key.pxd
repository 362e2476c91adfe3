# Types for src/redlatch/votes/key.py.

cimport cython


@cython.locals(raw=bytes, key=bytes)
cpdef bytes key_of(bytes prefix, name)


cpdef bytes derived_key(bytes key, bytes suffix)


@cython.locals(opening=Py_ssize_t)
cdef bytes _tag_in(bytes key)


cpdef int slot_of(bytes key) except -1
