# Types for src/redlatch/drivers/aio.py.

cimport cython

from redlatch._c.drivers.base cimport BaseDriver
from redlatch._c.drivers.task_futures cimport Deadlines, LightFuture, new_light_future
from redlatch._c.votes.ballot cimport Ballot, last_open
from redlatch._c.votes.commands cimport Command
from redlatch._c.quorum.effects cimport Answer, Call, Pause, Send
from redlatch._c.quorum.waiting.queues cimport QueueEntry
from redlatch._c.wire.engine.fleet cimport Fleet


@cython.final
cdef class Driver(BaseDriver):
    cdef Fleet _fleet
    cdef object _loop
    cdef object _ended
    cdef readonly object home
    cdef object _attending
    cdef long long _attending_ns
    cdef set _renewals
    cdef set _pauses
    cdef object _arrivals
    cdef object _owner
    cdef bint _forgotten
    cdef object _quorate
    cdef object _complete
    cdef bint _flushing
    cdef dict _writing
    cdef Deadlines _deadlines
    cdef long long _never_ns
    cdef object _timer
    cdef long long _timer_ns
    cdef object _hurry
    cdef long long _hurry_ns

    @cython.locals(call=Call)
    cdef _answer_of(self, steps)
    cdef _note_silence(self, Ballot ballot)
    cdef _recover(self, steps, error)
    cdef _send(self, list ballots)
    @cython.locals(ballot=Ballot)
    cpdef _submit(self, list ballots)

    # one ballot
    @cython.locals(fleet=Fleet)
    cdef _ask(self, Ballot ballot)
    @cython.locals(future=LightFuture, now=cython.longlong)
    cdef LightFuture _future(self, long long until_ns)
    cdef _flush_soon(self)

    # callbacks of the event loop
    @cython.locals(
        fleet=Fleet, decided=list, ballot=Ballot, future=LightFuture, woken=Py_ssize_t, part=Py_ssize_t
    )
    cpdef _readable(self, int index)
    @cython.locals(size=Py_ssize_t)
    cdef Py_ssize_t _first_part(self, Py_ssize_t count) except -1
    cdef _hurry_at(self, long long due_ns)
    @cython.locals(fleet=Fleet, ballot=Ballot)
    cdef _handle_events(self)

    # held locks
    @cython.locals(now=cython.longlong)
    cpdef add_upkeep(self, term)
    cdef _attend_by(self, long long due_ns, long long now_ns)
    cpdef _end_renewal(self, renewal, task)
    cdef _attend_at(self, long long due_ns)
    cdef _attend_to(self, list terms, long long now)
