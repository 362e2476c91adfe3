cimport cython


@cython.final
cdef class Doubts:
    cdef readonly long long until_ns
    cdef dict _by_master
    cdef dict _others
    cdef dict _slots

    cpdef add(self, long long until_ns, int master=*)
    cpdef clear(self, int master)
    cpdef note_other(self, long long until_ns, int master)
    @cython.locals(had=set)
    cpdef bint concern(self, int master, set slots) except -1
    cpdef bint kept(self, int master, long long asked_ns, bytes key) except -1
    cdef bint _kept(self, int master, long long asked_ns) except -1
    @cython.locals(slot=int)
    cdef list _nodes_of(self, bytes key)
    cpdef bint of(self, int master, long long asked_ns)
    cpdef bint cover(self, long long asked_ns, bytes key=*)


@cython.final
cdef class FirstMaster:
    cdef public long long round_ns
    cdef dict _deprioritised

    cpdef int first_of(self, tuple order, bytes key, long long now_ns) except -2
    cpdef deprioritise(self, int index, long long now_ns)


@cython.final
cdef class Outage:
    cdef readonly long long since_ns
    cdef public object error
    cdef long long _gave_up_ns
    cdef long long _gave_up_before_ns

    cpdef give_up(self, long long started_ns)
    cpdef long long rides_until_ns(self, long long patience_ns, long long began_ns, long long until_ns)
    cpdef bint known(self, long long patience_ns, long long began_ns, long long until_ns, long long now_ns)
