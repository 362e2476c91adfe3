cimport cython

from redlatch._c.votes.ballot cimport Ballot
from redlatch._c.quorum.figures cimport Figures
from redlatch._c.quorum.hold cimport Hold
from redlatch._c.quorum.quorum cimport Quorum


cpdef Figures figures_of(Quorum quorum, Hold hold)


@cython.locals(figures=Figures, won_ns=cython.longlong)
cpdef count_end(Quorum quorum, Hold hold, long long ended_ns, lost=*)


@cython.locals(figures=Figures)
cpdef count_split(Quorum quorum, Hold hold, Ballot ballot)


@cython.locals(hold=Hold, figures=Figures)
cpdef count_acquires(Quorum quorum, list holds, long long began_ns, bint at_once)


@cython.final
cdef class CountedSteps:
    cdef object _steps
    cdef Quorum _quorum
    cdef list _holds
    cdef long long _until_ns
    cdef long long _began_ns
    cdef bint _counted
