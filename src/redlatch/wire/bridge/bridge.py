"""A bridge: a thread that answers the commands of one connection, for a server that does not speak our commands.

The engine sees a connection to a Redis server. The thread at the other end of the socket translates each command for a
backend, in order. A call that hangs in the backend is a silent master.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import weakref
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from hiredis import Reader

from ..helper_threads import start_thread

logger = logging.getLogger("redlatch")

# An error reply that begins with one of these ends the connection (see `Traits.ends`). After VOIDED, the votes that
# came before may be void. BROKEN says that the connection to the backend broke.
ENDS, VOIDS, BREAKS = "CLOSING", "VOIDED", "BROKEN"

_ROOM = 65536
_INCOMPLETE = object()

_closed_at_fork: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_at_fork(sock: socket.socket) -> None:
    """Close a bridge's socket in every forked child, which has no thread that would."""
    _closed_at_fork.add(sock)


def _close_all() -> None:
    for sock in list(_closed_at_fork):
        sock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)


class Backend(Protocol):
    """The server or database behind a bridge. Only the bridge's thread calls it."""

    def answers(self, commands: list[list[bytes]]) -> Iterable[bytes]:
        """Perform the commands in order; yield each reply, in RESP, as soon as it is there, or raise BackendLost."""

    def wait(self, sock: socket.socket) -> None:
        """Return when a command can be read, or a change has come; or raise BackendLost."""

    def changes(self) -> Iterable[bytes | None]:
        """Take the changed keys of which each was asked to be watched once; None stands for all keys."""

    def close(self) -> None: ...


class BackendLost(Exception):
    """The backend of a bridge cannot be used any more; the text says why.

    Args:
        voids: whether locks may have been lost with it.
        breaks: whether the connection to it broke; otherwise its answer was malformed.
    """

    def __init__(self, message: str, voids: bool = False, breaks: bool = False) -> None:
        super().__init__(message)
        self.voids = voids
        self.word = VOIDS if voids else BREAKS if breaks else ENDS


AnyBackend = TypeVar("AnyBackend", bound=Backend)


def open_bridge(make: Callable[[], AnyBackend], timeout: float) -> tuple[socket.socket, AnyBackend]:
    """Start a bridge, and return its socket for the engine, and its backend, which belongs to the thread.

    Args:
        make: makes the backend, in the thread of the bridge.
        timeout: seconds to wait for that. A backend that comes later is closed.
    """
    bridge = _Bridge(make)
    try:
        return bridge.start(timeout)
    except BaseException:
        bridge.give_up()
        raise


class _Bridge(Generic[AnyBackend]):
    def __init__(self, make: Callable[[], AnyBackend]) -> None:
        self._make = make
        self._ours, self._theirs = socket.socketpair()
        # The engine's end, too: a fork may come before the engine has it, and a copy would keep this bridge alive.
        close_at_fork(self._ours)
        close_at_fork(self._theirs)
        # True while the engine waits for replies to the commands that were read last.
        self._answering = False
        self._made: queue.SimpleQueue[AnyBackend | BaseException] = queue.SimpleQueue()

    def start(self, timeout: float) -> tuple[socket.socket, AnyBackend]:
        start_thread("bridge", self._run)
        try:
            made = self._made.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no connection after {timeout:g} s") from None
        if isinstance(made, BaseException):
            raise made
        self._ours.setblocking(False)
        return self._ours, made

    def give_up(self) -> None:
        self._ours.close()

    def _run(self) -> None:
        try:
            backend = self._make()
        except BaseException as error:
            self._theirs.close()
            self._made.put(error)
            return
        self._made.put(backend)
        try:
            self._serve(backend)
        except BackendLost as lost:
            self._say_why(lost, lost.word)
        except Exception as error:
            logger.exception("a bridge has failed")
            self._say_why(error, ENDS)
        finally:
            self._end(backend)

    def _say_why(self, error: Exception, word: str) -> None:
        """Send the reason for the end, if the engine waits for a reply: it accepts no reply without a command."""
        if self._answering:
            self._send(b"-%b %b\r\n" % (word.encode(), _line(error)))
        else:
            logger.info("a bridge ends: %s", error)

    def _end(self, backend: AnyBackend) -> None:
        """Close the backend, then the bridge: the engine must see the end even if the backend fails again."""
        try:
            backend.close()
        except Exception:
            logger.exception("a bridge has failed")
        # Not only `close`: a forked child may have a copy of this end.
        try:
            self._theirs.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The other end is closed.
            pass
        self._theirs.close()

    def _serve(self, backend: AnyBackend) -> None:
        reader = Reader(notEnoughData=_INCOMPLETE)
        while True:
            backend.wait(self._theirs)
            self._push(backend)
            try:
                data = self._theirs.recv(_ROOM, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except ConnectionError:
                return
            if not data:
                return
            reader.feed(data)
            commands = []
            while (words := reader.gets()) is not _INCOMPLETE:
                commands.append(words)
            self._answering = bool(commands)
            for reply in backend.answers(commands):
                self._send(reply)
                # After the reply, which shows the engine that the command watches the key.
                self._push(backend)
            self._answering = False

    def _push(self, backend: AnyBackend) -> None:
        for key in backend.changes():
            which = b"_\r\n" if key is None else b"*1\r\n$%d\r\n%b\r\n" % (len(key), key)
            self._send(b">2\r\n$10\r\ninvalidate\r\n" + which)

    def _send(self, data: bytes) -> None:
        """Send to the engine, which may read little by little: this may wait."""
        try:
            self._theirs.sendall(data)
        except OSError:
            # The engine has closed the connection; the next `recv` sees it.
            pass


def failure(error: BaseException) -> bytes:
    return b"-ERR %b\r\n" % _line(error)


def _line(error: BaseException) -> bytes:
    return " ".join(str(error).split()).encode(errors="replace")
