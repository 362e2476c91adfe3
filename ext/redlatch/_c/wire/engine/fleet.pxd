# Types for src/redlatch/wire/engine/fleet.py.

cimport cython

from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.commands cimport Command
from redlatch._c.votes.units cimport Clock
from redlatch._c.wire.engine.link cimport Link
from redlatch._c.wire.engine.net cimport Wires
from redlatch._c.wire.engine.replies cimport begins_line, parse_line, read_push
from redlatch._c.wire.engine.routes cimport Routes
from redlatch._c.wire.engine.silence cimport Silence


@cython.final
cdef class Fleet:
    cdef readonly Wires wires
    cdef readonly list links
    cdef readonly int size
    cdef readonly int quorum
    cdef readonly Clock clock
    cdef readonly Silence silence
    cdef public list decided
    cdef public list lost
    cdef public list fallen
    cdef public list changed
    cdef public bint torn
    cdef public bint staged
    cdef public bint resent
    cdef public long long pulse_ns
    cdef readonly bint guarded
    cdef public long long horizon_ms
    cdef public long long raised_ns
    cdef readonly long long replaced_ns
    cdef public dict held
    cdef public bint stirs_held
    cdef public Py_ssize_t max_pending
    cdef public Py_ssize_t max_unsent
    cdef public Py_ssize_t most_pending
    cdef public Py_ssize_t most_unsent
    cdef public Py_ssize_t max_owed
    cdef public long long stall_ns
    cdef dict _lines
    cdef Command _note
    cdef Command _asking
    cdef readonly Routes routes
    cdef public int synced

    # for the drivers
    @cython.locals(command=Command)
    cpdef submit(self, Ballot ballot)
    @cython.locals(link=Link, command=Command, dialect=int, payload=bytes)
    cdef _stage(self, Ballot ballot, int asked)
    cdef _end_submit(self, Ballot ballot)
    @cython.locals(command=Command)
    cpdef park(self, Link link, Ballot ballot)
    cpdef flush(self)
    @cython.locals(link=Link, ready=bint)
    cpdef pump(self, long long timeout_ns)
    cpdef hurry(self)
    cpdef receive(self, int index)
    cpdef recover(self)
    cpdef look(self)
    cpdef fail_unsubmitted(self, Ballot ballot)
    cdef _fail_missing(self, Ballot ballot, cause)
    @cython.locals(left=cython.longlong)
    cpdef await_answers(self, long long until_ns)
    @cython.locals(link=Link)
    cpdef bint unanswered(self) except -1
    cpdef Ballot ballot_of(self, Command command)

    # internal
    cdef _begin(self)
    cdef _end(self)
    @cython.locals(came=cython.longlong, now=cython.longlong, owing=Py_ssize_t)
    cdef bint _stalled(self, Link link) except -1
    @cython.locals(link=Link)
    cdef _pulse(self, long long now_ns)
    @cython.locals(ballot=Ballot)
    cdef _pulse_one(self, Link link, long long now_ns)
    @cython.locals(now=cython.longlong, wanted_ms=cython.longlong)
    cdef bint _beat(self, Link link, Ballot ballot, long long server_us, long long horizon_ms) except -1
    @cython.locals(command=Command, ballot=Ballot, owed=Ballot)
    cdef set _send_owed(self, Link link)
    @cython.locals(now=cython.longlong)
    cdef _observe(self, Link link, monitor)
    @cython.locals(ballot=Ballot)
    cdef _raise(self, Link link, long long ttl_ms)
    @cython.locals(link=Link)
    cdef _survey(self)
    @cython.locals(command=Command, now=cython.longlong)
    cdef bint _holds(self, Ballot ballot) except -1
    @cython.locals(command=Command, link=Link)
    cdef bint _awaits_horizons(self, Ballot ballot, long long now_ns) except -1
    @cython.locals(link=Link, command=Command, asked=int)
    cdef int _covering(self, Ballot ballot) except? -1
    cdef Ballot _copy_uncovered(self, Link link, Ballot ballot)
    @cython.locals(now=cython.longlong, ballot=Ballot)
    cdef _resume_held(self)
    @cython.locals(ballot=Ballot)
    cdef _withdraw_held(self, Command release)
    cdef _announce(self, Link link, Command command)
    cpdef send_on(self, Link link, Ballot ballot)
    cpdef send_late(self, Link link, Ballot ballot)
    cdef _take(self, Link link, data)
    @cython.locals(owing=Py_ssize_t)
    cdef bint _full(self, Link link) except -1

    @cython.locals(
        came=bytes, line=bytes, ballot=Ballot, command=Command, start=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t
    )
    cdef _feed(self, Link link, data)
    cdef _keep_tail(self, Link link, bytes tail)

    @cython.locals(end=Py_ssize_t)
    cdef Py_ssize_t _push(self, Link link, bytes came, Py_ssize_t start) except -1
    cdef _parse(self, Link link, bytes line)

    @cython.locals(ballot=Ballot, command=Command)
    cdef bint _count(self, Link link, reply) except -1
    @cython.locals(command=Command)
    cdef bint _count_other(self, Link link, Ballot ballot, reply) except -1
    cdef _refused(self, Link link, Ballot ballot, error)
    cdef _unpark(self, Link link)
    cpdef fail_vote(self, int voter, Ballot ballot, cause)
    cdef _fail_unsent(self, Link link, Ballot ballot)
    cdef _tally(self, Ballot ballot)
    cdef _decide(self, Ballot ballot)
    @cython.locals(command=Command)
    cdef _repair(self, Link link, Ballot ballot)
    cdef _send_there(self, Link link, Command command, Ballot behind=*)
    @cython.locals(ballot=Ballot)
    cdef _suspect(self, long long now_ns)
    cdef _note_refusal(self, int voter, Ballot ballot)
    cdef _count_answer(self, Link link, Ballot ballot, reply)
    cdef _resend(self, Link link, Ballot ballot, bytes text)
    cdef _stir(self, Link link, Ballot ballot)
    cdef _stir_routed(self, Link link, Ballot ballot)
    @cython.locals(ballot=Ballot)
    cpdef drop_link(self, Link link, cause)
    @cython.locals(link=Link)
    cpdef stage_routed(self, Ballot ballot)
    cpdef send_routed(self, Link link, Ballot ballot)
    cpdef send_asking(self, Link link, Ballot ballot)
    cdef _stage_asking(self, Link link)
    cdef bint _lags(self, Link link, Ballot ballot) except -1
    @cython.locals(link=Link, now=cython.longlong)
    cdef _stage_waits(self)
    cdef bint _defers(self, Link link, Command command, reply) except -1
    @cython.locals(ballot=Ballot)
    cdef _take_count(self, Link link, Command command, number)
    cdef _count_deferred(self, Link link, Ballot ballot, reply, cause)
    cdef bint _is_open(self, Ballot ballot) except -1
