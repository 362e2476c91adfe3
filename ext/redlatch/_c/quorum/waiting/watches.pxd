cimport cython

from redlatch._c.quorum.quorum cimport Quorum
from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.votes.commands cimport Command


# This class is not final: in a final class, Cython reports the overriding method as an error.
cdef class Watch(Ballot):
    cpdef bint settled_again(self)
    cpdef bint watchable(self)
    cpdef left_ns(self)
    cpdef int standing(self) except -1
    cpdef bint change(self, int index) except -1


@cython.locals(watch=Watch)
cpdef Watch new_watch(Quorum quorum, Command command, long long until_ns)


@cython.final
cdef class Watches:
    cdef readonly dict by_key
    cdef readonly list called
    cdef public object held
    cdef public bint polls

    @cython.locals(watches=list)
    cpdef add(self, bytes key, Watch watch)
    @cython.locals(watches=list)
    cpdef remove(self, bytes key, Watch watch)
    @cython.locals(watch=Watch)
    cpdef bint changed(self, int index, key) except -1
    @cython.locals(watch=Watch)
    cpdef notify(self, bytes key)
    cpdef bint connected(self, fleet) except -1
    cpdef notify_all(self)
    cpdef call(self, Watch watch)
