"""System calls without the GIL: gathered sends, one poll, gathered receives, the clock.

The interface is that of `src/redlatch/wire/engine/net.py`. Each group of calls releases the GIL once. If another
thread computes, it takes a switch interval (5 ms, fifty times a round trip) to get the GIL back. Then `wait` polls with
the GIL for up to `gil_patience_ns` before it releases it. It does so only then: a poll with a short timeout sets a
hardware timer, which costs a virtual machine some microseconds each time. TLS sockets are Python objects and need the
GIL.
"""

import os
import socket
import ssl

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset
from posix.time cimport clock_gettime, timespec

from redlatch._c.votes.units cimport Clock
from redlatch.wire.engine.net import CLOSED, take, would_block


cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <poll.h>
    #include <sys/types.h>
    #include <sys/socket.h>
    #include <time.h>
    #include <unistd.h>
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
    #ifdef CLOCK_BOOTTIME
    #define REDLATCH_CLOCK CLOCK_BOOTTIME
    #else
    #define REDLATCH_CLOCK CLOCK_MONOTONIC
    #endif
    #if defined(__linux__)
    #define redlatch_poll(fds, n, ts) ppoll(fds, n, ts, NULL)
    #else
    static int redlatch_poll(struct pollfd *fds, nfds_t n, struct timespec *ts) {
        return poll(fds, n, (int)(ts->tv_sec * 1000 + (ts->tv_nsec + 999999) / 1000000));
    }
    #endif
    """
    short POLLIN
    short POLLOUT
    int MSG_NOSIGNAL
    int REDLATCH_CLOCK
    int redlatch_poll(pollfd *fds, unsigned long n, timespec *timeout) nogil
    ssize_t recv(int fd, void *buffer, size_t size, int flags) nogil
    ssize_t send(int fd, const void *buffer, size_t size, int flags) nogil
    ssize_t read(int fd, void *buffer, size_t size) nogil
    int close(int fd) nogil
    ssize_t write(int fd, const void *buffer, size_t size) nogil

cdef enum:
    # The bytes of one receive, and the initial size of a send buffer.
    ROOM = 16384
    # If a round trip usually takes longer than half of this, `wait` does not keep the GIL for it.
    SLOW_NS = 1000000
    # If it takes longer than this to get the GIL back, another thread computes.
    BUSY_NS = 1000000
    # For how long that is then assumed.
    BUSY_FOR_NS = 500000000


cdef inline long long clock_ns() noexcept nogil:
    cdef timespec at
    clock_gettime(REDLATCH_CLOCK, &at)
    return <long long>at.tv_sec * 1000000000 + at.tv_nsec


def now_ns():
    return clock_ns()


cdef class BootClock(Clock):
    cpdef long long now(self) except -1:
        """Return nanoseconds since boot."""
        return clock_ns()


cdef class Wires:
    def __cinit__(self, int count):
        self.wake_in = self.wake_out = -1
        self.count = 0
        self.wires = NULL
        self.polled = NULL
        self._make_room(count)

    cdef _make_room(self, int count):
        """Make room for `count` wires in all. If there is no memory, `count` is how many are complete."""
        cdef int index
        cdef Wire *wires = <Wire *>realloc(self.wires, (count + 1) * sizeof(Wire))
        if wires == NULL:
            raise MemoryError
        self.wires = wires
        cdef pollfd *polled = <pollfd *>realloc(self.polled, (count + 1) * sizeof(pollfd))
        if polled == NULL:
            raise MemoryError
        self.polled = polled
        for index in range(self.count, count):
            memset(&self.wires[index], 0, sizeof(Wire))
            self.wires[index].fd = -1
            self.wires[index].room = ROOM
            self.wires[index].came = <char *>malloc(ROOM)
            self.wires[index].unsent = <char *>malloc(ROOM)
            memset(&self.polled[index], 0, sizeof(pollfd))
            self.polled[index].fd = -1
            # Counted first, so that `__dealloc__` frees what there is.
            self.count = index + 1
            if self.wires[index].came == NULL or self.wires[index].unsent == NULL:
                raise MemoryError
        memset(&self.polled[count], 0, sizeof(pollfd))
        self.polled[count].fd = self.wake_in
        self.polled[count].events = POLLIN

    def grow(self, int count):
        if count > self.count:
            self.tls += [None] * (count - self.count)
            self._make_room(count)

    def __init__(self, count):
        self.tls = [None] * count
        self.wake_in, self.wake_out = os.pipe()
        os.set_blocking(self.wake_in, False)
        os.set_blocking(self.wake_out, False)
        self.polled[self.count].fd = self.wake_in

    def __dealloc__(self):
        if self.wires != NULL:
            for index in range(self.count):
                if self.wires[index].fd >= 0 and not self.wires[index].tls:
                    close(self.wires[index].fd)
                free(self.wires[index].came)
                free(self.wires[index].unsent)
            free(self.wires)
        free(self.polled)
        if self.wake_in >= 0:
            close(self.wake_in)
            close(self.wake_out)

    cdef Wire *_at(self, int index) except NULL:
        if index < 0 or index >= self.count:
            raise IndexError(index)
        return &self.wires[index]

    def attach(self, int index, sock not None):
        cdef Wire *wire = self._at(index)
        wire.tls = isinstance(sock, ssl.SSLSocket)
        self.tls[index] = sock if wire.tls else None
        wire.fd = sock.fileno() if wire.tls else sock.detach()
        wire.start = wire.end = 0
        self.polled[index].fd = wire.fd
        self.polled[index].events = POLLIN
        # Discard the events of an interrupted `wait`.
        self.polled[index].revents = 0

    def detach(self, int index):
        cdef Wire *wire = self._at(index)
        cdef int fd = wire.fd
        sock = self.tls[index]
        self.tls[index] = None
        wire.fd = self.polled[index].fd = -1
        wire.start = wire.end = 0
        if fd < 0:
            return None
        return sock if wire.tls else socket.socket(fileno=fd)

    cpdef int fileno(self, int index) except? -1:
        return self._at(index).fd

    cpdef stage(self, int index, bytes data):
        cdef Wire *wire = self._at(index)
        # Cython lets None pass as bytes; len() raises TypeError for it.
        cdef size_t size = len(data), room
        cdef char *larger
        if wire.start == wire.end:
            wire.start = wire.end = 0
        if wire.end + size > wire.room and wire.start:
            memmove(wire.unsent, wire.unsent + wire.start, wire.end - wire.start)
            wire.end -= wire.start
            wire.start = 0
        if wire.end + size > wire.room:
            room = max(2 * wire.room, wire.end + size)
            larger = <char *>realloc(wire.unsent, room)
            if larger == NULL:
                raise MemoryError
            wire.unsent = larger
            wire.room = room
        memcpy(wire.unsent + wire.end, PyBytes_AS_STRING(data), size)
        wire.end += size

    cpdef Py_ssize_t unsent(self, int index) except -1:
        cdef Wire *wire = self._at(index)
        return <Py_ssize_t>(wire.end - wire.start)

    cpdef list send(self):
        cdef int index
        cdef Wire *wire
        cdef list broken = []
        if self.gil_patience_ns > 0 and self.busy_until_ns > 0:
            self._offer_all()
        else:
            with nogil:
                self._offer_all()
        for index in range(self.count):
            wire = &self.wires[index]
            if wire.fd >= 0 and wire.tls and wire.end > wire.start:
                error = self._offer_tls(index)
            else:
                error = _error_of(wire.result)
            if error is not None:
                broken.append((index, error))
            self.polled[index].events = POLLIN | (POLLOUT if wire.end > wire.start else 0)
        return broken

    cdef void _offer_all(self) noexcept nogil:
        cdef int index
        cdef Wire *wire
        for index in range(self.count):
            wire = &self.wires[index]
            wire.result = 0
            if wire.fd >= 0 and wire.end > wire.start and not wire.tls:
                self._offer(wire)

    cdef void _offer(self, Wire *wire) noexcept nogil:
        cdef ssize_t sent = send(wire.fd, wire.unsent + wire.start, wire.end - wire.start, MSG_NOSIGNAL)
        if sent >= 0:
            wire.start += sent
            wire.result = 0
        else:
            wire.result = -errno

    cdef object _offer_tls(self, int index):
        cdef Wire *wire = &self.wires[index]
        cdef bytes data = PyBytes_FromStringAndSize(wire.unsent + wire.start, wire.end - wire.start)
        try:
            wire.start += <size_t>self.tls[index].send(data)
        except OSError as error:
            if not would_block(error):
                return error
        return None

    cpdef bint wait(self, long long timeout_ns) except -1:
        cdef int ready
        cdef long long now = clock_ns(), left = max(timeout_ns, 0), until = now + left
        cdef long long patience = min(self.gil_patience_ns, left)
        if self.busy_until_ns < now:
            patience = self.busy_until_ns = 0
        while True:
            if patience > 0:
                ready = self._poll(patience)
            else:
                with nogil:
                    ready = self._poll(left)
                now = clock_ns()
                if now - self.back_ns > BUSY_NS:
                    self.busy_until_ns = now + BUSY_FOR_NS
            if ready > 0 or (ready == 0 and patience <= 0):
                break
            if ready < 0:
                if ready != -EINTR:
                    raise OSError(-ready, os.strerror(-ready))
                PyErr_CheckSignals()
            patience = 0
            left = max(until - clock_ns(), 0)
        if ready:
            self.taken = True
        return ready

    cdef int _poll(self, long long timeout_ns) noexcept nogil:
        """Poll once and serve the ready sockets; return their number or -errno. Record how long the replies took."""
        cdef timespec timeout
        cdef long long began = clock_ns(), waited
        cdef int ready
        timeout.tv_sec = timeout_ns // 1000000000
        timeout.tv_nsec = timeout_ns % 1000000000
        ready = redlatch_poll(self.polled, self.count + 1, &timeout)
        self.back_ns = clock_ns()
        if ready < 0:
            return -errno
        if ready > 0:
            waited = min(self.back_ns - began, SLOW_NS)
            # The average rises fast and falls slowly, so it stays near the longest of the usual waits.
            if waited > self.usual_ns:
                self.usual_ns += (waited - self.usual_ns) // 4
            else:
                self.usual_ns -= (self.usual_ns - waited) // 64
            self._serve()
        return ready

    cpdef long long usual_gil_patience_ns(self) except -1:
        return 0 if self.usual_ns > SLOW_NS // 2 else 2 * self.usual_ns + 20000

    cdef void _serve(self) noexcept nogil:
        """Send to and receive from every ready socket that is not TLS."""
        cdef char scrap[256]
        cdef Wire *wire
        cdef int index
        for index in range(self.count):
            wire = &self.wires[index]
            if wire.fd < 0 or wire.tls or not self.polled[index].revents:
                continue
            wire.result = -EAGAIN
            if self.polled[index].revents & POLLOUT:
                self._offer(wire)
                if wire.result == 0:
                    wire.result = -EAGAIN
                if wire.end == wire.start:
                    self.polled[index].events = POLLIN
            if self.polled[index].revents & ~POLLOUT and wire.result == -EAGAIN:
                wire.result = recv(wire.fd, wire.came, ROOM, 0)
                if wire.result < 0:
                    wire.result = -errno
        if self.polled[self.count].revents:
            while read(self.wake_in, scrap, sizeof(scrap)) > 0:
                pass

    cpdef collect(self, int index):
        cdef Wire *wire = self._at(index)
        cdef short events = self.polled[index].revents
        if wire.fd < 0 or not events:
            return None
        self.polled[index].revents = 0
        if wire.tls:
            if events & POLLOUT:
                error = self._offer_tls(index)
                if wire.end == wire.start:
                    self.polled[index].events = POLLIN
                if error is not None:
                    return error
            return take(self.tls[index]) if events & ~POLLOUT else None
        if wire.result > 0:
            return PyBytes_FromStringAndSize(wire.came, wire.result)
        if wire.result == 0:
            return ConnectionResetError(CLOSED)
        return _error_of(wire.result)

    cpdef receive(self, int index):
        cdef Wire *wire = self._at(index)
        if wire.fd < 0:
            return None
        if wire.tls:
            return take(self.tls[index])
        wire.result = recv(wire.fd, wire.came, ROOM, 0)
        if wire.result > 0:
            return PyBytes_FromStringAndSize(wire.came, wire.result)
        if wire.result == 0:
            return ConnectionResetError(CLOSED)
        return _error_of(-errno)

    cpdef bint stands_at(self, bytes data, Py_ssize_t start, bytes line) except -1:
        cdef Py_ssize_t size = len(line)
        return len(data) - start >= size and not memcmp(
            PyBytes_AS_STRING(data) + start, PyBytes_AS_STRING(line), size
        )

    def wake(self):
        # The result does not matter: a full pipe already contains wake-ups.
        write(self.wake_out, b"\0", 1)

    def close(self):
        for index in range(self.count):
            sock = self.detach(index)
            if sock is not None:
                sock.close()
        pipe = self.wake_in, self.wake_out
        # Forget the descriptors before they are closed: the system may then give their numbers to other files.
        self.wake_in = self.wake_out = self.polled[self.count].fd = -1
        if pipe[0] >= 0:
            os.close(pipe[0])
            os.close(pipe[1])


cdef object _error_of(ssize_t result):
    """Return the error for the result of a system call; None if it succeeded or the socket was not ready."""
    if result >= 0 or result == -EAGAIN or result == -EINTR:
        return None
    return OSError(<int>-result, os.strerror(<int>-result))
