# Types for src/redlatch/votes/key.py.

cimport cython


@cython.locals(raw=bytes, key=bytes)
cpdef bytes key_of(bytes prefix, name)


cpdef bytes derived_key(bytes key, bytes suffix)
