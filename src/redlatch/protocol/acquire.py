# cython: annotation_typing=True
# (A .pxd cannot type the arguments and locals of a generator.)
"""Acquire, as a generator: wait in line, ask the masters, wait for a change, ask again.

It yields effects (see `effects`). One text, twice: it is compiled as `redlatch._c.protocol.acquire` (see `redlatch._c`).
Source of the algorithm: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
"""

from __future__ import annotations

from collections.abc import Generator

from redlatch.errors import LockError

from .ballot import Ballot
from .commands import Look
from .effects import Effect, Pause, Steps, Tell
from .hold import ASKING, HELD, WAITING, Hold
from .outcome import granted, is_final, no_quorum
from .policy import MILLISECOND, SECOND, UNBOUNDED, Policy
from .quorum import extend
from .waiting import Lines, Turn

# A waiter looks at the masters at least so often, whatever they push: a push may be lost on its way.
BACKSTOP_NS = SECOND

# When a tenure is over the next of this client looks so many times before it asks: 2 give the waiters of other
# processes, who are told at once, the time to ask first.
COURTESY = 2

# In a drop-in, a waiter that joins the line as its first asks the masters about the holder's key after this time. Most
# hand-offs take less, so they need no such question. A waiter that becomes the first later is woken by `Lines.expire`.
FIRST_LOOK_NS = 5 * MILLISECOND


def acquire(policy: Policy, lines: Lines, hold: Hold, ttl_ms: int, give_up_ns: int | None) -> Steps:
    """Try until the lock is won or the time is over; every attempt has a new token, and is undone unless it won.

    Who finds another hold of this client at the name's head waits in line, and may get its lease from there. After an
    attempt that was refused one master is asked before the others, the same one by everybody: so of all who try again
    at once one wins, and the others have nothing to undo.

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

    Longer than a function should be, so that the algorithm reads from top to bottom, and the usual way through it needs
    no other generator.
    """
    hold.state = WAITING
    first = -1  # the master that is asked before the others
    started = policy.clock.now()  # before the first byte leaves
    until = UNBOUNDED if give_up_ns is None else give_up_ns
    if not lines.enter(hold, started):
        reached = yield from reach_the_head(policy, lines, hold, ttl_ms, until)
        if not reached:
            return
        first = lines.first_of(policy, hold.key, started)
        started = policy.clock.now()
    began = started
    failures = attempts = 0  # in a row; attempts without a wait in between
    while True:
        deadline = started + policy.validity_ns(ttl_ms)
        patience = policy.patience_within(ttl_ms, until - started if until else UNBOUNDED)
        ballot = hold.attempt(policy, ttl_ms, started, deadline, min(deadline, started + patience))
        if first >= 0:
            ballot.ask_only(first, started + policy.lone_ns(patience, lines.round_ns))
        yield ballot
        split = first >= 0 and ballot.yes >= ballot.quorum  # more than one ballot on this attempt
        if split:
            ballot = ballot.ask_others(policy.size, policy.quorum, min(deadline, started + patience))
            yield ballot
        won = ballot.yes >= ballot.quorum
        now = policy.clock.now()  # after the last counted vote, whatever is counted later
        if granted(policy, lines, hold, won, deadline, now):
            hold.keep(now - started)
            lines.overtake(policy, hold, now)
            return
        if split or ballot.no < ballot.size:  # else all that were asked have refused
            yield Tell([policy.ballot(hold.releasing())])
        if first >= 0 and not split and not ballot.no:  # it is down or silent: everybody else may say more
            lines.shun(first, now)
            first = -1
            started = policy.clock.now()
            continue
        if first < 0:
            lines.round_ns = now - started
        failures = failures + 1 if ballot.unavailable() else 0
        if failures and is_final(ballot, failures):
            lines.leave(hold, now, False)
            hold.free()
            raise no_quorum("acquire", policy, hold, ballot, now - started, now - began)
        if not failures:  # Connections that broke under the commands are made anew at once, and what is sent
            # meanwhile waits for them; so a second failure in a row is a verdict, the first is not.
            if now >= until:
                lines.leave(hold, now, False)
                hold.free()
                return
            waited = yield from wait_for_change(policy, lines, hold.key, now - started, patience, attempts, until)
            attempts = 0 if waited else attempts + 1
            # Not twice in a row without a wait: a key that one master has kept must not keep everybody out.
            first = lines.first_of(policy, hold.key, now) if waited or first < 0 else -1
        started = policy.clock.now()


