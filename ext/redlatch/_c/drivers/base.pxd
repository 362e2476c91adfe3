# Types for src/redlatch/drivers/base.py.

from redlatch._c.drivers.lifecycle cimport Lifecycle
from redlatch._c.quorum.calls cimport Calls
from redlatch._c.quorum.waiting.queues cimport WaitQueues
from redlatch._c.votes.units cimport Clock


cdef class BaseDriver:
    cdef object __weakref__
    cdef readonly object status
    cdef readonly WaitQueues queues
    cdef Calls _quorum
    cdef Clock _clock
    cdef object _connections
    cdef Lifecycle _lifecycle
    cdef readonly object schedule
    cdef readonly object held_locks

    cpdef send(self, list commands)
    cpdef wake_called(self)
