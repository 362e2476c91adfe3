"""The locks of one database transaction, for `redlatch.sqlalchemy` and `redlatch.django`.

They are checked before its COMMIT, and released after its end.

The releases are sent from callbacks of the database library, after the outcome is fixed. An error there would look like
a failed commit. So they do not wait for answers, and a lost lock is reported, not raised.

A COMMIT that fails is surely rolled back, or in doubt: if the connection breaks before the answer, or the wait is
interrupted, the server may still commit. Then the next holder of the lock could read data from before that commit. So
every error counts as in doubt, except those by which a server or SQLite reports a transaction that it has not
committed. A false doubt only costs the rest of the ttl.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Coroutine, Iterator
from typing import Any

from .config import seconds_of
from .errors import AlreadyHeld, ConfigurationError, LockError, LockLost, NotOwned
from .locks.lock import BaseLock
from .locks.multi import BaseMultiLock
from .loss import Loss, LossKind
from .quorum.claim import HELD, UNCONFIRMED

logger = logging.getLogger("redlatch")

# The default margin before COMMIT: this share of the ttl, but at most this many seconds.
MARGIN, MOST_MARGIN = 0.1, 1.0


class Outcome(enum.Enum):
    COMMITTED = "had committed"
    ROLLED_BACK = "was rolled back"
    IN_DOUBT = "may have committed"


class Held:
    """A lock or multi-lock that one transaction holds until its end."""

    def __init__(self, lock: Any, margin: float | None) -> None:
        self.lock = lock
        self._parts: list[BaseLock] = [lock] if isinstance(lock, BaseLock) else lock._locks
        self._margin = _margin_of(margin, min(part.ttl for part in self._parts))
        # The claims of the acquire; None until it has won. The lock object may be acquired again.
        self._claims: list[object] | None = None
        # The claims before the acquire.
        self._others = [part._hold.ticket for part in self._parts]
        self._ended = False

    @property
    def name(self) -> str | bytes:
        return self._parts[0].name

    @property
    def keys(self) -> dict[tuple[object, bytes], type]:
        return {(part._shared, part._hold.key): type(part._hold.kind) for part in self._parts}

    def won(self) -> None:
        self._claims = [part._hold.ticket for part in self._parts]
        if self._ended:
            raise NotOwned(f"{self.name!r} was acquired after its transaction had ended", name=self.name)

    def check(self) -> None:
        """Raise an error unless the lock is valid for long enough to commit."""
        if self._claims is None:
            raise NotOwned(
                f"{self.name!r} is not held yet, so its transaction cannot commit: hold() must have returned "
                "(with asyncio: await it)",
                name=self.name,
            )
        if not self._has_its_claims():
            raise NotOwned(
                f"{self.name!r} was released before its transaction committed; leave the release to the transaction",
                name=self.name,
            )
        self.lock.check()
        left = self.lock.remaining()
        if left < self._margin:
            reason = f"{left:.3f} s of its validity were left before COMMIT, less than the margin of {self._margin:g} s"
            raise LockLost(
                f"{self.name!r}: {reason}, so the transaction is rolled back; use a longer ttl or auto_renew=True",
                name=self.name,
                reason=reason,
            )

    def end(self, outcome: Outcome, error: BaseException | None = None) -> None:
        """Release the lock; if the commit is in doubt, let it expire instead."""
        self._ended = True
        if not self._is_mine():
            return
        if outcome is Outcome.IN_DOUBT:
            self._leave(error)
            return
        over = [part for part in self._parts if part.remaining() <= 0]
        try:
            _at_once(self.lock.release(wait=False))
        except LockLost:
            for part in over or self._parts:
                _report(part, Loss(LossKind.EXPIRED, f"its validity was over when its transaction {outcome.value}"))
        except LockError as failure:
            logger.warning("lock %r was not released after its transaction: %s", self.name, failure)

    def _is_mine(self) -> bool:
        holds = [part._hold for part in self._parts]
        return any(hold.state in (HELD, UNCONFIRMED) for hold in holds) and self._has_its_claims()

    def _has_its_claims(self) -> bool:
        """Return True if no other acquire has claimed a lock object since. Tickets of one thread are equal."""
        if self._claims is None:
            # The acquire has failed or was interrupted.
            won = zip(self._parts, self._others, strict=True)
            return all([part._hold.ticket is not other and part._made_here(part._hold.ticket) for part, other in won])
        return all([part._hold.ticket is claim for part, claim in zip(self._parts, self._claims, strict=True)])

    def _leave(self, error: BaseException | None) -> None:
        """Stop the renewal, keep the keys on the masters, and report the doubt."""
        cause = "" if error is None else f" ({type(error).__name__})"
        reason = f"the commit is in doubt{cause}, so the lock was not released and runs out with its ttl"
        for part in self._parts:
            upkeep = part._upkeep
            if upkeep is not None:
                upkeep.renews = False
                if upkeep.term is not None:
                    part._mark_lost(upkeep.term)
                # So the end of the lease is not reported again.
                upkeep.end()
            part._report_loss(Loss(LossKind.OTHER, reason))


class Holdings:
    def __init__(self) -> None:
        self._held: list[Held] = []

    def find(self, lock: Any) -> Any:
        """Return the lock that the transaction already has on the same names, or None.

        A wait for names that it holds by another lock would never end, and raises AlreadyHeld.
        """
        wanted = Held(lock, None).keys
        for held in self._held:
            if held.keys == wanted:
                return held.lock
            common = held.keys.keys() & wanted.keys()
            if common:
                raise AlreadyHeld(
                    f"this transaction holds {held.name!r} by {held.lock!r}, and {lock!r} would wait for it; "
                    "hold all names with one lock of one kind, at the beginning of the transaction",
                    name=held.name,
                )
        return None

    def add(self, lock: Any, margin: float | None) -> Held:
        # Before the acquire, so that an interrupt leaves nothing behind.
        held = Held(lock, margin)
        self._held.append(held)
        return held

    def drop(self, held: Held) -> None:
        if held in self._held:
            self._held.remove(held)
        held.end(Outcome.ROLLED_BACK)

    def check(self) -> None:
        for held in self._held:
            held.check()

    def end(self, outcome: Outcome, error: BaseException | None = None) -> None:
        """End all holds, the last one first. Raise the first interrupt after all of them."""
        interrupt: BaseException | None = None
        while self._held:
            try:
                self._held.pop().end(outcome, error)
            except BaseException as raised:
                interrupt = interrupt or raised
        if interrupt is not None:
            raise interrupt


def check_kind(lock: object, kinds: tuple[type, ...], what: str) -> None:
    if not isinstance(lock, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        hint = "" if isinstance(lock, (BaseLock, BaseMultiLock)) else ", as lock() and multi_lock() make it"
        raise TypeError(f"lock: {what} needs a {names}{hint}, not {type(lock).__name__}")


def _margin_of(margin: float | None, ttl: float) -> float:
    seconds = seconds_of("margin", margin)
    if seconds is None:
        return min(MARGIN * ttl, MOST_MARGIN)
    if seconds >= ttl:
        raise ConfigurationError(f"margin: less than the ttl of {ttl:g} s is needed, got {seconds:g} s")
    return seconds


def _report(part: BaseLock, reason: Loss) -> None:
    term = None if part._upkeep is None else part._upkeep.term
    if term is None or term.reason is None:
        part._report_loss(reason)


def _at_once(call: Coroutine[Any, Any, None] | None) -> None:
    """Run a release in a callback that cannot await: it waits for nothing, so it ends in its first step."""
    if call is None:
        return
    try:
        call.send(None)
    except StopIteration:
        return
    except RuntimeError as error:
        raise LockError("no event loop runs here; end the transaction in the loop of the client") from error
    finally:
        # A release that is closed in the middle is still sent.
        call.close()
    raise LockError("the release had to wait; it goes on without an answer")


# SQLSTATEs of PostgreSQL for a broken connection, a shutdown, a fault of the server, or (40003) an unknown completion.
DOUBTFUL_CLASSES = ("08", "57", "58", "F0", "XX")
DOUBTFUL_STATES = ("40003",)

# Errors of MySQL and MariaDB: the row has changed, the wait for it was too long, a deadlock, a rolled back XA
# transaction, and a rollback by group replication.
MYSQL_ROLLED_BACK = (1020, 1205, 1213, 1614, 3101)

# SQLITE_BUSY, SQLITE_LOCKED and SQLITE_CONSTRAINT (a deferred foreign key).
SQLITE_REFUSED = (5, 6, 19)


def surely_rolled_back(error: BaseException) -> bool:
    """Return True if the error of a COMMIT, perhaps wrapped by SQLAlchemy or Django, says that it was not committed."""
    return any(_says_rolled_back(each) for each in _with_origins(error))


def _with_origins(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        yield current
        origin = getattr(current, "orig", None)
        current = origin if isinstance(origin, BaseException) else current.__cause__


def _says_rolled_back(error: BaseException) -> bool:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if isinstance(state, str):
        return not state.startswith(DOUBTFUL_CLASSES) and state not in DOUBTFUL_STATES
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(code, int):
        # The low byte of an extended code is the primary code.
        return code & 0xFF in SQLITE_REFUSED
    return bool(error.args) and error.args[0] in MYSQL_ROLLED_BACK
