# cython: annotation_typing=True
# (A .pxd cannot type the arguments and locals of a generator.)
"""Acquire, as a generator: wait in the queue, ask the masters, wait for a change, ask again.

The generator yields effects (see `effects`). Compiled as `redlatch._c.quorum.acquire`, too (see `redlatch._c`).
Source of the algorithm: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
"""

from __future__ import annotations

from typing import Any

from ..votes.ballot import Ballot
from ..votes.units import UNBOUNDED
from .attempt import Attempt, new_attempt
from .effects import Pause, Send, Steps
from .hold import Hold
from .kinds.kind import Kind
from .policy import Policy
from .waiting.in_queue import reach_the_head
from .waiting.queues import WaitQueues


def acquire(policy: Policy, queues: WaitQueues, hold: Hold, ttl_ms: int, give_up_ns: int | None) -> Steps:
    """Try until the lock is won or the time is over. Every attempt has a new token, and is undone unless it has won.

    If another hold of this client is the head of the name's queue, this one waits in the queue, and may get the lease
    of that hold. The thread or task that calls this function owns the lock, even if another one runs the generator.

    Args:
        queues: the queues of this client.
        hold: a hold that the caller has claimed. In the end it is HELD or FREE. If the generator raises, the caller
            abandons it and has it leave the queue.
        ttl_ms: the time to live on the masters.
        give_up_ns: when to stop trying; None is never. One attempt is always made, unless another hold of this client
            is the head and `Policy.trust_local_holder` is True.

    Raises:
        QuorumUnavailable: two attempts in a row had no verdict, because too many masters failed; or three, if another
            connection broke meanwhile.
        LockBusy: `max_waiters` of this client wait already, or the timeout ends too early for the queue.
        AlreadyHeld: the calling thread or task would wait for itself.
    """
    return _acquire(hold.kind.caller(), policy, queues, hold, ttl_ms, UNBOUNDED if give_up_ns is None else give_up_ns)


def _acquire(caller: Any, policy: Policy, queues: WaitQueues, hold: Hold, ttl_ms: int, until: int) -> Steps:
    """Acquire for a caller. A generator inside this one would cost instructions in every acquire."""
    kind: Kind = hold.kind
    hold.to_waiting()
    kind.begin(policy, hold, caller)
    started = policy.clock.now()
    attempt: Attempt = new_attempt(policy, queues, hold, ttl_ms, until, started)
    # Without time, a hold that shares the lock asks once, whoever is at the head.
    alone = not kind.enters_queue or (kind.shares and started >= until)
    if not (alone and queues.note_beside(hold, started)) and not queues.become_head(hold, started):
        reached = yield from reach_the_head(policy, queues, hold, ttl_ms, until)
        if not reached:
            return
        attempt.reached()
        started = policy.clock.now()
    try:
        while True:
            ballot: Ballot = attempt.begin(started)
            ahead = kind.ahead()
            if ahead is not None:
                yield Send([ahead])
            yield ballot
            second = attempt.second()
            if second is not None:
                yield second
            if attempt.keep_if_won():
                return
            if attempt.reopen_for_all():
                yield [ballot]
            undo = attempt.judge()
            if undo is not None:
                yield Send([undo])
                attempt.undone()
            if attempt.over:
                # Before `end`: from then on another thread may acquire through this lock object, and wait.
                kind.end_watch(queues, hold.key)
                break
            if attempt.waits:
                waited = yield from kind.wait(attempt)
                attempt.waited(waited)
            elif pause_ns := attempt.pause_ns():
                yield Pause(pause_ns)
            started = policy.clock.now()
    except BaseException:
        kind.end_watch(queues, hold.key)
        raise
    attempt.end()
