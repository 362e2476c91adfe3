cimport cython

from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.quorum cimport Quorum


cpdef bint granted(
    Quorum quorum, Hold hold, bint won, long long deadline_ns, long long now_ns
) except -1
cpdef bint was_released(Quorum quorum, Hold hold) except -1
cpdef bint broke(Ballot ballot) except -1
cpdef bint is_final(Ballot ballot, int failures)


@cython.locals(lost=bint)
cpdef bint end_release(
    Quorum quorum, Hold hold, Ballot ballot, bint late, bint resent, long long started_ns
) except -1
