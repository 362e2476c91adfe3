# Types for src/redlatch/drivers/threads.py.

cimport cython

from redlatch._c.drivers.base cimport BaseDriver
from redlatch._c.drivers.followers cimport Followers
from redlatch._c.drivers.leader cimport Leader
from redlatch._c.drivers.wake_chain cimport WakeChain, Watchers
from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.commands cimport Command
from redlatch._c.quorum.effects cimport Answer, Call, Send
from redlatch._c.quorum.waiting.queues cimport QueueEntry
from redlatch._c.wire.engine.fleet cimport Fleet


@cython.final
cdef class Driver(BaseDriver):
    cdef object _background
    cdef Watchers _watchers
    cdef Leader _leader
    cdef Followers _followers
    cdef object _closing
    cdef object _reports
    cdef object _push_reader
    cdef bint _connected
    cdef dict _connecting

    cpdef run(self, steps)
    cdef _recover(self, steps, error)
    @cython.locals(call=Call)
    cdef _perform(self, steps)
    cpdef read_late_replies(self)

    # held locks
    cpdef add_upkeep(self, term)
    cpdef attend(self)
    cpdef _renew(self, renewal)
