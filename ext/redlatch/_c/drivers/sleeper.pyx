"""Let a thread sleep until another thread wakes it. The GIL is released between the wake-up of another and the sleep.

This module has the interface of `src/redlatch/drivers/sleeper.py`. If a thread wakes another one while it has the GIL,
the other one runs at once, on the same core or on another. It then finds that it needs the GIL, and sleeps again.
"""

from cpython.exc cimport PyErr_CheckSignals

from redlatch._c.wire.engine.net cimport BootClock


cdef extern from "pythread.h" nogil:
    ctypedef long long PY_TIMEOUT_T
    ctypedef enum PyLockStatus:
        PY_LOCK_FAILURE
        PY_LOCK_ACQUIRED
        PY_LOCK_INTR
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock lock)
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, PY_TIMEOUT_T microseconds, int interruptible)
    void PyThread_release_lock(PyThread_type_lock lock)
    unsigned long PyThread_get_thread_ident()

cdef BootClock clock = BootClock()


cpdef unsigned long this_thread() noexcept:
    return PyThread_get_thread_ident()


cdef class Sleeper:
    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError
        PyThread_acquire_lock_timed(self.lock, 0, 0)

    def __init__(self):
        self.thread = this_thread()
        self.asleep = True

    def __dealloc__(self):
        if self.lock != NULL:
            # Free the lock unlocked, as PyThread_allocate_lock made it.
            PyThread_acquire_lock_timed(self.lock, 0, 0)
            PyThread_release_lock(self.lock)
            PyThread_free_lock(self.lock)

    cpdef sleep(self, long long timeout_ns, Sleeper other=None):
        cdef long long until = clock.now() + timeout_ns
        cdef PyThread_type_lock theirs = NULL
        cdef PyLockStatus status
        if other is not None and other.asleep:
            other.asleep = False
            theirs = other.lock
        while True:
            with nogil:
                if theirs != NULL:
                    PyThread_release_lock(theirs)
                    theirs = NULL
                status = PyThread_acquire_lock_timed(self.lock, max(timeout_ns, 0) // 1000, 1)
            if status != PY_LOCK_INTR:
                return
            PyErr_CheckSignals()
            timeout_ns = until - clock.now()

    cpdef wake(self):
        if self.asleep:
            self.asleep = False
            PyThread_release_lock(self.lock)
