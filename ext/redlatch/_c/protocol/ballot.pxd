# The types of src/redlatch/protocol/ballot.py when it is compiled; the fields are described there.

cimport cython

from redlatch._c.protocol.commands cimport Command


@cython.final
cdef class Ballot:
    cdef readonly Command command
    cdef readonly int size
    cdef readonly int quorum
    cdef readonly long long until_ns
    cdef public int yes
    cdef public int no
    cdef public int failed
    cdef public bint decided
    cdef public dict causes
    cdef public tuple silent
    cdef public object waiter
    cdef public object farewell
    cdef public object resent      # a bit for each link, of any number

    cpdef bint settled(self)
    cpdef withdraw(self)
    cpdef bint refused(self)
    cpdef bint unavailable(self)
