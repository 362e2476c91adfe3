# Declarations of sleeper.pyx.

cimport cython


cdef extern from "pythread.h" nogil:
    ctypedef void *PyThread_type_lock


cpdef unsigned long this_thread() noexcept


@cython.final
cdef class Sleeper:
    cdef public object thread
    cdef public bint asleep
    cdef public bint decided
    cdef PyThread_type_lock lock

    cpdef sleep(self, long long timeout_ns, Sleeper other=*)
    cpdef wake(self)
