# The types of src/redlatch/protocol/kind.py when it is compiled; the fields are described there. Holds and lines stand
# above it, so here they are objects.

from redlatch._c.protocol.ballot cimport Ballot
from redlatch._c.protocol.commands cimport Command, Extend, Locked, Owned, new_acquire, new_release
from redlatch._c.protocol.lease cimport Lease, new_lease
from redlatch._c.protocol.policy cimport Policy


cdef class Kind:
    cdef public bint queues
    cdef public bint shares
    cdef public bint orderly
    cdef public bint undoes
    cdef public int passes
    cdef public bint numbers
    cdef public bint leads
    cdef public bint settles
    cdef public bint signs_off
    cdef public int late
    cdef public bint apart

    cpdef caller(self)
    cpdef begin(self, Policy policy, hold, caller)
    cpdef Lease lease(self, Policy policy, lines, bytes key, long long since_ns, long long deadline_ns)
    cpdef Ballot ahead(self)
    cpdef Ballot behind(self)
    cpdef Ballot second_round(self, Policy policy, hold, Ballot ballot)
    cpdef won(self, Policy policy, hold)
    cpdef bint heed(self, Policy policy, Ballot ballot) except -1
    cpdef undone(self, Policy policy, lines, bytes key, Ballot ballot)
    cpdef rest(self, lines, bytes key)
    cpdef end(self, hold)
    cpdef Command acquiring(self, Policy policy, lines, bytes key, Lease lease, long long ttl_ms)
    cpdef Command undoing(self, bytes key, Lease lease)
    cpdef Command releasing(self, bytes key, Lease lease)
    cpdef Command extending(self, bytes key, Lease lease, long long ttl_ms)
    cpdef Command owned(self, bytes key, Lease lease)
    cpdef Command locked(self, bytes key)
