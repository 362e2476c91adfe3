# The types of src/redlatch/protocol/turns.py when it is compiled; as in quorum.py, its annotations are the rest.

cimport cython

from redlatch._c.protocol.ballot cimport Ballot
from redlatch._c.protocol.commands cimport Look
from redlatch._c.protocol.effects cimport Pause, Tell
from redlatch._c.protocol.hold cimport Hold
from redlatch._c.protocol.lease cimport Lease
from redlatch._c.protocol.policy cimport Policy
from redlatch._c.protocol.waiting cimport Lines, Turn
