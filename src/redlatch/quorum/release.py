"""Release, as an iterator or a generator of effects.

Usually no other waiter in this process exists, and one ballot without a generator is enough (see `acquire`).
"""

from __future__ import annotations

from typing import Any, NoReturn

from .effects import ENDED, Call, Send, Steps
from .hold import Hold
from .outcome import end_release, loss, why_lost
from .quorum import Quorum
from .recovery import resend_release


def release(quorum: Quorum, hold: Hold, wait_ns: int) -> Steps:
    """Pass the lock on to the next waiter of this client, or delete its key on every master and wait for a quorum.

    A release that was interrupted or that failed may be called again. The command reaches every master that may have
    the key, even if the connection must be made again.

    Raises:
        NotOwned: the lock is not held, or another thread is releasing it.
        LockLost: before the release the validity was over, or a quorum had forgotten the token.
        QuorumUnavailable: too many masters failed. Their keys are deleted when they are back, or expire.
    """
    return new_releasing(quorum, hold, wait_ns)  # type: ignore[return-value]


class Releasing(Call):
    """The effects of one release; `new_releasing` makes it (see `new_ballot`)."""

    __slots__ = (
        "_ballot",
        "_hold",
        "_late",
        "_quorum",
        "_released_lock",
        "_resent",
        "_rest",
        "_started_ns",
        "_ticket",
        "_wait_ns",
        "_waits",
    )

    def _begin(self, quorum: Quorum, hold: Hold, wait_ns: int) -> None:
        self._quorum = quorum
        self._hold = hold
        self._ticket: object = hold.ticket
        self._wait_ns = wait_ns
        self._waits = True
        self._released_lock: Any = None
        self._started_ns = 0
        self._late = self._resent = False
        self._ballot: Any = None
        self._rest: Any = None

    def __iter__(self) -> Releasing:
        return self

    def __next__(self) -> Any:
        if self._rest is not None:
            return next(self._rest)
        if self._ballot is None:
            if self._begun():
                return self._ballot
        elif self._ended():
            self._rest = ENDED
            raise StopIteration
        self._rest = self._rest or self._go_on()
        return next(self._rest)

    def _begun(self) -> bool:
        """Begin the release; return whether one ballot is all that it needs."""
        quorum, hold = self._quorum, self._hold
        if not self._waits:
            self._rest = self._send_only()
            return False
        self._begin_release()
        if self._quorum.queues.by_key:
            if self._handed_off():
                self._rest = ENDED
            return False
        command = hold.unanswered if self._resent else hold.releasing()
        self._ballot = quorum.ballot(command, self._started_ns + self._wait_ns)
        return True

    def _begin_release(self) -> None:
        self._started_ns = self._quorum.clock.now()
        self._late, self._resent = self._hold.begin_release(self._started_ns)

    def _handed_off(self) -> bool:
        quorum, hold = self._quorum, self._hold
        if self._late or self._resent or not self._quorum.queues.hand_off(quorum, hold, self._started_ns):
            return False
        figures = hold.figures_in(quorum)
        figures.hand_offs = figures.hand_offs + 1
        hold.count_end(quorum, self._started_ns)
        hold.free()
        return True

    def _ended(self) -> bool:
        self._quorum.queues.leave(self._hold, self._started_ns, False)
        return self._judge()

    def _judge(self) -> bool:
        over = end_release(self._quorum, self._hold, self._ballot, self._late, self._resent, self._started_ns)
        self._resent = True
        return over

    def _go_on(self) -> Steps:
        """Send the release until it has a verdict; waiters of this client may come meanwhile."""
        # The same command again: it knows where it may have been obeyed, and after an interrupt in another thread the
        # hold may have a new lease.
        if self._ballot is not None:
            command = self._ballot.command
        else:
            command = self._hold.unanswered if self._resent else self._hold.releasing()
        while True:
            self._ballot = self._quorum.ballot(command, self._started_ns + self._wait_ns)
            # Sent before `leave` calls the next waiter, whose commands must follow.
            if self._quorum.queues.by_key:
                yield Send([self._ballot])
                self._quorum.queues.leave(self._hold, self._started_ns, not self._late)
                yield [self._ballot]
                over = self._judge()
            else:
                yield self._ballot
                over = self._ended()
            if over:
                return

    def _send_only(self) -> Steps:
        self._begin_release()
        if self._quorum.queues.by_key and self._handed_off():
            return
        command = self._hold.unanswered if self._resent else self._hold.releasing()
        self._ballot = self._quorum.ballot(command)
        if not self._late:
            self._ballot.released_lock = self._released_lock
            self._ballot.released_lease = self._hold.lease
        yield Send([self._ballot])
        self._quorum.queues.leave(self._hold, self._started_ns, not self._late)
        why = why_lost(self._quorum, self._hold, True) if self._late else None
        self._hold.count_end(self._quorum, self._started_ns, why)
        self._hold.free()
        if why is not None:
            raise loss(why, self._hold, self._quorum.clock.now() - self._started_ns)

    def close(self) -> None:
        if self._rest is not None:
            self._rest.close()

    def recover(self, driver: Any, error: BaseException) -> None:
        resend_release(self._quorum, driver, self._hold, self._ticket, error)

    def throw(self, error: BaseException) -> NoReturn:
        self.close()
        raise error


def release_nowait(quorum: Quorum, hold: Hold, released_lock: object) -> Steps:
    """Release without waiting for answers. The driver reports the lock as lost if a quorum refuses the release.

    Raises:
        NotOwned: the lock is not held, or another thread is releasing it.
        LockLost: the validity was over before the release.
    """
    releasing = new_releasing(quorum, hold, 0)
    releasing._waits = False
    releasing._released_lock = released_lock
    return releasing  # type: ignore[return-value]


def new_releasing(quorum: Quorum, hold: Hold, wait_ns: int) -> Releasing:
    releasing: Releasing = Releasing.__new__(Releasing)
    releasing._begin(quorum, hold, wait_ns)
    return releasing
