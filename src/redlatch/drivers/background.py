"""The background threads of a client for threads.

Between two calls no thread reads. Usually the next call comes soon. If it does not, a late reply may need an answer: a
master does not know the script of a release, or its connection breaks. So a thread that leaves replies behind asks the
background thread to read them a moment later, again and again until no reply is missing.

A push about a held lock must be read at once, since the lock may be lost. So while keys of held locks are watched, the
push reader waits until a socket is readable, and has the push read. It pauses after each event, so it costs little
while another thread leads and reads.
"""

from __future__ import annotations

import logging
import select
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from redlatch.votes.units import SECOND, UNBOUNDED
from redlatch.wire.engine.net import now_ns
from redlatch.wire.helper_threads import claim, start_thread

logger = logging.getLogger("redlatch")

# Seconds from the request to the reading. A busy client has read everything by then.
PERIOD = 0.25

# Seconds until the next try after an error.
AGAIN = 0.25

# Milliseconds after which the push reader looks for new connections, and whether any key is still watched.
LOOK_MS = 250

# Seconds that the push reader rests after each event.
REST = 0.005


class Bell:
    """A signal to one thread. Several rings before the wait count as one.

    It is not a threading.Event, because an interrupt inside its `set` or `wait` leaves its lock taken indefinitely.
    """

    def __init__(self) -> None:
        self._free_when_rung = threading.Lock()
        self._free_when_rung.acquire()

    def ring(self) -> None:
        if self._free_when_rung.locked():
            try:
                self._free_when_rung.release()
            except RuntimeError:
                # Another thread rang at the same time.
                pass

    def take(self) -> bool:
        return self._free_when_rung.acquire(False)

    def wait(self, seconds: float = -1) -> None:
        """Wait until it is rung; a negative number is no limit."""
        self._free_when_rung.acquire(timeout=seconds)


class BackgroundThread:
    """One thread that calls `driver.read_late_replies()` and `driver.attend()` when they are needed.

    It ends when the driver is collected, and when the driver is closed and has nothing to attend to. `attend_by` starts
    it again. Any thread may call the methods.

    Attributes:
        wake_ns: when the thread wakes by itself to attend; `driver.attend()` sets it.
    """

    def __init__(self, driver: Any) -> None:
        self._bell = bell = Bell()
        self._driver = weakref.ref(driver, lambda _: bell.ring())
        # The new thread pops this, not its creator, because no interrupt strikes in the new thread.
        self._unstarted = [None]
        self._read_asked = self._read_planned = False
        self._read_at_ns = 0
        self._attends = False
        self.wake_ns = UNBOUNDED

    def start(self) -> None:
        # If two are started at once, one ends immediately.
        if self._unstarted:
            start_thread("upkeep", self._run)

    def read_later(self) -> None:
        """Ask for a reading. If interrupted, a repeated call asks again."""
        if not self._read_planned:
            self._read_asked = True
            self._bell.ring()

    def attend_by(self, due_ns: int) -> None:
        """Have `attend` called at that time. This is cheap if the thread wakes early enough."""
        self._attends = True
        if due_ns < self.wake_ns:
            self._bell.ring()
        # Last: a thread that is about to end either sees the ring, or this finds that it has ended.
        self.start()

    def attend_soon(self) -> None:
        if self._attends:
            self._bell.ring()

    def _run(self) -> None:
        if not claim(self._unstarted):
            return
        while True:
            seconds = self._work()
            if seconds is not None:
                self._bell.wait(seconds)
                continue
            # From now on `attend_by` starts another thread.
            self._unstarted.append(None)
            # The bell has rung for each earlier request. Two threads never work at the same time.
            if not self._bell.take():
                return
            if not claim(self._unstarted):
                # Another thread has started meanwhile, and the ring may be for it.
                self._bell.ring()
                return

    def _work(self) -> float | None:
        """Return the seconds until the next time: below 0 if only a ring matters, None if the thread may end."""
        driver = self._driver()
        if driver is None:
            return None
        # `attend` comes last, because the time of its next call is computed from the present time.
        waits = [self._read(driver), self._attend(driver)]
        seconds = [wait for wait in waits if wait is not None]
        if seconds:
            return min(seconds)
        return None if driver.closed else -1

    def _attend(self, driver: Any) -> float | None:
        """Return the seconds until the next time, None if there is nothing to attend to."""
        if not self._attends:
            return None
        try:
            seconds: float | None = driver.attend()
            if seconds is None:
                # `attend_by` rings from now on.
                self.wake_ns = UNBOUNDED
                # Sees what was added before that.
                seconds = driver.attend()
        except BaseException:
            # An `on_lost` may raise SystemExit.
            logger.exception("renewing locks or reporting losses failed; the next try comes in %s s", AGAIN)
            return AGAIN
        return seconds

    def _read(self, driver: Any) -> float | None:
        """Read late replies if that is due; return the seconds until it is, None if nothing was asked for."""
        if self._read_planned and now_ns() >= self._read_at_ns:
            # First: a thread that leaves during the reading asks again.
            self._read_planned = False
            try:
                driver.read_late_replies()
            except BaseException:
                # An `on_lost` may raise SystemExit.
                logger.exception("reading late replies failed; the next try comes in %s s", PERIOD)
                self._read_asked = True
        if self._read_asked:
            if not self._read_planned:
                self._read_at_ns = now_ns() + int(PERIOD * SECOND)
                # Before the next step: a request between the two is part of this plan.
                self._read_planned = True
            self._read_asked = False
        return max(0, self._read_at_ns - now_ns()) / SECOND if self._read_planned else None


def run_aside(name: str, work: Callable[..., object], *args: Any) -> bool:
    """Run a function in a thread of its own; return False if no thread can start.

    The first frame of the thread is in `wire.helper_threads`, for `lifetime.nested`: compiled functions have no frames.
    """
    try:
        start_thread(name, work, *args)
    except RuntimeError:
        return False
    return True


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
                # An `on_lost` may raise SystemExit.
                logger.exception("reading what the masters push failed; the next try comes in %s s", REST)

    def _sockets(self) -> list[int]:
        driver = self._driver()
        return [] if driver is None else [descriptor for descriptor in driver.sockets() if descriptor >= 0]
