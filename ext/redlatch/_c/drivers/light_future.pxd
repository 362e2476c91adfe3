# Types for src/redlatch/drivers/light_future.py when it is compiled. The fields are described there.

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
