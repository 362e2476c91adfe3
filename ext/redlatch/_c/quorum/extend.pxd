cimport cython

from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.quorum.effects cimport Pause
from redlatch._c.quorum.figures cimport Figures
from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.lease cimport Lease
from redlatch._c.quorum.outcome cimport is_final
from redlatch._c.quorum.quorum cimport Quorum
from redlatch._c.quorum.repair cimport Extension
