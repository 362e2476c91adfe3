# The types of src/redlatch/protocol/waiting.py when it is compiled; the fields are described there.

cimport cython

from redlatch._c.protocol.ballot cimport Ballot
from redlatch._c.protocol.commands cimport Command
from redlatch._c.protocol.hold cimport Hold
from redlatch._c.protocol.lease cimport Lease
from redlatch._c.protocol.policy cimport Policy


@cython.final
cdef class Turn:
    cdef readonly Hold hold
    cdef readonly Ballot ballot
    cdef public bint left
    cdef public Lease lease
    cdef public Hold giver
    cdef public bint courteous
    cdef public bint looks
    cdef public Ballot watch

    @cython.locals(lease=Lease)
    cpdef Lease take(self)
    @cython.locals(lease=Lease, giver=Hold)
    cpdef bint inherit(self) except -1


@cython.final
cdef class Line:
    cdef readonly object turns     # deque of Turn
    cdef public long long moved_ns
    cdef public long long pace_ns

    cpdef move(self, long long now_ns)


@cython.final
cdef class Lines:
    cdef readonly dict heads       # bytes: Hold
    cdef readonly dict lines       # bytes: Line
    cdef readonly dict watches     # bytes: list of Ballot
    cdef readonly object called    # deque of Ballot
    cdef readonly set crowded
    cdef public long long round_ns
    cdef Py_ssize_t _most
    cdef object _lost              # deque of (key, ns)
    cdef dict _shunned

    # the line
    @cython.locals(head=Hold, line=Line)
    cpdef bint enter(self, Hold hold, long long now_ns) except -1
    @cython.locals(head=Hold)
    cdef _sweep(self, long long now_ns)
    @cython.locals(hold=Hold, line=Line, depth=Py_ssize_t, give_up_ns=cython.longlong)
    cpdef join(self, Policy policy, Turn turn, long long now_ns)
    @cython.locals(lease=Lease)
    cpdef Lease step_out(self, Turn turn, long long now_ns)
    @cython.locals(line=Line)
    cpdef drop(self, Turn turn)
    @cython.locals(line=Line, turn=Turn, lease=Lease, watch=Ballot, kept=bint)
    cpdef bint pass_on(self, Policy policy, Hold hold, long long now_ns) except -1
    @cython.locals(line=Line, key=bytes)
    cpdef leave(self, Hold hold, long long now_ns, bint courteous)
    @cython.locals(head=Hold)
    cpdef lose(self, bytes key, long long now_ns)
    cpdef overtake(self, Policy policy, Hold hold, long long now_ns)
    @cython.locals(since_ns=cython.longlong, lost=list)
    cpdef bint deleted(self, Hold hold) except -1
    @cython.locals(line=Line)
    cpdef bint is_next(self, Hold hold) except -1
    @cython.locals(line=Line)
    cpdef successors(self, Policy policy, bytes key)
    @cython.locals(turn=Turn)
    cdef bint _call_next(self, Line line, long long now_ns, bint courteous) except -1
    cdef _dissolve(self, bytes key, Line line)
    @cython.locals(line=Line, head=Hold, earliest=cython.longlong, until=cython.longlong)
    cpdef expire(self, long long now_ns)
    @cython.locals(turn=Turn)
    cdef bint _have_it_look(self, Line line, long long now_ns) except -1

    # which master is asked first
    cpdef int first_of(self, Policy policy, bytes key, long long now_ns) except -2
    cpdef shun(self, int index, long long now_ns)

    cpdef crowd(self, bytes key)

    # keys that are watched
    @cython.locals(ballots=list)
    cpdef watch(self, bytes key, Ballot ballot)
    @cython.locals(ballots=list)
    cpdef unwatch(self, bytes key, Ballot ballot)
    @cython.locals(ballot=Ballot)
    cpdef changed(self, int index, bytes key)
    @cython.locals(ballot=Ballot)
    cpdef stir(self, bytes key)
    cpdef stir_all(self)
    cdef _call(self, Ballot ballot)


@cython.locals(turn=Turn)
cdef Turn _next(Line line)


cdef _discard(Line line, Turn turn)


@cython.locals(turn=Turn)
cdef bint _is_others(Line line, Hold hold) except -1
