cimport cython

from redlatch._c.quorum.attempt cimport Attempt
from redlatch._c.quorum.kinds.kind cimport Kind
from redlatch._c.quorum.quorum cimport Quorum
from redlatch._c.quorum.waiting.watches cimport Watch, new_watch
from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.commands cimport Look
