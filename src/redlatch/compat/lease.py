"""The locks behind the drop-ins."""

from __future__ import annotations

from typing import Any

from ..aio import AsyncLock
from ..client import Lock
from ..quorum.claim import HELD


class _Forgotten:
    __slots__ = ()
    _hold: Any

    def __del__(self) -> None:
        hold = self._hold
        if hold.state == HELD and not hold.token_exposed:
            _forget(self, hold)


class Lease(_Forgotten, Lock):
    """A lock whose object may be dropped while it is held: waiters of this process then ask the masters."""

    __slots__ = ()


class AsyncLease(_Forgotten, AsyncLock):
    __slots__ = ()


def _forget(lease: Any, hold: Any) -> None:
    """Forget a held lock whose object was collected. No code has read its token, so no code can release it.

    The garbage collector may call this in any thread, so it wakes no waiters: those in the queue try again by
    themselves.
    """
    hold.token_exposed = True
    queues = lease._shared.driver.queues
    if queues.heads.get(hold.key) is hold and hold.key not in queues.by_key:
        queues.heads.pop(hold.key, None)
