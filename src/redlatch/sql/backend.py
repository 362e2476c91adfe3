"""The backend of the engine's commands: locks in a database."""

from __future__ import annotations

import logging
import random
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from sqlalchemy.exc import DBAPIError

from redlatch.sql.connection import OwnConnection
from redlatch.sql.faults import is_busy, is_over, text_of
from redlatch.sql.files import REPLACED, DatabaseFile
from redlatch.sql.history import History, Life
from redlatch.sql.late import LATE_PAUSE, LateReleases
from redlatch.sql.notices import Notices
from redlatch.votes.commands import GONE
from redlatch.votes.scripts import ACQUIRE_FENCED, CONFIRM, EXTEND, HOLDER, LOCKED, OWNED, RELEASE
from redlatch.votes.units import MILLISECOND, SECOND
from redlatch.wire.bridge.bridge import BackendLost, failure
from redlatch.wire.engine.net import now_ns

logger = logging.getLogger("redlatch")

Result = TypeVar("Result")

# A key stays watched if its holder dies without a notice. Above this number all waiters ask again.
MOST_WATCHED = 65_536

_RANDOM = random.Random()

# Tries of a command that must not fail while the row is busy, the first pause in seconds, and the time limit: MySQL
# waits a whole second for a row, and other commands wait behind it.
TRIES, FIRST_PAUSE = 6, 0.005

LONGEST_TRIES_NS = SECOND

# A busy row, or a busy file of SQLite, counts as held for this time when a waiter asks.
BUSY_MS = 50

# After a file was found locked, commands that came meanwhile find it locked for this time.
STAYS_BUSY_NS = 5 * MILLISECOND

OK, NOTHING = b"+OK\r\n", b"_\r\n"


class Store(Protocol):
    def acquire(self, key: bytes, token: bytes, ttl_ms: int) -> bool: ...

    def acquire_fenced(self, key: bytes, token: bytes, ttl_ms: int, first: int, last: int) -> int: ...

    def confirm(self, key: bytes, token: bytes, first: int, last: int) -> bool: ...

    def extend(self, key: bytes, token: bytes, ttl_ms: int) -> bool: ...

    def release(self, key: bytes, token: bytes) -> bool: ...

    def owned(self, key: bytes, token: bytes) -> bool: ...

    def left_ms(self, key: bytes) -> int | None: ...

    def holder(self, key: bytes) -> tuple[int, int, bytes] | None: ...

    def tick(self) -> None:
        """Do due work; called about each `pause` seconds while a lock is held."""

    @property
    def pause(self) -> float: ...

    @property
    def ends_with_connection(self) -> bool: ...


