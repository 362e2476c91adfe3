# cython: annotation_typing=True
# (A .pxd cannot type the arguments and locals of a generator.)
"""Wait between two attempts on a lock that somebody else has, until a quorum of masters may say yes.

Compiled as `redlatch._c.protocol.contention`, too (see `redlatch._c`).
"""

from __future__ import annotations

from collections.abc import Generator

from .ballot import Ballot
from .commands import Look
from .effects import Effect, Pause
from .policy import SECOND, Policy
from .waiting import Lines

# A waiter looks at the masters at least so often, whatever they push: a push may be lost on its way.
BACKSTOP_NS = SECOND


def wait_for_change(
    policy: Policy, lines: Lines, key: bytes, round_ns: int, patience_ns: int, attempts: int, until_ns: int
) -> Generator[Effect, None, bool]:
    """Wait until a quorum of masters say that the key is gone, or until it should be, or for a while.

    Args:
        round_ns: how long the last attempt took.
        attempts: how many times in a row the key was gone already, and could not be had.

    Returns:
        Whether there was anything to wait for.
    """
    now = policy.clock.now()
    look = policy.ballot(Look(key), min(now + patience_ns, until_ns))
    try:
        lines.watch(key, look)
        yield look
        now = policy.clock.now()
        if look.yes >= look.quorum:
            if attempts:  # several that try at once must not do so in step
                yield Pause(min(now + policy.retry.again_ns(attempts, round_ns, policy.random()), until_ns))
            return False
        waited = yield from wait_for_pushes(policy, look, look.left_ns(), attempts, until_ns)
    finally:
        lines.unwatch(key, look)
    return waited


def wait_for_pushes(
    policy: Policy, look: Ballot, left_ns: int, attempts: int, until_ns: int, sure: bool = True
) -> Generator[Effect, None, bool]:
    """Wait until a quorum of masters push that a key they were asked about has changed, or for a while.

    Args:
        left_ns: when they should say so at the latest.
        sure: False if they may push nothing; then the wait is short.

    Returns:
        Whether that was worth waiting for: not where it was only a pause, or where a quorum had said that the key is
        gone before anybody could push that.
    """
    now = policy.clock.now()
    if not look.watchable():
        yield Pause(min(now + policy.retry.pause_ns(attempts, policy.random()), until_ns))
        return False
    jitter = policy.retry.pause_ns(0, policy.random())
    kept = list(look.answers or ())
    longest_ns = BACKSTOP_NS - jitter if sure else policy.retry.pause_ns(attempts, policy.random())
    look.watch(min(now + left_ns + jitter, now + longest_ns, until_ns))
    yield [look]
    left = look.answers or {}
    return (sure and look.yes < look.quorum) or any([index not in left for index in kept])
