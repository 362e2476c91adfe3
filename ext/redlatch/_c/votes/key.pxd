# Types for src/redlatch/votes/key.py when it is compiled.

cimport cython


@cython.locals(raw=bytes, key=bytes)
cpdef bytes key_of(bytes prefix, name)
