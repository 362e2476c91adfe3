# The types of src/redlatch/protocol/foreign.py when it is compiled.

from redlatch._c.protocol.commands cimport Command, Release, Scripted
from redlatch._c.protocol.hold cimport Hold
from redlatch._c.protocol.lease cimport Lease, new_lease
from redlatch._c.protocol.policy cimport Policy
from redlatch._c.protocol.waiting cimport Lines


cdef class InOrder(Command):
    cdef Command _release
