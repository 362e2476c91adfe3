# Types for src/redlatch/wire/engine/silence.py.

cimport cython

from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.units cimport Clock
from redlatch._c.wire.engine.link cimport Link


@cython.final
cdef class Silence:
    cdef list _links
    cdef Clock _clock
    cdef public int suspects
    cdef public list waiting
    cdef public long long due_ns
    cdef public long long round_ns

    @cython.locals(link=Link)
    cpdef bint lacks_only_suspects(self, Ballot ballot) except -1
    @cython.locals(now=cython.longlong, link=Link)
    cpdef bint spares(self, Ballot ballot) except -1
    cpdef watch(self, Ballot ballot, Link link, long long now_ns)
    cpdef remind(self, Ballot reminder, long long due_ns)
    cdef _wait_for(self, Ballot ballot, long long now_ns, long long silent_ns)
    @cython.locals(ballot=Ballot, link=Link)
    cpdef list suspect(self, long long now_ns)
    @cython.locals(ballot=Ballot)
    cpdef forget(self, long long now_ns)
    @cython.locals(at=Py_ssize_t, late=Py_ssize_t, ballot=Ballot)
    cdef _suspect_if_late(self, Link link, long long now_ns)
    cpdef trust(self, Link link)
    @cython.locals(late_ns=cython.longlong)
    cpdef learn(self, Link link)
