cimport cython


@cython.final
cdef class Doubts:
    cdef readonly long long until_ns
    cdef dict _by_master
    cdef dict _others

    cpdef add(self, long long until_ns, int master=*)
    cpdef clear(self, int master)
    cpdef note_other(self, long long until_ns, int master)
    cpdef bint kept(self, int master, long long asked_ns) except -1
    cpdef bint of(self, int master, long long asked_ns)
    cpdef bint cover(self, long long asked_ns)
