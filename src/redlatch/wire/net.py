"""System calls in pure Python: gathered sends, one poll, gathered receives, the clock.

`ext/redlatch/_c/wire/net.pyx` is the same interface with the GIL released round each group of calls;
`tests/test_net.py` holds the two to each other. With `drivers/sleeper.py` it is all that exists twice.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import time

from ..protocol.policy import Clock

RECEIVE_BYTES = 16384
CLOSED = "the server closed the connection"

# CLOCK_BOOTTIME goes on while the machine is suspended, CLOCK_MONOTONIC does not: a lease must
# not outlive a laptop's sleep. Where the kernel has no such clock, the monotonic one stands in.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ns() -> int:
    """Read the clock that every deadline is measured with, in nanoseconds since boot."""
    return time.clock_gettime_ns(_CLOCK)


class BootClock(Clock):
    """`now_ns` as a clock to pass on."""

    def now(self) -> int:
        """Return nanoseconds since boot."""
        return now_ns()


class Wires:
    """N non-blocking sockets by index, each with its unsent bytes.

    It owns bare descriptors: a socket object in a cycle of garbage may be finalized, and warn, before its owner has
    had a chance to close it. Only TLS sockets, which are more than a descriptor, stay objects.

    Not safe for two threads at once, but for `wake`.
    """

    def __init__(self, count: int) -> None:
        self._fds = [-1] * count
        self._tls: list[ssl.SSLSocket | None] = [None] * count
        self._unsent = [bytearray() for _ in range(count)]
        self._poll = select.poll()
        self._by_fd: dict[int, int] = {}
        self._wake_in, self._wake_out = os.pipe()
        self._pipe: tuple[int, ...] = (self._wake_in, self._wake_out)
        self._waking: list[None] = []  # one entry for each thread that is in `wake`
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._poll.register(self._wake_in, select.POLLIN)
        self._full = [False] * count
        self._came: list[bytes | OSError | None] = [None] * count
        self.taken = False  # the last `wait` may have taken bytes that its caller has not seen
        # For how long `wait`, and whether `send`, keeps the GIL, and until when another thread is known to compute;
        # Python's own calls never keep it.
        self.patience_ns = self.busy_until_ns = 0

    def attach(self, index: int, sock: socket.socket) -> None:
        """Take a connected, non-blocking socket over as number `index`; the object given is of no use any more."""
        self._tls[index] = sock if isinstance(sock, ssl.SSLSocket) else None
        self._unsent[index] = bytearray()
        self._full[index] = False
        self._came[index] = None  # an interrupted `wait` may have left some
        self._fds[index] = fd = sock.fileno() if isinstance(sock, ssl.SSLSocket) else sock.detach()
        self._by_fd[fd] = index
        self._poll.register(fd, select.POLLIN)

    def detach(self, index: int) -> socket.socket | None:
        """Give the socket back, open, for the caller to close; forget what was unsent."""
        fd, tls = self._fds[index], self._tls[index]
        self._unsent[index] = bytearray()  # not cleared: at a fork another thread may have been sending from it
        if fd < 0:
            return None
        if fd in self._by_fd:  # else an interrupt struck below, the last time
            try:
                self._poll.unregister(fd)
            except KeyError:
                pass  # an interrupt struck right behind it
            del self._by_fd[fd]  # last: `wait` must know whatever is polled
        self._fds[index], self._tls[index] = -1, None
        return tls or socket.socket(fileno=fd)

    def fileno(self, index: int) -> int:
        """Return the descriptor of socket `index`, for an event loop to watch; -1 when there is none."""
        return self._fds[index]

    def stage(self, index: int, data: bytes) -> None:
        """Append `data` to what the next `send` offers to socket `index`."""
        self._unsent[index] += data

    def unsent(self, index: int) -> int:
        """Count the bytes that socket `index` has not taken yet."""
        return len(self._unsent[index])

    def send(self) -> list[tuple[int, OSError]]:
        """Offer every socket its staged bytes once.

        Returns:
            The sockets that are broken, each with its error; bytes that did not fit stay staged.
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
        if bool(unsent) != self._full[index]:  # ask poll for room to send only while something is unsent
            self._full[index] = bool(unsent)
            self._poll.modify(fd, select.POLLIN | (select.POLLOUT if unsent else 0))
        return None

    def wait(self, timeout_ns: int) -> bool:
        """Poll every socket for at most `timeout_ns`, then send to and receive from those that are ready.

        Returns:
            Whether any was ready; then `collect` has to be called for each.
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
        """Return what the last `wait` got from socket `index`, once: bytes, the error that broke it, or None.

        The end of the stream is an error, too.
        """
        came, self._came[index] = self._came[index], None
        return came

    def receive(self, index: int) -> bytes | OSError | None:
        """Take what socket `index` has; None when it has nothing now, an error when it is broken."""
        fd, tls = self._fds[index], self._tls[index]
        if fd < 0:
            return None
        if tls is not None:
            return take(tls)
        try:
            return os.read(fd, RECEIVE_BYTES) or ConnectionResetError(CLOSED)
        except OSError as error:
            return None if would_block(error) else error

    def usual_patience_ns(self) -> int:
        """Return how long to keep the GIL for replies: about what they usually take, 0 where that is too long."""
        return 0  # Python's own calls give it up, every time

    def stands_at(self, data: bytes, start: int, line: bytes) -> bool:
        """Tell whether `line` stands in `data` at `start`."""
        return data.startswith(line, start)

    def wake(self) -> None:
        """Make a `wait` in another thread return at once, or the next one."""
        self._waking.append(None)  # before the check: either `close` sees the entry, or we see that it has closed
        try:
            if self._wake_out >= 0:
                os.write(self._wake_out, b"\0")
        except BlockingIOError:
            pass  # the pipe is full of wake-ups already
        finally:
            self._waking.pop()
            if self._wake_out < 0:
                self._close_pipe()

    def __del__(self) -> None:
        if hasattr(self, "_waking"):
            self._waking.clear()  # an interrupt may have left an entry; no thread is in `wake` now
            self.close()

    def close(self) -> None:
        """Close every socket and the wake-up pipe; harmless when repeated."""
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
        for _ in range(2):  # one end at a time, so that an interrupted `close` can be repeated
            if not self._waking:
                ends, self._pipe = self._pipe[:1], self._pipe[1:]  # no call in between, so only one thread closes it
                for fd in ends:
                    os.close(fd)


def take(sock: ssl.SSLSocket) -> bytes | OSError | None:
    """Receive from a TLS socket until it holds nothing decrypted back."""
    chunks: list[bytes] = []
    try:
        while chunk := sock.recv(RECEIVE_BYTES):
            chunks.append(chunk)
            if not sock.pending():
                break
    except OSError as error:
        if not chunks:  # otherwise the error comes again with the next call
            return None if would_block(error) else error
    return b"".join(chunks) or ConnectionResetError(CLOSED)


def would_block(error: OSError) -> bool:
    """Tell a socket that is merely not ready, in plain text or in TLS, from a broken one."""
    return isinstance(error, (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError))


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
