"""The quorum of one client: its settings, its sources of time, tokens and numbers, its doubts, queues and figures.

Times are integers of nanoseconds since boot (`wire.engine.net.now_ns`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..votes.ballot import Ballot, new_ballot
from ..votes.commands import Command
from ..votes.units import MILLISECOND, SECOND, UNBOUNDED, Clock, drift_ns, quorum_of
from .figures import Groups
from .policy import Doubts, Fences, Handoff, Retry
from .tokens import Tokens
from .waiting.queues import WaitQueues


class Quorum:
    """The settings that all locks of one client share, and their sources of time, tokens and random numbers.

    Args:
        masters: the addresses of the masters, for messages.
        options: the options of the client (`redlatch.options`).
        clock: the clock of all deadlines.
        random: a float in [0, 1).
        tokens: where the token of every attempt comes from.
        fences: where the numbers of fenced locks come from.
        trust_local_holder: if True, a single attempt fails locally while another lock of this client holds the name.

    Attributes:
        doubts: the leases that are in doubt.
        queues: the waiters of this client, by key.
        moving_ns: until when failed attempts wait for a handover to end; 0 if there is none.
        released_ns: when the client ended all its leases, because it was closed; 0 if it has not.
        groups: the figures of all groups of locks.
        figures: the figures of locks without a group.
        size, majority: how many masters there are, and how many must agree.
        order: the indexes of the masters in an order that does not depend on that of the list.
        tenure_ns, tenure_count: the bounds of `handoff`.
        drift_factor, attempt_ns, retry, max_waiters, refuse_late, max_ttl_ms, patience_ns: as in the options.
    """

    __slots__ = (
        "attempt_ns",
        "clock",
        "doubts",
        "drift_factor",
        "fences",
        "figures",
        "groups",
        "majority",
        "masters",
        "max_ttl_ms",
        "max_waiters",
        "moving_ns",
        "order",
        "patience_ns",
        "queues",
        "random",
        "refuse_late",
        "released_ns",
        "retry",
        "size",
        "tenure_count",
        "tenure_ns",
        "tokens",
        "trust_local_holder",
    )

    def __init__(
        self,
        *,
        masters: tuple[str, ...],
        options: Any,
        clock: Clock,
        random: Callable[[], float],
        tokens: Tokens,
        fences: Fences,
        trust_local_holder: bool = True,
    ) -> None:
        self.moving_ns = self.released_ns = 0
        self.use(masters)
        self.drift_factor: float = options.drift_factor
        self.attempt_ns: int | None = options.attempt_ns
        self.retry: Retry = options.retry or Retry()
        self.clock = clock
        self.random = random
        self.tokens = tokens
        self.fences = fences
        handoff = options.handoff or Handoff()
        self.tenure_ns = int(min(handoff.tenure, 1e9) * SECOND)
        self.tenure_count = handoff.count
        self.max_waiters: int = UNBOUNDED if options.max_waiters is None else options.max_waiters
        self.refuse_late: bool = options.refuse_late
        self.trust_local_holder = trust_local_holder
        self.max_ttl_ms: int = options.max_ttl_ms
        self.patience_ns: int = options.patience_ns
        self.doubts = Doubts()
        self.queues = WaitQueues()
        self.queues.doubts = self.doubts
        self.groups = Groups()
        self.figures = self.groups.named("")

    def use(self, masters: tuple[str, ...]) -> None:
        """Use these masters from now on. Before a handover ends, no ballot on the new ones is made."""
        self.masters = masters
        self.size = len(masters)
        self.majority = quorum_of(self.size)
        self.order = tuple(sorted(range(self.size), key=masters.__getitem__))

    def ballot(self, command: Command, until_ns: int = 0) -> Ballot:
        """Return a ballot of all masters on a command; `until_ns` is 0 if no caller waits for it."""
        return new_ballot(command, self.size, self.majority, until_ns)

    def validity_ns(self, ttl_ms: int) -> int:
        """Return the validity that a ttl gives, counted from before the first byte was sent: ttl - drift."""
        # The number is written out: in the compiled build a name would not be a C integer.
        return ttl_ms * 1_000_000 - drift_ns(ttl_ms, self.drift_factor)

    def ttl_ms_for(self, validity_ns: int) -> int:
        """Return the ttl that gives this validity, in whole milliseconds and rounded down; 0 if there is none."""
        return max(0, int((validity_ns + 2_000_000) / (1 - self.drift_factor)) // 1_000_000)

    def wait_ns(self, ttl_ms: int) -> int:
        """Return how long one round of commands waits for answers; the Redis page wants it small against the ttl.

        By default it is at most 1 s, so that a long ttl does not make callers wait long for silent masters.
        """
        if self.attempt_ns is not None:
            return self.attempt_ns
        # The numbers are written out, as in `validity_ns`.
        return min(1_000_000_000, max(100_000_000, ttl_ms * 1_000_000 // 20))

    def wait_within(self, ttl_ms: int, left_ns: int) -> int:
        """Return how long an attempt waits for answers if `left_ns` of its caller's timeout are left.

        It waits for at least 100 ms (or `wait_ns`, if that is less), so that a caller with a short timeout gets
        one real attempt.
        """
        return min(self.wait_ns(ttl_ms), max(100_000_000, left_ns))

    def lone_ns(self, wait_ns: int, round_ns: int) -> int:
        """Return how long an attempt waits for the master that it asks first; then it asks all masters.

        Args:
            wait_ns: how long a whole attempt waits for answers.
            round_ns: the duration of the last attempt that asked all masters at once and was not won.
        """
        if self.attempt_ns is not None:
            return wait_ns // 10
        return min(wait_ns // 10, max(10 * MILLISECOND, 8 * round_ns))
