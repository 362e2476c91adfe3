# Types for src/redlatch/quorum/acquire.py when it is compiled. Its annotations give the other types and use the classes
# imported here.

cimport cython

from redlatch._c.quorum.attempt cimport Attempt, new_attempt
from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.quorum.effects cimport Pause, Send
from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.kinds.kind cimport Kind
from redlatch._c.quorum.policy cimport Policy
from redlatch._c.quorum.waiting.queues cimport WaitQueues
