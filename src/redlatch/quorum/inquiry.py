# cython: annotation_typing=True
# (A .pxd cannot type the arguments and locals of a generator.)
"""The questions `locked` and `owned`, as generators that yield effects (see `effects`).

Compiled as `redlatch._c.quorum.inquiry`, too (see `redlatch._c`).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..votes.ballot import Ballot
from ..votes.commands import Command
from .effects import Answer, Steps
from .hold import Hold
from .outcome import is_final, no_quorum
from .policy import Policy


def locked(policy: Policy, hold: Hold, patience_ns: int) -> Steps:
    """Answer whether the lock is held: a quorum of masters says so (see `Kind.locked`)."""
    question = hold.kind.locked(hold.key)
    for ballot in _inquiry(policy, hold, question, patience_ns):
        yield ballot
    yield Answer(ballot.yes >= ballot.quorum)


def owned(policy: Policy, hold: Hold, patience_ns: int) -> Steps:
    """Answer whether this holder has the lock: its deadline has not passed, and a quorum of masters has its token."""
    mine = hold.held(policy.clock.now())
    if mine:
        token = hold.lease.token
        question = hold.kind.owned(hold.key, hold.lease)
        for ballot in _inquiry(policy, hold, question, patience_ns):
            yield ballot
        mine = ballot.yes >= ballot.quorum and hold.lease.token is token and hold.held(policy.clock.now())
    yield Answer(mine)


def _inquiry(policy: Policy, hold: Hold, command: Command, patience_ns: int) -> Iterator[Ballot]:
    """Ask the masters, and ask again if connections broke; the last ballot has the answer."""
    started = policy.clock.now()
    for failures in (1, 2):
        ballot = policy.ballot(command, started + patience_ns)
        yield ballot
        if not ballot.unavailable():
            return
        if is_final(ballot, failures):
            raise no_quorum("query", policy, hold, ballot, policy.clock.now() - started)
