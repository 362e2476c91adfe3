cimport cython

from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.commands cimport Command
from redlatch._c.quorum.effects cimport Call, Send
from redlatch._c.quorum.figures cimport Figures
from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.outcome cimport end_release
from redlatch._c.quorum.quorum cimport Quorum


@cython.final
cdef class Releasing(Call):
    cdef Quorum _quorum
    cdef Hold _hold
    cdef object _ticket
    cdef long long _wait_ns
    cdef bint _waits
    cdef object _released_lock
    cdef long long _started_ns
    cdef bint _late
    cdef bint _resent
    cdef Ballot _ballot
    cdef object _rest

    cdef _begin(self, Quorum quorum, Hold hold, long long wait_ns)
    @cython.locals(quorum=Quorum, hold=Hold, command=Command)
    cdef bint _begun(self) except -1
    cdef _begin_release(self)
    @cython.locals(quorum=Quorum, hold=Hold, figures=Figures)
    cdef bint _handed_off(self) except -1
    cdef bint _ended(self) except -1
    @cython.locals(over=bint)
    cdef bint _judge(self) except -1


cpdef release(Quorum quorum, Hold hold, long long wait_ns)


@cython.locals(releasing=Releasing)
cpdef release_nowait(Quorum quorum, Hold hold, released_lock)


@cython.locals(releasing=Releasing)
cpdef Releasing new_releasing(Quorum quorum, Hold hold, long long wait_ns)
