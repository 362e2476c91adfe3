# cython: annotation_typing=True
"""Extend, as a generator of effects.

Source of the algorithm: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
"""

from __future__ import annotations

from collections.abc import Generator

from redlatch.errors import NotOwned

from ..votes.ballot import Ballot
from ..votes.units import MILLISECOND
from .claim import HELD
from .effects import Effect, Pause, Steps
from .figures import Figures
from .hold import WANTED_NS, Hold
from .lease import Lease
from .outcome import is_final, loss, lost_before, no_quorum, why_lost
from .quorum import Quorum
from .repair import Extension


def extend(quorum: Quorum, hold: Hold, ttl_ms: int, token: bytes | None = None) -> Steps:
    """Let the lock live `ttl_ms` from now. This is not additive, and never brings back a lost lock.

    If a master may have forgotten the lock meanwhile, a second extension for the rest of the ttl verifies it. A hold
    has one extension at a time: after two at once, the client could not know which ttl the masters applied last.

    Args:
        token: the token of the lease to extend. Such an extension never shortens the lease: it asks at least for the
            time that is left. None is the lease that is held.

    Raises:
        NotOwned: the lock is not held, or not with this token any more.
        LockLost: the validity was over before a quorum answered, or a quorum has forgotten the token.
        QuorumUnavailable: too many masters failed. The earlier of the old and the new deadline counts.
    """
    ballot: Ballot
    ballot, ttl_ms = yield from _next_extension(quorum, hold, ttl_ms, token)
    started: int = ballot.command.since_ns
    token = ballot.command.token
    deadline = started + quorum.validity_ns(ttl_ms)
    figures: Figures = hold.figures_in(quorum)
    try:
        # An earlier deadline counts at once, regardless of the answers: the masters never shorten the key's life.
        hold.shorten(token, deadline)
        limit = min(hold.lease.deadline_ns, deadline)
        for failures in (1, 2):
            yield ballot
            won = ballot.yes >= ballot.quorum
            ended = quorum.clock.now()
            if hold.lease.token is not token or hold.state != HELD:
                raise NotOwned(f"cannot extend {hold.name!r}: it was released meanwhile", name=hold.name)
            if ended >= limit or ballot.refused() or hold.lost_ns >= started:
                hold.shorten(token, min(limit, ended))
                why = why_lost(quorum, hold, ended >= limit)
                hold.lost_because = token, why
                hold.count_end(quorum, ended, why)
                raise lost_before(quorum, hold, ballot, why, ended - started)
            # It took longer than it waits for answers, and another one has begun.
            overtaken = hold.extending is not ballot
            if won:
                hold.prolong(token, started, 0 if overtaken else deadline)
                hold.elapsed_ns = ended - started
                figures.renew(limit - ended)
                break
            if overtaken or is_final(ballot, failures):
                figures.renewals_failed += 1
                raise no_quorum("extend", quorum, hold, ballot, ended - started)
            hold.extending = ballot = quorum.ballot(ballot.command, ballot.until_ns)
    finally:
        if hold.extending is ballot:
            hold.extending = None
    # One of the votes may be from a master that has forgotten the lock since.
    if quorum.doubts.cover(started, hold.key) and not overtaken and hold.lease.token is token:
        left_ms: int = (ttl_ms * MILLISECOND - (quorum.clock.now() - started)) // MILLISECOND
        yield from extend(quorum, hold, left_ms, token)


def _next_extension(
    quorum: Quorum, hold: Hold, ttl_ms: int, token: bytes | None
) -> Generator[Effect, None, tuple[Ballot, int]]:
    """Begin an extension when no other one of the hold is under way; return its ballot and its ttl."""
    try:
        while True:
            lease: Lease = hold.lease
            started = quorum.clock.now()
            # The deadline may have moved since the caller chose the ttl. The remaining time is rounded up.
            wanted_ms = ttl_ms if token is None else max(ttl_ms, quorum.ttl_ms_for(lease.deadline_ns - started) + 1)
            ballot = _extension(quorum, hold, wanted_ms, token, started, lease)
            if ballot is not None:
                return ballot, wanted_ms
            hold.wanted_ns = started + WANTED_NS
            yield Pause(started + MILLISECOND)
    finally:
        hold.wanted_ns = 0


def _extension(
    quorum: Quorum, hold: Hold, ttl_ms: int, token: bytes | None, started: int, lease: Lease
) -> Ballot | None:
    """Begin an extension; None while another one is under way, or if one has replaced the lease meanwhile."""
    if hold.state != HELD or (token is not None and hold.lease.token is not token):
        raise NotOwned(f"cannot extend {hold.name!r}: this lock object does not hold it", name=hold.name)
    # The keys may still live on some masters. An extension must not let them live longer.
    if started >= hold.lease.deadline_ns:
        why = why_lost(quorum, hold, True)
        hold.count_end(quorum, started, why)
        raise loss(why, hold)
    until = min(hold.lease.deadline_ns, started + min(quorum.validity_ns(ttl_ms), quorum.wait_ns(ttl_ms)))
    ballot = quorum.ballot(Extension(quorum, hold, ttl_ms, started), until)
    hold.refresh(None, 0)
    other = hold.extending
    if other is not None and started < other.until_ns:
        return None
    if token is not None and hold.lease is not lease:
        return None
    # There was no call since the check of `other`, so only one of two threads continues.
    hold.extending = ballot
    # A release changes the state first and reads `extending` afterwards (`hand_off`). This thread sets `extending`
    # first and checks the state afterwards. So at least one of the two sees the other.
    if hold.state != HELD:
        hold.extending = None
        raise NotOwned(f"cannot extend {hold.name!r}: it was released meanwhile", name=hold.name)
    return ballot
