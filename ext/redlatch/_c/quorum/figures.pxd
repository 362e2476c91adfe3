cimport cython

from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.units cimport Durations


@cython.final
cdef class Figures:
    cdef public long long acquired
    cdef public long long busy
    cdef public long long timed_out
    cdef public long long unavailable
    cdef public long long cancelled
    cdef public long long hand_offs
    cdef public long long split_votes
    cdef public long long renewals
    cdef public long long renewals_failed
    cdef readonly dict lost
    cdef readonly Durations acquire_time
    cdef readonly Durations hold_time
    cdef readonly Durations renewal_slack

    cpdef win(self, long long waited_ns)
    cpdef refuse(self, bint at_once)
    cpdef count_split(self, Ballot ballot)
    cpdef renew(self, long long left_ns)
    cpdef lose(self, str reason)
