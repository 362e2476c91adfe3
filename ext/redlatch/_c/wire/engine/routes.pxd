# Types for src/redlatch/wire/engine/routes.py.

cimport cython

from redlatch._c.votes.commands cimport Command
from redlatch._c.votes.key cimport slot_of
from redlatch._c.wire.engine.link cimport Link


@cython.final
cdef class Routes:
    cdef public object source
    cdef public list table
    cdef public dict links
    cdef public object cause
    cdef public dict asked
    cdef public list delayed
    cdef public dict moved
    cdef public set named
    cdef dict _left

    @cython.locals(slot=int)
    cpdef Link link_of(self, Command command)
    cdef Link _former(self, int slot, Command release)
    @cython.locals(link=Link)
    cpdef leave(self, int slot)
    cpdef move(self, int slot, Link link, long long now_ns)
    cpdef remove(self, Link link)
    cpdef forget(self, Link link)
