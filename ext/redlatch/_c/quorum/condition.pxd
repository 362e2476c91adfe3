cimport cython

from redlatch._c.quorum.effects cimport Answer, Send
from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.quorum cimport Quorum
from redlatch._c.quorum.waiting.watches cimport Watch, new_watch
from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.commands cimport Command, Scripted, Watched
