cimport cython

from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.commands cimport Command
from redlatch._c.votes.key cimport key_of
from redlatch._c.quorum.claim cimport Claim
from redlatch._c.quorum.figures cimport Figures
from redlatch._c.quorum.kinds.kind cimport Kind
from redlatch._c.quorum.lease cimport Lease, new_lease
from redlatch._c.quorum.quorum cimport Quorum


@cython.final
cdef class Hold(Claim):
    cdef readonly bytes key
    cdef public Lease lease
    cdef public long long elapsed_ns
    cdef public object extending
    cdef public Kind kind
    cdef public long long wanted_ns
    cdef public bint token_exposed
    cdef public tuple lacking
    cdef public tuple lost_because  # or None
    cdef public long long lost_ns
    cdef public Figures figures  # or None
    cdef public bint has_upkeep
    cdef public long long won_ns

    cdef _open(self, name, bytes key, Kind kind)
    cpdef claim(self, ticket)
    cpdef ask(self, Lease lease)
    @cython.locals(kind=Kind, lease=Lease, command=Command)
    cpdef Ballot attempt(
        self, Quorum quorum, long long ttl_ms, long long started_ns, long long deadline_ns, long long until_ns
    )
    cpdef Command undoing_attempt(self)
    cpdef Command releasing(self)
    @cython.locals(command=Command)
    cpdef Command extending_to(self, long long ttl_ms, long long now_ns)
    cpdef keep(self, long long elapsed_ns)
    cpdef free(self)
    cpdef borrow(self, bytes token)
    cdef _hold(self, long long elapsed_ns)
    cdef bint _replace(self, Lease old, Lease new) except -1
    @cython.locals(lease=Lease)
    cpdef shorten(self, bytes token, long long deadline_ns)
    @cython.locals(lease=Lease)
    cpdef prolong(self, bytes token, long long asked_ns, long long deadline_ns)
    cpdef bint may_hand_off_to(self, Hold other)
    cpdef lose(self, long long now_ns)
    cpdef bint holds_since(self, long long since_ns)
    @cython.locals(lease=Lease, shorter=Lease)
    cpdef lose_what_it_holds_since(self, long long since_ns, long long now_ns)
    @cython.locals(lost_ns=cython.longlong)
    cpdef take_lease(self, Lease lease, Hold giver)
    cpdef Command give_back(self)
    @cython.locals(lease=Lease)
    cpdef refresh(self, Ballot ballot, long long deadline_ns)
    @cython.locals(ballot=Ballot)
    cpdef bint being_extended(self, long long now_ns) except -1
    @cython.locals(lease=Lease)
    cpdef apply_refresh(self, long long now_ns)
    cpdef bint busy(self, long long now_ns)
    cpdef Command undoing(self, ticket)
    cpdef end_undoing(self, ticket)
    cpdef tuple begin_release(self, long long now_ns)
    @cython.locals(command=Command)
    cpdef Command resend_release(self, ticket, long long now_ns)
    cpdef Figures figures_in(self, Quorum quorum)
    @cython.locals(figures=Figures, won_ns=cython.longlong)
    cpdef count_end(self, Quorum quorum, long long ended_ns, lost=*)
    cpdef bint held(self, long long now_ns)


@cython.locals(hold=Hold)
cpdef Hold hold_on(bytes prefix, name, Kind kind)


@cython.locals(place=Py_ssize_t, hold=Hold)
cpdef list those_held(list locks, list holds)


@cython.locals(hold=Hold, figures=Figures)
cpdef count_acquires(Quorum quorum, list holds, long long began_ns, bint at_once)
