"""System calls in pure Python: gathered sends, one poll, gathered receives, the clock.

The compiled `net.pyx` has the same interface and releases the GIL around each group of calls.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import time

from ...votes.units import Clock

RECEIVE_BYTES = 16384
CLOSED = "the server closed the connection"

# CLOCK_BOOTTIME continues while the machine is suspended, unlike CLOCK_MONOTONIC: a lease must not outlive the sleep of
# a laptop.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ns() -> int:
    """Return the time by the clock of all deadlines, in nanoseconds since boot."""
    return time.clock_gettime_ns(_CLOCK)


class BootClock(Clock):
    def now(self) -> int:
        return now_ns()


class Wires:
    """N non-blocking sockets by index, each with its unsent bytes.

    The object owns bare descriptors. The garbage collector may finalize a socket object in a cycle, with a warning,
    before its owner can close it. Only TLS sockets, which are more than a descriptor, stay objects.

    Only one thread at a time may call the methods, except for `wake`.

    Attributes:
        taken: True if the last `wait` may have received bytes that its caller has not collected.
        gil_patience_ns: how long `wait` may keep the GIL; above 0, `send` may keep it, too. They do so only in the
            compiled build, and only while another thread computes, until `busy_until_ns`.
    """

    def __init__(self, count: int) -> None:
        self._fds = [-1] * count
        self._tls: list[ssl.SSLSocket | None] = [None] * count
        self._unsent = [bytearray() for _ in range(count)]
        self._poll = select.poll()
        self._by_fd: dict[int, int] = {}
        self._wake_in, self._wake_out = os.pipe()
        self._pipe: tuple[int, ...] = (self._wake_in, self._wake_out)
        # One entry for each thread that is in `wake`.
        self._waking: set[object] = set()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._poll.register(self._wake_in, select.POLLIN)
        self._full = [False] * count
        self._came: list[bytes | OSError | None] = [None] * count
        self.taken = False
        self.gil_patience_ns = self.busy_until_ns = 0

    def grow(self, count: int) -> None:
        """Make room for `count` sockets in all, between two other calls."""
        for _ in range(len(self._fds), count):
            self._tls.append(None)
            self._full.append(False)
            self._came.append(None)
            self._unsent.append(bytearray())
            # Last, because this list says how many there are.
            self._fds.append(-1)

    def attach(self, index: int, sock: socket.socket) -> None:
        """Take over a connected, non-blocking socket. The caller must not use the object any more."""
        self._tls[index] = sock if isinstance(sock, ssl.SSLSocket) else None
        self._unsent[index] = bytearray()
        self._full[index] = False
        # Discard the bytes of an interrupted `wait`.
        self._came[index] = None
        self._fds[index] = fd = sock.fileno() if isinstance(sock, ssl.SSLSocket) else sock.detach()
        self._by_fd[fd] = index
        self._poll.register(fd, select.POLLIN)

    def detach(self, index: int) -> socket.socket | None:
        """Return socket `index`, still open; discard its unsent bytes."""
        fd, tls = self._fds[index], self._tls[index]
        # A new bytearray instead of clear(): at a fork, another thread may have been sending from the old one.
        self._unsent[index] = bytearray()
        if fd < 0:
            return None
        # An interrupt may have struck after its removal below, in an earlier call.
        if fd in self._by_fd:
            try:
                self._poll.unregister(fd)
            except KeyError:
                # An interrupt struck after the unregister of an earlier call.
                pass
            # Last, because `wait` must know the index of every polled descriptor.
            del self._by_fd[fd]
        self._fds[index], self._tls[index] = -1, None
        return tls or socket.socket(fileno=fd)

    def fileno(self, index: int) -> int:
        return self._fds[index]

    def stage(self, index: int, data: bytes) -> None:
        self._unsent[index] += data

    def unsent(self, index: int) -> int:
        return len(self._unsent[index])

    def send(self) -> list[tuple[int, OSError]]:
        """Offer every socket its staged bytes once; return (index, error) of each broken socket."""
        broken: list[tuple[int, OSError]] = []
        for index, unsent in enumerate(self._unsent):
            if unsent:
                error = self._send_one(index)
                if error is not None:
                    broken.append((index, error))
        return broken

    def _send_one(self, index: int) -> OSError | None:
        fd, tls, unsent = self._fds[index], self._tls[index], self._unsent[index]
        if fd < 0:
            return None
        try:
            del unsent[: tls.send(unsent) if tls else os.write(fd, unsent)]
        except OSError as error:
            if not would_block(error):
                return error
        # Poll for room to send only while there are unsent bytes.
        if bool(unsent) != self._full[index]:
            self._full[index] = bool(unsent)
            self._poll.modify(fd, select.POLLIN | (select.POLLOUT if unsent else 0))
        return None

    def wait(self, timeout_ns: int) -> bool:
        """Poll every socket, then send to and receive from the ready ones.

        Returns:
            True if any socket was ready. The caller must then call `collect` for each socket.
        """
        ready = self._poll.poll(max(0, -(-timeout_ns // 1_000_000)))
        self.taken = bool(ready)
        for fd, events in ready:
            if fd == self._wake_in:
                _drain(fd)
                continue
            index = self._by_fd[fd]
            data: bytes | OSError | None = self._send_one(index) if events & select.POLLOUT else None
            if data is None and events & ~select.POLLOUT:
                data = self.receive(index)
            self._came[index] = data
        return self.taken

    def collect(self, index: int) -> bytes | OSError | None:
        """Return the result of the last `wait` once. The end of the stream is an error, too."""
        came, self._came[index] = self._came[index], None
        return came

    def receive(self, index: int) -> bytes | OSError | None:
        """Return the bytes that have come, None, or the error that broke the socket."""
        fd, tls = self._fds[index], self._tls[index]
        if fd < 0:
            return None
        if tls is not None:
            return take(tls)
        try:
            return os.read(fd, RECEIVE_BYTES) or ConnectionResetError(CLOSED)
        except OSError as error:
            return None if would_block(error) else error

    def usual_gil_patience_ns(self) -> int:
        """Return 0: Python's own system calls always release the GIL."""
        return 0

    def stands_at(self, data: bytes, start: int, line: bytes) -> bool:
        return data.startswith(line, start)

    def wake(self) -> None:
        """Make the current or the next `wait` return at once. Any thread may call this."""
        entry = object()
        try:
            # Before the check: either `close` sees this entry, or this thread sees that the pipe is closed.
            self._waking.add(entry)
            if self._wake_out >= 0:
                os.write(self._wake_out, b"\0")
        except BlockingIOError:
            # The pipe is full of wake-ups already.
            pass
        finally:
            self._waking.discard(entry)
            if self._wake_out < 0:
                self._close_pipe()

    def __del__(self) -> None:
        if hasattr(self, "_waking"):
            # An interrupt may have left an entry. No thread is in `wake` now.
            self._waking.clear()
            self.close()

    def close(self) -> None:
        for index in range(len(self._fds)):
            sock = self.detach(index)
            if sock is not None:
                sock.close()
        self._wake_in = self._wake_out = -1
        self._close_pipe()

    def _close_pipe(self) -> None:
        """Close the wake-up pipe, unless a thread may be writing to it; that thread then closes it.

        `os.write` releases the GIL before it writes. If the pipe were closed then, the system could give its descriptor
        to another file.
        """
        # One end at a time, so that an interrupted `close` can be repeated.
        for _ in range(2):
            if not self._waking:
                # One statement without a call, so that only one thread closes this end.
                ends, self._pipe = self._pipe[:1], self._pipe[1:]
                for fd in ends:
                    os.close(fd)


def take(sock: ssl.SSLSocket) -> bytes | OSError | None:
    chunks: list[bytes] = []
    try:
        while chunk := sock.recv(RECEIVE_BYTES):
            chunks.append(chunk)
            if not sock.pending():
                break
    except OSError as error:
        # With chunks, return them now. The error comes again at the next call.
        if not chunks:
            return None if would_block(error) else error
    return b"".join(chunks) or ConnectionResetError(CLOSED)


def would_block(error: OSError) -> bool:
    return isinstance(error, (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError))


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
