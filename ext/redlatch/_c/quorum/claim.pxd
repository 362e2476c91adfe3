from redlatch._c.votes.commands cimport Command


cdef class Claim:
    cdef readonly object name
    cdef public int state
    cdef readonly object ticket
    cdef public object entered
    cdef public int others
    cdef public bint awaited
    cdef readonly long long let_go_ns
    cdef readonly Command unanswered  # or None

    cdef _begin(self, name)
    cdef _to_claimed(self, ticket)
    cpdef bint is_held(self)
    cpdef bint leave_own(self)
    cpdef leave(self)
    cpdef follow(self, ticket)
    cpdef to_waiting(self)
    cdef _to_asking(self)
    cdef _to_held(self)
    cdef bint _to_releasing(self, long long now_ns) except -1
    cpdef to_unconfirmed(self, Command command)
    cdef bint _to_resent(self, ticket, Command command, long long now_ns)
    cdef bint _to_undoing(self, ticket)
    cdef _to_free(self)
