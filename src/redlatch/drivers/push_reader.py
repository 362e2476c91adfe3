"""Reads what the masters push about held locks, for threads, while no thread of the client is in a call.

A waiter is in a call and reads the push about its key. A holder is in none, and its lock may be lost. So while keys of
held locks are watched, this thread waits until a socket is readable, and has the push read. It pauses after each event,
so it costs little while another thread leads and reads.
"""

from __future__ import annotations

import logging
import select
import time
import weakref
from typing import Any

from redlatch.drivers.background import run_aside
from redlatch.wire.helper_threads import claim

logger = logging.getLogger("redlatch")

# Milliseconds after which it looks for new connections, and whether any key is still watched.
LOOK_MS = 250

# Seconds of rest after each event.
REST = 0.005


class PushReader:
    """One thread that has `driver.read_late_replies()` called when a master pushes something.

    It ends when no key is watched any more, and when the driver is collected. `start` starts it again.

    Args:
        driver: not kept alive. Its `sockets()` returns the descriptors to look at, none if no key is watched.
    """

    def __init__(self, driver: Any) -> None:
        self._driver = weakref.ref(driver)
        # As in `BackgroundThread`.
        self._unstarted = [None]

    def start(self) -> None:
        """Start the thread; harmless when repeated. If none can start, the background thread reads the pushes."""
        if self._unstarted:
            run_aside("look", self._run)

    def _run(self) -> None:
        while claim(self._unstarted):
            while self._look():
                pass
            # From now on `start` starts another thread. Before that it may have found this one.
            self._unstarted.append(None)
            if not self._sockets():
                return

    def _look(self) -> bool:
        """Wait for an event, and have it read; return whether to go on."""
        sockets = self._sockets()
        if not sockets:
            return False
        poll = select.poll()
        for descriptor in sockets:
            poll.register(descriptor, select.POLLIN)
        if poll.poll(LOOK_MS):
            self._read()
            time.sleep(REST)
        return True

    def _read(self) -> None:
        driver = self._driver()
        if driver is not None:
            try:
                driver.read_late_replies()
            except BaseException:
                logger.exception("reading what the masters push failed; the next try comes in %s s", REST)

    def _sockets(self) -> list[int]:
        driver = self._driver()
        return [] if driver is None else [descriptor for descriptor in driver.sockets() if descriptor >= 0]
