from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.lease cimport Lease, new_lease
from redlatch._c.quorum.quorum cimport Quorum
from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.commands cimport AcquireFenced, AskHolder, Command, Confirm
