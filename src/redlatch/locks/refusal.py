"""The error of a ``with`` whose lock was not won in time, and the holder that it names."""

from __future__ import annotations

import threading
from typing import Any

from ..errors import LockBusy, LockError, LockTimeout, Retryable
from ..holder import Holder, held_by
from ..quorum.hold import Hold
from ..quorum.inquiry import local_holder


class Refusal:
    """The error that ``with`` raises if its lock was not won.

    It names the holder: another lock object of this client, or whom the masters name. They are asked once, and only if
    the acquire has waited: the question takes at most a tenth of the timeout or 10 ms, and at most 100 ms.

    Args:
        shared: what all locks of the client have in common.
        holds: the hold of each name.
        waited: the timeout in seconds; 0.0 after one attempt.
        names: the names of a multi-lock; None for one lock.
    """

    def __init__(self, shared: Any, holds: list[Hold], waited: float, names: list[str | bytes] | None = None) -> None:
        self._shared = shared
        self._holds = holds
        self._waited = waited
        self._names = names
        heads = shared.quorum.queues.heads
        local = [(hold, heads.get(hold.key), local_holder(shared.quorum, hold)) for hold in holds]
        # The holds of this client, and for each whether this thread has it.
        self._local = [
            (hold, found, head is not None and head.ticket == threading.get_ident())
            for hold, head, found in local
            if found is not None
        ]

    def ask(self) -> Retryable:
        """Ask the masters if need be, and return the error; for threads."""
        asked: list[tuple[Hold, Holder]] = []
        if self._waited and not self._local:
            try:
                asked = self._shared.run(self._shared.quorum.blockers(self._holds, self._waited))
            except LockError:
                # The error stays that of the acquire, without a holder. The client may have been closed, say.
                pass
        return self._error(asked)

    async def ask_async(self) -> Retryable:
        """Ask the masters if need be, and return the error; for asyncio."""
        asked: list[tuple[Hold, Holder]] = []
        if self._waited and not self._local:
            try:
                asked = await self._shared.run(self._shared.quorum.blockers(self._holds, self._waited))
            except LockError:
                # As in `ask`.
                pass
        return self._error(asked)

    def _error(self, asked: list[tuple[Hold, Holder]]) -> Retryable:
        hold, holder, who = self._holds[0], None, "another holder has it"
        if self._local:
            hold, holder, mine = self._local[0]
            since = f"for {holder.held_for:.3f} s, through another lock object"
            who = f"this client has held it {since}"
            if mine:
                who = f"this thread has held it itself {since}: use one client.rlock() for both"
        elif asked:
            hold, holder = asked[0]
            who = held_by(holder)
        retry_after = max([self._shared.quorum.retry.longest, *[found.ttl_left for _, found, _ in self._local]])
        what = f"{hold.name!r}"
        if self._names is not None:
            what = f"one of {self._names!r}" if holder is None else f"{what}, one of {self._names!r},"
        if not self._waited:
            return LockBusy(f"{what} is busy: {who}", name=hold.name, holder=holder, retry_after=retry_after)
        return LockTimeout(
            f"{what} was not acquired within {self._waited:g} s: {who}",
            name=hold.name,
            elapsed=self._waited,
            holder=holder,
            retry_after=retry_after,
        )
