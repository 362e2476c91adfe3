# Types for src/redlatch/drivers/deadlines.py when it is compiled. The fields are described there.

cimport cython

from redlatch._c.drivers.light_future cimport LightFuture


@cython.final
cdef class Deadlines:
    cdef dict _queues
    cdef long long _wait_ms
    cdef list _queue
    cdef int _added
    cdef Py_ssize_t _most
    cdef long long _tick_ns
    cdef int _often

    @cython.locals(wait_ms=cython.longlong)
    cpdef add(self, LightFuture future, long long now_ns)
    @cython.locals(queue=list, future=LightFuture, over=Py_ssize_t, left=Py_ssize_t)
    cdef _sweep(self)
