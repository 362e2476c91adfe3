"""One connection to the database, used by one thread. A driver for asyncio runs in an event loop of that thread."""

from __future__ import annotations

import asyncio
import math
import os
import select
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from redlatch.sql.faults import text_of
from redlatch.sql.files import REPLACED, DatabaseFile
from redlatch.sql.forks import PAUSE, forked_since, forks_so_far, give_up_at_fork, give_up_before_fork, no_fork
from redlatch.sql.notices import AsyncpgNotices, Notices, notices_of
from redlatch.wire.bridge.bridge import BackendLost
from redlatch.wire.engine.net import now_ns

Result = TypeVar("Result")

_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}

HANGUP: int = getattr(select, "POLLRDHUP", 0)

CLOSED = "the database closed the connection"

CONNECTS = 10
DISTURBED = "this process was forked again and again while it connected"


class OwnConnection(Protocol):
    """A connection in AUTOCOMMIT for the locks of one client, perhaps with an open `file` of SQLite."""

    file: DatabaseFile | None

    def prepare(self, call: Callable[[Connection], object]) -> None:
        """Call a function with the SQLAlchemy connection, now and after each reopening."""

    def run(self, call: Callable[[Connection], Result]) -> Result: ...

    def listen(self, channel: str) -> Notices | None: ...

    def wait(self, sock: socket.socket, seconds: float | None) -> None:
        """Return if the socket is readable, a notice has come, or the time is over; raise BackendLost at its end."""

    def close(self) -> None: ...


class BlockingConnection:
    file: DatabaseFile | None = None

    def __init__(self, engine: Engine) -> None:
        self._notices: Notices | None = None
        self._descriptor = -1
        self._poll: select.poll | None = None
        give_up_at_fork(self)
        self._open(engine)
        if self._descriptor >= 0:
            keep_alive(self._descriptor)

    def _open(self, engine: Engine) -> None:
        for _ in range(CONNECTS):
            forks = forks_so_far()
            self._connection = _autocommitting(engine.connect())
            self._descriptor = descriptor_of(self._connection.connection.driver_connection)
            if not forked_since(forks):
                return
            # A child may have a copy of the descriptor. `close` ends the session anyway.
            self.close()
        raise BackendLost(DISTURBED)

    def descriptors(self) -> list[int]:
        return [self._descriptor] if self._descriptor >= 0 else []

    def prepare(self, call: Callable[[Connection], object]) -> None:
        self.run(call)

    def run(self, call: Callable[[Connection], Result]) -> Result:
        return call(self._connection)

    def listen(self, channel: str) -> Notices | None:
        self._notices = notices_of(self._connection, channel)
        return self._notices

    def wait(self, sock: socket.socket, seconds: float | None) -> None:
        if self._poll is None:
            self._poll = self._polling(sock)
        ready = self._poll.poll(None if seconds is None else math.ceil(seconds * 1000))
        if any([descriptor == self._descriptor for descriptor, _ in ready]):
            if self._notices is None:
                raise BackendLost(CLOSED)
            self._notices.read()

    def _polling(self, sock: socket.socket) -> select.poll:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        if self._descriptor >= 0:
            poll.register(self._descriptor, HANGUP if self._notices is None else select.POLLIN)
        return poll

    def close(self) -> None:
        # First forget the descriptor: after the close its number may belong to another file.
        self._descriptor = -1
        _close(self._connection)


class FileConnection(BlockingConnection):
    """A connection to a SQLite file, which is closed before each fork (see `forks`)."""

    def __init__(self, engine: Engine) -> None:
        self.working = False
        self._engine = engine
        self._prepares: list[Callable[[Connection], object]] = []
        self._opened = False
        give_up_before_fork(self)
        with no_fork(self):
            super().__init__(engine)

    def _open(self, engine: Engine) -> None:
        self._connection = _autocommitting(engine.connect())
        self._opened = True

    def is_open(self) -> bool:
        return self._opened

    def prepare(self, call: Callable[[Connection], object]) -> None:
        self._prepares.append(call)
        self.run(call)

    def run(self, call: Callable[[Connection], Result]) -> Result:
        with no_fork(self):
            if not self._opened:
                self._open_again()
            return call(self._connection)

    def _open_again(self) -> None:
        if self.file is not None and self.file.is_replaced():
            # SQLite would create an empty file.
            raise BackendLost(REPLACED, voids=True)
        self._open(self._engine)
        for call in self._prepares:
            call(self._connection)

    def give_up(self, until_ns: int) -> None:
        while self.working and now_ns() < until_ns:
            time.sleep(PAUSE)
        if not self.working and self._serves_threads():
            self._shut()

    def _serves_threads(self) -> bool:
        raw = self._connection.connection.driver_connection if self._opened else None
        try:
            return raw is not None and raw.cursor() is not None
        except Exception:
            # The engine has check_same_thread.
            return False

    def close(self) -> None:
        with no_fork(self):
            self._shut()

    def _shut(self) -> None:
        if self._opened:
            _close(self._connection)
            self._opened = False


