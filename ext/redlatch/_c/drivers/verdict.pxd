# The types of src/redlatch/drivers/verdict.py when it is compiled; the fields are described there.

cimport cython


@cython.final
cdef class Verdict:
    cdef public bint _asyncio_future_blocking
    cdef public bint done
    cdef object _loop
    cdef object _callback
    cdef object _context
    cdef object _cancelled

    cpdef wake(self)
    cpdef wake_soon(self)
    cdef _schedule(self)
