# cython: annotation_typing=True
# (A .pxd cannot type the arguments and locals of a generator.)
"""Wait for a turn behind other holds of this client, and take over the lease that comes with it.

Compiled as `redlatch._c.protocol.turns`, too (see `redlatch._c`).
"""

from __future__ import annotations

from collections.abc import Generator

from redlatch.errors import LockError

from .ballot import Ballot
from .commands import Look
from .contention import BACKSTOP_NS, wait_for_change
from .effects import Effect, Pause, Steps, Tell
from .hold import ASKING, HELD, WAITING, Hold
from .policy import MILLISECOND, Policy
from .quorum import extend
from .waiting import Lines, Turn

# When a tenure is over the next of this client looks so many times before it asks: 2 give the waiters of other
# processes, who are told at once, the time to ask first.
COURTESY = 2

# In a drop-in, a waiter that joins the line as its first asks the masters about the holder's key after this time. Most
# hand-offs take less, so they need no such question. A waiter that becomes the first later is woken by `Lines.expire`.
FIRST_LOOK_NS = 5 * MILLISECOND


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
    if hold.kind.orderly:
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
