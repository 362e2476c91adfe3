# Types for src/redlatch/quorum/kinds/fenced.py when it is compiled. Its annotations give the other types and use the
# classes imported here.

from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.lease cimport Lease, new_lease
from redlatch._c.quorum.quorum cimport Quorum
from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.commands cimport AcquireFenced, Command, Confirm
