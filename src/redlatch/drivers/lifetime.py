"""Handle fork, interpreter exit and re-entrant calls."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from types import FrameType
from typing import Any

from ..votes.units import MILLISECOND, SECOND
from ..wire.engine.net import now_ns

# The time for which close() waits for answers to releases that were sent.
DRAIN_NS = SECOND

# The same for a forgotten client, which the garbage collector finds.
FORGOTTEN_NS = 100 * MILLISECOND

# A thread that is in a call of a client has frames of these modules. Compiled functions have no frames.
_OUR_FRAMES = (
    "redlatch.client",
    "redlatch.locks.",
    "redlatch.drivers.",
    "redlatch.wire.",
    "redlatch.masters.",
    "redlatch.quorum.",
    "redlatch.guard.",
    "redlatch.votes.",
    "redlatch.sql.",
    "redlatch.celery.kinds",
)

# They call the user's function, which is not a part of their own call.
_DECORATORS = "redlatch.locks.decorate"

_all_connections: weakref.WeakSet[Any] = weakref.WeakSet()
_drivers: weakref.WeakSet[Any] = weakref.WeakSet()


def nested() -> bool:
    """Return whether the stack of this thread is ours, not ours, and ours again: a call inside a call."""
    calls, ours = 0, False
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        was, ours = ours, module.startswith(_OUR_FRAMES) and module != _DECORATORS
        calls += ours and not was
        frame = frame.f_back
    return calls > 1


def await_answers_at_exit(driver: Any) -> None:
    """Have `driver.await_answers(until_ns)` called when the interpreter ends."""
    _drivers.add(driver)


@atexit.register
def _linger_all() -> None:
    until_ns = now_ns() + DRAIN_NS
    for driver in list(_drivers):
        driver.await_answers(until_ns)


def disown_at_fork(connections: Any) -> None:
    """Have `connections.disown()` called in every forked child."""
    _all_connections.add(connections)


def _disown_all() -> None:
    for connections in list(_all_connections):
        connections.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
