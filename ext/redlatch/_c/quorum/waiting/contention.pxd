# Types for src/redlatch/quorum/waiting/contention.py when it is compiled. Its annotations give the other types and use
# the classes imported here.

cimport cython

from redlatch._c.votes.commands cimport Look
from redlatch._c.quorum.effects cimport Pause
from redlatch._c.quorum.quorum cimport Quorum
from redlatch._c.quorum.waiting.watches cimport Watch, new_watch
