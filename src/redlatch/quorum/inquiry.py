# cython: annotation_typing=True
"""The questions `locked`, `owned`, `holder` and `blockers`, as generators."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

from redlatch.errors import ConfigurationError, LockBusy
from redlatch.holder import Holder, held_by
from redlatch.quorum.key_watch import question
from redlatch.votes.label import owner_of

from ..votes.ballot import Ballot
from ..votes.commands import Command, read_holder
from ..votes.units import MILLISECOND, SECOND
from .effects import Answer, Effect, Send, Steps
from .hold import Hold
from .outcome import asking
from .quorum import Quorum

# An acquire that has not won waits for the answers for a tenth of its timeout, within these bounds.
LEAST_NS, MOST_NS = 10 * MILLISECOND, 100 * MILLISECOND

BATCH = 1024


def locked(quorum: Quorum, hold: Hold, wait_ns: int) -> Steps:
    question = hold.kind.locked(hold.key)
    ballot: Ballot = yield from _inquiry(quorum, hold, question, wait_ns)
    yield Answer(ballot.yes >= ballot.quorum)


def owned(quorum: Quorum, hold: Hold, wait_ns: int) -> Steps:
    """Answer whether this holder has the lock: its deadline has not passed, and a quorum has its token."""
    mine = hold.held(quorum.clock.now())
    if mine:
        token = hold.lease.token
        question = hold.kind.owned(hold.key, hold.lease)
        ballot: Ballot = yield from _inquiry(quorum, hold, question, wait_ns)
        mine = ballot.yes >= ballot.quorum and hold.lease.token is token and hold.held(quorum.clock.now())
    yield Answer(mine)


def holder(quorum: Quorum, hold: Hold, wait_ns: int) -> Steps:
    """Answer which token a quorum of masters has: (token, milliseconds, fence counter), or None.

    The milliseconds count until too few masters have the token; they are -1 if its keys have no ttl.
    """
    question = hold.kind.holder(hold.key)
    if question is None:
        raise ConfigurationError(f"holder: {hold.name!r} may have several holders", name=hold.name)
    ballot: Ballot = yield from _inquiry(quorum, hold, question, wait_ns)
    if _is_split(ballot, quorum.majority):
        ballot.reopen(ballot.until_ns)
        yield ballot
    yield Answer(_of_quorum(ballot, quorum.majority))


def blockers(quorum: Quorum, holds: list[Hold], timeout_ns: int) -> Steps:
    """Answer who keeps these locks from being acquired: pairs of a hold and a `Holder`, as far as known.

    No master is asked about locks of this client. Too few answers are no error: the caller has another one to raise.
    """
    hold: Hold
    known = local_holders(quorum, holds)
    if known:
        yield Answer(known)
        return
    until = quorum.clock.now() + min(max(timeout_ns // 10, LEAST_NS), MOST_NS)
    asked: list[Any] = []
    for hold in holds[:BATCH]:
        command = hold.kind.blocker(hold.key)
        if command is not None:
            asked.append((hold, quorum.ballot(command, until)))
    if asked:
        yield Send([ballot for _, ballot in asked])
        yield [ballot for _, ballot in asked]
    split: list[Ballot] = [ballot for _, ballot in asked if _is_split(ballot, quorum.majority)]
    for ballot in split:
        ballot.reopen(until)
    if split:
        yield split
    answers: list[Any] = [(hold, _of_quorum(ballot, quorum.majority)) for hold, ballot in asked]
    yield Answer([(hold, holder_of(quorum, hold, found)) for hold, found in answers if found is not None])


def name_holder(quorum: Quorum, hold: Hold, error: LockBusy, until_ns: int) -> Steps:
    for effect in blockers(quorum, [hold], until_ns - quorum.clock.now()):
        if not isinstance(effect, Answer):
            yield effect
            continue
        answer: Any = effect.value
        for _, found in answer:
            error.holder = found
            error.args = (f"{error.args[0]}; {held_by(found)}",)


def local_holders(quorum: Quorum, holds: list[Hold]) -> list[tuple[Hold, Holder]]:
    known = [(hold, _local_holder(quorum, hold)) for hold in holds]
    return [(hold, found) for hold, found in known if found is not None]


def _local_holder(quorum: Quorum, hold: Hold) -> Holder | None:
    head: Hold | None = quorum.queues.heads.get(hold.key)
    now = quorum.clock.now()
    if head is None or head is hold or not head.held(now):
        return None
    lease = head.lease
    return Holder(
        owner=owner_of(lease.token)[0],
        ttl_left=max(0, lease.deadline_ns - now) / SECOND,
        held_for=(now - lease.since_ns) / SECOND,
        fence=head.fence if head.kind.numbers else None,
    )


def holder_of(quorum: Quorum, hold: Hold, found: tuple[bytes, int, int]) -> Holder:
    token, left_ms, counter = found
    owner, since = owner_of(token)
    return Holder(
        owner=owner,
        ttl_left=math.inf if left_ms < 0 else left_ms / 1000,
        held_for=max(0.0, quorum.fences.now() / 1_000_000 - since) if since else None,
        fence=counter if counter and hold.kind.numbers else None,
    )


def ask_about_keys(quorum: Quorum, terms: list[Any]) -> Steps:
    for first in range(0, len(terms), BATCH):
        asked = [question(quorum, term) for term in terms[first : first + BATCH]]
        yield Send(asked)
        yield asked


def _is_split(ballot: Ballot, quorum: int) -> bool:
    # The masters that have answered disagree; others may decide.
    return _of_quorum(ballot, quorum) is None and ballot.yes > 0 and ballot.missing() > 0


def _of_quorum(ballot: Ballot, quorum: int) -> tuple[bytes, int, int] | None:
    by_token: dict[bytes, list[tuple[int, int]]] = {}
    # A copy: another thread may add an answer meanwhile.
    for answer in dict(ballot.answers or {}).values():
        if (read := read_holder(answer)) is not None:
            token, left_ms, counter = read
            by_token.setdefault(token, []).append((left_ms, counter))
    for token, masters in by_token.items():
        if len(masters) >= quorum:
            lefts = sorted([left for left, _ in masters if left >= 0], reverse=True)
            without = len(masters) - len(lefts)
            left_ms = -1 if without >= quorum else lefts[quorum - without - 1]
            return token, left_ms, max([counter for _, counter in masters])
    return None


def _inquiry(quorum: Quorum, hold: Hold, command: Command, wait_ns: int) -> Generator[Effect, None, Ballot]:
    ballot: Ballot = yield from asking(quorum, hold, "query", _ask(quorum, command, quorum.clock.now() + wait_ns))
    return ballot


def _ask(quorum: Quorum, command: Command, until_ns: int) -> Generator[Effect, None, Ballot]:
    while True:
        ballot = quorum.ballot(command, until_ns)
        yield ballot
        if not ballot.unavailable():
            return ballot
