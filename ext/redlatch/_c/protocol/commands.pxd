# The types of src/redlatch/protocol/commands.py when it is compiled; the fields are described there.

cimport cython


@cython.no_gc  # bytes and constants make no cycles, and so many are made that looking for some would cost
cdef class Command:
    cdef public object yes
    cdef public object no
    cdef public bytes yes_line
    cdef public bint releases
    cdef public bytes key
    cdef public bytes token
    cdef public long long since_ns

    cdef _concern(self, bytes key, bytes token, long long since_ns)
    cpdef bytes payload(self, int dialect)
    cpdef undo(self)


cdef bytes _ending(long long ttl_ms)


@cython.final
@cython.no_gc
cdef class Acquire(Command):
    cdef public long long ttl_ms


@cython.final
@cython.no_gc
cdef class Release(Command):
    pass


@cython.final
@cython.no_gc
cdef class Extend(Command):
    cdef public long long ttl_ms


@cython.final
@cython.no_gc
cdef class Owned(Command):
    pass


@cython.final
@cython.no_gc
cdef class Locked(Command):
    pass
