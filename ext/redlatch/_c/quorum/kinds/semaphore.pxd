from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.lease cimport Lease
from redlatch._c.quorum.quorum cimport Quorum
from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.commands cimport Command, Scripted
from redlatch._c.votes.payloads cimport digits
