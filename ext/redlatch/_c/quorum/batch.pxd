cimport cython

from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.commands cimport Command
from redlatch._c.quorum.effects cimport Pause, Send
from redlatch._c.quorum.counting cimport count_split
from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.outage cimport Outage
from redlatch._c.quorum.outcome cimport end_release, granted, is_final
from redlatch._c.quorum.quorum cimport Quorum
