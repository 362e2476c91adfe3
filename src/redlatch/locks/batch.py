"""Many locks in one round: what the calls of both faces on a batch do, for the faces to run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Generic, TypeVar

from ..errors import ClientClosed, ConfigurationError, LockError, QuorumUnavailable
from ..protocol.commands import Command
from ..protocol.effects import Steps
from ..protocol.hold import HELD, RELEASING, SETTLING, Hold
from ..protocol.renewal import Care
from .lock import BaseLock, Driver, Shared
from .options import several

AnyLock = TypeVar("AnyLock", bound=BaseLock)


class Batch(Generic[AnyLock]):
    """The locks of one call, each with a verdict of its own.

    Args:
        shared: what all locks of the client have in common.
        locks: the client's, or None where a verdict of False is enough.
    """

    def __init__(self, shared: Shared, locks: Iterable[AnyLock | None]) -> None:
        self._shared = shared
        self._driver: Driver = shared.driver
        self._locks = several("locks", locks)
        self._ticket = object()
        self._errors: dict[int, LockError] = {}  # by place among those that are not None
        self._claims: list[object] = []  # the tickets of what is released

    def check(self) -> None:
        """Refuse what is no lock of this client.

        Raises:
            TypeError: naming its place.
        """
        for place, lock in enumerate(self._locks):
            if not self._is_ours(lock):
                kind = f"a {type(lock).__name__}" if not isinstance(lock, BaseLock) else "another client's"
                raise TypeError(f"locks[{place}]: a lock of this client, or None, is needed, not {kind}")

    def _is_ours(self, lock: object) -> bool:
        return lock is None or (isinstance(lock, BaseLock) and lock._shared is self._shared)

    def acquiring(self) -> Steps:
        """Try each lock once; all have one ttl."""
        locks, policy = self._present(), self._shared.policy
        ttl_ms = locks[0]._ttl_ms if locks else 0
        steps: Steps = self._driver.batch.acquire_many(
            policy, self._driver.lines, [lock._hold for lock in locks], self._ticket, ttl_ms
        )
        return steps

    def releasing(self, wait: bool) -> Steps:
        """Release each lock; TypeError if one is none."""
        self.check()
        locks, policy = self._present(), self._shared.policy
        holds = [lock._hold for lock in locks]
        self._claims = self._driver.batch.tickets(holds)
        if not wait:
            return self._together([lock._parting() for lock in locks])
        patience_ns = policy.patience_ns(max([lock._ttl_ms for lock in locks], default=0))
        driver = self._driver
        steps: Steps = driver.batch.release_many(policy, driver.lines, holds, patience_ns, self._errors)
        return steps

    def extending(self, ttl: float | None) -> Steps:
        """Extend each lock; TypeError if one is none."""
        self.check()
        return self._together([lock._extending(ttl) for lock in self._present()])

    def won(self) -> list[AnyLock | None]:
        """Return the locks that are held, and None in place of the others.

        Raises:
            QuorumUnavailable: too many masters failed; then nothing of the batch may be kept.
        """
        self._raise_unavailable()
        won = [lock if lock is not None and lock._hold.state == HELD else None for lock in self._locks]
        self.care()
        return won

    def care(self) -> None:
        """Have the loss of those that are held told, where somebody wants to know."""
        if self._shared.on_lost is not None:
            for lock in self._present():
                if lock._hold.state == HELD:
                    lock._care = Care(lock, lock._hold, lock._ttl_ms)
                    lock._begin_care()

    def verdicts(self) -> list[bool]:
        """Return for each lock whether its call succeeded.

        Raises:
            QuorumUnavailable: too many masters failed for one of them.
        """
        self._raise_unavailable()
        if not self._errors and None not in self._locks:
            return [True] * len(self._locks)
        succeeded = iter([place not in self._errors for place in range(len(self._present()))])
        return [lock is not None and next(succeeded) for lock in self._locks]

    def go_on(self) -> None:
        """Care for each by its deadline, which may have moved."""
        for lock in self._present():
            lock._go_on()

    def undo(self) -> None:
        """Leave nothing behind an acquire that was interrupted or that failed. If interrupted, it may be repeated."""
        holds = [lock._hold for lock in self._present() if lock._hold.ticket is self._ticket]
        self._tell(holds, [hold.undoing(self._ticket) for hold in holds])
        for hold in holds:
            hold.end_undoing(self._ticket)  # last: until then all of this can be done once more

    def insist(self, error: BaseException) -> None:
        """Let releases go on without their caller that were interrupted, or cut short: see `Roster.cuts_short`.

        A lock object that was released, and acquired by somebody else since, is not touched. If interrupted, it may be
        repeated.
        """
        tickets = self._claims
        if not tickets and not isinstance(error, Exception) and all(map(self._is_ours, self._locks)):
            tickets = [lock._hold.ticket for lock in self._present()]  # the interrupt came before `releasing`
        locks = zip(self._present(), tickets, strict=False)  # no tickets where a lock was refused
        claims = [(lock._hold, ticket) for lock, ticket in locks if lock._hold.ticket is ticket]
        if isinstance(error, LockError):
            unusable = isinstance(error, (ClientClosed, ConfigurationError))
            claims = [claim for claim in claims if unusable and claim[0].state in (RELEASING, SETTLING)]
        self._tell([hold for hold, _ in claims], [hold.insist(ticket) for hold, ticket in claims])

    def _tell(self, holds: list[Hold], releases: list[Command | None]) -> None:
        """Send releases that nobody waits for, and let those who wait for these locks' keys go on."""
        if not holds:
            return
        try:
            self._driver.tell([command for command in releases if command is not None])
        finally:
            for hold in holds:
                self._driver.leave_line(hold)

    def _present(self) -> list[AnyLock]:
        return [lock for lock in self._locks if lock is not None]

    def _together(self, many: list[Steps]) -> Steps:
        steps: Steps = self._driver.batch.together(many, self._errors)
        return steps

    def _raise_unavailable(self) -> None:
        for error in self._errors.values():
            if isinstance(error, QuorumUnavailable):
                raise error


def insist(
    shared: Shared,
    batch: Batch[AnyLock] | None,
    locks: Iterable[AnyLock | None],
    drawn: list[AnyLock | None],
    error: BaseException,
) -> None:
    """Complete the release of many locks after an interrupt. If interrupted, this may be repeated.

    Args:
        batch: None if the interrupt came before there was one.
        locks: of the call. An iterator is not drawn from again: it may block, or do anything else.
        drawn: those that the call has drawn from `locks`.
        error: what ended the release.
    """
    if batch is None and not isinstance(error, Exception):  # else the locks were refused
        whole = isinstance(locks, Collection) and not isinstance(locks, (str, bytes))
        batch = Batch(shared, locks if whole else drawn)
    if batch is not None:
        batch.insist(error)
