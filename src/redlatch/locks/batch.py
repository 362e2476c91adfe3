"""Many locks in one round trip: the steps of each batch call."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .. import impl
from ..config import several
from ..errors import LockError, QuorumUnavailable
from ..quorum.calls import Calls
from ..quorum.claim import HELD, RELEASING, UNCONFIRMED
from ..quorum.effects import Steps
from ..quorum.hold import Hold
from ..quorum.upkeep import Upkeep
from ..votes.commands import Command
from .lock import BaseLock, Shared

# At run time `impl` provides the build.
if TYPE_CHECKING:
    from .core import first_foreign, holds_of, longest_ttl_ms, present
else:
    core = impl.current.module("locks.core")
    first_foreign, present = core.first_foreign, core.present
    holds_of, longest_ttl_ms = core.holds_of, core.longest_ttl_ms

AnyLock = TypeVar("AnyLock", bound=BaseLock)


class Batch(Generic[AnyLock]):
    """The locks of one call. Each lock succeeds or fails on its own.

    None stands for a lock that was not acquired; its result is False. `drawn` is the list to put the locks into, for
    `resend_release`. Without a ticket the acquire names neither thread nor task.
    """

    def __init__(
        self,
        shared: Shared[Any],
        locks: Iterable[AnyLock | None],
        drawn: list[AnyLock | None] | None = None,
        ticket: object = None,
    ) -> None:
        self._shared = shared
        self._quorum: Calls = shared.quorum
        self._locks = several("locks", locks, drawn)
        self._ticket = ticket or object()
        # The key is the lock's place among those that are not None.
        self._errors: dict[int, LockError] = {}
        # The tickets of the claims that are being released.
        self._claims: list[object] = []

    def check(self) -> None:
        place = first_foreign(self._locks, self._shared)
        if place >= 0:
            lock = self._locks[place]
            kind = f"a {type(lock).__name__}" if not isinstance(lock, BaseLock) else "another client's"
            raise TypeError(f"locks[{place}]: a lock of this client, or None, is needed, not {kind}")

    def acquiring(self) -> Steps:
        # All have the same ttl.
        locks = self._present()
        ttl_ms = locks[0]._ttl_ms if locks else 0
        return self._quorum.acquire_many(holds_of(locks), self._ticket, ttl_ms)

    def releasing(self, wait: bool) -> Steps:
        self.check()
        locks, quorum = self._present(), self._quorum
        holds = holds_of(locks)
        self._claims = quorum.tickets(holds)
        if not wait:
            return self._together([quorum.release_nowait(lock._hold, lock) for lock in locks])
        return quorum.release_many(holds, longest_ttl_ms(locks), self._errors)

    def extending(self, ttl: float | None) -> Steps:
        self.check()
        return self._together([lock._extending(ttl) for lock in self._present()])

    def won(self) -> list[AnyLock | None]:
        """Return the locks that are held, and None for the others. If this raises, the whole batch must be undone."""
        self._raise_unavailable()
        # An acquire has no None among its locks.
        won: list[AnyLock | None] = self._quorum.those_held(self._locks, holds_of(self._present()))
        self.begin_upkeep()
        return won

    def begin_upkeep(self) -> None:
        if self._shared.on_lost is not None:
            for lock in self._present():
                if lock._hold.state == HELD:
                    lock._upkeep = Upkeep(lock, lock._hold, lock._ttl_ms, asked=True)
                    lock._begin_upkeep()

    def verdicts(self) -> list[bool]:
        self._raise_unavailable()
        count = len(self._present())
        if not self._errors and count == len(self._locks):
            return [True] * count
        succeeded = iter([place not in self._errors for place in range(count)])
        return [lock is not None and next(succeeded) for lock in self._locks]

    def go_on(self) -> None:
        for lock in self._present():
            lock._go_on()

    def undo(self) -> None:
        """Release every lock of an acquire that an exception has ended; this may be repeated."""
        holds = [lock._hold for lock in self._present() if lock._hold.ticket is self._ticket]
        self._send(holds, [hold.undoing(self._ticket) for hold in holds])
        # Last: until then the whole method can be repeated.
        for hold in holds:
            hold.end_undoing(self._ticket)

    def resend_release(self, error: BaseException) -> None:
        """Resend releases that were interrupted, or ended early because the client became unusable.

        This may be repeated. It does not touch a lock object that was released and acquired again since. See
        `recovery.resend_release` for releases that end early.
        """
        tickets = self._claims
        if not tickets and not isinstance(error, Exception) and first_foreign(self._locks, self._shared) < 0:
            # The interrupt came before `releasing` noted the tickets.
            tickets = [lock._hold.ticket for lock in self._present()]
        # There are no tickets if `check` refused a lock.
        locks = zip(self._present(), tickets, strict=False)
        claims = [(lock._hold, ticket) for lock, ticket in locks if lock._hold.ticket is ticket]
        if isinstance(error, LockError):
            usable = self._shared.driver.status.usable
            claims = [claim for claim in claims if not usable and claim[0].state in (RELEASING, UNCONFIRMED)]
        now_ns = self._quorum.clock.now()
        self._send([hold for hold, _ in claims], [hold.resend_release(ticket, now_ns) for hold, ticket in claims])

    def _send(self, holds: list[Hold], releases: list[Command | None]) -> None:
        if not holds:
            return
        try:
            self._shared.driver.send([command for command in releases if command is not None])
        finally:
            for hold in holds:
                self._quorum.leave_queue(self._shared.driver, hold)

    def _present(self) -> list[AnyLock]:
        return present(self._locks)

    def _together(self, many: list[Steps]) -> Steps:
        return self._quorum.together(many, self._errors)

    def _raise_unavailable(self) -> None:
        for error in self._errors.values():
            if isinstance(error, QuorumUnavailable):
                raise error


def resend_release(
    shared: Shared[Any],
    batch: Batch[AnyLock] | None,
    locks: Iterable[AnyLock | None],
    drawn: list[AnyLock | None],
    error: BaseException,
) -> None:
    """Complete the release of many locks after an interrupt; this may be repeated.

    Args:
        batch: None if the interrupt came before it was made.
        locks: the argument of the call. An iterator is not read again, because it may block or have side effects.
        drawn: the locks that were read from `locks` so far.
    """
    # An ordinary exception without a batch means that the argument was refused.
    if batch is None and not isinstance(error, Exception):
        whole = isinstance(locks, Collection) and not isinstance(locks, (str, bytes))
        batch = Batch(shared, locks if whole else drawn)
    if batch is not None:
        batch.resend_release(error)
