# cython: annotation_typing=True
# (A .pxd cannot type the arguments and locals of a generator.)
"""The questions `locked`, `owned`, `holder` and `blockers`, as generators."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from redlatch.errors import ConfigurationError, LockBusy
from redlatch.holder import Holder, held_by
from redlatch.quorum.key_watch import question
from redlatch.votes.label import owner_of

from ..votes.ballot import Ballot
from ..votes.commands import Command, read_holder
from ..votes.units import MILLISECOND, SECOND
from .effects import Answer, Send, Steps
from .hold import Hold
from .outcome import is_final, no_quorum
from .quorum import Quorum

# An acquire that has not won asks who has the lock. It waits for the answers for a tenth of its timeout, within these.
LEAST_NS, MOST_NS = 10 * MILLISECOND, 100 * MILLISECOND

# The number of questions about keys that are under way at once, as in `batch`.
BATCH = 1024


def locked(quorum: Quorum, hold: Hold, wait_ns: int) -> Steps:
    """Answer whether the lock is held: a quorum of masters says so (see `Kind.locked`)."""
    question = hold.kind.locked(hold.key)
    for ballot in _inquiry(quorum, hold, question, wait_ns):
        yield ballot
    yield Answer(ballot.yes >= ballot.quorum)


def owned(quorum: Quorum, hold: Hold, wait_ns: int) -> Steps:
    """Answer whether this holder has the lock: its deadline has not passed, and a quorum of masters has its token."""
    mine = hold.held(quorum.clock.now())
    if mine:
        token = hold.lease.token
        question = hold.kind.owned(hold.key, hold.lease)
        for ballot in _inquiry(quorum, hold, question, wait_ns):
            yield ballot
        mine = ballot.yes >= ballot.quorum and hold.lease.token is token and hold.held(quorum.clock.now())
    yield Answer(mine)


def holder(quorum: Quorum, hold: Hold, wait_ns: int) -> Steps:
    """Answer which token a quorum of masters has: (token, milliseconds, fence counter), or None.

    The milliseconds count until too few masters have the token; they are -1 if its keys have no ttl.

    Raises:
        ConfigurationError: the lock may have several holders.
    """
    question = hold.kind.holder(hold.key)
    if question is None:
        raise ConfigurationError(f"holder: {hold.name!r} may have several holders", name=hold.name)
    for ballot in _inquiry(quorum, hold, question, wait_ns):
        yield ballot
    if _is_split(ballot, quorum.majority):
        ballot.reopen(ballot.until_ns)
        yield ballot
    yield Answer(_of_quorum(ballot, quorum.majority))


def blockers(quorum: Quorum, holds: list[Hold], timeout_ns: int) -> Steps:
    """Answer who keeps these locks from being acquired: a list of pairs of a hold and a `Holder`, as far as known.

    Too few answers are no error: the caller has another one to raise.

    Args:
        holds: the locks; of more than `BATCH`, the first ones count.
        timeout_ns: the timeout of the acquire that has not won.
    """
    hold: Hold
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
    """Name in the error of a full queue who has the lock: another hold of this client, or a holder elsewhere.

    Args:
        until_ns: the end of the timeout of the acquire.
    """
    found = local_holder(quorum, hold)
    if found is None:
        for effect in blockers(quorum, [hold], until_ns - quorum.clock.now()):
            if not isinstance(effect, Answer):
                yield effect
            else:
                answer: Any = effect.value
                found = answer[0][1] if answer else None
    if found is not None:
        error.holder = found
        error.args = (f"{error.args[0]}; {held_by(found)}",)


def local_holder(quorum: Quorum, hold: Hold) -> Holder | None:
    """Return the holder if it is another lock object of this client."""
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
    """Return the holder of the lock of a hold from an answer of `holder`."""
    token, left_ms, counter = found
    owner, since = owner_of(token)
    return Holder(
        owner=owner,
        ttl_left=math.inf if left_ms < 0 else left_ms / 1000,
        held_for=max(0.0, quorum.fences.now() / 1_000_000 - since) if since else None,
        fence=counter if counter and hold.kind.numbers else None,
    )


def ask_about_keys(quorum: Quorum, terms: list[Any]) -> Steps:
    """Ask whether the keys of held locks still have the tokens of their leases (see `key_watch`).

    Args:
        terms: the upkeep of each lease.
    """
    for first in range(0, len(terms), BATCH):
        asked = [question(quorum, term) for term in terms[first : first + BATCH]]
        yield Send(asked)
        yield asked


def _is_split(ballot: Ballot, quorum: int) -> bool:
    """Return whether the masters that have answered have different tokens, or some have none. Others may decide."""
    return _of_quorum(ballot, quorum) is None and ballot.yes > 0 and ballot.missing() > 0


def _of_quorum(ballot: Ballot, quorum: int) -> tuple[bytes, int, int] | None:
    """Return the token that a quorum of masters has, as `holder` answers it."""
    by_token: dict[bytes, list[tuple[int, int]]] = {}
    # A copy: another thread may add an answer meanwhile.
    for answer in dict(ballot.answers or {}).values():
        if (read := read_holder(answer)) is not None:
            token, left_ms, counter = read
            by_token.setdefault(token, []).append((left_ms, counter))
    for token, masters in by_token.items():
        if len(masters) >= quorum:
            # A key without a ttl outlives all others.
            lefts = sorted([left for left, _ in masters if left >= 0], reverse=True)
            without = len(masters) - len(lefts)
            left_ms = -1 if without >= quorum else lefts[quorum - without - 1]
            return token, left_ms, max([counter for _, counter in masters])
    return None


def _inquiry(quorum: Quorum, hold: Hold, command: Command, wait_ns: int) -> Iterator[Ballot]:
    """Ask the masters, and ask again if connections broke; the last ballot has the answer."""
    started = quorum.clock.now()
    for failures in (1, 2):
        ballot = quorum.ballot(command, started + wait_ns)
        yield ballot
        if not ballot.unavailable():
            return
        if is_final(ballot, failures):
            raise no_quorum("query", quorum, hold, ballot, quorum.clock.now() - started)
