"""What wakes the threads that look after a client between its calls."""

from __future__ import annotations

import threading


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
