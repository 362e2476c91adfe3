cimport cython

from redlatch._c.quorum.acquire cimport acquire
from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.quorum cimport Quorum
from redlatch._c.quorum.release cimport release, release_nowait


@cython.final
cdef class Calls(Quorum):
    cpdef acquire(self, Hold hold, long long ttl_ms, timeout, ticket, lock=*)
    cpdef acquire_in_task(self, Hold hold, long long ttl_ms, timeout, ticket_of, lock)
    cpdef release(self, Hold hold, long long ttl_ms)
    cpdef release_nowait(self, Hold hold, released_lock)
    cdef _give_up_ns(self, timeout)
    cdef _until_ns(self, timeout)
