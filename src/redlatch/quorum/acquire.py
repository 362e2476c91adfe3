"""Acquire, as an iterator of effects: wait in the queue, ask the masters, wait for a change, ask again.

Usually no other waiter in this process exists and the first attempt wins. That path has no generator, which saves a
thousand instructions. The generator for the other paths uses fields instead of locals, because a .pxd cannot type its
locals.
Source of the algorithm: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
"""

from __future__ import annotations

from typing import Any, NoReturn

from redlatch.errors import LockBusy, QuorumUnavailable

from ..votes.ballot import Ballot
from ..votes.units import UNBOUNDED
from .attempt import new_attempt
from .effects import ENDED, Call, Pause, Send, Steps
from .hold import Hold
from .inquiry import name_holder
from .quorum import Quorum
from .recovery import abandon
from .waiting.contention import reach_the_head


def acquire(
    quorum: Quorum,
    hold: Hold,
    ttl_ms: int,
    give_up_ns: int | None,
    ticket: object = None,
    lock: Any = None,
) -> Steps:
    """Try until the lock is won or the time is over. Every attempt has a new token, and is undone unless it has won.

    If another hold of this client is the head of the name's queue, this one waits in the queue, and may get the lease
    of that hold. The thread or task that calls this function owns the lock, even if another one runs the iterator.

    Args:
        hold: in the end it is HELD or FREE. If the iterator raises, the driver recovers it.
        give_up_ns: when to stop trying; None is never, and 0 is after one attempt. One attempt is always made, unless
            another hold of this client is the head and `Quorum.trust_local_holder` is True.
        ticket: identifies the claim on the hold. None: the caller has claimed it.
        lock: the lock object whose upkeep begins when it is held, or None.

    Raises:
        QuorumUnavailable: two attempts in a row had no verdict; or three, if another connection broke meanwhile.
        LockBusy: `max_waiters` of this client wait already, or the timeout ends too early for the queue.
        AlreadyHeld: another call has the claim, or the calling thread or task would wait for itself.
    """
    acquiring = new_acquiring(quorum, hold, ttl_ms, UNBOUNDED if give_up_ns is None else give_up_ns)
    acquiring._ticket = ticket
    acquiring._lock = lock
    return acquiring  # type: ignore[return-value]


