# Types for src/redlatch/quorum/counting.py when it is compiled.

cimport cython

from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.quorum.figures cimport Figures
from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.policy cimport Policy


cpdef Figures figures_of(Policy policy, Hold hold)


@cython.locals(figures=Figures)
cpdef count_end(Policy policy, Hold hold, long long ended_ns, str lost=*)


@cython.locals(figures=Figures)
cpdef count_split(Policy policy, Hold hold, Ballot ballot)


@cython.locals(hold=Hold, figures=Figures)
cpdef count_acquires(Policy policy, list holds, long long began_ns, bint at_once)


@cython.final
cdef class CountedSteps:
    cdef object _steps
    cdef Policy _policy
    cdef list _holds
    cdef long long _until_ns
    cdef long long _began_ns
    cdef bint _counted
