# A hold is a plain object here, because its module is above this one.

from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.commands cimport AskHolder, Command, Extend, Locked, Owned, new_acquire, new_release
from redlatch._c.quorum.lease cimport Lease, new_lease
from redlatch._c.quorum.quorum cimport Quorum


cdef class Kind:
    cdef public bint enters_queue
    cdef public bint shares
    cdef public bint orderly
    cdef public bint undoes
    cdef public int hand_off_group
    cdef public bint numbers
    cdef public bint asks_one_first
    cdef public bint waits_for_all
    cdef public bint signs_off
    cdef public int late
    cdef public bint apart

    cpdef caller(self)
    cpdef begin(self, Quorum quorum, hold, caller)
    cpdef Lease lease(self, Quorum quorum, bytes key, long long since_ns, long long deadline_ns)
    cpdef Ballot ahead(self)
    cpdef Ballot behind(self)
    cpdef Ballot second_round(self, Quorum quorum, hold, Ballot ballot)
    cpdef won(self, Quorum quorum, hold)
    cpdef bint note_answers(self, Quorum quorum, Ballot ballot) except -1
    cpdef undone(self, Quorum quorum, bytes key, Ballot ballot)
    cpdef end_watch(self, Quorum quorum, bytes key)
    cpdef end(self, hold)
    cpdef Command acquiring(self, Quorum quorum, bytes key, Lease lease, long long ttl_ms)
    cpdef Command undoing(self, bytes key, Lease lease, bint last)
    cpdef Command releasing(self, bytes key, Lease lease)
    cpdef Command extending(self, bytes key, Lease lease, long long ttl_ms)
    cpdef Command repairing(self, bytes key, Lease lease, long long ttl_ms)
    cpdef Command owned(self, bytes key, Lease lease)
    cpdef bytes watched(self, bytes key)
    cpdef Command locked(self, bytes key)
    cpdef Command holder(self, bytes key)
    cpdef Command blocker(self, bytes key)
