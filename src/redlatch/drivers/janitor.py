"""The janitor: a thread that has replies read when no other thread is in a call of the client.

The driver for threads leaves as soon as a quorum has answered, and between two calls nobody reads. Mostly the
next call comes soon. Where it does not, a minority's answer that asks for something would wait for it: that the
script of a release is missing there, or that the connection broke under it. So who leaves answers behind rings
the janitor, who looks a moment later, again and again until nothing is owed any more, and then sleeps. It is
never on the way of a call that finds the client's sockets free, and its bell is the only thing that is shared.
"""

from __future__ import annotations

import _thread
import time
import weakref
from typing import Any

from .bell import Bell

# Seconds from the bell to the look: long enough that a busy client has read everything itself.
PERIOD = 0.25


class Janitor:
    """Calls `driver.tidy()` a moment after `ring()`, until that returns False or the driver is no more."""

    def __init__(self, driver: Any) -> None:
        self._bell = bell = Bell()
        self._driver = weakref.ref(driver, lambda _: bell.ring())  # the thread must not keep a client alive

    def start(self) -> None:
        """Begin to listen for the bell."""
        _thread.start_new_thread(_work, (self._bell, self._driver))

    def ring(self) -> None:
        """Say that there is something to look after; cheap when it was said already."""
        self._bell.ring()


def _work(bell: Bell, reference: weakref.ref[Any]) -> None:
    while True:
        bell.wait()
        time.sleep(PERIOD)
        driver = reference()
        if driver is None or not driver.tidy():
            return
        del driver
