"""The lock, the part that both faces share: its state, its checks, and what each call does.

`client.Lock` and `aio.AsyncLock` add only how a generator is run: with or without await.
"""

from __future__ import annotations

import logging
import operator
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn, Protocol

from .. import config
from ..errors import ClientForked, LockBusy, LockError, LockLost, LockTimeout, NotOwned
from ..protocol.effects import Steps
from ..protocol.hold import FREE, HELD, Hold
from ..protocol.outcome import RAN_OUT, loss
from ..protocol.policy import SECOND, Policy
from ..protocol.renewal import Care

logger = logging.getLogger("redlatch")

# Of two threads that ask for an event at once the second gets that of the first. In a forked child a thread of the
# parent may hold the lock for ever: there it is another one.
_one_at_a_time = [threading.Lock()]
os.register_at_fork(after_in_child=lambda: operator.setitem(_one_at_a_time, 0, threading.Lock()))


class Driver(Protocol):
    """What a lock needs of either driver beside running generators."""

    @property
    def protocol(self) -> ModuleType:
        """`protocol.quorum` of the driver's own build."""

    @property
    def batch(self) -> ModuleType:
        """`protocol.batch` of the same build."""

    @property
    def lines(self) -> Any:
        """Who waits for whom."""

    @property
    def forked(self) -> bool: ...

    def tell(self, commands: list[Any]) -> None: ...

    def leave_line(self, hold: Hold) -> None: ...

    def care_for(self, care: Care) -> None: ...


class Shared:
    """What all locks of one client have in common.

    Args:
        driver: runs the generators.
        policy: the numbers of the algorithm.
        wait_release: whether leaving a ``with`` waits for the masters' answer to the release.
        on_lost: called with the lock and the reason when it turns out that a lock had been lost; None logs it.
    """

    __slots__ = ("__weakref__", "driver", "on_lost", "policy", "wait_release")

    def __init__(
        self, driver: Any, policy: Policy, wait_release: bool, on_lost: Callable[[Any, str], object] | None
    ) -> None:
        self.driver = driver
        self.policy = policy
        self.wait_release = wait_release
        self.on_lost = on_lost