class Acquiring(Call):
    """The effects of one acquire; `new_acquiring` makes it (see `new_ballot`).

    `_ballot` is under way, `_ahead` is sent before it, and `_rest` is the generator that has taken over, if any.
    """

    __slots__ = (
        "_ahead",
        "_attempt",
        "_ballot",
        "_caller",
        "_hold",
        "_kind",
        "_lock",
        "_quorum",
        "_rest",
        "_ticket",
        "_ttl_ms",
        "_until_ns",
    )

    def _begin(self, quorum: Quorum, hold: Hold, ttl_ms: int, until_ns: int) -> None:
        self._quorum = quorum
        self._hold = hold
        self._kind = hold.kind
        self._ttl_ms = ttl_ms
        self._until_ns = until_ns
        self._caller: Any = hold.kind.caller()
        self._attempt: Any = None
        self._ballot: Any = None
        self._ahead: Ballot | None = None
        self._rest: Any = None
        self._ticket: object = None
        self._lock: Any = None

    def __iter__(self) -> Acquiring:
        return self

    def __next__(self) -> Any:
        if self._rest is not None:
            return next(self._rest)
        if self._ballot is None:
            if not self._reach():
                self._rest = self._wait_and_ask()
            elif self._ask(self._attempt.now_ns) is None:
                return self._ballot
            else:
                self._rest = self._go_on(False, None)
        else:
            second = self._attempt.second()
            if second is None and self._attempt.keep_if_won():
                self._rest = ENDED
                raise StopIteration
            self._rest = self._go_on(True, second)
        return next(self._rest)

    def _reach(self) -> bool:
        """Begin the acquire; return whether the hold may ask the masters at once."""
        quorum, hold, kind = self._quorum, self._hold, self._kind
        if self._ticket is not None:
            hold.claim(self._ticket)
        hold.to_waiting()
        kind.begin(quorum, hold, self._caller)
        started = quorum.clock.now()
        self._attempt = new_attempt(quorum, hold, self._ttl_ms, self._until_ns, started)
        # With no time left, a hold that shares the lock asks once, regardless of the head.
        alone = not kind.enters_queue or (kind.shares and started >= self._until_ns)
        return (alone and quorum.queues.note_unqueued(hold, started)) or quorum.queues.become_head(hold, started)

    def _ask(self, started_ns: int) -> Ballot | None:
        """Begin an attempt; return the ballot that must be sent ahead of it, if any."""
        try:
            self._ballot = self._attempt.begin(started_ns)
            self._ahead = self._kind.ahead()
        except BaseException:
            self._kind.end_watch(self._quorum, self._hold.key)
            raise
        return self._ahead

    def _wait_and_ask(self) -> Steps:
        try:
            reached = yield from reach_the_head(self._quorum, self._hold, self._ttl_ms, self._until_ns)
        except LockBusy as busy:
            self._attempt.count_refusal(True)
            yield from name_holder(self._quorum, self._hold, busy, self._until_ns)
            raise
        except QuorumUnavailable:
            self._attempt.count_outage()
            raise
        if reached:
            self._attempt.reached()
            self._ask(self._quorum.clock.now())
            yield from self._go_on(False, None)
        elif self._hold.is_held():
            self._attempt.count_win(self._hold.won_ns)
        else:
            self._attempt.count_refusal(self._until_ns <= self._attempt.now_ns)

    def _go_on(self, decided: bool, second: Ballot | None) -> Steps:
        """Finish the attempt under way, and make others until the acquire is over.

        If `decided`, the first ballot of the attempt was decided, and has not won alone.
        """
        try:
            while True:
                if not decided:
                    if self._ahead is not None:
                        yield Send([self._ahead])
                    yield self._ballot
                    second = self._attempt.second()
                if second is not None:
                    yield second
                if not (decided and second is None) and self._attempt.keep_if_won():
                    self._ballot = None
                    return
                decided = False
                if self._attempt.reopen_for_all():
                    yield [self._ballot]
                undo = self._attempt.judge()
                if undo is not None:
                    yield Send([undo])
                    self._attempt.undone()
                if self._attempt.over:
                    # Before `end`: from then on another thread may acquire through this lock object, and wait.
                    self._kind.end_watch(self._quorum, self._hold.key)
                    self._ballot = None
                    break
                if self._attempt.waits:
                    self._attempt.waited((yield from self._kind.wait(self._attempt)))
                elif pause_ns := self._attempt.pause_ns():
                    yield Pause(pause_ns)
                self._ask(self._quorum.clock.now())
        except BaseException:
            self._kind.end_watch(self._quorum, self._hold.key)
            raise
        self._attempt.end()

    def close(self) -> None:
        if self._rest is not None:
            self._rest.close()
        # Even with a generator: if it was interrupted before its first line, it ends nothing.
        if self._ballot is not None and self._rest is not ENDED:
            self._kind.end_watch(self._quorum, self._hold.key)
        if self._attempt is None:
            # The client was connecting, or another call has the claim.
            self._attempt = new_attempt(self._quorum, self._hold, self._ttl_ms, self._until_ns, 0)
        self._attempt.count_break()

    def end(self) -> bool:
        won: bool = self._hold.is_held()
        # Here the upkeep of a lease begins; its user may have asked for it only during the acquire.
        if won and self._hold.has_upkeep and self._lock is not None and self._lock._upkeep is not None:
            self._lock._begin_upkeep(True)
        return won

    def recover(self, driver: Any, error: BaseException) -> None:
        if self._ticket is not None:
            abandon(self._quorum, driver, self._hold, self._ticket)

    def throw(self, error: BaseException) -> NoReturn:
        self.close()
        raise error


def new_acquiring(quorum: Quorum, hold: Hold, ttl_ms: int, until_ns: int) -> Acquiring:
    acquiring: Acquiring = Acquiring.__new__(Acquiring)
    acquiring._begin(quorum, hold, ttl_ms, until_ns)
    return acquiring
