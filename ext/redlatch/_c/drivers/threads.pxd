# The types of src/redlatch/drivers/threads.py when it is compiled; the fields are described there.

cimport cython

from redlatch._c.drivers.sleeper cimport Sleeper
from redlatch._c.protocol.ballot cimport Ballot
from redlatch._c.protocol.commands cimport Command
from redlatch._c.protocol.hold cimport Hold
from redlatch._c.protocol.policy cimport Clock, Policy
from redlatch._c.protocol.effects cimport Answer, Tell
from redlatch._c.protocol.waiting cimport Lines, Turn
from redlatch._c.wire.engine cimport Fleet
from redlatch._c.wire.net cimport Wires


@cython.final
cdef class Driver:
    cdef object __weakref__
    cdef readonly object protocol
    cdef readonly object batch
    cdef readonly Lines lines
    cdef Policy _policy
    cdef Clock _clock
    cdef object _roster
    cdef object _janitor
    cdef object _warden
    cdef object _agenda
    cdef long long _gil_patience_ns
    cdef object _caller
    cdef long long _alone_ns
    cdef Fleet _fleet
    cdef dict _role
    cdef object _inbox         # deque of Ballot
    cdef object _arrivals      # deque of (index, Outcome)
    cdef object _sleepers      # deque of Sleeper
    cdef object _ready         # deque of Sleeper
    cdef long long _apart_ns
    cdef long long _begun_ns
    cdef long long _passed
    cdef long long _passed_ns
    cdef object _waker
    cdef Sleeper _resting
    cdef bint _polling
    cdef bint _connected
    cdef bint _hung_up
    cdef Ballot _taken
    cdef bint _overdue
    cdef dict _connecting      # process id: Lock
    cdef object _watchers      # deque of Sleeper

    cpdef acquire(self, Hold hold, long long ttl_ms, timeout, ticket)
    cpdef abandon(self, Hold hold, ticket)
    cpdef release(self, Hold hold, long long ttl_ms)
    cpdef part(self, Hold hold, farewell)
    cpdef insist(self, Hold hold, ticket, error)
    cpdef run(self, steps)
    cdef _end(self, steps)
    cdef _perform(self, steps)
    cdef _withdraw(self, Sleeper sleeper)
    @cython.locals(ballot=Ballot, late_ns=cython.longlong)
    cdef _await_all(self, list ballots)
    cpdef tell(self, list commands)
    cdef _tell(self, list ballots)
    cdef _refuse_nested(self)

    cpdef leave_line(self, Hold hold)
    @cython.locals(left=cython.longlong)
    cdef _await_turn(self, Ballot ballot)
    @cython.locals(ballot=Ballot)
    cdef _wake_called(self)

    # one ask
    cdef _ask(self, Ballot ballot)
    cdef _wait_for(self, Ballot ballot, Sleeper sleeper)
    @cython.locals(last_look=bint, left=cython.longlong, other=Sleeper)
    cdef _sleep_or_drive(self, Ballot ballot, Sleeper sleeper)

    # the role of driver
    @cython.locals(fleet=Fleet, left=cython.longlong)
    cdef _drive(self, Ballot ballot, Ballot fresh)
    @cython.locals(fleet=Fleet)
    cdef _await_replies(self, long long timeout_ns)
    @cython.locals(wires=Wires)
    cdef _be_patient(self)
    @cython.locals(resting=Sleeper, now=cython.longlong, slow=bint)
    cdef _rest(self)
    @cython.locals(resting=Sleeper)
    cdef _rouse(self)
    @cython.locals(fleet=Fleet, ballot=Ballot)
    cdef _take_all(self)
    @cython.locals(fleet=Fleet, ballot=Ballot, sleeper=Sleeper, now=cython.longlong)
    cdef _settle(self)
    @cython.locals(sleeper=Sleeper)
    cdef Sleeper _next_asleep(self)
    @cython.locals(sleeper=Sleeper)
    cdef Sleeper _next_ready(self)
    cdef Sleeper _next_if_mine(self)
    @cython.locals(sleeper=Sleeper)
    cdef _wake_next(self)
    cdef _wake_all(self)
    cdef _leave(self)
    @cython.locals(sleeper=Sleeper)
    cdef _promote(self)
    cdef _serve(self)
    cpdef bint tidy(self) except -1
    cdef _close_late(self)

    # held locks
    cpdef care_for(self, care)
    cpdef attend(self)
    cpdef _renew(self, list renewed)

    # dialling
    cdef _note_progress(self)
    cdef _watch(self, done, long long until_ns)
