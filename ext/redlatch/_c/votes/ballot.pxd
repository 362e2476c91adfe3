# Types for src/redlatch/votes/ballot.py.

cimport cython

from redlatch._c.votes.commands cimport Command


# The only method that a subclass replaces is `settled_again`.
cdef class Ballot:
    cdef readonly Command command
    cdef readonly int size
    cdef readonly int quorum
    cdef public long long asked
    cdef public long long until_ns
    cdef public int yes
    cdef public int no
    cdef public int failed
    cdef public long long refusers
    cdef public long long unsent
    cdef public bint decided
    cdef public dict causes
    cdef public tuple silent
    cdef public dict answers       # int: int or bytes
    cdef public bint reopened
    cdef public object waiter
    cdef public Ballot behind
    cdef public object released_lock
    cdef public object released_lease
    cdef public object resent      # a bit mask of links, as an int of any size
    cdef public int hops
    cdef public long long hurry_ns

    @cython.final
    cdef _begin(self, Command command, int size, int quorum, long long until_ns)
    @cython.locals(lost=int, kept=int, undecided=int, against=int)
    cpdef bint settled(self)
    cpdef bint settled_again(self)
    cpdef ask_only(self, int index, long long until_ns)
    cpdef Ballot ask_others(self, int size, int quorum, long long until_ns)
    cpdef count_answer(self, int index, answer, bint pushes)
    cpdef int missing(self)
    cpdef bint lone(self)
    cpdef bint spares(self, int suspects) except -1
    cpdef bint won(self)
    cpdef reopen(self, long long until_ns)
    cpdef withdraw(self)
    cpdef bint refused(self)
    @cython.locals(silent=int)
    cpdef bint unavailable(self)


@cython.locals(ballot=Ballot)
cpdef Ballot new_ballot(Command command, int size, int quorum, long long until_ns)


@cython.locals(place=Py_ssize_t, ballot=Ballot)
cpdef Py_ssize_t last_open(list ballots, Py_ssize_t end, long long late_ns) except -2


cdef int _undecided(Ballot ballot) except -1
