# The types of src/redlatch/quorum/waiting/watches.py when it is compiled; the fields are described there.

cimport cython

from redlatch._c.votes.ballot cimport Ballot


@cython.final
cdef class Watches:
    # bytes: list of Ballot
    cdef readonly dict by_key
    # deque of Ballot
    cdef readonly object called

    @cython.locals(ballots=list)
    cpdef add(self, bytes key, Ballot ballot)
    @cython.locals(ballots=list)
    cpdef remove(self, bytes key, Ballot ballot)
    @cython.locals(ballot=Ballot)
    cpdef changed(self, int index, bytes key)
    @cython.locals(ballot=Ballot)
    cpdef notify(self, bytes key)
    cpdef notify_all(self)
    cpdef call(self, Ballot ballot)
