# The types of src/redlatch/protocol/family.py when it is compiled; as in quorum.py, its annotations are the rest.

cimport cython

from redlatch._c.protocol.ballot cimport Ballot
from redlatch._c.protocol.commands cimport AcquireFenced, Command, Confirm, Look, Scripted
from redlatch._c.protocol.hold cimport Hold
from redlatch._c.protocol.kind cimport Kind
from redlatch._c.protocol.lease cimport Lease, new_lease
from redlatch._c.protocol.policy cimport Policy
from redlatch._c.protocol.waiting cimport Lines
