"""The warden: a thread that has what is due done for held locks, for the driver for threads.

It is started when there is first something to do: a lock is to be renewed, or its loss to be told, or somebody waits
in line behind a lock that may run out. It sleeps until then, and does nothing itself that might take long.
"""

from __future__ import annotations

import _thread
import logging
import weakref
from typing import Any

from .janitor import Bell, claim_start

logger = logging.getLogger("redlatch")

# Seconds until it tries again what an error has kept it from.
AGAIN = 0.25


class Warden:
    """Calls `driver.attend()` when it is due, until that returns None or the driver is no more.

    Attributes:
        wake_ns: when it wakes by itself; the driver sets it.
    """

    def __init__(self, driver: Any) -> None:
        self._bell = bell = Bell()
        self._driver = weakref.ref(driver, lambda _: bell.ring())  # the thread must not keep a client alive
        self._unstarted = [None]  # the new thread pops this, not its creator: no interrupt strikes there
        self.wake_ns = 0

    def ring(self, due_ns: int) -> None:
        """Say that something is due then; cheap where it wakes early enough."""
        if self._unstarted:  # if two are started at once, all but one end immediately
            _thread.start_new_thread(_work, (self._bell, self._driver, self._unstarted))
        elif due_ns < self.wake_ns:
            self._bell.ring()

    def hurry(self) -> None:
        """Have it look at once, if there is anything to be done for held locks."""
        if not self._unstarted:
            self._bell.ring()


def _work(bell: Bell, reference: weakref.ref[Any], unstarted: list[None]) -> None:
    if not claim_start(unstarted):
        return
    while True:
        seconds = _attend(reference)
        if seconds is None:
            unstarted.append(None)  # who rings from now on starts another one; what was said before is seen here
            seconds = _attend(reference)
            if seconds is None or not claim_start(unstarted):
                return
        bell.wait(seconds)


def _attend(reference: weakref.ref[Any]) -> float | None:
    driver = reference()
    if driver is None:
        return None
    try:
        seconds: float | None = driver.attend()
    except BaseException:  # also SystemExit, which an `on_lost` may raise
        logger.exception("renewing locks or reporting losses failed; the next try comes in %s s", AGAIN)
        return AGAIN
    return seconds
