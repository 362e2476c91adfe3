"""System calls in pure Python: gathered sends, one poll, gathered receives, the clock.

`ext/redlatch/_c/wire/net.pyx` is the same interface with the GIL released round each group of
calls; `tests/test_net.py` holds the two to each other. This is the one layer that exists twice.
"""

from __future__ import annotations

import os
import re
import select
import socket
import ssl
import time

RECEIVE_BYTES = 16384

# CLOCK_BOOTTIME goes on while the machine is suspended, CLOCK_MONOTONIC does not: a lease must
# not outlive a laptop's sleep. Where the kernel has no such clock, the monotonic one stands in.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_OPENING = (b"*", b"%", b"~", b">", b"|")
_AGGREGATE = re.compile(rb"\n[*%~>|]")


def now_ns() -> int:
    """Read the clock that every deadline is measured with, in nanoseconds since boot."""
    return time.clock_gettime_ns(_CLOCK)


def aggregate(data: bytes, line_start: bool) -> bool:
    """Tell whether a line in `data` opens an array, map, set, push or attribute.

    Args:
        data: bytes as they came, cut anywhere.
        line_start: whether the first byte of `data` begins a line.
    """
    return (line_start and data[:1] in _OPENING) or _AGGREGATE.search(data) is not None


class Wires:
    """N non-blocking sockets by index, each with its unsent bytes.

    Not safe for two threads at once, but for `wake`.
    """

    def __init__(self, count: int) -> None:
        self._socks: list[socket.socket | None] = [None] * count
        self._unsent = [bytearray() for _ in range(count)]
        self._poll = select.poll()
        self._by_fd: dict[int, int] = {}
        # Remembered, because a socket that the garbage collector has closed before us tells it no more.
        self._fds = [-1] * count
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._poll.register(self._wake_in, select.POLLIN)
        self._full = [False] * count
        self.taken = False  # the last `wait` may have taken bytes that its caller has not seen

    def attach(self, index: int, sock: socket.socket) -> None:
        """Take over a connected, non-blocking socket as number `index`."""
        self._socks[index] = sock
        self._unsent[index].clear()
        self._full[index] = False
        self._fds[index] = sock.fileno()
        self._by_fd[sock.fileno()] = index
        self._poll.register(sock.fileno(), select.POLLIN)

    def detach(self, index: int) -> socket.socket | None:
        """Give the socket back, open, for the caller to close; forget what was unsent."""
        sock = self._socks[index]
        self._socks[index] = None
        self._unsent[index].clear()
        if sock is not None:
            self._poll.unregister(self._fds[index])
            del self._by_fd[self._fds[index]]
        return sock

    def fileno(self, index: int) -> int:
        """Return the descriptor of socket `index`, for an event loop to watch; -1 when there is none."""
        sock = self._socks[index]
        return -1 if sock is None else sock.fileno()

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
        sock, unsent = self._socks[index], self._unsent[index]
        if sock is None:
            return None
        try:
            del unsent[: sock.send(unsent)]
        except OSError as error:
            if not would_block(error):
                return error
        if bool(unsent) != self._full[index]:  # ask poll for room to send only while something is unsent
            self._full[index] = bool(unsent)
            self._poll.modify(sock.fileno(), select.POLLIN | (select.POLLOUT if unsent else 0))
        return None

    def wait(self, timeout_ns: int) -> list[tuple[int, bytes | OSError]]:
        """Poll every socket for at most `timeout_ns`, then send to and receive from those that are ready.

        Returns:
            What came, by socket: bytes, or the error that broke it (the end of the stream included).
        """
        ready = self._poll.poll(max(0, -(-timeout_ns // 1_000_000)))
        self.taken = bool(ready)
        came: list[tuple[int, bytes | OSError]] = []
        for fd, events in ready:
            if fd == self._wake_in:
                _drain(fd)
                continue
            index = self._by_fd[fd]
            data: bytes | OSError | None = self._send_one(index) if events & select.POLLOUT else None
            if data is None and events & ~select.POLLOUT:
                data = self.receive(index)
            if data is not None:
                came.append((index, data))
        return came

    def receive(self, index: int) -> bytes | OSError | None:
        """Take what socket `index` has; None when it has nothing now, an error when it is broken."""
        sock = self._socks[index]
        return None if sock is None else take(sock)

    def wake(self) -> None:
        """Make a `wait` in another thread return at once, or the next one."""
        try:
            os.write(self._wake_out, b"\0")
        except BlockingIOError:
            pass  # the pipe is full of wake-ups already

    def close(self) -> None:
        """Close every socket and the wake-up pipe; harmless when repeated."""
        for index in range(len(self._socks)):
            sock = self.detach(index)
            if sock is not None:
                sock.close()
        if self._wake_in >= 0:
            os.close(self._wake_in)
            os.close(self._wake_out)
            self._wake_in = self._wake_out = -1


def take(sock: socket.socket) -> bytes | OSError | None:
    """Receive once from a plain socket, and from a TLS one until it holds nothing decrypted back."""
    chunks: list[bytes] = []
    try:
        while chunk := sock.recv(RECEIVE_BYTES):
            if not isinstance(sock, ssl.SSLSocket):
                return chunk
            chunks.append(chunk)
            if not sock.pending():
                break
    except OSError as error:
        if not chunks:  # otherwise the error comes again with the next call
            return None if would_block(error) else error
    return b"".join(chunks) or ConnectionResetError("the server closed the connection")


def would_block(error: OSError) -> bool:
    """Tell a socket that is merely not ready, in plain text or in TLS, from a broken one."""
    return isinstance(error, (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError))


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
