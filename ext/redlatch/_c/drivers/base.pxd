# The types of src/redlatch/drivers/base.py when it is compiled; the fields are described there.

cimport cython

from redlatch._c.drivers.standing cimport Standing
from redlatch._c.quorum.calls cimport Calls
from redlatch._c.quorum.effects cimport Call
from redlatch._c.quorum.waiting.queues cimport WaitQueues
from redlatch._c.votes.units cimport Clock


cdef class BaseDriver:
    cdef object __weakref__
    cdef readonly object status
    cdef readonly WaitQueues queues
    cdef Calls _quorum
    cdef Clock _clock
    cdef object _connections
    cdef Standing _standing
    cdef readonly object schedule
    cdef readonly object held_locks

    cpdef send(self, list commands)
    cpdef wake_called(self)


@cython.locals(call=Call)
cpdef answer_of(steps)
