# The types of src/redlatch/drivers/aio.py when it is compiled; the fields are described there.

cimport cython

from redlatch._c.drivers.deadlines cimport Deadlines
from redlatch._c.drivers.verdict cimport Verdict
from redlatch._c.protocol.ballot cimport Ballot
from redlatch._c.protocol.commands cimport Command
from redlatch._c.protocol.hold cimport Hold
from redlatch._c.protocol.policy cimport Clock, Policy
from redlatch._c.protocol.effects cimport Answer, Pause, Tell
from redlatch._c.protocol.waiting cimport Lines, Turn
from redlatch._c.wire.engine cimport Fleet


@cython.final
cdef class Driver:
    cdef object __weakref__
    cdef readonly object protocol
    cdef readonly object batch
    cdef readonly Lines lines
    cdef Policy _policy
    cdef Clock _clock
    cdef object _roster
    cdef Fleet _fleet
    cdef object _loop
    cdef readonly object home
    cdef object _agenda
    cdef object _attending
    cdef long long _attending_ns
    cdef set _renewals
    cdef set _pauses
    cdef object _arrivals      # deque of (index, Outcome)
    cdef object _owner         # weak reference, or None
    cdef bint _forgotten
    cdef object _quorate
    cdef object _complete
    cdef bint _flushing
    cdef dict _writing
    cdef Deadlines _deadlines
    cdef object _timer
    cdef long long _timer_ns
    cdef object _hurry
    cdef long long _hurry_ns

    cpdef acquire(self, Hold hold, long long ttl_ms, timeout)
    cpdef acquiring(self, Hold hold, long long ttl_ms, timeout)
    cpdef release(self, Hold hold, long long ttl_ms)
    cdef _recover(self, Hold hold, ticket, error)
    cpdef part(self, Hold hold, farewell)
    cpdef tell(self, list commands)
    cdef _tell(self, list ballots)
    @cython.locals(ballot=Ballot)
    cpdef _submit(self, list ballots)

    # one ask
    @cython.locals(fleet=Fleet)
    cdef _ask(self, Ballot ballot)
    @cython.locals(verdict=Verdict)
    cdef Verdict _verdict(self, Ballot ballot)
    cdef _flush_soon(self)
    cdef _wake_called(self)

    # callbacks of the loop
    @cython.locals(fleet=Fleet, decided=list, ballot=Ballot, verdict=Verdict)
    cpdef _readable(self, int index)
    cdef _hurry_at(self, long long due_ns)
    @cython.locals(fleet=Fleet, ballot=Ballot)
    cdef _settle(self)

    # held locks
    cpdef care_for(self, care)
    cdef _attend_at(self, long long due_ns)
    cdef _take_care(self, list renewed, long long now)
