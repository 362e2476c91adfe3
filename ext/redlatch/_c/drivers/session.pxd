# The types of src/redlatch/drivers/session.py when it is compiled; the fields are described there.

from redlatch._c.drivers.standing cimport Standing
from redlatch._c.quorum.acquire cimport acquire
from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.quorum cimport Quorum
from redlatch._c.quorum.release cimport release
from redlatch._c.quorum.waiting.queues cimport WaitQueues
from redlatch._c.votes.units cimport Clock


cdef class Session:
    cdef object __weakref__
    cdef readonly WaitQueues queues
    cdef Quorum _quorum
    cdef Clock _clock
    cdef object _connections
    cdef Standing _standing
    cdef object _schedule
    cdef readonly object held_locks

    cpdef send(self, list commands)
    cpdef wake_called(self)

    # the steps of a call
    cpdef acquiring(self, Hold hold, long long ttl_ms, timeout)
    cpdef extending(self, Hold hold, long long ttl_ms)
    cpdef releasing(self, Hold hold, long long ttl_ms)
    cpdef releasing_nowait(self, Hold hold, released_lock)
    cpdef locked(self, Hold hold, long long ttl_ms)
    cpdef owned(self, Hold hold, long long ttl_ms)
    cpdef condition(self, Hold hold, bytes key, long long ttl_ms)
    cpdef awaiting_call(self, waiter, timeout)
    cpdef counts(self, Hold hold, int count, long long ttl_ms)
    cpdef awaiting_counts(self, counts, timeout)
    cpdef acquiring_many(self, list holds, ticket, long long ttl_ms)
    cpdef acquiring_all(self, list holds, ticket, long long ttl_ms, timeout)
    cpdef releasing_many(self, list holds, long long ttl_ms, dict errors)
    cpdef together(self, list many, dict errors)
    cpdef tickets(self, list holds)
    cdef _give_up_ns(self, timeout)
    cdef _until_ns(self, timeout)

    # recovery
    cpdef abandon(self, Hold hold, ticket)
    cpdef resend_release(self, Hold hold, ticket, error)
    cpdef leave_queue(self, Hold hold)
    cpdef leave_condition(self, waiter, used)
    cpdef take_back(self, counts)
