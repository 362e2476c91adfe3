# WaitQueues has methods that take a Quorum, so the type comes before its fields.
cdef class Quorum

cimport cython

from redlatch._c.quorum.figures cimport Figures
from redlatch._c.quorum.policy cimport Doubts
from redlatch._c.quorum.waiting.queues cimport WaitQueues
from redlatch._c.votes.ballot cimport Ballot, new_ballot
from redlatch._c.votes.commands cimport Command
from redlatch._c.votes.payloads cimport joined
from redlatch._c.votes.units cimport Clock, drift_ns


@cython.final
cdef class Tokens:
    cdef object _draw
    cdef list _stock
    cdef object _label_of_now
    cdef bytes _label
    cdef long long _label_until_ns

    cpdef bytes take(self, long long now_ns)
    cpdef bytes take_plain(self)


cdef class Quorum:
    cdef readonly tuple masters
    cdef readonly int size
    cdef readonly int majority
    cdef readonly double drift_factor
    cdef readonly object attempt_ns  # or None
    cdef readonly object retry
    cdef readonly Clock clock
    cdef readonly object random
    cdef readonly Tokens tokens
    cdef readonly object fences
    cdef readonly tuple order
    cdef readonly long long tenure_ns
    cdef readonly long long tenure_count
    cdef readonly long long max_waiters
    cdef readonly bint refuse_late
    cdef readonly bint trust_local_holder
    cdef readonly long long max_ttl_ms
    cdef readonly Doubts doubts
    cdef readonly WaitQueues queues
    cdef readonly object groups
    cdef readonly Figures figures
    cdef readonly long long patience_ns
    cdef readonly int replicas
    cdef public long long moving_ns
    cdef public long long released_ns

    cpdef Ballot ballot(self, Command command, long long until_ns=*)
    cpdef long long validity_ns(self, long long ttl_ms)
    cpdef long long wait_ns(self, long long ttl_ms)
    cpdef long long wait_within(self, long long ttl_ms, long long left_ns)
    cpdef long long lone_ns(self, long long wait_ns, long long round_ns)
