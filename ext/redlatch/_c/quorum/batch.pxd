cimport cython

from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.commands cimport Command
from redlatch._c.quorum.effects cimport Pause, Send
from redlatch._c.quorum.hold cimport Hold, count_acquires
from redlatch._c.quorum.policy cimport Outage
from redlatch._c.quorum.outcome cimport end_release, granted, is_final
from redlatch._c.quorum.quorum cimport Quorum


@cython.final
cdef class CountedSteps:
    cdef object _steps
    cdef Quorum _quorum
    cdef list _holds
    cdef long long _until_ns
    cdef long long _began_ns
    cdef bint _counted
