"""What a dialling thread delivers to a driver, a connection or why there is none; and what the drivers dial with."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ..config import Master
from ..guard.admission import Admissions
from ..votes.units import Clock
from ..wire.connect import Connection

# Seconds for one connect and for one handshake.
DIAL_TIMEOUT = 2.0

# Seconds that a first use waits for the rest of the masters after a quorum is connected. So a wrong list of masters is
# found before the first lock.
GRACE = 0.25

Outcome = Connection | Exception
Deliver = Callable[[int, Outcome], None]
MakeDialler = Callable[[list[Master], float, Deliver, Deliver, bool], Any]
MakeGuard = Callable[[Callable[[int, int], None]], Admissions]
Muster = Callable[[list[str], int, Clock, bool, int], Any]


def turn_away(outcome: Outcome) -> None:
    """Close a connection that came too late; harmless when repeated."""
    if isinstance(outcome, Connection):
        outcome.sock.close()


def twin_of(masters: list[Master], index: int, run_id: str, seen: dict[int, str]) -> int | None:
    """Return the index of another master that is the same server as this one; None if there is none.

    Args:
        seen: the run_id of each other master that was reached.
    """
    me = masters[index]
    for other, theirs in seen.items():
        if theirs == run_id and not (me.by_db and me.db != masters[other].db):
            return other
    return None


def weakly(driver: Any) -> Deliver:
    """Return a `deliver` with a weak reference: a dialling thread does not keep a client alive."""
    reference = weakref.ref(driver)

    def deliver(index: int, outcome: Outcome) -> None:
        driver = reference()
        if driver is not None:
            driver.deliver(index, outcome)
        else:
            turn_away(outcome)

    return deliver
