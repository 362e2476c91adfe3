"""Databases for the tests of transactions: engines of each kind, and a proxy that breaks a connection in COMMIT."""

from __future__ import annotations

import contextlib
import inspect
import socket
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import make_url

from .databases import Server

# The drivers of each face.
DRIVERS = {
    "threads": {"postgresql": "psycopg", "mariadb": "pymysql", "sqlite": "pysqlite"},
    "asyncio": {"postgresql": "asyncpg", "mariadb": "asyncmy", "sqlite": "aiosqlite"},
}
DATABASES = ("postgresql", "mariadb", "sqlite")


async def resolve(value: Any) -> Any:
    """Return what a call of either face returns."""
    return await value if inspect.isawaitable(value) else value


@contextlib.asynccontextmanager
async def entered(context: Any) -> AsyncIterator[Any]:
    """Enter a context manager of either face."""
    if hasattr(context, "__aenter__"):
        async with context as value:
            yield value
    else:
        with context as value:
            yield value


class Cutter:
    """A TCP proxy in front of a database that breaks a connection in COMMIT.

    Attributes:
        mode: "pass" changes nothing. "before" breaks the connection instead of passing COMMIT on. "after" passes it on,
            and breaks the connection when the server has answered. "hold" keeps COMMIT until `release` is set.
        reached: set when a COMMIT has arrived.
        release: lets a COMMIT go on that is held.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.mode = "pass"
        self.reached, self.release = threading.Event(), threading.Event()
        self._sockets: list[socket.socket] = []
        self._start(self._accept)

    def cut(self) -> None:
        """End every connection."""
        while self._sockets:
            _end(self._sockets.pop())

    def close(self) -> None:
        self.release.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _start(self, call: Callable[..., None], *args: Any) -> None:
        threading.Thread(target=call, args=args, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [client, server]
            cutting = threading.Event()
            self._start(self._pass_requests, client, server, cutting)
            self._start(self._pass_replies, client, server, cutting)

    def _pass_requests(self, client: socket.socket, server: socket.socket, cutting: threading.Event) -> None:
        while data := _receive(client):
            if self.mode != "pass" and b"COMMIT" in data:
                if self.mode == "after":
                    cutting.set()
                self.reached.set()
                if self.mode == "before":
                    break
                if self.mode == "hold":
                    self.release.wait()
            if not _send(server, data):
                break
        else:
            _end(server)
            return
        _end(client)
        _end(server)

    def _pass_replies(self, client: socket.socket, server: socket.socket, cutting: threading.Event) -> None:
        while data := _receive(server):
            if cutting.is_set() or not _send(client, data):
                break
        _end(client)
        _end(server)


def _receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(65536)
    except OSError:
        return b""


def _send(sock: socket.socket, data: bytes) -> bool:
    try:
        sock.sendall(data)
    except OSError:
        return False
    return True


def _end(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has ended already
    sock.close()


class Dying(sqlite3.Connection):
    """A connection to SQLite whose disk fails in COMMIT: before it, or after it.

    SQLite has no connection that could break, but the same doubt.
    """

    mode = "pass"

    def commit(self) -> None:
        if Dying.mode == "after":
            super().commit()
        if Dying.mode != "pass":
            raise sqlite3.OperationalError("disk I/O error")
        super().commit()


class Site:
    """One database of a kind, and how to reach it through the faults.

    Args:
        kind: one of `DATABASES`.
        server: the running server; None for SQLite.
        folder: where SQLite has its file.
    """

    def __init__(self, kind: str, server: Server | None, folder: Path) -> None:
        self.kind = kind
        self._server = server
        self.path = folder / "database"
        self.cutter = None if server is None else Cutter(server.port)

    def url(self, face: str, direct: bool = False) -> str:
        """Return the URL for SQLAlchemy."""
        driver = DRIVERS[face][self.kind]
        if self._server is None:
            return f"sqlite+{driver}:///{self.path}"
        assert self.cutter is not None
        url = make_url(self._server.url(driver))
        return url.render_as_string() if direct else url.set(port=self.cutter.port).render_as_string()

    @property
    def port(self) -> int:
        """The port of the proxy."""
        assert self.cutter is not None
        return self.cutter.port

    @property
    def connect_args(self) -> dict[str, Any]:
        """The arguments of `create_engine` for the driver."""
        return {"factory": Dying} if self._server is None else {}

    def fail(self, mode: str) -> None:
        """Let each COMMIT from now on fail in a mode of `Cutter`, or pass."""
        if self.cutter is not None:
            self.cutter.mode = mode
        else:
            Dying.mode = mode

    def close(self) -> None:
        Dying.mode = "pass"
        if self.cutter is not None:
            self.cutter.close()


def begin_at_once(engine: Any) -> None:
    """Make transactions of SQLite begin at once, not at the first change, and check foreign keys.

    This is the recipe of SQLAlchemy for savepoints.
    """

    def no_begin(connection: Any, _: object) -> None:
        connection.isolation_level = None
        connection.cursor().execute("PRAGMA foreign_keys = ON")

    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    event.listen(engine, "connect", no_begin)
    event.listen(engine, "begin", begin)
