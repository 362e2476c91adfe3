# The types of src/redlatch/drivers/aio.py when it is compiled.

cimport cython

from redlatch._c.protocol.commands cimport Command
from redlatch._c.protocol.policy cimport Policy
from redlatch._c.protocol.quorum cimport Ask, Tell
from redlatch._c.wire.engine cimport Ballot, Fleet


cdef class Deadlines:
    cdef dict _queues

    cpdef add(self, ballot, long long now_ns, long long until_ns)


cdef class Driver:
    cdef object __weakref__
    cdef readonly object protocol
    cdef object _clock
    cdef int _size
    cdef int _quorum
    cdef object _roster
    cdef Fleet _fleet
    cdef object _loop
    cdef object _home
    cdef object _quorate
    cdef object _complete
    cdef bint _flushing
    cdef dict _writing
    cdef Deadlines _deadlines
    cdef object _timer
    cdef long long _timer_ns

    cpdef tell(self, Command command)

    @cython.locals(ballot=Ballot)
    cdef _submit(self, Command command, future)
    @cython.locals(ballot=Ballot)
    cdef _settle(self)
