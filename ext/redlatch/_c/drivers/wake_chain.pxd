# Types for src/redlatch/drivers/wake_chain.py.

cimport cython

from redlatch._c.drivers.sleeper cimport Sleeper, this_thread
from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.units cimport Clock


@cython.final
cdef class WakeChain:
    cdef readonly list ready
    cdef public Sleeper resting
    cdef Clock _clock
    cdef long long _apart_ns
    cdef long long _begun_ns
    cdef long long _passed
    cdef long long _passed_ns
    cdef object _waker

    @cython.locals(idle=bint, sleeper=Sleeper, now=cython.longlong)
    cpdef wake_owners(self, list decided)
    @cython.locals(sleeper=Sleeper)
    cpdef Sleeper next_asleep(self)
    @cython.locals(sleeper=Sleeper)
    cdef Sleeper _next_ready(self)
    cpdef Sleeper next_if_mine(self)
    @cython.locals(sleeper=Sleeper)
    cpdef wake_next(self)
    cpdef wake_all(self)
    @cython.locals(resting=Sleeper, now=cython.longlong, slow=bint)
    cpdef rest(self)


@cython.final
cdef class Watchers:
    cdef Clock _clock
    cdef object _sleepers

    cpdef notify(self)
    cpdef wait(self, done, long long until_ns)
