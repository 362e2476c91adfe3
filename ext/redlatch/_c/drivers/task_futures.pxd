# Types for src/redlatch/drivers/task_futures.py.

cimport cython


@cython.final
cdef class LightFuture:
    cdef public bint _asyncio_future_blocking
    cdef public bint done
    cdef readonly long long until_ns
    cdef object _loop
    cdef object _callback
    cdef object _context
    cdef object _cancelled

    cdef _begin(self, loop, long long until_ns)
    cpdef wake(self, ended)
    cpdef wake_soon(self)
    cdef _schedule(self)


@cython.locals(future=LightFuture)
cpdef LightFuture new_light_future(loop, long long until_ns)


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
