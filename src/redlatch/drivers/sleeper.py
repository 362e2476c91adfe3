"""Let a thread sleep until another thread wakes it, in pure Python.

The compiled `sleeper.pyx` has the same interface. It releases the GIL between the wake-up of another thread and the
sleep, so that the woken thread finds the GIL free.
"""

from __future__ import annotations

import threading


def this_thread() -> int:
    return threading.get_ident()


class Sleeper:
    """A thread that waits for its ballot, or to be promoted to leader.

    Attributes:
        asleep: True if it must be woken; the thread that wakes it clears this first.
        decided: True once its ballot is decided, so that it is not promoted any more.
    """

    __slots__ = ("_lock", "asleep", "decided", "thread")

    def __init__(self) -> None:
        self.thread = this_thread()
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
                # A leader that left and its successor have both woken it.
                pass
