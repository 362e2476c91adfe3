# cython: annotation_typing=True
# (A .pxd cannot type the arguments and locals of a generator.)
"""Many locks in one round: the generators of `quorum` for a list of holds.

Each name has a verdict of its own. The commands leave in parts, so that the masters work on the first ones while the
next are made. One text, twice: it is compiled as `redlatch._c.protocol.batch` (see `redlatch._c`).
"""

from __future__ import annotations

from collections.abc import Generator

from redlatch.errors import LockError, NotOwned, QuorumUnavailable

from .ballot import Ballot
from .contention import wait_for_change
from .effects import Effect, Pause, Steps, Tell
from .hold import HELD, Hold
from .outcome import end_release, granted, is_final, no_quorum
from .policy import UNBOUNDED, Policy
from .waiting import Lines

# How many are under way at once: what is on its way to a master stays well below what it may owe.
BATCH = 1024

# How many commands leave together.
PART = 256


def acquire_many(
    policy: Policy,
    lines: Lines,
    holds: list[Hold],
    ticket: object,
    ttl_ms: int,
    left_ns: int = UNBOUNDED,
    stirs: bool = True,
) -> Steps:
    """Try once to win each lock; an attempt is undone unless it won, and made anew once if connections broke under it.

    Args:
        lines: who waits for whom in this client.
        holds: free ones; each is HELD or FREE when this returns.
        ticket: to claim them with; whoever runs this abandons them when it is interrupted, or raises.
        left_ns: the time that is left of the caller's timeout.
        stirs: whether to wake waiters of this client when their key is undone here; a master does not push what this
            client has done itself. False while retrying: two multi-locks would wake each other endlessly.

    Raises:
        QuorumUnavailable: too many masters failed in two attempts running on one of them.
    """
    hold: Hold
    for first in range(0, len(holds), BATCH):
        trying: list[Hold] = holds[first : first + BATCH]
        for hold in trying:
            hold.claim(ticket)
        broken = yield from _try_each(policy, lines, trying, ttl_ms, left_ns, stirs, 1)
        if broken:
            yield from _try_each(policy, lines, broken, ttl_ms, left_ns, stirs, 2)


def acquire_all(
    policy: Policy, lines: Lines, holds: list[Hold], ticket: object, ttl_ms: int, give_up_ns: int | None
) -> Steps:
    """Try until all locks are won, or the time is over; none is held while others are waited for.

    Args:
        lines: who waits for whom in this client.
        holds: free ones; all are HELD, or all FREE, when this returns.
        ticket, ttl_ms: as for `acquire_many`.
        give_up_ns: when to stop trying; None is never.

    Raises:
        QuorumUnavailable: too many masters failed.
    """
    hold: Hold
    until = UNBOUNDED if give_up_ns is None else give_up_ns
    attempts = 0
    while True:
        began = policy.clock.now()
        left = until - began if until else UNBOUNDED
        yield from acquire_many(policy, lines, holds, ticket, ttl_ms, left, False)
        now = policy.clock.now()
        refused: list[Hold] = [hold for hold in holds if not hold.held(now)]
        if not refused:
            return
        won: list[Hold] = [hold for hold in holds if hold.state == HELD]
        if won:
            yield Tell([policy.ballot(hold.releasing()) for hold in won])
        for hold in won:
            hold.free()
            lines.stir(hold.key)
        if now >= until:
            for hold in refused:  # some masters may have had these keys for us; no push tells of our own undo
                lines.stir(hold.key)
            return
        patience = policy.patience_ns(ttl_ms)
        waited = yield from wait_for_change(policy, lines, refused[0].key, now - began, patience, attempts, until)
        attempts = 0 if waited else attempts + 1


