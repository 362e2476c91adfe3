# The types of src/redlatch/protocol/quorum.py when it is compiled.

cimport cython

from redlatch._c.protocol.ballot cimport Ballot
from redlatch._c.protocol.commands cimport Acquire, Command, Extend, Locked, Owned, Release
from redlatch._c.protocol.policy cimport Policy


@cython.final
cdef class Tell:
    cdef readonly Command command


@cython.final
cdef class Pause:
    cdef readonly long long until_ns


@cython.final
cdef class Hold:
    cdef readonly object name
    cdef readonly bytes key
    cdef public int state
    cdef public bytes token
    cdef public long long since_ns
    cdef public long long deadline_ns
    cdef public long long elapsed_ns
    cdef object _gate

    cpdef claim(self)
    cpdef ask(self, bytes token, long long since_ns)
    cpdef free(self)
    cpdef abandon(self)
    cpdef insist(self)
    cpdef bint held(self, long long now_ns)