def reach_the_head(
    policy: Policy, lines: Lines, hold: Hold, ttl_ms: int, until_ns: int
) -> Generator[Effect, None, bool]:
    """Wait behind others of this client; tell whether the hold is to ask the masters now: else it is HELD or FREE."""
    courteous = False
    if policy.clock.now() < until_ns:
        courteous = yield from _wait_in_line(policy, lines, hold, ttl_ms, until_ns)
    elif not policy.hearsay:  # somebody may have deleted the key: the masters say
        return True
    if hold.state == HELD:
        return False
    if lines.heads.get(hold.key) is not hold:
        hold.free()
        return False
    if hold.kind is not None and hold.kind.orderly:
        courteous = False
    for _ in range(COURTESY if courteous else 0):
        yield from wait_for_change(policy, lines, hold.key, 0, policy.patience_ns(ttl_ms), 0, until_ns)
    if courteous and policy.polls:  # waiters of other processes notice a free lock only at the end of their pause
        pause_ns = policy.retry.courtesy_ns(policy.random())
        yield Pause(min(policy.clock.now() + pause_ns, until_ns))
    return True


def _wait_in_line(
    policy: Policy, lines: Lines, hold: Hold, ttl_ms: int, until_ns: int
) -> Generator[Effect, None, bool]:
    """Wait until the hold has got a lease, or is at the head, or its time is over.

    Longer than a function should be: each look and the step after it are in an order that loses no lease.

    Returns:
        Whether other processes are to have a chance first.
    """
    turn: Turn
    while True:
        now = policy.clock.now()
        turn = Turn(hold, until_ns)
        try:
            lines.join(policy, turn, now)
            if not lines.enter(hold, now):
                if policy.hearsay:
                    yield turn
                else:
                    yield from _wait_beside(policy, lines, turn, ttl_ms, until_ns)
            called = turn.ballot.decided  # read first: a lease is there before that, and nobody gives one after it
            if not turn.inherit():
                if lines.heads.get(hold.key) is hold:
                    lines.drop(turn)
                    if turn.inherit():  # it came with the head since we looked; the masters are asked anew
                        yield from _give_back(policy, hold)
                    return turn.courteous
                if not called:
                    now = policy.clock.now()
                    if lines.step_out(turn, now) is not None:  # it came too late
                        yield from _give_back(policy, hold)
                        lines.leave(hold, now, False)
                    return False
                continue
        except BaseException:  # nothing can be sent here: whoever abandons the hold will have it released
            try:
                lines.step_out(turn, now)
            except BaseException:  # a second interrupt
                lines.step_out(turn, now)
                raise
            raise
        yield from _take_over(policy, hold, ttl_ms)
        return False


def _give_back(policy: Policy, hold: Hold) -> Steps:
    """Release a lease that the hold cannot use, without waiting.

    The state ASKING makes `abandon` release it after an interrupt.
    """
    hold.state = ASKING
    yield Tell([policy.ballot(hold.releasing())])
    hold.state = WAITING


