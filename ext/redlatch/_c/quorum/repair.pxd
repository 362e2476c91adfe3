cimport cython

from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.lease cimport Lease
from redlatch._c.quorum.quorum cimport Quorum
from redlatch._c.votes.commands cimport Command


@cython.final
cdef class Extension(Command):
    cdef Command _extend
    cdef Quorum _quorum
    cdef Hold _hold
    cdef long long _began_ns
    cdef int _repairs


@cython.final
cdef class Repair(Command):
    cdef Command _set
