cimport cython

from redlatch._c.quorum.attempt cimport Attempt
from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.commands cimport Called, Command, Look, Scripted
from redlatch._c.votes.payloads cimport digits
from redlatch._c.quorum.effects cimport Send
from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.kinds.kind cimport Kind
from redlatch._c.quorum.lease cimport Lease
from redlatch._c.quorum.quorum cimport Quorum
from redlatch._c.quorum.waiting.watches cimport Watch, new_watch


cdef class Fair(Kind):
    cdef list _keys
    cdef bytes _me
    cdef bytes _waiter
    cdef long long _ticket
    cdef long long _next
    cdef int _place
    cdef long long _since_ns
    cdef Watch _called
    cdef dict _answers

    cpdef begin(self, Quorum quorum, hold, caller)
    @cython.locals(place=int)
    cpdef Command acquiring(self, Quorum quorum, bytes key, Lease lease, long long ttl_ms)
    cpdef Command undoing(self, bytes key, Lease lease, bint last)
    cpdef bint note_answers(self, Quorum quorum, Ballot ballot) except -1
    cpdef undone(self, Quorum quorum, bytes key, Ballot ballot)
    cpdef end_watch(self, Quorum quorum, bytes key)
    cpdef Ballot behind(self)
    cdef Watch _watch(self, Quorum quorum, bytes key, long long until_ns)
    cdef _left_ns(self, Quorum quorum)