def _wait_beside(policy: Policy, lines: Lines, turn: Turn, ttl_ms: int, until_ns: int) -> Steps:
    """Wait for a turn in a client whose users delete keys by hand, until the turn comes or `until_ns`.

    When the line has not moved for a while, its first waiter also watches the key of the hold at the head.
    """
    hold = turn.hold
    turn.looks = True
    if lines.is_next(hold):
        turn.ballot.until_ns = min(policy.clock.now() + FIRST_LOOK_NS, until_ns)
    while True:
        yield turn
        if turn.ballot.decided or _is_over(policy, lines, turn, until_ns):
            return
        head: Hold | None = lines.heads.get(hold.key)
        if head is not None and head.state == HELD and lines.is_next(hold):
            yield from _watch_beside(policy, lines, turn, head, ttl_ms, until_ns)
            if _is_over(policy, lines, turn, until_ns):
                return
        turn.ballot.until_ns = until_ns


def _wait_for_turn(policy: Policy, turn: Turn, pause_ns: int, until_ns: int) -> Steps:
    turn.ballot.until_ns = min(policy.clock.now() + pause_ns, until_ns)
    yield turn


def _is_over(policy: Policy, lines: Lines, turn: Turn, until_ns: int) -> bool:
    """Tell whether the turn has come, its time is over, or the hold has become the head of its line."""
    now = policy.clock.now()
    return turn.ballot.decided or now >= until_ns or lines.enter(turn.hold, now)


def _watch_beside(policy: Policy, lines: Lines, turn: Turn, head: Hold, ttl_ms: int, until_ns: int) -> Steps:
    """Wait for a turn and watch the key of the hold at the head; if the key is gone, that hold has lost its lock.

    A look that is registered for pushes counts every change as "gone". So a second look, which is not registered,
    confirms it.
    """
    key, since = turn.hold.key, head.lease.since_ns
    confirms = False
    pauses = 0
    while not turn.ballot.decided and head.holds_since(since):
        now = policy.clock.now()
        look = policy.ballot(Look(key), min(now + policy.patience_ns(ttl_ms), until_ns))
        turn.watch = look  # the thread that calls the turn decides this look, too
        try:
            if not confirms:
                lines.watch(key, look)
            if not turn.ballot.decided:
                yield look
            if not (confirms or turn.ballot.decided or look.yes >= look.quorum):
                pauses = 0 if look.watchable() else pauses + 1
                if pauses:
                    yield from _wait_for_turn(policy, turn, policy.retry.pause_ns(pauses, policy.random()), until_ns)
                else:
                    yield from _wait_for_change_beside(policy, turn, look, until_ns)
        finally:
            turn.watch = None
            lines.unwatch(key, look)
        gone = look.yes >= look.quorum
        now = policy.clock.now()
        if turn.ballot.decided or now >= until_ns:
            return
        if gone and confirms:
            head.lose_what_it_holds_since(since, now)
            return
        confirms = gone and not confirms


def _wait_for_change_beside(policy: Policy, turn: Turn, look: Ballot, until_ns: int) -> Steps:
    now, jitter = policy.clock.now(), policy.retry.pause_ns(0, policy.random())
    look.watch(min(now + look.left_ns() + jitter, now + BACKSTOP_NS - jitter, until_ns))
    if not turn.ballot.decided:  # checked after `watch`, which undoes an earlier call of this look
        yield [look]


def _take_over(policy: Policy, hold: Hold, ttl_ms: int) -> Steps:
    """Keep what another hold has held, if nine tenths of the validity that was asked for are left, or can be had.

    It is extended in time, so that mostly nobody waits for that; where it is too late the extension is waited for.
    """
    now = policy.clock.now()
    hold.adopt(now)
    wanted = policy.validity_ns(ttl_ms)
    lease = hold.lease
    left = lease.deadline_ns - now
    if wanted * 9 // 10 <= left <= wanted and not policy.doubts(lease.asked_ns):
        if left < wanted * 19 // 20 and lease.renewal is None:
            ballot = policy.ballot(hold.extending_to(ttl_ms, now))
            hold.renew(ballot, now + wanted)
            yield Tell([ballot])
        return
    try:
        yield from extend(policy, hold, ttl_ms)
    except LockError:  # then the masters are asked anew
        yield from _give_back(policy, hold)


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
