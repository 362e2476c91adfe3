# Types for src/redlatch/drivers/followers.py.

cimport cython

from redlatch._c.drivers.leader cimport Leader
from redlatch._c.drivers.sleeper cimport Sleeper
from redlatch._c.drivers.lifecycle cimport Lifecycle
from redlatch._c.drivers.wake_chain cimport WakeChain
from redlatch._c.quorum.waiting.queues cimport QueueEntry
from redlatch._c.votes.ballot cimport Ballot, last_open
from redlatch._c.votes.units cimport Clock


@cython.final
cdef class Followers:
    cdef Leader _leader
    cdef WakeChain _chain
    cdef object _connections
    cdef Lifecycle _lifecycle
    cdef object _background
    cdef Clock _clock

    @cython.locals(sleeper=Sleeper)
    cpdef ask(self, Ballot ballot)
    @cython.locals(ballot=Ballot, sleeper=Sleeper, late_ns=cython.longlong, place=Py_ssize_t)
    cpdef await_all(self, list ballots)
    @cython.locals(sleeper=Sleeper, left=cython.longlong)
    cpdef await_entry(self, QueueEntry entry)
    cpdef wait_for(self, Ballot ballot, Sleeper sleeper)
    @cython.locals(last_look=bint, left=cython.longlong)
    cdef _sleep_or_lead(self, Ballot ballot, Sleeper sleeper)
    @cython.locals(other=Sleeper)
    cdef _sleep(self, Sleeper sleeper, long long timeout_ns)
    cdef _withdraw(self, Sleeper sleeper)