class Translator:
    """The backend of a bridge to a database; `doubt` says why locks of the former connection may be gone, or is ""."""

    def __init__(
        self,
        connection: OwnConnection,
        store: Store,
        notices: Notices | None,
        history: History,
        life: Life,
        doubt: str = "",
        file: DatabaseFile | None = None,
    ) -> None:
        self._file = file
        self.notices = notices
        self.life = life
        self.doubt = doubt
        self._connection = connection
        self._store = store
        self._late = LateReleases(store.release)
        self._history = history
        self._noted = False
        self._watched: set[bytes] = set()
        self._too_many = False
        self._busy_ns = 0
        self.closed = False
        self._scripts: dict[bytes, Callable[[list[bytes]], bytes]] = {
            RELEASE.sha: self._release,
            EXTEND.sha: self._extend,
            OWNED.sha: self._owned,
            LOCKED.sha: self._locked,
            HOLDER.sha: self._holder,
            ACQUIRE_FENCED.sha: self._acquire_fenced,
            CONFIRM.sha: self._confirm,
        }

    # --- the bridge --------------------------------------------------------------------------------

    def answers(self, commands: list[list[bytes]]) -> Iterable[bytes]:
        return map(self.answer, commands)

    def answer(self, words: list[bytes]) -> bytes:
        with self._ending():
            reply = self._reply_to(words)
            # A reply of a file that was replaced meanwhile is void.
            self._look_at_file()
            return reply

    def _reply_to(self, words: list[bytes]) -> bytes:
        try:
            self._look_at_clock()
            return self._perform(words)
        except DBAPIError as error:
            if is_over(error):
                raise
            return failure(RuntimeError(text_of(error)))

    def _perform(self, words: list[bytes]) -> bytes:
        if words[0] == b"SET":
            return self._acquire(words)
        if words[0] == b"PTTL":
            return self._look(words[1])
        if words[0] == b"CLIENT":
            self._noted = True
            return OK
        script = self._scripts.get(words[1]) if words[0] == b"EVALSHA" else None
        if script is None:
            return failure(NotImplementedError("a database has plain and fenced locks only"))
        return script(words[3:])

    def wait(self, sock: socket.socket) -> None:
        with self._ending():
            holds = self._history.held_ns > now_ns()
            self._connection.wait(sock, LATE_PAUSE if self._late else self._store.pause if holds else None)
            self._late.retry()
            if holds:
                self._store.tick()
                self._look_at_clock()
                self._look_at_file()

    def changes(self) -> Iterable[bytes | None]:
        if self.notices is None:
            return ()
        with self._ending():
            changed = {bytes.fromhex(name) for name in self.notices.take() if _is_hex(name)} & self._watched
        self._watched -= changed
        if not self._too_many:
            return changed
        self._too_many = False
        return [None, *changed]

    @contextmanager
    def _ending(self) -> Iterator[None]:
        voids = self._store.ends_with_connection
        try:
            yield
        except BackendLost as lost:
            raise BackendLost(str(lost), lost.voids or voids) from lost
        except (DBAPIError, OSError) as error:
            raise BackendLost(text_of(error), voids) from error
        except Exception as error:
            logger.exception("a bridge has failed")
            raise BackendLost(text_of(error), voids) from error

    def _look_at_clock(self) -> None:
        if not self._store.ends_with_connection and self._history.is_due():
            doubt = self._connection.run(self._history.read_clock)
            if doubt:
                raise BackendLost(doubt, voids=True)

    def _look_at_file(self) -> None:
        if self._file is not None and self._file.is_replaced():
            raise BackendLost(REPLACED, voids=True)

    def _granted(self, ttl_ms: int) -> None:
        self._history.held_ns = max(self._history.held_ns, now_ns() + ttl_ms * MILLISECOND)

    def close(self) -> None:
        try:
            self._late.retry_at_once()
        except DBAPIError as error:
            logger.info("%s; locks whose release had failed stay until their ttl ends", text_of(error))
        finally:
            try:
                self._connection.close()
            finally:
                self.closed = True

    # --- commands ----------------------------------------------------------------------------------

    def _acquire(self, words: list[bytes]) -> bytes:
        key, token, ttl_ms = words[1], words[2], int(words[5])
        self._late.forget(key, token)
        if not self._try(lambda: self._store.acquire(key, token, ttl_ms), False):
            return NOTHING
        self._granted(ttl_ms)
        return OK

    def _acquire_fenced(self, words: list[bytes]) -> bytes:
        key, _, token, *numbers = words
        ttl_ms, first, last = map(int, numbers)
        self._late.forget(key, token)
        stored = self._try(lambda: self._store.acquire_fenced(key, token, ttl_ms, first, last), 0)
        if stored:
            self._granted(ttl_ms)
        return _integer(stored)

    def _confirm(self, words: list[bytes]) -> bytes:
        key, _, token, first, last = words
        return _integer(self._try(lambda: self._store.confirm(key, token, int(first), int(last)), False))

    def _extend(self, words: list[bytes]) -> bytes:
        key, token, ttl_ms = words
        extended = self._retry_while_busy(lambda: self._store.extend(key, token, int(ttl_ms)))
        if extended:
            self._granted(int(ttl_ms))
        return _integer(extended)

    def _release(self, words: list[bytes]) -> bytes:
        key, token = words
        if self._late.forget(key, token):
            return _integer(True)
        try:
            return _integer(self._retry_while_busy(lambda: self._store.release(key, token)))
        except DBAPIError as error:
            if is_busy(error):
                self._late.add(key, token, self._history.held_ns)
            raise

    def _owned(self, words: list[bytes]) -> bytes:
        key, token = words
        return _integer(self._retry_while_busy(lambda: self._store.owned(key, token)))

    def _locked(self, words: list[bytes]) -> bytes:
        return _integer(self._retry_while_busy(lambda: self._store.left_ms(words[0])) is not None)

    def _holder(self, words: list[bytes]) -> bytes:
        held = self._retry_while_busy(lambda: self._store.holder(words[0]))
        return _integer(0) if held is None else b"+%d %d %b\r\n" % held

    def _look(self, key: bytes) -> bytes:
        if self._noted and self.notices is not None:
            # Watch before the question, so that no release is missed.
            if len(self._watched) >= MOST_WATCHED:
                self._watched.clear()
                self._too_many = True
            self._watched.add(key)
        self._noted = False
        busy: int | None = BUSY_MS
        left = self._try(lambda: self._store.left_ms(key), busy)
        return _integer(GONE if left is None else left)

    def _try(self, call: Callable[[], Result], busy: Result) -> Result:
        if now_ns() < self._busy_ns:
            return busy
        try:
            return self._ask(call)
        except DBAPIError as error:
            if not is_busy(error):
                raise
            return busy

    def _retry_while_busy(self, call: Callable[[], Result]) -> Result:
        pause, until_ns = FIRST_PAUSE, now_ns() + LONGEST_TRIES_NS
        for _ in range(0 if now_ns() < self._busy_ns else TRIES):
            try:
                return call()
            except DBAPIError as error:
                if not is_busy(error) or now_ns() >= until_ns:
                    raise
            time.sleep(pause * _RANDOM.uniform(0.5, 1.0))
            pause *= 2
        return self._ask(call)

    def _ask(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except DBAPIError as error:
            if self._file is not None and is_busy(error):
                self._busy_ns = now_ns() + STAYS_BUSY_NS
            raise


def _integer(number: int) -> bytes:
    return b":%d\r\n" % number


def _is_hex(name: str) -> bool:
    try:
        return bool(bytes.fromhex(name))
    except ValueError:
        return False
