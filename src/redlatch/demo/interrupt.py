"""End the demo at the first signal or at its time limit, and protect the following cleanup from further signals."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_BY_HAND = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class OutOfTime(Exception): ...


class Stopped(KeyboardInterrupt):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


class Interruptions:
    """A context manager in which a signal raises Stopped and the time limit raises OutOfTime.

    Only the first signal counts: a second Ctrl-C must not stop the cleanup.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._before: dict[signal.Signals, Any] = {}
        self._postponing = False
        self._missed: BaseException | None = None

    def __enter__(self) -> Interruptions:
        for number in (*_BY_HAND, signal.SIGALRM):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                # The program was started with nohup.
                continue
            self._before[number] = signal.signal(number, self._first)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        return self

    def disarm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in _BY_HAND:
            signal.signal(number, signal.SIG_IGN)

    def _first(self, number: int, frame: FrameType | None) -> None:
        self.disarm()
        error = OutOfTime() if number == signal.SIGALRM else Stopped(number)
        if not self._postponing:
            raise error
        self._missed = error

    @contextmanager
    def postponed(self) -> Iterator[None]:
        """Postpone the exception to the end of the block, which starts or ends processes."""
        self._postponing = True
        try:
            yield
        finally:
            self._postponing = False
        missed, self._missed = self._missed, None
        if missed is not None:
            raise missed

    def __exit__(self, *_: object) -> None:
        self.disarm()
        for number, handler in self._before.items():
            signal.signal(number, handler)
