"""System calls in pure Python: gathered sends, one poll, gathered receives, the clock.

`ext/redlatch/_c/wire/engine/net.pyx` has the same interface and releases the GIL around each group of calls.
`tests/wire/engine/test_net.py` tests that both behave alike. Only this module and `drivers/sleeper.py` are written
twice.
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

# CLOCK_BOOTTIME continues while the machine is suspended; CLOCK_MONOTONIC does not. A lease must not outlive the sleep
# of a laptop. A kernel without CLOCK_BOOTTIME uses CLOCK_MONOTONIC.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ns() -> int:
    """Return the time by the clock of all deadlines, in nanoseconds since boot."""
    return time.clock_gettime_ns(_CLOCK)


class BootClock(Clock):
    """The clock of `now_ns`, as an object to inject."""

    def now(self) -> int:
        """Return nanoseconds since boot."""
        return now_ns()


class Wires:
    """N non-blocking sockets by index, each with its unsent bytes.

    The object owns bare descriptors. The garbage collector may finalize a socket object in a cycle, with a warning,
    before its owner can close it. Only TLS sockets, which are more than a descriptor, stay objects.

    Only one thread at a time may call the methods, except for `wake`.

    Args:
        count: the number of sockets.

    Attributes:
        taken: whether the last `wait` may have received bytes that its caller has not collected.
        gil_patience_ns: how long `wait` may keep the GIL, in nanoseconds; above 0, `send` may keep it, too. They keep
            it only in the compiled build, and only while another thread computes.
        busy_until_ns: until when another thread is assumed to compute, in nanoseconds since boot; 0 if none is.
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
        # Only for the interface: Python's own system calls always release the GIL.
        self.gil_patience_ns = self.busy_until_ns = 0

    def attach(self, index: int, sock: socket.socket) -> None:
        """Take over a connected, non-blocking socket as number `index`. The caller must not use the object any more."""
        self._tls[index] = sock if isinstance(sock, ssl.SSLSocket) else None
        self._unsent[index] = bytearray()
        self._full[index] = False
        # Discard the bytes of an interrupted `wait`.
        self._came[index] = None
        self._fds[index] = fd = sock.fileno() if isinstance(sock, ssl.SSLSocket) else sock.detach()
        self._by_fd[fd] = index
        self._poll.register(fd, select.POLLIN)

    def detach(self, index: int) -> socket.socket | None:
        """Return socket `index`, still open, or None; discard its unsent bytes. The caller closes it."""
        fd, tls = self._fds[index], self._tls[index]
        # A new bytearray instead of clear(): at a fork, another thread may have been sending from the old one.
        self._unsent[index] = bytearray()
        if fd < 0:
            return None
        # An entry is missing if an interrupt struck after its removal below, in an earlier call.
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
        """Return the descriptor of socket `index` for an event loop, or -1 if there is no socket."""
        return self._fds[index]

    def stage(self, index: int, data: bytes) -> None:
        """Append `data` to the bytes that the next `send` offers to socket `index`."""
        self._unsent[index] += data

    def unsent(self, index: int) -> int:
        """Count the bytes that socket `index` has not taken yet."""
        return len(self._unsent[index])

    def send(self) -> list[tuple[int, OSError]]:
        """Offer every socket its staged bytes once. Bytes that a socket does not take stay staged.

        Returns:
            (index, error) of each broken socket.
        """
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
        """Poll every socket for at most `timeout_ns`, then send to and receive from the ready ones.

        Returns:
            Whether any socket was ready. The caller must then call `collect` for each socket.
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
        """Return, once, the result of the last `wait` for socket `index`: bytes, the error that broke it, or None.

        The end of the stream is an error, too.
        """
        came, self._came[index] = self._came[index], None
        return came

    def receive(self, index: int) -> bytes | OSError | None:
        """Receive from socket `index`. Return the bytes, None if there are none now, or the error that broke it."""
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
        """Return for how many nanoseconds to wait for replies with the GIL; 0 if they usually take too long."""
        # Python's own system calls always release the GIL.
        return 0

    def stands_at(self, data: bytes, start: int, line: bytes) -> bool:
        """Return whether `data` contains `line` at `start`."""
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
        """Close every socket and the wake-up pipe. A second call does nothing."""
        for index in range(len(self._fds)):
            sock = self.detach(index)
            if sock is not None:
                sock.close()
        self._wake_in = self._wake_out = -1
        self._close_pipe()

    def _close_pipe(self) -> None:
        """Close the wake-up pipe, unless a thread may be writing to it.

        `os.write` releases the GIL before it writes. If the pipe were closed then, the system could give its descriptor
        to another file. So the writing thread closes the pipe itself.
        """
        # One end at a time, so that an interrupted `close` can be repeated.
        for _ in range(2):
            if not self._waking:
                # One statement without a call, so that only one thread closes this end.
                ends, self._pipe = self._pipe[:1], self._pipe[1:]
                for fd in ends:
                    os.close(fd)


def take(sock: ssl.SSLSocket) -> bytes | OSError | None:
    """Receive from a TLS socket until it has no more decrypted bytes."""
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
    """Return whether the error only means that the socket, plain or TLS, is not ready."""
    return isinstance(error, (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError))


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
