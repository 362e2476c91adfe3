cimport cython

from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.lease cimport Lease
from redlatch._c.quorum.policy cimport Doubts, FirstMaster, Outage
from redlatch._c.quorum.quorum cimport Quorum
from redlatch._c.quorum.waiting.unqueued_holds cimport UnqueuedHolds
from redlatch._c.quorum.waiting.watches cimport Watch, Watches


@cython.final
cdef class QueueEntry:
    cdef readonly Hold hold
    cdef public long long until_ns
    cdef public bint decided
    cdef public object waiter
    cdef public bint left
    cdef public Lease lease
    cdef public Hold giver
    cdef public bint backs_off
    cdef public bint looks
    cdef public Watch watch

    @cython.locals(lease=Lease)
    cpdef Lease take(self)
    @cython.locals(lease=Lease, giver=Hold)
    cpdef bint take_lease(self) except -1


@cython.final
cdef class WaitQueue:
    cdef readonly object entries
    cdef public long long moved_ns
    cdef public long long pace_ns

    cpdef move(self, long long now_ns)
    cpdef long long turn_ns(self)


@cython.final
cdef class WaitQueues:
    cdef readonly dict heads
    cdef readonly dict by_key
    cdef readonly dict outages
    cdef readonly UnqueuedHolds unqueued
    cdef readonly list called
    cdef readonly set crowded
    cdef readonly Watches watches
    cdef readonly FirstMaster first_master
    cdef public Doubts doubts
    cdef Py_ssize_t _most
    cdef object _deletions

    @cython.locals(head=Hold, queue=WaitQueue)
    cpdef bint become_head(self, Hold hold, long long now_ns) except -1
    cdef bint _keeps_waiting(self, Hold head, long long now_ns) except -1
    cdef _step_aside(self, Hold head, long long now_ns)
    cpdef bint note_unqueued(self, Hold hold, long long now_ns) except -1
    @cython.locals(head=Hold)
    cdef _sweep(self, long long now_ns)
    @cython.locals(hold=Hold, queue=WaitQueue, depth=Py_ssize_t, give_up_ns=cython.longlong)
    cpdef join(self, Quorum quorum, QueueEntry entry, long long now_ns)
    @cython.locals(lease=Lease)
    cpdef Lease step_out(self, QueueEntry entry, long long now_ns)
    @cython.locals(queue=WaitQueue)
    cpdef drop(self, QueueEntry entry)
    @cython.locals(queue=WaitQueue, entry=QueueEntry, lease=Lease, watch=Watch, kept=bint)
    cpdef bint hand_off(self, Quorum quorum, Hold hold, long long now_ns) except -1
    @cython.locals(queue=WaitQueue, key=bytes)
    cpdef leave(self, Hold hold, long long now_ns, bint backs_off)
    cpdef Outage note_outage(self, Hold hold, Outage outage)
    cpdef end_outage(self, bytes key)
    @cython.locals(head=Hold)
    cpdef note_deletion(self, bytes key, long long now_ns)
    cpdef overtake(self, Quorum quorum, Hold hold, long long now_ns)
    @cython.locals(since_ns=cython.longlong, lost=list)
    cpdef bint deleted(self, Hold hold) except -1
    @cython.locals(queue=WaitQueue)
    cpdef bint is_next(self, Hold hold) except -1
    @cython.locals(queue=WaitQueue)
    cpdef successors(self, Quorum quorum, bytes key)
    @cython.locals(entry=QueueEntry)
    cdef bint _call_next(self, WaitQueue queue, long long now_ns, bint backs_off) except -1
    cdef _dissolve(self, bytes key, WaitQueue queue)
    @cython.locals(queue=WaitQueue, head=Hold, earliest=cython.longlong, until=cython.longlong)
    cpdef expire(self, long long now_ns)
    @cython.locals(entry=QueueEntry)
    cdef bint _have_it_look(self, WaitQueue queue, long long now_ns) except -1

    cpdef crowd(self, bytes key)


@cython.locals(entry=QueueEntry)
cdef QueueEntry _next(WaitQueue queue)


@cython.locals(entry=QueueEntry, lease=Lease)
cdef QueueEntry _successor(WaitQueue queue, Quorum quorum, Hold hold, long long now_ns)


cdef _discard(WaitQueue queue, QueueEntry entry)


@cython.locals(entry=QueueEntry)
cdef bint _is_others(WaitQueue queue, Hold hold) except -1
