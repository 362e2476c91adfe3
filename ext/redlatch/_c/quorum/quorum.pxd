# Types for src/redlatch/quorum/quorum.py when it is compiled. A .pxd cannot type the arguments and locals of a
# generator. So a module with generators compiles its annotations, which use the classes imported here.

cimport cython

from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.commands cimport Command
from redlatch._c.quorum.effects cimport Answer, Pause, Tell
from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.outcome cimport end_release, is_final
from redlatch._c.quorum.policy cimport Policy
from redlatch._c.quorum.waiting.queues cimport WaitQueues
