cimport cython

from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.quorum.figures cimport Figures
from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.kinds.kind cimport Kind
from redlatch._c.quorum.policy cimport Outage
from redlatch._c.quorum.outcome cimport broke, granted, is_final
from redlatch._c.quorum.quorum cimport Quorum


@cython.final
cdef class Attempt:
    cdef readonly Quorum quorum
    cdef readonly Hold hold
    cdef Kind _kind
    cdef Ballot _ballot
    cdef Figures _figures
    cdef Outage _outage
    cdef readonly long long ttl_ms
    cdef readonly long long until_ns
    cdef long long _began_ns
    cdef long long _deadline_ns
    cdef int _failures
    cdef int _again
    cdef int _doubted
    cdef long long _rides_until_ns
    cdef bint _first_silent
    cdef bint _split
    cdef bint _waiting_for_all
    cdef int _first
    cdef readonly long long started_ns
    cdef readonly long long wait_ns
    cdef readonly long long now_ns
    cdef readonly bint over
    cdef readonly bint waits
    cdef readonly int pauses
    cdef readonly bint counted

    cdef _begin(
        self, Quorum quorum, Hold hold, long long ttl_ms, long long until_ns, long long began_ns
    )
    @cython.locals(
        quorum=Quorum, ballot=Ballot, deadline=cython.longlong, end=cython.longlong, wait=cython.longlong,
        until=cython.longlong
    )
    cpdef Ballot begin(self, long long started_ns)
    @cython.locals(quorum=Quorum, ballot=Ballot, second=Ballot, until=cython.longlong)
    cpdef Ballot second(self)
    @cython.locals(quorum=Quorum, hold=Hold, kind=Kind, whole=bint, won=bint, now=cython.longlong)
    cpdef bint keep_if_won(self) except -1
    @cython.locals(ballot=Ballot)
    cpdef bint reopen_for_all(self) except -1
    @cython.locals(quorum=Quorum, kind=Kind, ballot=Ballot, failures=int, in_time=bint, asks_again=bint)
    cpdef Ballot judge(self)
    cdef _note_first_master(self)
    @cython.locals(hold=Hold, kind=Kind, refused=bint)
    cdef Ballot _undo(self, Ballot ballot)
    @cython.locals(quorum=Quorum, hold=Hold, outage=Outage)
    cdef bint _ends(self, Ballot ballot, int failures) except -1
    cpdef undone(self)
    @cython.locals(hold=Hold, now=cython.longlong)
    cpdef end(self)
    @cython.locals(quorum=Quorum)
    cpdef count_win(self, long long won_ns)
    cpdef count_refusal(self, bint at_once)
    cpdef count_outage(self)
    cpdef count_break(self)
    cpdef pause_ns(self)
    cpdef waited(self, bint waited)
    cpdef reached(self)


@cython.locals(attempt=Attempt)
cpdef Attempt new_attempt(
    Quorum quorum, Hold hold, long long ttl_ms, long long until_ns, long long began_ns
)
