# Types for src/redlatch/locks/core.py.

cimport cython


cdef class SharedFields:
    cdef object __weakref__
    cdef public object driver
    cdef public object run
    cdef public object quorum
    cdef public object wait_release
    cdef public object on_lost
    cdef public object no_scripts


cdef class Core:
    cdef object __weakref__
    cdef public SharedFields _shared
    cdef public object _hold
    cdef public long long _ttl_ms
    cdef public object _timeout
    cdef public object _upkeep

    cdef _open(self, SharedFields shared, hold, long long ttl_ms, timeout)
    cdef _timeout_of(self, blocking, timeout)
    @cython.locals(shared=SharedFields)
    cpdef _release(self, bint wait)


@cython.locals(lock=Core)
cpdef new_lock(type lock_of, SharedFields shared, hold_named, bytes prefix, name, kind, long long ttl_ms, timeout)


cpdef list new_locks(type lock_of, SharedFields shared, hold_named, bytes prefix, list names, kind, long long ttl_ms)


cpdef list present(list elements)


@cython.locals(lock=Core)
cpdef list holds_of(list locks)


@cython.locals(lock=Core, longest=cython.longlong)
cpdef long long longest_ttl_ms(list locks) except -1


@cython.locals(place=Py_ssize_t, lock=Core)
cpdef Py_ssize_t first_foreign(list elements, shared) except -2
