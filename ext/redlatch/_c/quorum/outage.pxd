# Types for src/redlatch/quorum/outage.py when it is compiled. The fields are described there.

cimport cython

from redlatch._c.votes.ballot cimport Ballot


@cython.final
cdef class Outage:
    cdef readonly long long longest_ns
    cdef readonly long long since_ns
    cdef readonly long long waited_ns
    cdef readonly Ballot ballot
    cdef long long _noted_ns
    cdef long long _gave_up_ns
    cdef long long _gave_up_before_ns

    cpdef note(self, Ballot ballot, long long started_ns, long long now_ns)
    cpdef give_up(self, long long started_ns)
    cpdef end(self)
    cpdef long long rides_until_ns(self, long long began_ns, long long until_ns)
    cpdef bint known(self, long long began_ns, long long until_ns, long long now_ns)
