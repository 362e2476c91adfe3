from redlatch._c.votes.commands cimport Command, Release, Scripted
from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.lease cimport Lease, new_lease
from redlatch._c.quorum.quorum cimport Quorum


cdef class InOrder(Command):
    cdef Command _release
