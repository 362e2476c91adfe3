cimport cython

from redlatch._c.votes.commands cimport Look
from redlatch._c.quorum.effects cimport Pause, Send
from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.policy cimport Outage
from redlatch._c.quorum.quorum cimport Quorum
from redlatch._c.quorum.waiting.queues cimport QueueEntry
from redlatch._c.quorum.waiting.watches cimport Watch, new_watch