def _try_each(
    policy: Policy, lines: Lines, holds: list[Hold], ttl_ms: int, left_ns: int, stirs: bool, number: int
) -> Generator[Effect, None, list[Hold]]:
    """Make attempt `number` (1 or 2) on each, and return those to try again because their connections broke.

    Longer than a function should be: an attempt is read from its first byte to its verdicts.
    """
    hold: Hold
    asked: list[Ballot] = []
    started = policy.clock.now()  # before the first byte leaves
    deadline = started + policy.validity_ns(ttl_ms)
    until = min(deadline, started + policy.patience_within(ttl_ms, left_ns))
    for begin in range(0, len(holds), PART):
        some: list[Hold] = holds[begin : begin + PART]
        part: list[Ballot] = [hold.attempt(policy, lines, ttl_ms, started, deadline, until) for hold in some]
        asked += part
        yield Tell(part)
    yield asked
    ballot: Ballot
    won: list[bool] = [ballot.yes >= ballot.quorum for ballot in asked]
    now = policy.clock.now()  # after the last counted vote, whatever is counted later
    undone: list[Ballot] = []
    stirred: list[bytes] = []  # keys that some master may have had for us
    broken: list[Hold] = []
    failure: QuorumUnavailable | None = None
    for place in range(len(holds)):
        hold, ballot = holds[place], asked[place]
        if granted(policy, lines, hold, won[place], deadline, now):
            hold.keep(now - started)
            continue
        undone.append(policy.ballot(hold.releasing()))
        if ballot.no < ballot.size:
            stirred.append(hold.key)
        if ballot.unavailable():
            if not is_final(ballot, number):
                broken.append(hold)
                continue
            failure = failure or no_quorum("acquire", policy, hold, ballot, now - started)
        hold.free()
    if undone:
        yield Tell(undone)
    if stirs:
        for key in stirred:
            lines.stir(key)
    if failure is not None:
        raise failure
    return broken


def tickets(holds: list[Hold]) -> list[object]:
    """Return the ticket of the claim on each hold."""
    return [hold.ticket for hold in holds]


def release_many(
    policy: Policy, lines: Lines, holds: list[Hold], patience_ns: int, errors: dict[int, LockError]
) -> Steps:
    """Delete each key on every master where it is still ours, and wait for a quorum's answers.

    Args:
        errors: takes what `quorum.release` would raise, by place in `holds`.
    """
    hold: Hold
    for first in range(0, len(holds), BATCH):
        started = policy.clock.now()
        going: list[tuple[int, bool, bool]] = []  # place, whether it is late, whether it is sent again
        for place in range(first, min(first + BATCH, len(holds))):
            hold = holds[place]
            try:
                late, resent = hold.begin_release(started)
                going.append((place, late, resent))
            except NotOwned as error:
                errors[place] = error
        while going:
            asked: list[Ballot] = []
            for begin in range(0, len(going), PART):
                part: list[Ballot] = []
                for place, _, _ in going[begin : begin + PART]:
                    hold = holds[place]
                    command = hold.releasing()
                    part.append(policy.ballot(command, started + patience_ns))
                asked += part
                yield Tell(part)
            if lines.heads or lines.watches:
                for place, _, _ in going:
                    lines.leave(holds[place], started, False)
            yield asked
            going = _settled(policy, holds, going, asked, started, errors)


def _settled(
    policy: Policy,
    holds: list[Hold],
    going: list[tuple[int, bool, bool]],
    asked: list[Ballot],
    started_ns: int,
    errors: dict[int, LockError],
) -> list[tuple[int, bool, bool]]:
    """Give each release its verdict, and return those to send again: their connections broke."""
    hold: Hold
    ballot: Ballot
    broken: list[tuple[int, bool, bool]] = []
    for ballot, (place, late, resent) in zip(asked, going, strict=True):
        hold = holds[place]
        try:
            if not end_release(policy, hold, ballot, late, resent, started_ns):
                broken.append((place, late, True))
        except LockError as error:
            errors[place] = error
    return broken


def together(many: list[Steps], errors: dict[int, LockError]) -> Steps:
    """Run many generators of `quorum` at once; each has a verdict of its own.

    Args:
        many: any number of them.
        errors: takes what they raise, by their place in `many`.
    """
    for first in range(0, len(many), BATCH):
        going = list(range(first, min(first + BATCH, len(many))))
        while going:
            still: list[int] = []
            asked: list[Ballot] = []
            told: list[Ballot] = []
            until = 0
            for index in going:
                try:
                    effect = next(many[index], None)
                except LockError as error:
                    errors[index] = error
                    continue
                if effect is not None:
                    still.append(index)
                    if isinstance(effect, Tell):  # it goes on after these are sent: it may wake waiters next
                        told += effect.ballots
                    elif isinstance(effect, Ballot):
                        asked.append(effect)
                    elif isinstance(effect, Pause):
                        until = max(until, effect.until_ns)
            if told or asked:
                yield Tell(told + asked)
            if asked:
                yield asked
            if until:
                yield Pause(until)
            going = still
