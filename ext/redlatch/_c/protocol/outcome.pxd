# The types of src/redlatch/protocol/outcome.py when it is compiled.

from redlatch._c.protocol.ballot cimport Ballot
from redlatch._c.protocol.hold cimport Hold
from redlatch._c.protocol.policy cimport Policy
from redlatch._c.protocol.waiting cimport Lines


cpdef bint granted(
    Policy policy, Lines lines, Hold hold, bint won, long long deadline_ns, long long now_ns
) except -1
cpdef bint is_final(Ballot ballot, int failures)
cpdef bint end_release(
    Policy policy, Hold hold, Ballot ballot, bint late, bint resent, long long started_ns
) except -1
