"""Recover calls that failed or were interrupted: an acquire leaves no key behind, and a release is sent again.

Each function may be repeated if an interrupt ends it. `driver` sends commands and wakes callers.
"""

from __future__ import annotations

from typing import Any

from redlatch.errors import ClientClosed, LockError

from .claim import HELD, RELEASING, UNCONFIRMED
from .condition import Waiter
from .hold import Hold
from .latch import Counts
from .outcome import loss, why_lost
from .quorum import Quorum


def abandon(quorum: Quorum, driver: Any, hold: Hold, ticket: object) -> None:
    """Leave nothing behind an acquire that was interrupted or that failed, if its ticket still has the claim."""
    if hold.ticket is ticket:
        try:
            undo = hold.undoing(ticket)
            if undo is not None:
                driver.send([undo])
        finally:
            # Others may wait behind this hold.
            leave_queue(quorum, driver, hold)
        # Last: until then all of this can be repeated.
        hold.end_undoing(ticket)


def resend_release(quorum: Quorum, driver: Any, hold: Hold, ticket: object, error: BaseException) -> None:
    """Have a release go on without its caller if it was interrupted.

    Args:
        error: what ended the release. After a `LockError` nothing is left to do, unless the client can no longer be
            used, and the release has ended in the middle.

    Raises:
        LockLost: the client was closed and has released the lock.
    """
    if quorum.released_ns and isinstance(error, ClientClosed) and hold.state == HELD and hold.ticket is ticket:
        gone = loss(why_lost(quorum, hold, True), hold)
        # `close` may not have come to this lease, and finds no hold that is free. The lease ends before its release
        # leaves (see `quorum.repair`).
        hold.lose(quorum.clock.now())
        driver.send([hold.releasing()])
        hold.free()
        raise gone
    if isinstance(error, LockError) and (hold.state not in (RELEASING, UNCONFIRMED) or driver.status.usable):
        return
    if hold.ticket is ticket:
        try:
            again = hold.resend_release(ticket, quorum.clock.now())
            if again is not None:
                driver.send([again])
        finally:
            # Others may wait behind this hold.
            leave_queue(quorum, driver, hold)


def leave_queue(quorum: Quorum, driver: Any, hold: Hold) -> None:
    quorum.queues.leave(hold, quorum.clock.now(), False)
    driver.wake_called()


def leave_condition(quorum: Quorum, driver: Any, waiter: Waiter, used: int) -> None:
    """Have a waiter leave its condition without waiting; all calls but `used` go to other waiters."""
    waiter.give_up()
    if waiter.entered:
        try:
            driver.send([waiter.leaving(used)])
        finally:
            # The masters push nothing to other waiters of this client.
            if not used:
                quorum.queues.watches.notify(waiter.key)
                driver.wake_called()


def take_back(driver: Any, counts: Counts) -> None:
    if counts.mine:
        driver.send([counts.undoing()])
