"""The error of a lock that was not won in time, and the holder that it names."""

from __future__ import annotations

import math
import threading
from typing import Any

from ..errors import LockBusy, LockTimeout, Retryable
from ..holder import Holder
from ..quorum.hold import Hold
from ..quorum.policy import Policy
from ..votes.label import owner_of
from ..votes.units import SECOND


def holder_of(policy: Policy, hold: Hold, found: tuple[bytes, int, int]) -> Holder:
    """Return the holder from an answer of `inquiry.holder`."""
    token, left_ms, counter = found
    owner, since = owner_of(token)
    return Holder(
        owner=owner,
        ttl_left=math.inf if left_ms < 0 else left_ms / 1000,
        held_for=max(0.0, policy.fences.now() / 1_000_000 - since) if since else None,
        fence=counter if counter and hold.kind.numbers else None,
    )


def not_won(shared: Any, hold: Hold, waited: float) -> Retryable:
    """Return the error that ``with`` raises if its lock was not won.

    Args:
        shared: what all locks of the client have in common.
        hold: the hold of the lock.
        waited: for how many seconds; 0.0 after one attempt.
    """
    holder, mine = _local_holder(shared, hold)
    retry_after = max(shared.policy.retry.longest, 0 if holder is None else holder.ttl_left)
    if holder is None:
        who = "another holder has it"
    elif mine:
        since = f"for {holder.held_for:.3f} s"
        who = f"this thread has held it itself {since}, through another lock object: use client.rlock() for that"
    else:
        who = f"this client has held it for {holder.held_for:.3f} s, through another lock object"
    if not waited:
        return LockBusy(f"{hold.name!r} is busy: {who}", name=hold.name, holder=holder, retry_after=retry_after)
    return LockTimeout(
        f"{hold.name!r} was not acquired within {waited} s: {who}",
        name=hold.name,
        elapsed=waited,
        holder=holder,
        retry_after=retry_after,
    )


def _local_holder(shared: Any, hold: Hold) -> tuple[Holder | None, bool]:
    """Return the holder if it is another lock object of this client, and whether it is of the same thread."""
    driver, policy = shared.driver, shared.policy
    head = driver.queues.heads.get(hold.key)
    now = policy.clock.now()
    if head is None or head is hold or not head.held(now):
        return None, False
    lease = head.lease
    holder = Holder(
        owner=owner_of(lease.token)[0],
        ttl_left=max(0, lease.deadline_ns - now) / SECOND,
        held_for=(now - lease.since_ns) / SECOND,
        fence=head.fence if head.kind.numbers else None,
    )
    return holder, head.ticket == threading.get_ident()
