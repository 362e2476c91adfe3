"""The janitor: a thread that has replies read when no other thread is in a call of the client.

The driver for threads leaves as soon as a quorum has answered, and between two calls nobody reads. Mostly the
next call comes soon. Where it does not, a minority's answer that asks for something would wait for it: that the
script of a release is missing there, or that the connection broke under it. So who leaves answers behind rings
the janitor, who looks a moment later, again and again until nothing is owed any more, and then sleeps. It is
never on the way of a call that finds the client's sockets free, and its bell is the only thing that is shared.
"""

from __future__ import annotations

import _thread
import logging
import threading
import time
import weakref
from typing import Any

logger = logging.getLogger("redlatch")

# Seconds from the bell to the look: long enough that a busy client has read everything itself.
PERIOD = 0.25


class Bell:
    """Rung from any thread, waited for by one; rung often before somebody comes, it wakes once.

    Not a threading.Event: an interrupt inside its `set` or `wait` leaves its lock taken for ever.
    """

    def __init__(self) -> None:
        self._free_when_rung = threading.Lock()
        self._free_when_rung.acquire()

    def ring(self) -> None:
        """Wake who waits, or who will wait next; cheap where that was said already."""
        if self._free_when_rung.locked():
            try:
                self._free_when_rung.release()
            except RuntimeError:
                pass  # another thread rang at the same time

    def wait(self, seconds: float = -1) -> None:
        """Wait until it is rung, for at most `seconds` where they are not below 0."""
        self._free_when_rung.acquire(timeout=seconds)


class Janitor:
    """Calls `driver.tidy()` a moment after `ring()`, until that returns False or the driver is no more."""

    def __init__(self, driver: Any) -> None:
        self._bell = bell = Bell()
        self._driver = weakref.ref(driver, lambda _: bell.ring())  # the thread must not keep a client alive
        self._unstarted = [None]  # the new thread pops this, not its creator: no interrupt strikes there

    def start(self) -> None:
        """Begin to listen for the bell; harmless when repeated."""
        if self._unstarted:  # if two are started at once, all but one end immediately
            _thread.start_new_thread(_work, (self._bell, self._driver, self._unstarted))

    def ring(self) -> None:
        """Say that there is something to look after; cheap when it was said already."""
        self._bell.ring()


def claim_start(unstarted: list[None]) -> bool:
    """Return True in exactly one of the threads that call this with the same list."""
    try:
        unstarted.pop()
    except IndexError:
        return False
    return True


def _work(bell: Bell, reference: weakref.ref[Any], unstarted: list[None]) -> None:
    if not claim_start(unstarted):
        return
    goes_on = True
    while goes_on:
        bell.wait()
        time.sleep(PERIOD)
        goes_on = _tidy(bell, reference)


def _tidy(bell: Bell, reference: weakref.ref[Any]) -> bool:
    """Have the driver read owed replies; return False once it is gone, or nothing will be owed any more."""
    driver = reference()
    if driver is None:
        return False
    try:
        return bool(driver.tidy())
    except BaseException:  # also SystemExit, which an `on_lost` may raise
        logger.exception("reading late replies failed; the next try comes in %s s", PERIOD)
        bell.ring()
        return True
