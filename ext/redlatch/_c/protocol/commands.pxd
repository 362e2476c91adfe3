# The types of src/redlatch/protocol/commands.py when it is compiled; the fields are described there.


cdef class Command:
    cdef public object yes
    cdef public object no
    cdef public bytes yes_line
    cdef public bint releases
    cdef public bytes key
    cdef public bytes token
    cdef public long long since_ns

    cpdef bytes payload(self, int dialect)
    cpdef undo(self)


cdef class Acquire(Command):
    cdef public long long ttl_ms


cdef class Release(Command):
    pass


cdef class Extend(Command):
    cdef public long long ttl_ms


cdef class Owned(Command):
    pass


cdef class Locked(Command):
    pass
