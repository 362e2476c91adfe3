"""Claim and recovery of lock objects, once for threads and asyncio. Compiled, too (see `redlatch._c`).

A driver is a session that can run steps. The session makes the steps of each call from the generators of `quorum`, in
the driver's own build. It also recovers calls that were interrupted, or that failed: an acquire leaves no key behind,
and a release goes on without its caller.
"""

from __future__ import annotations

from typing import Any

from redlatch.drivers.arrivals import MakeDialler, MakeGuard, weakly
from redlatch.drivers.connections import Connections
from redlatch.drivers.handover import MovingConnections
from redlatch.drivers.held_locks import HeldLocks
from redlatch.drivers.stats import stats_of
from redlatch.errors import ClientClosed, LockError
from redlatch.guard.handover import Successor
from redlatch.health import Health
from redlatch.masters.master import Master
from redlatch.quorum.upkeep_schedule import UpkeepSchedule
from redlatch.stats import Stats

from ..quorum import batch, inquiry
from ..quorum.acquire import acquire
from ..quorum.claim import HELD, RELEASING, UNCONFIRMED
from ..quorum.condition import CallQueue, Waiter
from ..quorum.effects import Steps
from ..quorum.extend import extend
from ..quorum.hold import Hold
from ..quorum.inquiry import ask_about_keys
from ..quorum.latch import Counts
from ..quorum.outcome import loss, why_lost
from ..quorum.quorum import Quorum
from ..quorum.release import release, release_nowait
from ..votes.commands import Command
from ..votes.units import SECOND, UNBOUNDED
from ..wire.engine.fleet import Fleet
from .standing import Standing


