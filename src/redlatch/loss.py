"""The reasons for the loss of a lock, each with its text, and the calls of `on_lost`."""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

logger = logging.getLogger("redlatch")

# A loop keeps only weak references to its tasks.
_running: set[asyncio.Future[Any]] = set()


class LossKind(enum.Enum):
    """The kinds of losses. The value of each is its name in `LockStats.lost` and in metrics.

    Attributes:
        EXPIRED: the validity ended, for example because the work took longer than the ttl.
        FORGOTTEN: a quorum of masters no longer has the key with the token of the lock.
        MAX_HOLD: the lock was held for its `max_hold`, and not renewed any more.
        HEARTBEAT: the process, or its event loop, had not run for longer than `heartbeat`.
        CLOSED: the client was closed with ``release=True``.
        IN_DOUBT: a master that voted for the lock may have forgotten it. `extend` finds out; no figure counts this.
        OTHER: none of these; the text says more.
    """

    EXPIRED = "expired"
    FORGOTTEN = "forgotten"
    MAX_HOLD = "max_hold"
    HEARTBEAT = "heartbeat"
    CLOSED = "closed"
    IN_DOUBT = "in_doubt"
    OTHER = "other"


class Loss(str):
    """The reason for the loss of a lock: a text for people, with a kind for programs.

    Attributes:
        kind: a `LossKind`.
    """

    __slots__ = ("kind",)

    kind: LossKind

    def __new__(cls, kind: LossKind, text: str) -> Loss:
        loss = super().__new__(cls, text)
        loss.kind = kind
        return loss

    def because(self, detail: object) -> Loss:
        """Return this loss with more about its cause."""
        return Loss(self.kind, f"{self}; {detail}")

    def __reduce__(self) -> tuple[type[Loss], tuple[LossKind, str]]:
        return Loss, (self.kind, str(self))


RAN_OUT = Loss(LossKind.EXPIRED, "its validity ran out")

FORGOTTEN = Loss(LossKind.FORGOTTEN, "a quorum has forgotten it")

# The answers to a release with `wait=False` have said so.
LOST_BEFORE = Loss(LossKind.FORGOTTEN, "a quorum had forgotten it before it was released")

# The masters have pushed a change of the key, and then said that it is gone.
KEY_GONE = Loss(LossKind.FORGOTTEN, "a majority of masters reported that its key is gone")

# A quarantine that lasts longer than the lease: the masters cannot confirm the lock any more.
KEPT_OUT = Loss(LossKind.FORGOTTEN, "a majority of masters has forgotten it, and is kept out until after its deadline")

RELEASED = Loss(LossKind.CLOSED, "released by close(release=True)")

IN_DOUBT = Loss(
    LossKind.IN_DOUBT, "a master that voted for it may have forgotten it; extend() finds out whether a quorum has it"
)

# Only a re-entrant lock can have this loss.
HOLDER_ENDED = Loss(LossKind.OTHER, "its holder ended without releasing it, so it was no longer renewed and ran out")

# The kinds that figures count.
COUNTED = tuple([kind for kind in LossKind if kind is not LossKind.IN_DOUBT])


def held_longest(seconds: float) -> Loss:
    return Loss(LossKind.MAX_HOLD, f"it was held for its max_hold of {seconds:g} s, and not renewed any more")


def stalled(seconds: float) -> Loss:
    text = f"its process, or event loop, had not run for {seconds:.1f} s, so it was not renewed any more"
    return Loss(LossKind.HEARTBEAT, text)


OnLost = Callable[[Any, Loss], object]


def on_lost_of(on_lost: OnLost | None, awaits: bool) -> OnLost | None:
    """Return what to call for a lost lock, with the lock and the reason; None for nothing.

    If the client awaits, the event loop awaits what the user's function returns. A function whose body would never run
    is refused.
    """
    if on_lost is None:
        return None
    if not callable(on_lost):
        raise TypeError(f"on_lost: a callable or None is needed, not {type(on_lost).__name__}")
    inner: Any = on_lost
    while isinstance(inner, partial):
        inner = inner.func
    for function in (inner, type(inner).__call__):
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("on_lost: a generator function would never run; give a function without yield")
        if inspect.iscoroutinefunction(function) and not awaits:
            raise TypeError(
                "on_lost: a client for threads cannot await a coroutine function; "
                "give a plain function, or use AsyncClient"
            )
    return partial(_call, on_lost, awaits)


def _call(on_lost: OnLost, awaits: bool, lock: Any, reason: Loss) -> None:
    made = on_lost(lock, reason)
    if not inspect.isawaitable(made):
        return
    try:
        if not awaits:
            raise TypeError("on_lost has returned an awaitable, which a client for threads cannot await")
        loop = asyncio.get_running_loop()
    except BaseException:
        if inspect.iscoroutine(made):
            made.close()
        raise
    task = asyncio.ensure_future(made, loop=loop)
    _running.add(task)
    task.add_done_callback(partial(_end, lock.name, reason))


def _end(name: str | bytes, reason: Loss, task: asyncio.Future[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("on_lost failed for lock %r, which was lost: %s", name, reason, exc_info=error)
