"""Ends the demo at the first signal or when its time is over, and lets the cleaning up that follows run undisturbed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

_BY_HAND = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class OutOfTime(Exception):
    """The time limit passed."""


class Stopped(KeyboardInterrupt):
    """A signal came; `status` is what a shell reports for a program that it ended."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


class Interruptions:
    """While entered, a signal raises Stopped and the end of `seconds` raises OutOfTime, whichever is first.

    An alarm signal, because it ends whatever the main thread waits for, also a server that does not start. Only the
    first one counts: a second Ctrl-C of an impatient user must not keep the processes and files from being removed.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._before: dict[signal.Signals, Any] = {}
        self._postponing = False
        self._missed: BaseException | None = None

    def __enter__(self) -> Interruptions:
        for number in (*_BY_HAND, signal.SIGALRM):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup
            self._before[number] = signal.signal(number, self._first)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        return self

    def disarm(self) -> None:
        """Ignore signals and time from here on."""
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
        """Raise only at the end of the block: for what must not be cut off, such as starting or ending a process."""
        self._postponing = True
        try:
            yield
        finally:
            self._postponing = False
        missed, self._missed = self._missed, None
        if missed is not None:
            raise missed

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disarm()
        for number, handler in self._before.items():
            signal.signal(number, handler)
