"""One connection to the database, of our own, used by one thread, and what its errors mean.

The driver is one for threads or for asyncio. One for asyncio runs in an event loop of that thread, so the client does
not care which loop the application has.
"""

from __future__ import annotations

import asyncio
import math
import select
import selectors
import socket
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from redlatch.sql.descriptors import HANGUP, descriptor_of, give_up_at_fork, keep_alive
from redlatch.sql.notices import AsyncpgNotices, Notices, notices_of
from redlatch.wire.bridge import BackendLost

Result = TypeVar("Result")

CLOSED = "the database closed the connection"

# A row, a table or a whole database is locked by another transaction, or that transaction and ours waited for each
# other: SQLSTATEs of PostgreSQL; numbers of MySQL and MariaDB; result codes of SQLite.
BUSY = {"55P03", "40P01", "40001", 1205, 1213, 1020, 5, 6}

# The server has become a standby, or shuts down. Another connection may lead to another server.
ENDING = {"25006", "57P01", "57P02", "57P03", 1290, 1792, 1836, 1053}


class OwnConnection(Protocol):
    """A connection in AUTOCOMMIT that nothing else uses."""

    def run(self, call: Callable[[Connection], Result]) -> Result:
        """Call a function with the connection of SQLAlchemy, and return its result."""

    def listen(self, channel: str) -> Notices | None:
        """Begin to listen to notices on a channel; return None if this driver cannot receive them."""

    def wait(self, sock: socket.socket, seconds: float | None) -> None:
        """Return when the socket can be read, a notice has come, or the time is over.

        Raises:
            BackendLost: the connection to the database broke meanwhile.
        """

    def close(self) -> None:
        """Close the connection."""


class BlockingConnection:
    """A connection with a driver for threads."""

    def __init__(self, engine: Engine) -> None:
        self._connection = _autocommitting(engine.connect())
        self._notices: Notices | None = None
        self._descriptor = descriptor_of(self._connection.connection.driver_connection)
        self._poll: select.poll | None = None
        if self._descriptor >= 0:
            keep_alive(self._descriptor)
        give_up_at_fork(self)

    def descriptors(self) -> list[int]:
        """Return the descriptors that a forked child must give up."""
        return [self._descriptor] if self._descriptor >= 0 else []

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
        """Return what watches the socket of the bridge, and the connection for notices or for its end."""
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        if self._descriptor >= 0:
            poll.register(self._descriptor, HANGUP if self._notices is None else select.POLLIN)
        return poll

    def close(self) -> None:
        # Forget the descriptor first: after the close its number may belong to another file.
        self._descriptor = -1
        _close(self._connection)


class LoopConnection:
    """A connection with a driver for asyncio, in a loop of its own."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._selector = selectors.DefaultSelector()
        # Not the loop of the application's policy: a forked child must know its descriptors.
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._heard = asyncio.Event()
        self._ended = False
        self._closed = False
        self._hangup: select.epoll | None = None
        give_up_at_fork(self)
        own = set(self._selected())
        try:
            self._connection: AsyncConnection = self._loop.run_until_complete(_connected(engine))
            for descriptor in set(self._selected()) - own:
                keep_alive(descriptor)
                self._watch_for_end(descriptor)
        except BaseException:
            self._close_loop()
            raise

    def _watch_for_end(self, descriptor: int) -> None:
        """Notice the end of the connection, of which a driver learns only at the next statement."""
        if hasattr(select, "epoll"):
            self._hangup = select.epoll()
            self._hangup.register(descriptor, select.EPOLLRDHUP)
            self._loop.add_reader(self._hangup, self._end)

    def _end(self) -> None:
        self._ended = True
        self._heard.set()

    def descriptors(self) -> list[int]:
        """Return the descriptors that a forked child must give up."""
        if self._closed:
            return []
        selector: Any = self._selector
        # One without a descriptor selects with lists.
        own = [selector.fileno()] if hasattr(selector, "fileno") else []
        return [*self._selected(), *own]

    def _selected(self) -> list[int]:
        return [key.fd for key in self._selector.get_map().values()]

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
    """Set the connection to AUTOCOMMIT. Close it if that fails: some drivers send a statement for it."""
    try:
        return connection.execution_options(isolation_level="AUTOCOMMIT")
    except BaseException:
        _close(connection)
        raise


def _close(connection: Connection) -> None:
    """Close the connection for good: a pool must not keep it."""
    try:
        connection.invalidate()
        connection.close()
    except DBAPIError:
        # It is broken already.
        pass


def connect(engine: Engine | AsyncEngine) -> OwnConnection:
    """Open a connection to the database.

    Raises:
        BackendLost: the database cannot be reached; the text says why.
    """
    try:
        return LoopConnection(engine) if isinstance(engine, AsyncEngine) else BlockingConnection(engine)
    except (DBAPIError, OSError) as error:
        raise BackendLost(text_of(error)) from error


def text_of(error: BaseException) -> str:
    """Return what a database or its driver has said, without the statement, its parameters and the row."""
    original = getattr(error, "orig", None) or error
    # The details that PostgreSQL adds may have a whole row, and so the token of a holder.
    primary = getattr(getattr(original, "diag", None), "message_primary", None)
    return " ".join(str(primary or original).split()) or type(original).__name__


def code_of(error: DBAPIError) -> object:
    """Return the code of an error: the SQLSTATE of PostgreSQL, the number of MySQL, or the result code of SQLite."""
    original = error.orig
    arguments = getattr(original, "args", ())
    # The number comes first: some drivers of MySQL also have a SQLSTATE, which says less.
    if arguments and isinstance(arguments[0], int):
        return arguments[0]
    for name in ("sqlstate", "pgcode", "sqlite_errorcode"):
        code = getattr(original, name, None)
        if code is not None:
            return code
    return None


def is_busy(error: DBAPIError) -> bool:
    """Return whether another transaction is in the way."""
    code = code_of(error)
    if hasattr(error.orig, "sqlite_errorcode") and isinstance(code, int):
        # An extended result code has the plain one in its lowest byte.
        code &= 0xFF
    return not error.connection_invalidated and code in BUSY


def is_over(error: DBAPIError) -> bool:
    """Return whether the connection can no longer be used."""
    code = code_of(error)
    return error.connection_invalidated or code is None or code in ENDING
