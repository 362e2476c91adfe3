"""What a thread sleeps on until another one wakes it, in pure Python.

`ext/redlatch/_c/drivers/sleeper.pyx` is the same interface, but wakes another thread and goes to sleep without the GIL
in between: who is woken finds it free. `tests/test_sleeper.py` holds the two to each other.
"""

from __future__ import annotations

import threading


class Sleeper:
    """A thread that waits for its ballot, or to be promoted to driver.

    Attributes:
        thread: its ident.
        asleep: whether it is to be woken; who wakes it takes this back first.
        decided: whether it is to be woken because its ballot is decided, and not to be promoted any more.
    """

    __slots__ = ("_lock", "asleep", "decided", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.asleep = True
        self.decided = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def sleep(self, timeout_ns: int, other: Sleeper | None = None) -> None:
        """Wake the other one, then sleep until woken, for at most `timeout_ns`."""
        if other is not None:
            other.wake()
        self._lock.acquire(timeout=max(0, timeout_ns) / 1e9)

    def wake(self) -> None:
        """Wake the thread, or have its next sleep return at once."""
        if self.asleep:
            self.asleep = False
            try:
                self._lock.release()
            except RuntimeError:
                pass  # a leaving driver and its successor woke it both
