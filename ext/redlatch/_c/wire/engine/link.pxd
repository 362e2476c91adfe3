# Types for src/redlatch/wire/engine/link.py.

cimport cython

from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.commands cimport Command


@cython.final
cdef class Link:
    cdef public int index
    cdef public int voter
    cdef public str address
    cdef public bint up
    cdef public bint dialling
    cdef public object reader
    cdef public bytes tail
    cdef public list pending
    cdef public Py_ssize_t head
    cdef public long long pushes
    cdef public object parked
    cdef public dict owed
    cdef public object traits
    cdef public int dialect
    cdef public long long full_from
    cdef public object cause
    cdef public long long adopted_ns
    cdef public long long lost_ns
    cdef public long long cut
    cdef public object monitor
    cdef public Command pulse
    cdef public long long horizon_ms
    cdef public long long raised_ns
    cdef public long long refused_ns
    cdef public Ballot raising
    cdef public bint suspected
    cdef public long long missing_vote
    cdef public long long suspected_ns
    cdef public long long late_ns
    cdef public long long silent_ns
    cdef public object sync
    cdef public dict sent
    cdef public long long looked_at
    cdef public long long full_at
    cdef public long long full_ns

    cpdef Py_ssize_t owing(self) except -1
    cpdef advance(self)
    cpdef cut_front(self)
    cpdef owe(self, Ballot ballot, Py_ssize_t most)
    cpdef bint has_undone(self, Command command) except -1
    cpdef bint may_execute(self, Command release) except -1
    @cython.locals(sent=Command, first=cython.longlong, end=cython.longlong)
    cdef bint _sent(self, Command command, bint releases) except -1
    cpdef bint waits_for(self, Ballot ballot) except -1
