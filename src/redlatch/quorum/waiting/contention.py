# cython: annotation_typing=True
"""Wait between two attempts on a lock that another holder has, until a quorum of masters may say yes."""

from __future__ import annotations

from collections.abc import Generator

from ...votes.commands import Look
from ...votes.units import SECOND
from ..effects import Effect, Pause
from ..quorum import Quorum
from .watches import Watch, new_watch

# A waiter asks the masters at least this often, because a push may be lost on its way.
BACKSTOP_NS = SECOND


def wait_for_change(
    quorum: Quorum, key: bytes, round_ns: int, wait_ns: int, pauses: int, until_ns: int
) -> Generator[Effect, None, bool]:
    """Wait until a quorum of masters says that the key is gone, until its ttl should be over, or for a while.

    Return whether there was anything to wait for. `pauses` counts how many times in a row there was not.
    """
    now = quorum.clock.now()
    look = new_watch(quorum, Look(key), min(now + wait_ns, until_ns))
    try:
        quorum.queues.watches.add(key, look)
        yield look
        now = quorum.clock.now()
        if look.yes >= look.quorum:
            if pauses:
                yield Pause(min(now + quorum.retry.again_ns(pauses, round_ns, quorum.random()), until_ns))
            return False
        waited = yield from wait_for_pushes(quorum, look, look.left_ns(), pauses, until_ns)
    finally:
        quorum.queues.watches.remove(key, look)
    return waited


def wait_for_pushes(
    quorum: Quorum, look: Watch, left_ns: int, pauses: int, until_ns: int, sure: bool = True
) -> Generator[Effect, None, bool]:
    """Wait until a quorum of masters has pushed a change of a key that they were asked about, or for a while.

    Args:
        left_ns: after which time the masters should have pushed the change.
        sure: False if the masters may push nothing; then the wait is short.

    Returns:
        False if this was only a pause, or if a quorum said that the key is gone before any master could push a change.
    """
    now = quorum.clock.now()
    if not look.watchable():
        yield Pause(min(now + quorum.retry.pause_ns(pauses, quorum.random()), until_ns))
        return False
    kept = list(look.answers or ())
    watch_pushes(quorum, look, now, left_ns, until_ns, -1 if sure else pauses)
    yield [look]
    left = look.answers or {}
    return (sure and look.yes < look.quorum) or any([index not in left for index in kept])


def watch_pushes(quorum: Quorum, look: Watch, now_ns: int, left_ns: int, until_ns: int, pauses: int = -1) -> None:
    """Make a look wait for pushes until the masters should have sent them, or for `BACKSTOP_NS` at most.

    If they may push nothing, `pauses` is not -1, and the wait is as short as the pause after so many pauses.
    """
    jitter = quorum.retry.pause_ns(0, quorum.random())
    longest_ns = BACKSTOP_NS - jitter if pauses < 0 else quorum.retry.pause_ns(pauses, quorum.random())
    look.reopen(min(now_ns + left_ns + jitter, now_ns + longest_ns, until_ns))
