"""Locks on many names: a holder has all names or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ..config import timeout_of
from ..errors import LockError, LockLost, NotOwned, QuorumUnavailable
from ..quorum.calls import Calls
from ..quorum.claim import HELD
from ..quorum.effects import Steps
from .batch import Batch
from .lock import BaseLock, Shared, held_for
from .with_statement import Refusal, leaves, may_leave


class BaseMultiLock:
    """The part of a multi-lock that both faces share; `locks` has one for each name."""

    def __init__(self, shared: Shared[Any], locks: list[Any], timeout: float | None) -> None:
        self._shared = shared
        self._quorum: Calls = shared.quorum
        self._locks: list[BaseLock] = locks
        self._timeout = timeout
        # The names, by place, whose release has a verdict while others have none; the error if the name was lost.
        self._ended: dict[int, LockError | None] = {}

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__}: it cannot be copied or pickled; it has one holder in one process")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.names!r} {held_for(self.remaining())}>"

    @property
    def names(self) -> list[str | bytes]:
        """The names, without duplicates."""
        return [lock.name for lock in self._locks]

    @property
    def group(self) -> str:
        """The group of locks in whose figures these count; "" without one."""
        return self._locks[0].group

    def remaining(self) -> float:
        """Return the seconds of validity that are left for all names, 0.0 if one is not held or expired; no I/O."""
        return min([lock.remaining() for lock in self._locks])

    def check(self) -> None:
        """Raise unless all names are still held; no I/O.

        Raises:
            LockLost: the validity of one name is over.
            NotOwned: the names were never acquired, or are released.
        """
        for lock in self._locks:
            lock.check()

    def _acquiring(self, batch: Batch[Any], timeout: float | None) -> Steps:
        self._ended = {}
        holds = [lock._hold for lock in self._locks]
        return self._quorum.acquire_all(holds, batch._ticket, self._locks[0]._ttl_ms, timeout)

    def _timeout_of(self, blocking: bool, timeout: float | None) -> float | None:
        return self._timeout if timeout is None and blocking is True else timeout_of(timeout, blocking)

    def _won(self, batch: Batch[Any]) -> bool:
        won = all([lock._hold.state == HELD for lock in self._locks])
        if won:
            batch.begin_upkeep()
        return won

    def _claims(self) -> list[tuple[Any, object]]:
        return [(lock._hold, lock._hold.ticket) for lock in self._locks]

    def _resend_release(self, claims: list[tuple[Any, object]], error: BaseException) -> None:
        """Have the release of every name go on without its caller.

        `claims` is empty if an interrupt came before `_claims`. `Batch.resend_release` would not do: the interrupt may
        come before the batch is made. It raises LockLost if the client was closed and has released the names.
        """
        lost = None
        for hold, ticket in claims or self._claims():
            try:
                self._quorum.resend_release(self._shared.driver, hold, ticket, error)
            except LockLost as loss:
                lost = lost or loss
        if lost is not None:
            raise lost

    # Returns whether the calling thread or task has made a ticket.
    _made_here: Callable[[object], bool]

    def _leaves(self, claims: list[tuple[Any, object]], entered: object) -> bool:
        return leaves(
            self._locks[0]._hold, [ticket for _, ticket in claims], entered, self._made_here, self.names[0], self.names
        )

    def _release_anyway(self, claims: list[tuple[Any, object]], entered: object, error: BaseException) -> None:
        claims = claims or self._claims()
        mine = [(hold, ticket) for hold, ticket in claims if may_leave(ticket, entered, self._made_here)]
        if mine:
            self._resend_release(mine, error)

    def _judge_release(self, batch: Batch[Any]) -> None:
        """Raise if a name was lost before the release. A release that is repeated has the verdicts of both calls."""
        errors = batch._errors
        for place, error in self._ended.items():
            if isinstance(errors.get(place), NotOwned):
                del errors[place]
                if error is not None:
                    errors[place] = error
        found = {place: errors.get(place) for place in range(len(self._locks))}
        unknown = [error for error in found.values() if isinstance(error, QuorumUnavailable)]
        without = (QuorumUnavailable, NotOwned)
        ended = {place: error for place, error in found.items() if not isinstance(error, without)}
        self._ended = ended if unknown else {}
        self._judge(batch, batch.verdicts(), "released")

    def _judge(self, batch: Batch[Any], verdicts: list[bool], what: str) -> None:
        # A name may have been lost before the call.
        lost = [lock.name for lock, verdict in zip(self._locks, verdicts, strict=True) if not verdict]
        if len(lost) == len(self._locks) and batch._errors:
            raise batch._errors[0]
        if lost:
            raise LockLost(f"{lost!r} of {self.names!r} had been lost before they were {what}", name=lost[0])

    def _refusal(self) -> Refusal:
        return Refusal(self._shared, [lock._hold for lock in self._locks], self._timeout or 0.0, self.names)
