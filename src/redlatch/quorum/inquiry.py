# cython: annotation_typing=True
# (A .pxd cannot type the arguments and locals of a generator.)
"""The questions `locked`, `owned` and `holder`, as generators that yield effects (see `effects`).

Compiled as `redlatch._c.quorum.inquiry`, too (see `redlatch._c`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redlatch.errors import ConfigurationError
from redlatch.quorum.key_watch import question

from ..votes.ballot import Ballot
from ..votes.commands import Command, read_holder
from .effects import Answer, Send, Steps
from .hold import Hold
from .outcome import is_final, no_quorum
from .policy import Policy

# The number of questions about keys that are under way at once, as in `batch`.
BATCH = 1024


def locked(policy: Policy, hold: Hold, wait_ns: int) -> Steps:
    """Answer whether the lock is held: a quorum of masters says so (see `Kind.locked`)."""
    question = hold.kind.locked(hold.key)
    for ballot in _inquiry(policy, hold, question, wait_ns):
        yield ballot
    yield Answer(ballot.yes >= ballot.quorum)


def owned(policy: Policy, hold: Hold, wait_ns: int) -> Steps:
    """Answer whether this holder has the lock: its deadline has not passed, and a quorum of masters has its token."""
    mine = hold.held(policy.clock.now())
    if mine:
        token = hold.lease.token
        question = hold.kind.owned(hold.key, hold.lease)
        for ballot in _inquiry(policy, hold, question, wait_ns):
            yield ballot
        mine = ballot.yes >= ballot.quorum and hold.lease.token is token and hold.held(policy.clock.now())
    yield Answer(mine)


def holder(policy: Policy, hold: Hold, wait_ns: int) -> Steps:
    """Answer which token a quorum of masters has: (token, milliseconds, fence counter), or None.

    The milliseconds count until too few masters have the token; they are -1 if its keys have no ttl.

    Raises:
        ConfigurationError: the lock may have several holders.
    """
    question = hold.kind.holder(hold.key)
    if question is None:
        raise ConfigurationError(f"holder: {hold.name!r} may have several holders", name=hold.name)
    for ballot in _inquiry(policy, hold, question, wait_ns):
        yield ballot
    found = _of_quorum(ballot, policy.quorum)
    if found is None and ballot.yes and ballot.missing():
        # The masters that have answered have different tokens, or some have none. The others may decide.
        ballot.reopen(ballot.until_ns)
        yield ballot
        found = _of_quorum(ballot, policy.quorum)
    yield Answer(found)


def ask_about_keys(policy: Policy, terms: list[Any]) -> Steps:
    """Ask whether the keys of held locks still have the tokens of their leases (see `key_watch`).

    Args:
        terms: the upkeep of each lease.
    """
    for first in range(0, len(terms), BATCH):
        asked = [question(policy, term) for term in terms[first : first + BATCH]]
        yield Send(asked)
        yield asked


def _of_quorum(ballot: Ballot, quorum: int) -> tuple[bytes, int, int] | None:
    """Return the token that a quorum of masters has, as `holder` answers it."""
    by_token: dict[bytes, list[tuple[int, int]]] = {}
    # This is a copy, because another thread may add an answer meanwhile.
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


def _inquiry(policy: Policy, hold: Hold, command: Command, wait_ns: int) -> Iterator[Ballot]:
    """Ask the masters, and ask again if connections broke; the last ballot has the answer."""
    started = policy.clock.now()
    for failures in (1, 2):
        ballot = policy.ballot(command, started + wait_ns)
        yield ballot
        if not ballot.unavailable():
            return
        if is_final(ballot, failures):
            raise no_quorum("query", policy, hold, ballot, policy.clock.now() - started)
