# cython: annotation_typing=True
# (A .pxd cannot type the arguments and locals of a generator.)
"""Release, as generators that yield effects (see `effects`).

Compiled as `redlatch._c.quorum.release`, too (see `redlatch._c`).
Source of the algorithm: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
"""

from __future__ import annotations

from .effects import Send, Steps
from .hold import Hold
from .outcome import RAN_OUT, end_release, loss
from .policy import Policy
from .waiting.queues import WaitQueues


def release(policy: Policy, queues: WaitQueues, hold: Hold, patience_ns: int) -> Steps:
    """Pass the lock on to the next waiter of this client, or delete its key on every master and wait for a quorum.

    A release that was interrupted or that failed may be called again. The command reaches every master that may have
    the key, even if the connection must be made again.

    Args:
        queues: the queues of this client.
        patience_ns: how long to wait for answers.

    Raises:
        NotOwned: the lock is not held, or another thread is releasing it.
        LockLost: before the release the validity was over, or a quorum had forgotten the token.
        QuorumUnavailable: too many masters failed. Their keys are deleted when they are back, or expire.
    """
    started = policy.clock.now()
    late, resent = hold.begin_release(started)
    if queues.by_key and not (late or resent) and queues.hand_off(policy, hold, started):
        hold.free()
        return
    command = hold.releasing()
    while True:
        ballot = policy.ballot(command, started + patience_ns)
        # The release is sent before `leave` calls the next waiter. So the commands of that waiter follow it.
        if queues.by_key:
            yield Send([ballot])
            queues.leave(hold, started, not late)
            yield [ballot]
        else:
            yield ballot
            queues.leave(hold, started, False)
        if end_release(policy, hold, ballot, late, resent, started):
            return
        resent = True


def release_nowait(policy: Policy, queues: WaitQueues, hold: Hold, released_lock: object) -> Steps:
    """Release without waiting for answers: `release(wait=False)`.

    Args:
        queues: the queues of this client.
        released_lock: the lock object. The driver reports it as lost if a quorum refuses the release.

    Raises:
        NotOwned: the lock is not held, or another thread is releasing it.
        LockLost: the validity was over before the release.
    """
    started = policy.clock.now()
    late, resent = hold.begin_release(started)
    if queues.by_key and not (late or resent) and queues.hand_off(policy, hold, started):
        hold.free()
        return
    ballot = policy.ballot(hold.releasing())
    if not late and not resent:
        ballot.released_lock = released_lock
    yield Send([ballot])
    queues.leave(hold, started, not late)
    hold.free()
    if late:
        raise loss(RAN_OUT, hold, policy.clock.now() - started)
