# cython: annotation_typing=True
# (Only here: a .pxd cannot type the arguments and locals of a generator.)
"""Extend, release and questions on a quorum, as generators that yield effects (see `effects`).

One text, twice: it is compiled as `redlatch._c.protocol.quorum` (see `redlatch._c`).
Source of the algorithm: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from redlatch.errors import NotOwned

from .ballot import Ballot
from .commands import Command
from .effects import Answer, Effect, Pause, Steps, Tell
from .hold import HELD, WANTED_NS, Hold
from .outcome import RAN_OUT, end_release, is_final, loss, lost_before, no_quorum
from .policy import MILLISECOND, Policy
from .waiting import Lines


def extend(policy: Policy, hold: Hold, ttl_ms: int, token: bytes | None = None) -> Steps:
    """Let the lock live ttl_ms from now; never additive, and never creating a key that is gone.

    If a master turns out to have forgotten the lock meanwhile, a second extension for the rest of the ttl verifies it.
    One extension of a hold at a time, the next one waits: of two at once nobody could tell which ttl the masters
    took last. Longer than a function should be: an extension is read from its first byte to what its votes mean.

    Args:
        token: of the lease to extend; None is the one that is held.

    Raises:
        NotOwned: nothing is held, or not the lease with this token any more.
        LockLost: the validity was over before a quorum had answered, or a quorum has forgotten the token.
        QuorumUnavailable: too many masters failed; the earlier of the old and the new deadline counts.
    """
    ballot: Ballot = yield from _next_extension(policy, hold, ttl_ms, token)
    started: int = ballot.command.since_ns
    token = ballot.command.token
    deadline = started + policy.validity_ns(ttl_ms)
    try:
        # An earlier deadline counts at once, whatever the masters answer. They never shorten the key.
        hold.shorten(token, deadline)
        limit = min(hold.lease.deadline_ns, deadline)
        for failures in (1, 2):
            yield ballot
            won = ballot.yes >= ballot.quorum
            settled = policy.clock.now()
            if hold.lease.token is not token or hold.state != HELD:
                raise NotOwned(f"{hold.name!r} was released while it was extended", name=hold.name)
            if settled >= limit or ballot.refused() or hold.lost_ns >= started:
                hold.shorten(token, min(limit, settled))
                raise lost_before(policy, hold, ballot, settled >= limit, settled - started)
            overtaken = hold.extending is not ballot  # we took so long that another extension began
            if won:
                hold.prolong(token, started, 0 if overtaken else deadline)
                hold.elapsed_ns = settled - started
                break
            if overtaken or is_final(ballot, failures):
                raise no_quorum("extend", policy, hold, ballot, settled - started)
            hold.extending = ballot = policy.ballot(ballot.command, ballot.until_ns)
    finally:
        if hold.extending is ballot:
            hold.extending = None
    # A vote of a master that has forgotten the lock may be among those.
    if policy.doubts(started) and not overtaken and hold.lease.token is token:
        left_ms: int = (ttl_ms * MILLISECOND - (policy.clock.now() - started)) // MILLISECOND
        yield from extend(policy, hold, left_ms, token)  # which raises LockLost if nothing is left


def _next_extension(policy: Policy, hold: Hold, ttl_ms: int, token: bytes | None) -> Generator[Effect, None, Ballot]:
    """Begin an extension as soon as no other one is under way, and return its ballot."""
    try:
        while (ballot := _extension(policy, hold, ttl_ms, token, started := policy.clock.now())) is None:
            hold.wanted_ns = started + WANTED_NS
            yield Pause(started + MILLISECOND)
    finally:
        hold.wanted_ns = 0
    return ballot


def _extension(policy: Policy, hold: Hold, ttl_ms: int, token: bytes | None, started: int) -> Ballot | None:
    """Begin an extension: return its ballot, noted in the hold, or None while another one is under way."""
    if hold.state != HELD or (token is not None and hold.lease.token is not token):
        raise NotOwned(f"{hold.name!r} is not held; there is nothing to extend", name=hold.name)
    if started >= hold.lease.deadline_ns:  # what is left of the keys is not to live longer
        raise loss(RAN_OUT, hold)
    until = min(hold.lease.deadline_ns, started + min(policy.validity_ns(ttl_ms), policy.patience_ns(ttl_ms)))
    ballot = policy.ballot(hold.extending_to(ttl_ms, started), until)
    hold.renew(None, 0)
    other = hold.extending
    if other is not None and started < other.until_ns:
        return None
    hold.extending = ballot  # no call since the question, so that of two threads only one goes on
    if hold.state != HELD:  # who passes the lease on looks for an extension last: one of us sees the other
        hold.extending = None
        raise NotOwned(f"{hold.name!r} was released while it was extended", name=hold.name)
    return ballot


def release(policy: Policy, lines: Lines, hold: Hold, patience_ns: int) -> Steps:
    """Pass the lock on to who waits for it in this client; or delete its key on every master, and wait for a quorum.

    A release that was interrupted, or that failed, may be called again. The command reaches every master
    that may hold the key, also one whose connection has to be made anew.

    Raises:
        NotOwned: nothing is held, or another thread releases it.
        LockLost: the validity was over, or a quorum had forgotten the token, before the release.
        QuorumUnavailable: too many masters failed; their keys go when they are back, or with their ttl.
    """
    started = policy.clock.now()
    late, resent = hold.begin_release(started)
    if lines.lines and not (late or resent) and lines.pass_on(policy, hold, started):
        hold.free()
        return
    command = hold.releasing()
    while True:
        ballot = policy.ballot(command, started + patience_ns)
        if lines.lines:  # who is next may send its commands right behind
            yield Tell([ballot])
            lines.leave(hold, started, not late)
            yield [ballot]
        else:
            yield ballot
            lines.leave(hold, started, False)
        if end_release(policy, hold, ballot, late, resent, started):
            return
        resent = True


def part(policy: Policy, lines: Lines, hold: Hold, farewell: object) -> Steps:
    """Release, and wait for nothing: `release(wait=False)`.

    Args:
        farewell: the lock, to be told if the masters answer that it had been lost before.

    Raises:
        NotOwned: nothing is held, or another thread releases it.
        LockLost: the validity was over before.
    """
    started = policy.clock.now()
    late, resent = hold.begin_release(started)
    if lines.lines and not (late or resent) and lines.pass_on(policy, hold, started):
        hold.free()
        return
    ballot = policy.ballot(hold.releasing())
    if not late and not resent:
        ballot.farewell = farewell
    yield Tell([ballot])
    lines.leave(hold, started, not late)
    hold.free()
    if late:
        raise loss(RAN_OUT, hold, policy.clock.now() - started)


def locked(policy: Policy, hold: Hold, patience_ns: int) -> Steps:
    """Answer whether anybody holds the name: a quorum of masters has a key for it."""
    question = hold.kind.locked(hold.key)
    for ballot in _inquiry(policy, hold, question, patience_ns):
        yield ballot
    yield Answer(ballot.yes >= ballot.quorum)


def owned(policy: Policy, hold: Hold, patience_ns: int) -> Steps:
    """Answer whether this holder still has the lock: by its own clock and on a quorum of masters."""
    mine = hold.held(policy.clock.now())
    if mine:
        token = hold.lease.token
        question = hold.kind.owned(hold.key, hold.lease)
        for ballot in _inquiry(policy, hold, question, patience_ns):
            yield ballot
        mine = ballot.yes >= ballot.quorum and hold.lease.token is token and hold.held(policy.clock.now())
    yield Answer(mine)


def _inquiry(policy: Policy, hold: Hold, command: Command, patience_ns: int) -> Iterator[Ballot]:
    """Put a question once, and once more if connections broke under it; the last ballot has the answer."""
    started = policy.clock.now()
    for failures in (1, 2):
        ballot = policy.ballot(command, started + patience_ns)
        yield ballot
        if not ballot.unavailable():
            return
        if is_final(ballot, failures):
            raise no_quorum("inquiry", policy, hold, ballot, policy.clock.now() - started)
