# Types for src/redlatch/drivers/leader.py.

cimport cython

from redlatch._c.drivers.sleeper cimport Sleeper, this_thread
from redlatch._c.drivers.lifecycle cimport Lifecycle
from redlatch._c.drivers.wake_chain cimport WakeChain, Watchers
from redlatch._c.quorum.waiting.queues cimport WaitQueues
from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.units cimport Clock
from redlatch._c.wire.engine.fleet cimport Fleet
from redlatch._c.wire.engine.net cimport Wires


@cython.final
cdef class Leader:
    cdef public Fleet fleet
    cdef readonly dict role
    cdef readonly object inbox
    cdef readonly object sleepers
    cdef public bint polling
    cdef object _arrivals
    cdef object _connections
    cdef Lifecycle _lifecycle
    cdef object _background
    cdef WaitQueues _queues
    cdef Clock _clock
    cdef WakeChain _chain
    cdef Watchers _watchers
    cdef long long _gil_patience_ns
    cdef unsigned long _caller
    cdef long long _alone_ns
    cdef Ballot _taken

    cpdef bint has_role(self) except -1
    cpdef bint take_role(self) except -1

    # calls
    @cython.locals(me=cython.ulong)
    cpdef enter(self)
    cpdef refuse_nested(self)
    cpdef send(self, list ballots)
    @cython.locals(me=object)
    cpdef bint lead(self, Ballot ballot, Ballot fresh) except -1

    # the work of the leader
    @cython.locals(left=cython.longlong)
    cdef _drive(self, Ballot ballot, Ballot fresh)
    @cython.locals(fleet=Fleet)
    cpdef await_replies(self, long long timeout_ns)
    @cython.locals(wires=Wires)
    cdef _be_patient(self)
    @cython.locals(fleet=Fleet, ballot=Ballot)
    cpdef take_all(self)
    @cython.locals(fleet=Fleet)
    cdef _handle_events(self)

    # handing the role over
    cpdef leave(self)
    @cython.locals(sleeper=Sleeper)
    cpdef promote(self)
    @cython.locals(me=object)
    cpdef serve(self)
    @cython.locals(me=object)
    cpdef read_late_replies(self)
    cpdef recover(self)
    @cython.locals(resting=Sleeper)
    cpdef wake_leader(self)
    cpdef wake_called(self)
