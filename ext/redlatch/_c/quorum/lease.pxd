cimport cython

from redlatch._c.votes.ballot cimport Ballot


@cython.final
cdef class Lease:
    cdef readonly bytes token
    cdef readonly long long since_ns
    cdef readonly long long asked_ns
    cdef readonly long long deadline_ns
    cdef readonly long long fence
    cdef readonly long long fence_end
    cdef readonly long long hand_offs
    cdef readonly Ballot refresh  # or None
    cdef readonly long long refresh_ns

    cdef _begin(self, bytes token, long long since_ns, long long deadline_ns)
    @cython.locals(lease=Lease)
    cdef Lease _copy(self)
    @cython.locals(lease=Lease)
    cpdef Lease until(self, long long deadline_ns)
    @cython.locals(lease=Lease)
    cpdef Lease extended(self, long long deadline_ns, long long asked_ns)
    @cython.locals(lease=Lease)
    cpdef Lease numbered(self, long long fence, long long fence_end)
    @cython.locals(lease=Lease)
    cpdef Lease handed_off(self)
    @cython.locals(lease=Lease)
    cpdef Lease refreshing(self, Ballot refresh, long long refresh_ns)
    @cython.locals(lease=Lease, deadline_ns=cython.longlong)
    cpdef Lease refreshed(self, long long now_ns)


@cython.locals(lease=Lease)
cpdef Lease new_lease(bytes token, long long since_ns, long long deadline_ns)