class LoopConnection:
    file: DatabaseFile | None = None

    def __init__(self, engine: AsyncEngine) -> None:
        self._selector = selectors.DefaultSelector()
        # Not the loop of the application's policy: a forked child must know all descriptors.
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._heard = asyncio.Event()
        self._ended = False
        self._closed = False
        self._hangup: select.epoll | None = None
        give_up_at_fork(self)
        give_up_before_fork(self)
        own = set(self._selected())
        try:
            self._open(engine)
            for descriptor in set(self._selected()) - own:
                keep_alive(descriptor)
                self._watch_for_end(descriptor)
        except BaseException:
            self._close_loop()
            raise

    def _open(self, engine: AsyncEngine) -> None:
        for _ in range(CONNECTS):
            forks = forks_so_far()
            self._connection: AsyncConnection = self._loop.run_until_complete(_connected(engine))
            if not forked_since(forks):
                return
            self.run(_close)
        raise BackendLost(DISTURBED)

    def is_open(self) -> bool:
        return not self._closed

    def give_up(self, until_ns: int) -> None:
        """Do nothing: the thread of an asyncio driver of SQLite may be inside a statement."""

    def _watch_for_end(self, descriptor: int) -> None:
        """Notice the end of the connection, which a driver only shows at the next statement."""
        if hasattr(select, "epoll"):
            self._hangup = select.epoll()
            self._hangup.register(descriptor, select.EPOLLRDHUP)
            self._loop.add_reader(self._hangup, self._end)

    def _end(self) -> None:
        self._ended = True
        self._heard.set()

    def descriptors(self) -> list[int]:
        if self._closed:
            return []
        selector: Any = self._selector
        own = [selector.fileno()] if hasattr(selector, "fileno") else []
        return [*self._selected(), *own]

    def _selected(self) -> list[int]:
        return [key.fd for key in self._selector.get_map().values()]

    def prepare(self, call: Callable[[Connection], object]) -> None:
        self.run(call)

    def run(self, call: Callable[[Connection], Result]) -> Result:
        return self._loop.run_until_complete(self._connection.run_sync(call))

    def listen(self, channel: str) -> Notices | None:
        raw: Any
        raw, driver = self.run(lambda connection: (connection.connection.driver_connection, connection.dialect.driver))
        if driver != "asyncpg":
            return None
        notices = AsyncpgNotices(raw, self._heard.set)
        self._loop.run_until_complete(raw.add_listener(channel, notices.hear))
        return notices

    def wait(self, sock: socket.socket, seconds: float | None) -> None:
        self._loop.run_until_complete(self._wait(sock, seconds))
        if self._ended:
            raise BackendLost(CLOSED)

    async def _wait(self, sock: socket.socket, seconds: float | None) -> None:
        self._loop.add_reader(sock, self._heard.set)
        try:
            async with asyncio.timeout(seconds):
                await self._heard.wait()
        except TimeoutError:
            pass
        finally:
            self._loop.remove_reader(sock)
            self._heard.clear()

    def close(self) -> None:
        try:
            self.run(_close)
        finally:
            self._close_loop()

    def _close_loop(self) -> None:
        self._closed = True
        if self._hangup is not None:
            self._loop.remove_reader(self._hangup)
            self._hangup.close()
        self._loop.close()


async def _connected(engine: AsyncEngine) -> AsyncConnection:
    connection = await engine.connect()
    await connection.run_sync(_autocommitting)
    return connection


def _autocommitting(connection: Connection) -> Connection:
    try:
        return connection.execution_options(isolation_level="AUTOCOMMIT")
    except BaseException:
        _close(connection)
        raise


def _close(connection: Connection) -> None:
    try:
        connection.invalidate()
        connection.close()
    except DBAPIError:
        pass


def descriptor_of(raw: Any) -> int:
    source: Any = raw if hasattr(raw, "fileno") else getattr(raw, "_sock", None)
    return -1 if source is None else int(source.fileno())


def keep_alive(descriptor: int) -> None:
    """Let the system notice a silent peer after about 25 seconds."""
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE.items():
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def connect(engine: Engine | AsyncEngine) -> OwnConnection:
    try:
        if isinstance(engine, AsyncEngine):
            return LoopConnection(engine)
        return FileConnection(engine) if engine.dialect.name == "sqlite" else BlockingConnection(engine)
    except (DBAPIError, OSError) as error:
        raise BackendLost(text_of(error)) from error
