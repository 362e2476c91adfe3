"""The locks behind the drop-ins: their users may drop the object of a lock that they still hold."""

from __future__ import annotations

from typing import Any

from ..aio import AsyncLock
from ..client import Lock
from ..protocol.hold import HELD


class _Forgotten:
    """What both faces do when a lock object is collected."""

    __slots__ = ()
    _hold: Any

    def __del__(self) -> None:
        hold = self._hold
        if hold.state == HELD and not hold.shown:
            _forget(self, hold)


class Lease(_Forgotten, Lock):
    """A lock for threads; once its object is collected, waiters of this process no longer wait behind it."""

    __slots__ = ()


class AsyncLease(_Forgotten, AsyncLock):
    """The same for asyncio."""

    __slots__ = ()


def _forget(lease: Any, hold: Any) -> None:
    """Forget a held lock whose object is collected: its token was not shown, so no one can release it.

    The garbage collector may call this at any moment and in any thread, so it wakes no waiters. Waiters in the lock's
    line look again by themselves.
    """
    hold.shown = True
    lines = lease._shared.driver.lines
    if lines.heads.get(hold.key) is hold and hold.key not in lines.lines:
        lines.heads.pop(hold.key, None)