class BaseLock:
    """One holder's lock on one name.

    Args:
        shared: what all locks of the client have in common.
        hold: the name and its key, not claimed yet.
        ttl_ms: the time to live.
        timeout: seconds that ``with`` and `acquire` wait by default; None is for ever.
    """

    __slots__ = ("__weakref__", "_care", "_hold", "_shared", "_timeout", "_ttl_ms")

    def __init__(self, shared: Shared, hold: Hold, ttl_ms: int, timeout: float | None) -> None:
        self._shared = shared
        self._hold = hold
        self._ttl_ms = ttl_ms
        self._timeout = timeout
        self._care: Care | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__}: it cannot be copied or pickled; it is one holder's, in one process")

    def __repr__(self) -> str:
        left = self.remaining()
        return f"<{type(self).__name__} {self.name!r} {f'held for {left:.3f} s more' if left else 'not held'}>"

    @property
    def name(self) -> str | bytes:
        """The name as it was given."""
        return self._hold.name

    @property
    def ttl(self) -> float:
        """The time to live in seconds, in whole milliseconds, as the masters count it."""
        return self._ttl_ms / 1000

    @property
    def token(self) -> bytes | None:
        """The value under the key while this object holds the lock, new for every attempt; else None."""
        return self._hold.token if self._hold.state == HELD else None

    @property
    def fence(self) -> int | None:
        """The number of this holder while it holds a lock that was made with ``fence=True``; else None.

        It is higher than that of every holder before it. The resource keeps the highest that it has seen, and refuses
        what comes with a lower one.
        """
        hold = self._hold
        return hold.fence if hold.kind.numbers and hold.state == HELD else None

    @property
    def deadline_ns(self) -> int:
        """Until when the lock may be believed, on the boot-time clock (CLOCK_BOOTTIME) in ns; 0 when free."""
        return self._hold.deadline_ns

    @property
    def elapsed(self) -> float:
        """Seconds from before the first byte of the last won acquire or extend to after its last counted vote."""
        return self._hold.elapsed_ns / SECOND

    def remaining(self) -> float:
        """Return the seconds of validity that are left, 0.0 when there is none; no I/O.

        There is none, either, while a master that voted for it has turned out to forget: until `extend`, or a renewal,
        has found that a quorum has it without that vote.
        """
        hold = self._hold
        policy = self._shared.policy
        if hold.state != HELD or policy.doubts(hold.lease.asked_ns) or self._shared.driver.forked:
            return 0.0
        return max(0, hold.deadline_ns - policy.clock.now()) / SECOND

    def check(self) -> None:
        """Raise unless the lock may still be believed; no I/O.

        Raises:
            LockLost: the validity is over, or a master that voted for it may have forgotten it.
            NotOwned: the lock was never acquired, or is released.
            ClientForked: this process was forked off the holder's.
        """
        if self._shared.driver.forked:
            raise ClientForked(f"{self.name!r} is held by the parent process, not by this child", name=self.name)
        if self._hold.state != HELD:
            raise NotOwned(f"{self.name!r} is not held", name=self.name)
        if self.remaining() <= 0:
            raise self._loss()

    # --- its loss ----------------------------------------------------------------------------------

    def _begin_care(self, anew: bool = False) -> None:
        """Start to renew this lock, or to watch for its loss; called when it was acquired or extended.

        Args:
            anew: whether it was just acquired.
        """
        care = self._care
        if care is not None:
            if anew:
                care.end()
            care.begin(self._shared.policy.clock.now())
            self._shared.driver.care_for(care)

    def _go_on(self) -> None:
        """Care for it by its deadline, which an extension may have moved, also where that failed."""
        if self._care is not None and self._care.live():
            self._begin_care()

    def _let_run_out(self, why: str) -> None:
        """Stop the renewal of a lock whose holder is gone. It runs out with its ttl, and the loss is reported."""
        care = self._care
        if care is not None and care.live():
            care.let_run_out(self, why)

    def _loss_event(self, kind: Callable[[], Any]) -> Any:
        """Return the event of that kind that tells of its loss."""
        with _one_at_a_time[0]:
            care = self._care
            if care is None:
                self._care = care = Care(self, self._hold, self._ttl_ms)
            if care.event is None:
                care.event = kind()
                if self._hold.state == HELD:
                    if care.reason is not None:  # it is lost already
                        care.event.set()
                    elif care.token is None:
                        self._begin_care()
            return care.event

    def mark_lost(self, reason: str) -> None:
        """Set the event of its loss, and cancel its body where that was asked for; the drivers call it."""
        care = self._care
        if care is not None:
            care.reason = reason
            if care.event is not None:
                care.event.set()
            if care.scope is not None:
                care.scope.cancel()

    def _loss(self) -> LockLost:
        """Return the error that tells of its loss."""
        policy, care = self._shared.policy, self._care
        reason = care.reason if care is not None else None
        if reason is None and policy.doubts(self._hold.lease.asked_ns):
            reason = "a master that voted for it may have forgotten it; extend() finds out whether a quorum has it"
        if reason is None:
            reason = RAN_OUT if care is None else care.why_over(policy.clock.now())
        return loss(reason, self._hold)

    # --- what the calls do, for the faces to run ---------------------------------------------------

    def _extending(self, ttl: float | None) -> Steps:
        shared = self._shared
        ttl_ms = (
            self._ttl_ms if ttl is None else config.ttl_ms_of(ttl, shared.policy.drift_factor, shared.policy.max_ttl_ms)
        )
        steps: Steps = shared.driver.protocol.extend(shared.policy, self._hold, ttl_ms)
        return steps

    def _parting(self) -> Steps:
        driver = self._shared.driver
        steps: Steps = driver.protocol.part(self._shared.policy, driver.lines, self._hold, self)
        return steps

    def _asking(self, what: str) -> Steps:
        """Begin what waits as long as a round may: a "release", or the question "locked" or "owned"."""
        shared = self._shared
        patience_ns = shared.policy.patience_ns(self._ttl_ms)
        steps: Steps = getattr(shared.driver.protocol, what)(shared.policy, self._hold, patience_ns)
        return steps

    def tell_lost(self, reason: str = "a quorum had forgotten it before it was released") -> None:
        """Say that this lock is lost; the drivers call it."""
        care = self._care
        told = self._shared.on_lost if care is None or care.on_lost is None else care.on_lost
        if told is None:
            logger.warning("lock %r was lost: %s", self.name, reason)
            return
        try:
            told(self, reason)
        except Exception:
            logger.exception("on_lost failed for lock %r, which was lost: %s", self.name, reason)

    def _not_won(self) -> LockError:
        """Return what ``with`` raises when the lock was not won in time."""
        waited = self._timeout or 0.0
        if not waited:
            return LockBusy(f"{self.name!r} is held by somebody else", name=self.name)
        return LockTimeout(
            f"{self.name!r} was held by somebody else for the {waited} s of its timeout", name=self.name, elapsed=waited
        )

    @property
    def _left_to_release(self) -> bool:
        """Whether leaving a ``with`` has to release: not if the body did so itself."""
        return self._hold.state != FREE


def note_failure(body: BaseException, error: LockError) -> None:
    """Tell of a failed release on the exception that the body of a ``with`` raised; it is not replaced."""
    body.add_note(f"redlatch: {type(error).__name__} when the lock was released: {error}")
