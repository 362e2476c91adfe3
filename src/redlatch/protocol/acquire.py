# cython: annotation_typing=True
# (A .pxd cannot type the arguments and locals of a generator.)
"""Acquire, as a generator: wait in line, ask the masters, wait for a change, ask again.

It yields effects (see `effects`). Compiled as `redlatch._c.protocol.acquire`, too (see `redlatch._c`).
Source of the algorithm: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
"""

from __future__ import annotations

from typing import Any

from .attempt import Attempt, new_attempt
from .ballot import Ballot
from .effects import Pause, Steps, Tell
from .hold import WAITING, Hold
from .kind import Kind
from .policy import UNBOUNDED, Policy
from .turns import reach_the_head
from .waiting import Lines


def acquire(policy: Policy, lines: Lines, hold: Hold, ttl_ms: int, give_up_ns: int | None) -> Steps:
    """Try until the lock is won or the time is over; every attempt has a new token, and is undone unless it won.

    A hold that finds another one of this client at the name's head waits in line, and may get its lease from there.
    The thread or task that calls this owns the result, even if another one runs the generator.

    Args:
        lines: who waits for whom in this client.
        hold: claimed by the caller, who abandons it and has it leave the lines when this raises; else it is HELD or
            FREE in the end.
        ttl_ms: the time to live on the masters.
        give_up_ns: when to stop trying; None is never. One attempt is always made, unless another hold of this client
            is at the head, and that is believed (`Policy.hearsay`).

    Raises:
        QuorumUnavailable: too many masters failed in two attempts running.
        LockBusy: too many of this client wait already.
        AlreadyHeld: the calling thread or task would wait for itself.
    """
    return _acquire(hold.kind.caller(), policy, lines, hold, ttl_ms, UNBOUNDED if give_up_ns is None else give_up_ns)


def _acquire(caller: Any, policy: Policy, lines: Lines, hold: Hold, ttl_ms: int, until: int) -> Steps:
    """Acquire for a caller.

    Longer than a function should be: each further generator would cost every acquire.
    """
    kind: Kind = hold.kind
    hold.state = WAITING
    kind.begin(policy, hold, caller)
    started = policy.clock.now()
    attempt: Attempt = new_attempt(policy, lines, hold, ttl_ms, until, started)
    alone = not kind.queues or (kind.shares and started >= until)  # without time, it asks once, whoever is at the head
    if not alone and not lines.enter(hold, started):
        reached = yield from reach_the_head(policy, lines, hold, ttl_ms, until)
        if not reached:
            return
        attempt.reached()
        started = policy.clock.now()
    try:
        while True:
            ballot: Ballot = attempt.begin(started)
            ahead = kind.ahead()
            if ahead is not None:
                yield Tell([ahead])
            yield ballot
            second = attempt.second()
            if second is not None:
                yield second
            if attempt.won():
                return
            if attempt.settles():
                yield [ballot]
            undo = attempt.judge()
            if undo is not None:
                yield Tell([undo])
                attempt.undone()
            if attempt.over:
                attempt.end()
                return
            if attempt.waits:
                round_ns = attempt.now_ns - attempt.started_ns
                waited = yield from kind.wait(
                    policy, lines, hold, ttl_ms, round_ns, attempt.patience_ns, attempt.pauses, until
                )
                attempt.waited(waited)
            elif pause_ns := attempt.pause_ns():
                yield Pause(pause_ns)
            started = policy.clock.now()
    finally:
        kind.rest(lines, hold.key)
