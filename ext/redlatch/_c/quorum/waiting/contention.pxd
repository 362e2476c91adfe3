cimport cython

from redlatch._c.votes.commands cimport Look
from redlatch._c.quorum.effects cimport Pause
from redlatch._c.quorum.quorum cimport Quorum
from redlatch._c.quorum.waiting.watches cimport Watch, new_watch
