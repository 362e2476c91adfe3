cimport cython

from redlatch._c.quorum.attempt cimport Attempt
from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.commands cimport Called, Command, LookAsFirst, Scripted
from redlatch._c.votes.payloads cimport digits
from redlatch._c.quorum.effects cimport Send
from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.kinds.kind cimport Kind
from redlatch._c.quorum.lease cimport Lease
from redlatch._c.quorum.quorum cimport Quorum
from redlatch._c.quorum.waiting.watches cimport Watch, new_watch


cdef class Fair(Kind):
    cdef list _keys
    cdef bytes _bells
    cdef public long long number
    cdef bytes _me
    cdef bytes _bell
    cdef long long _ticket
    cdef long long _next
    cdef int _place
    cdef long long _since_ns
    cdef Watch _called
    cdef bint _is_first
    cdef Ballot _attempt

    cpdef begin(self, Quorum quorum, hold, caller)
    @cython.locals(place=int, command=Scripted, arguments=list)
    cpdef Command acquiring(self, Quorum quorum, bytes key, Lease lease, long long ttl_ms)
    @cython.locals(keys=list, after=list, arguments=list, command=Scripted, again=Scripted, undo=Scripted)
    cpdef Command undoing(self, bytes key, Lease lease, bint last)
    @cython.locals(highest=cython.longlong, bells=cython.longlong, answer=cython.longlong)
    cpdef bint note_answers(self, Quorum quorum, Ballot ballot) except -1
    cpdef undone(self, Quorum quorum, bytes key, Ballot ballot)
    cpdef end_watch(self, Quorum quorum, bytes key)
    cpdef Ballot behind(self)
    cpdef Ballot second_round(self, Quorum quorum, hold, Ballot ballot)
    @cython.locals(won=Ballot, after=list, answer=cython.longlong, client=bytes)
    cdef list _after(self)
    cdef Watch _watch(self, Quorum quorum, bytes key, long long until_ns)
