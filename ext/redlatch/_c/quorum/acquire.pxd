cimport cython

from redlatch._c.quorum.attempt cimport Attempt, new_attempt
from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.quorum.effects cimport Call, Pause, Send
from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.kinds.kind cimport Kind
from redlatch._c.quorum.quorum cimport Quorum


@cython.final
cdef class Acquiring(Call):
    cdef Quorum _quorum
    cdef Hold _hold
    cdef Kind _kind
    cdef long long _ttl_ms
    cdef long long _until_ns
    cdef object _caller
    cdef Attempt _attempt
    cdef Ballot _ballot
    cdef Ballot _ahead
    cdef object _rest
    cdef object _ticket
    cdef object _lock

    cdef _begin(self, Quorum quorum, Hold hold, long long ttl_ms, long long until_ns)
    cdef bint _reach(self) except -1
    cdef Ballot _ask(self, long long started_ns)


@cython.locals(acquiring=Acquiring)
cpdef acquire(Quorum quorum, Hold hold, long long ttl_ms, give_up_ns, ticket=*, lock=*)


@cython.locals(acquiring=Acquiring)
cpdef Acquiring new_acquiring(Quorum quorum, Hold hold, long long ttl_ms, long long until_ns)
