"""Connect to a database: the checks of a handshake, and the bridge for the engine."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from typing import Any

from sqlalchemy.exc import DBAPIError

from redlatch.errors import MasterQuarantined
from redlatch.sql import shedlock
from redlatch.sql.backend import Store, Translator
from redlatch.sql.checks import (
    prepare,
    refuse_galera,
    refuse_inherited,
    refuse_replica,
    refuse_shared,
    refuse_statement_pooling,
    refuse_without_table,
    why_shared,
)
from redlatch.sql.connection import OwnConnection, connect
from redlatch.sql.database import Database
from redlatch.sql.faults import text_of
from redlatch.sql.files import REPLACED, DatabaseFile, file_at, named_path, path_of
from redlatch.sql.history import History, life_of, life_of_file
from redlatch.sql.notices import Notices
from redlatch.sql.rows import MySQLRows, Rows
from redlatch.sql.sessions import MySQLSession, PostgresSession
from redlatch.sql.settings import SHEDLOCK, Settings
from redlatch.sql.table import layout_of
from redlatch.votes.commands import BY_SHA
from redlatch.votes.redaction import shown
from redlatch.wire.bridge.bridge import ENDS, VOIDS, BackendLost, open_bridge
from redlatch.wire.dial.connect import Connection, HandshakeExtension
from redlatch.wire.engine.net import now_ns
from redlatch.wire.server_traits import Traits

# Seconds for about a dozen statements.
LONGEST_DIAL = 10.0

logger = logging.getLogger("redlatch")


class DatabaseTraits(Traits):
    """The state of a database connection; locks from before `doubted_ns` may be gone."""

    reports_itself = True

    def __init__(self, identity: str, tracks: bool, history: History, doubted_ns: int) -> None:
        super().__init__({"run_id": identity, "role": "master"}, 3, tracks)
        self.dialect = BY_SHA
        self.doubted_ns = doubted_ns
        self._history = history

    def reply_error(self, text: str, login: bool = False) -> Exception:
        word, _, rest = text.partition(" ")
        if word == VOIDS:
            # The engine puts all holders in doubt, so the next connection need not.
            self._history.forget()
            return MasterQuarantined(shown(rest), doubted_ns=now_ns())
        return ConnectionError(shown(rest)) if word == ENDS else RuntimeError(shown(rest))

    def ends(self, error: Exception) -> bool:
        return isinstance(error, (ConnectionError, MasterQuarantined))


class DatabaseDial:
    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._history = History(database.address, settings.by_session)
        self._opening = threading.Lock()
        self._backends: list[Translator] = []
        self._said_polling = False
        self._sessions = itertools.count(1)
        self._file: DatabaseFile | None = None

    def __call__(
        self, database: Any, timeout: float, tracking: bool, extension: HandshakeExtension | None
    ) -> Connection:
        try:
            sock, backend = open_bridge(lambda: self._open_alone(database, tracking), max(timeout, LONGEST_DIAL))
        except BackendLost as lost:
            raise ConnectionError(str(lost)) from lost
        doubted_ns = now_ns() if backend.doubt else 0
        if backend.doubt:
            logger.warning("database %s: locks are verified, because %s", database.address, backend.doubt)
        self._history.note(backend.life)
        identity = backend.life.identity
        if self._settings.by_session:
            identity += f", session {next(self._sessions)}"
        traits = DatabaseTraits(identity, backend.notices is not None, self._history, doubted_ns)
        return Connection(sock, traits)

    def _open_alone(self, database: Database, tracking: bool) -> Translator:
        # Attempts that hang would pile up at a stopped server.
        if not self._opening.acquire(blocking=False):
            raise BackendLost("the last attempt to connect has not ended yet")
        try:
            backend = self._open(database, tracking)
            self._backends = [each for each in self._backends if not each.closed] + [backend]
            return backend
        except DBAPIError as error:
            raise BackendLost(text_of(error)) from error
        finally:
            self._opening.release()

    def is_open(self) -> bool:
        return self._opening.locked() or not all([backend.closed for backend in self._backends])

    def _open(self, database: Database, tracking: bool) -> Translator:
        if database.family == "sqlite":
            self._file = self._find_file(database)
            refuse_inherited(self._file, database)
        connection = connect(database.engine)
        try:
            file = self._file
            if file is not None and (file.is_replaced() or self._file_of(database, connection) != file):
                raise BackendLost(REPLACED)
            connection.file = file
            return self._examine(database, connection, tracking)
        except BaseException:
            connection.close()
            raise

    def _find_file(self, database: Database) -> DatabaseFile:
        if self._file is not None and not os.path.exists(self._file.path):
            # SQLite would create an empty file.
            raise BackendLost("its file was deleted; put it back, or call create_table() again")
        connection = connect(database.engine)
        try:
            return self._file_of(database, connection)
        finally:
            connection.close()

    def _file_of(self, database: Database, connection: OwnConnection) -> DatabaseFile:
        table = self._settings.table
        assert table is not None
        found = connection.run(lambda raw: path_of(raw, database.address, table))
        return file_at(named_path(database.engine.url, found))

    def _examine(self, database: Database, connection: OwnConnection, tracking: bool) -> Translator:
        family, settings, file = database.family, self._settings, self._file
        # First: settings behind a pooler stay for its other clients.
        shared = why_shared(connection) if family == "postgresql" else ""
        if shared:
            refuse_statement_pooling(connection, database)
            if settings.by_session:
                refuse_shared(database, shared)
        connection.prepare(lambda raw: prepare(raw, family, settings, bool(shared)))
        life = connection.run(lambda raw: life_of(raw, database)) if file is None else life_of_file(file)
        if not settings.by_session:
            connection.run(self._history.read_clock)
        doubt = self._history.doubt_about(life)
        connection.run(lambda raw: refuse_replica(raw, database))
        if settings.by_session:
            connection.run(lambda raw: refuse_galera(raw, database))
        else:
            connection.run(lambda raw: refuse_without_table(raw, database, settings))
        notices = self._listen(database, connection, shared) if tracking and family == "postgresql" else None
        store = _store_of(connection, family, settings)
        return Translator(connection, store, notices, self._history, life, doubt, file)

    def _listen(self, database: Database, connection: OwnConnection, shared: str) -> Notices | None:
        notices = None if shared else connection.listen(self._settings.channel)
        if notices is None and not self._said_polling:
            self._said_polling = True
            why = shared or f"is reached with a driver ({database.engine.dialect.driver}) that hears no notices"
            logger.warning(
                "database %s: LISTEN does not work, because it %s: waiters ask again after the pauses of retry",
                database.address,
                why,
            )
        return notices


def _store_of(connection: OwnConnection, family: str, settings: Settings) -> Store:
    channel = settings.channel if family == "postgresql" else None
    if settings.table is None:
        return MySQLSession(connection) if family == "mysql" else PostgresSession(connection, channel)
    if settings.dialect == SHEDLOCK:
        layout = shedlock.layout_of(settings.table)
    else:
        layout = layout_of(settings.table, settings.owner)
    return MySQLRows(connection, layout) if family == "mysql" else Rows(connection, layout, channel)