class Session:
    """The state and the calls that both drivers share.

    Attributes:
        queues: the waiters of this client, by key.
        held_locks: ends the leases when the client is closed with ``release=True``.
    """

    def __init__(
        self,
        masters: list[Master],
        quorum: Quorum,
        tracking: bool,
        dialler: MakeDialler,
        guard: MakeGuard | None,
        successor: Successor | None = None,
    ) -> None:
        self._quorum = quorum
        self._clock = quorum.clock
        self.queues = quorum.queues
        deliver = weakly(self)
        self._standing = standing = Standing()
        if successor is None:
            self._connections = Connections(
                masters,
                quorum.majority,
                quorum.clock,
                Fleet,
                deliver,
                tracking,
                dialler,
                guard,
                quorum.doubts,
                standing,
            )
        else:
            self._connections = MovingConnections(
                masters, quorum, Fleet, deliver, tracking, dialler, guard, successor, standing
            )
        self._schedule = UpkeepSchedule(quorum)
        self.held_locks = HeldLocks(quorum)

    def expect_to_run(self, heartbeat_ns: int) -> None:
        """End the renewal of held locks if this process, or the event loop, has not run for this time; 0 never does."""
        self._schedule.expect_to_run(heartbeat_ns)

    def watch_no_keys(self) -> None:
        """Do not watch the keys of held locks, because the masters push no changes of them."""
        self._schedule.keys.possible = False

    @property
    def forked(self) -> bool:
        """True if this is a child of the process that the client was connected in."""
        return self._standing.forked

    @property
    def state(self) -> str:
        """The state of the client, in a few words for its repr."""
        standing, fleet = self._standing, self._connections.fleet
        if standing.closing:
            return "closed"
        if standing.forked:
            return "of the parent process"
        if fleet is None:
            return "not connected"
        if not standing.usable:
            return "misconfigured"
        return f"{sum([link.up for link in fleet.links])} of {self._quorum.size} connected"

    def health(self) -> Health:
        """Return what is known of the masters and of the locks that stand on them, without I/O."""
        return self._connections.health(self.queues.held())

    def stats(self) -> Stats:
        """Return the figures of the client, without I/O."""
        return stats_of(self._quorum, self._connections.stats())

    def causes(self) -> dict[str, BaseException]:
        """Return why masters do not vote, by their names; without I/O."""
        return self._connections.causes()

    def send(self, commands: list[Command]) -> None:
        """Send commands to every master without waiting for an answer."""
        raise NotImplementedError

    def wake_called(self) -> None:
        """Wake callers whose queue entry was called, and callers that watch a key that has changed."""
        raise NotImplementedError

    # --- the steps of a call -----------------------------------------------------------------------

    def acquiring(self, hold: Hold, ttl_ms: int, timeout: float | None) -> Steps:
        """Return the steps of an acquire. With asyncio the calling task owns the lock, even if another task runs them.

        Args:
            timeout: seconds to wait; None means no limit, 0 one attempt.
        """
        return acquire(self._quorum, hold, ttl_ms, self._give_up_ns(timeout))

    def extending(self, hold: Hold, ttl_ms: int) -> Steps:
        """Return the steps of an extension."""
        return extend(self._quorum, hold, ttl_ms)

    def releasing(self, hold: Hold, ttl_ms: int) -> Steps:
        """Return the steps of a release that waits for the answer."""
        return release(self._quorum, hold, self._quorum.wait_ns(ttl_ms))

    def releasing_nowait(self, hold: Hold, released_lock: object) -> Steps:
        """Return the steps of a release that does not wait; the lock is notified if it had been lost before."""
        return release_nowait(self._quorum, hold, released_lock)

    def locked(self, hold: Hold, ttl_ms: int) -> Steps:
        """Return the steps that ask the masters whether a name is locked."""
        return inquiry.locked(self._quorum, hold, self._quorum.wait_ns(ttl_ms))

    def owned(self, hold: Hold, ttl_ms: int) -> Steps:
        """Return the steps that ask the masters whether this holder has the lock."""
        return inquiry.owned(self._quorum, hold, self._quorum.wait_ns(ttl_ms))

    def holder(self, hold: Hold, ttl_ms: int) -> Steps:
        """Return the steps that ask the masters which token has the lock."""
        return inquiry.holder(self._quorum, hold, self._quorum.wait_ns(ttl_ms))

    def blockers(self, holds: list[Hold], timeout: float) -> Steps:
        """Return the steps that ask the masters who has locks that were not won within a timeout in seconds."""
        return inquiry.blockers(self._quorum, holds, int(timeout * SECOND))

    def condition(self, hold: Hold, key: bytes, ttl_ms: int) -> CallQueue:
        """Return the waiters of the condition with this key, for the lock of a hold."""
        return CallQueue(self._quorum, hold, key, ttl_ms)

    def awaiting_call(self, waiter: Waiter, timeout: float | None) -> Steps:
        """Return the steps that wait for a call; `timeout` is in seconds, None means no limit."""
        return waiter.awaiting(self._until_ns(timeout))

    def counts(self, hold: Hold, count: int, ttl_ms: int) -> Counts:
        """Return one use of a latch that opens after `count` counts."""
        return Counts(self._quorum, hold, count, ttl_ms)

    def awaiting_counts(self, counts: Counts, timeout: float | None) -> Steps:
        """Return the steps that wait until a latch is open; `timeout` is as for `awaiting_call`."""
        return counts.awaiting(self._until_ns(timeout))

    def acquiring_many(self, holds: list[Hold], ticket: object, ttl_ms: int) -> Steps:
        """Return the steps that try once to win each of many locks."""
        return batch.acquire_many(self._quorum, holds, ticket, ttl_ms)

    def acquiring_all(self, holds: list[Hold], ticket: object, ttl_ms: int, timeout: float | None) -> Steps:
        """Return the steps that win all of many locks, or none; the timeout is as for `acquiring`."""
        return batch.acquire_all(self._quorum, holds, ticket, ttl_ms, self._give_up_ns(timeout))

    def releasing_many(self, holds: list[Hold], ttl_ms: int, errors: dict[int, LockError]) -> Steps:
        """Return the steps that release many locks and wait for the answers; errors go into a dict by place."""
        return batch.release_many(self._quorum, holds, self._quorum.wait_ns(ttl_ms), errors)

    def together(self, many: list[Steps], errors: dict[int, LockError]) -> Steps:
        """Return the steps of many calls at once; errors go into a dict by place."""
        return batch.together(many, errors)

    def tickets(self, holds: list[Hold]) -> list[object]:
        """Return the ticket of the claim on each hold."""
        return batch.tickets(holds)

    def _give_up_ns(self, timeout: float | None) -> int | None:
        """Return until when to try: None means no limit, 0 once."""
        return None if timeout is None else self._clock.now() + int(timeout * SECOND) if timeout else 0

    def _until_ns(self, timeout: float | None) -> int:
        """Return until when to wait."""
        return UNBOUNDED if timeout is None else self._clock.now() + int(timeout * SECOND)

    # --- recovery ----------------------------------------------------------------------------------

    def abandon(self, hold: Hold, ticket: object) -> None:
        """Leave nothing behind an acquire that was interrupted or that failed. If interrupted, it may be repeated.

        Args:
            ticket: of the acquire. If it has no claim (any more), nothing happens.
        """
        if hold.ticket is ticket:
            try:
                # A release behind whatever was sent.
                undo = hold.undoing(ticket)
                if undo is not None:
                    self.send([undo])
            finally:
                # Others may wait behind this hold.
                self.leave_queue(hold)
            # Last: until then all of this can be done once more.
            hold.end_undoing(ticket)

    def resend_release(self, hold: Hold, ticket: object, error: BaseException) -> None:
        """Have a release go on without its caller if it was interrupted. If interrupted, this may be repeated.

        Args:
            ticket: of the claim that is released. The lock object may have been acquired again since then.
            error: what ended the release. After a `LockError` nothing is left to do, unless the client can no longer be
                used (`_cuts_short`).

        Raises:
            LockLost: the client was closed and has released the lock.
        """
        if self.held_locks.ended and isinstance(error, ClientClosed) and hold.state == HELD and hold.ticket is ticket:
            gone = loss(why_lost(self._quorum, hold, True), hold)
            # All leases have ended, but `close` may not have come to this one, and finds no hold that is free.
            # The lease ends before its release leaves (see `quorum.repair`).
            hold.lose(self._clock.now())
            self.send([hold.releasing()])
            hold.free()
            raise gone
        if isinstance(error, LockError) and not self._cuts_short(hold):
            return
        if hold.ticket is ticket:
            try:
                again = hold.resend_release(ticket, self._clock.now())
                if again is not None:
                    self.send([again])
            finally:
                # Others may wait behind this hold.
                self.leave_queue(hold)

    def leave_condition(self, waiter: Waiter, used: int) -> None:
        """Have a waiter leave its condition, without waiting. If interrupted, this may be repeated.

        Args:
            used: the number of the call that the waiter has used; 0 passes all of its calls on to other waiters.
        """
        waiter.give_up()
        if waiter.entered:
            try:
                self.send([waiter.leaving(used)])
            finally:
                # The masters push nothing to other waiters of this client.
                if not used:
                    self.queues.watches.notify(waiter.key)
                    self.wake_called()

    def take_back(self, counts: Counts) -> None:
        """Take back the count of a call that failed or was interrupted. If interrupted, this may be repeated."""
        if counts.mine:
            self.send([counts.undoing()])

    def _cuts_short(self, hold: Hold) -> bool:
        """Return whether a release has ended in the middle because this client cannot be used."""
        return hold.state in (RELEASING, UNCONFIRMED) and not self._standing.usable

    def leave_queue(self, hold: Hold) -> None:
        """Leave the queue, and wake the next waiter."""
        self.queues.leave(hold, self._clock.now(), False)
        self.wake_called()


def extending_all(quorum: Quorum, wanted: list[tuple[Hold, int, bytes]], errors: dict[int, LockError]) -> Steps:
    """Return the steps that extend each hold to its ttl in ms if it has its token; errors go into a dict by place."""
    return batch.together([extend(quorum, hold, ttl_ms, token) for hold, ttl_ms, token in wanted], errors)


def asking_all(quorum: Quorum, terms: list[Any]) -> Steps:
    """Return the steps that ask about the keys of many leases."""
    return ask_about_keys(quorum, terms)
