"""Notices of other processes, by LISTEN and NOTIFY of PostgreSQL, with drivers that receive them while idle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sqlalchemy import Connection, text

from redlatch.wire.bridge.bridge import BackendLost


class Notices(Protocol):
    def fileno(self) -> int: ...

    def read(self) -> None: ...

    def take(self) -> list[str]: ...


class _OfConnection:
    def __init__(self, raw: Any) -> None:
        self._connection = raw
        self._heard: list[str] = []

    def fileno(self) -> int:
        return int(self._connection.fileno())


class PsycopgNotices(_OfConnection):
    def __init__(self, raw: Any) -> None:
        super().__init__(raw)
        # For notices that come while statements run.
        raw.add_notify_handler(self._hear)

    def _hear(self, notice: Any) -> None:
        if notice.pid != self._connection.info.backend_pid:
            self._heard.append(notice.payload)

    def read(self) -> None:
        try:
            self._connection.pgconn.consume_input()
        except Exception as error:
            raise BackendLost(" ".join(str(error).split())) from error
        self._collect()

    def _collect(self) -> None:
        connection = self._connection.pgconn
        while (notice := connection.notifies()) is not None:
            if notice.be_pid != connection.backend_pid:
                self._heard.append(notice.extra.decode())

    def take(self) -> list[str]:
        # A notice may come with the answer to a statement. Then the descriptor does not become readable.
        self._collect()
        heard, self._heard = self._heard, []
        return heard


class Psycopg2Notices(_OfConnection):
    def read(self) -> None:
        try:
            self._connection.poll()
        except Exception as error:
            raise BackendLost(" ".join(str(error).split())) from error

    def take(self) -> list[str]:
        self.read()
        notices = self._connection.notifies
        heard = [notice.payload for notice in notices if notice.pid != self._connection.info.backend_pid]
        del notices[:]
        return heard


class AsyncpgNotices:
    def __init__(self, raw: Any, wake: Callable[[], object]) -> None:
        self._connection = raw
        self._wake = wake
        self._heard: list[str] = []
        raw.add_termination_listener(lambda _: wake())

    def hear(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        if pid != connection.get_server_pid():
            self._heard.append(payload)
            self._wake()

    def fileno(self) -> int:
        raise NotImplementedError("its loop reads the notices")

    def read(self) -> None:
        if self._connection.is_closed():
            raise BackendLost("the server closed the connection")

    def take(self) -> list[str]:
        self.read()
        heard, self._heard = self._heard, []
        return heard


def notices_of(connection: Connection, channel: str) -> Notices | None:
    driver = connection.dialect.driver
    if driver not in ("psycopg", "psycopg2"):
        return None
    name = connection.dialect.identifier_preparer.quote_identifier(channel)
    connection.execute(text(f"LISTEN {name}"))
    raw = connection.connection.driver_connection
    return PsycopgNotices(raw) if driver == "psycopg" else Psycopg2Notices(raw)
