# Types for src/redlatch/votes/commands.py.

cimport cython

from redlatch._c.votes.payloads cimport delex, delifeq, digits, set_nx, strings


cdef class Command:
    cdef public object yes
    cdef public object no
    cdef public bytes yes_line
    cdef public int meaning
    cdef public bint releases
    cdef public bytes key
    cdef public bytes token
    cdef public long long since_ns
    cdef public long long ttl_ms
    cdef public long long tried
    cdef public long long obeyed

    cdef _concern(self, bytes key, bytes token, long long since_ns)
    cpdef bytes payload(self, int dialect)
    cpdef undo(self)
    cpdef bint expects(self, answer) except -1
    cpdef bint lasts(self) except -1
    cpdef Command again(self)
    cpdef Command repair(self, int index, long long now_ns)
    cpdef Command follow(self, answer)


@cython.final
cdef class Acquire(Command):
    cdef _begin(self, bytes key, bytes token, long long since_ns, long long ttl_ms)


@cython.final
cdef class AcquireFenced(Command):
    cdef bytes _counter
    cdef public long long first
    cdef public long long last


@cython.final
cdef class Confirm(Command):
    cdef bytes _counter
    cdef public long long first
    cdef public long long last


@cython.final
cdef class Release(Command):
    cdef _begin(self, bytes key, bytes token, long long since_ns)


@cython.final
cdef class Extend(Command):
    pass


@cython.final
cdef class Scripted(Command):
    cdef object _script
    cdef list _arguments
    cdef int _more_keys
    cdef Command _undo
    cdef Command _again
    cdef bytes _bells
    cdef long long _yes_from
    cdef long long _no_from

    cpdef Scripted calls(self, bytes bells, long long yes_from, long long no_from)


@cython.final
cdef class Ring(Command):
    pass


cdef class Look(Command):
    pass


@cython.final
cdef class LookAsFirst(Look):
    cdef bytes _bell


@cython.final
cdef class Called(Command):
    pass


@cython.final
cdef class Watched(Command):
    cdef list _keys


@cython.final
cdef class Asking(Command):
    pass


@cython.final
cdef class Wait(Command):
    cdef public long long replicas
    cdef public long long timeout_ms


@cython.final
cdef class CountReplicas(Command):
    pass


@cython.final
cdef class MarkElsewhere(Command):
    cdef tuple _arguments


@cython.final
cdef class Note(Command):
    pass


@cython.final
cdef class Pulse(Command):
    cdef public long long wanted_ms
    cdef tuple _arguments


@cython.final
cdef class Owned(Command):
    pass


@cython.final
cdef class Locked(Command):
    pass


@cython.final
cdef class AskHolder(Command):
    cdef bytes _counter


@cython.locals(command=Acquire)
cpdef Acquire new_acquire(bytes key, bytes token, long long since_ns, long long ttl_ms)


@cython.locals(command=Release)
cpdef Release new_release(bytes key, bytes token, long long since_ns)


cdef bytes _call(script, int dialect, list arguments, int more_keys=*)
