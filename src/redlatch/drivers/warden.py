"""The warden: a thread that has what is due done for held locks, for the driver for threads.

It is started when there is first something to do: a lock is to be renewed, or its loss to be told, or somebody waits
in line behind a lock that may run out. It sleeps until then, and does nothing itself that might take long.
"""

from __future__ import annotations

import _thread
import threading
import weakref
from typing import Any


class Warden:
    """Calls `driver.attend()` when it is due, until that returns None or the driver is no more.

    Attributes:
        wake_ns: when it wakes by itself; the driver sets it.
    """

    def __init__(self, driver: Any) -> None:
        self._bell = bell = threading.Lock()  # free when it was rung
        bell.acquire()
        self._driver = weakref.ref(driver, lambda _: _ring(bell))  # the thread must not keep a client alive
        self._unstarted = [None]  # taken by who starts it
        self.wake_ns = 0

    def ring(self, due_ns: int) -> None:
        """Say that something is due then; cheap where it wakes early enough."""
        if self._unstarted:
            try:
                self._unstarted.pop()
            except IndexError:
                return  # another thread was faster
            _thread.start_new_thread(_work, (self._bell, self._driver))
        elif due_ns < self.wake_ns:
            _ring(self._bell)


def _ring(bell: threading.Lock) -> None:
    if bell.locked():
        try:
            bell.release()
        except RuntimeError:
            pass  # another thread rang at the same time


def _work(bell: threading.Lock, reference: weakref.ref[Any]) -> None:
    while True:
        driver = reference()
        seconds = None if driver is None else driver.attend()
        if seconds is None:
            return
        del driver
        bell.acquire(timeout=seconds)
