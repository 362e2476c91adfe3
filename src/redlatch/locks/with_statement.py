"""The ``with`` of a lock: the error if it was not won, the cancellation of the body after a loss, and the release.

A claim may have changed since the ``with`` was entered: its body has released the lock, and the body itself, or another
thread or task, has acquired it again through the same object. So the ``with`` remembers the ticket of its claim in
`Claim.entered`. While one ``with`` is open, its end releases that claim, in whatever thread or task it runs. A claim
that was made later is released only by the thread or task that made it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import LockBusy, LockError, LockTimeout, NotOwned, Retryable
from ..holder import Holder, held_by
from ..quorum.hold import Hold
from ..quorum.inquiry import local_holders


class Refusal:
    """The error that ``with`` raises if its lock was not won within `waited` seconds; 0.0 after one attempt.

    It names the holder: another lock object of this client, or the one that the masters name. They are asked
    only if the acquire has waited (see `LockTimeout.holder`).
    """

    def __init__(self, shared: Any, holds: list[Hold], waited: float, names: list[str | bytes] | None = None) -> None:
        self._shared = shared
        self._holds = holds
        self._waited = waited
        self._names = names
        # Those that other lock objects of this client hold.
        self._local = local_holders(shared.quorum, holds)

    def ask(self) -> Retryable:
        asked: list[tuple[Hold, Holder]] = []
        if self._waited and not self._local:
            try:
                asked = self._shared.run(self._shared.quorum.blockers(self._holds, self._waited))
            except LockError:
                # The error stays that of the acquire: the client may have been closed, say.
                pass
        return self._error(asked)

    async def ask_async(self) -> Retryable:
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
            hold, holder = self._local[0]
            head = self._shared.quorum.queues.heads.get(hold.key)
            since = f"for {holder.held_for:.3f} s, through another lock object"
            who = f"this client has held it {since}"
            if head is not None and head.ticket == threading.get_ident():
                who = f"this thread has held it itself {since}: use one client.rlock() for both"
        elif asked:
            hold, holder = asked[0]
            who = held_by(holder)
        retry_after = max([self._shared.quorum.retry.longest, *[found.ttl_left for _, found in self._local]])
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


class LossScope:
    """Cancels the body of one ``async with``, in the task that runs it, when its lock is lost.

    As `asyncio.timeout`, it counts the cancellation requests of the task to tell its own from those of others. So
    scopes may be nested in each other, in a TaskGroup and in a timeout.
    """

    __slots__ = ("_before", "_task", "lost")

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("cancel_on_loss: it cancels the running task, and no task is running")
        self._task = task
        self._before = task.cancelling()
        self.lost = False

    def cancel(self) -> None:
        if not self.lost:
            self.lost = True
            self._task.cancel("redlatch: the lock was lost")

    async def leave(self, error: BaseException | None) -> bool:
        """Withdraw the request to cancel; `error` is the exception of the body.

        Return True if only the loss must be reported: no other code requested a cancellation, and the body raised no
        exception of its own.
        """
        if not isinstance(error, asyncio.CancelledError):
            try:
                # The body ended before the request reached it. Let it arrive here, not in the code after the scope.
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                pass
        others = self._task.uncancel() > self._before
        if others and not isinstance(error, asyncio.CancelledError):
            raise asyncio.CancelledError
        return not others and (error is None or isinstance(error, asyncio.CancelledError))


def may_leave(ticket: object, entered: object, made_here: Callable[[object], bool]) -> bool:
    """Return whether the end of a ``with`` may release the claim with this ticket.

    `entered` is None if no ``with`` was entered, as after `contextlib.ExitStack.push`.
    """
    return ticket is not None and (ticket is entered or entered is None or made_here(ticket))


def leaves(
    hold: Hold,
    tickets: Iterable[object],
    entered: object,
    made_here: Callable[[object], bool],
    name: str | bytes,
    names: list[str | bytes] | None = None,
) -> bool:
    """End a ``with``; return whether it must release a claim: the body may have released the lock."""
    hold.leave()
    left = [ticket for ticket in tickets if ticket is not None]
    if left and not any([may_leave(ticket, entered, made_here) for ticket in left]):
        raise NotOwned(
            f"{names or name!r} was released before the end of its with statement, and another thread or task uses "
            "this lock object now; make one lock object for each holder",
            name=name,
        )
    return bool(left)
