"""The quorum of one client: what all its locks share. Times are integers of nanoseconds since boot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..votes.ballot import Ballot, new_ballot
from ..votes.commands import Command
from ..votes.payloads import joined
from ..votes.units import MILLISECOND, SECOND, UNBOUNDED, Clock, drift_ns, quorum_of
from .figures import Groups
from .policy import Doubts, Fences, Handoff, Retry
from .waiting.queues import WaitQueues


class Tokens:
    """A stock of tokens. Each attempt takes a new one, so no token is used twice.

    Args:
        draw: returns more tokens.
        label: returns the label of the tokens of the next second (see `votes.label`), if they have one.
    """

    def __init__(self, draw: Callable[[], list[bytes]], label: Callable[[], bytes] | None = None) -> None:
        self._draw = draw
        self._stock: list[bytes] = []
        self._label_of_now = label
        self._label = b""
        self._label_until_ns = 0

    def take(self, now_ns: int) -> bytes:
        if self._label_of_now is None:
            return self.take_plain()
        if now_ns >= self._label_until_ns:
            self._label = self._label_of_now()
            self._label_until_ns = now_ns + SECOND
        return joined(self.take_plain(), self._label)

    def take_plain(self) -> bytes:
        while True:
            try:
                return self._stock.pop()
            except IndexError:
                self._stock.extend(self._draw())


class Quorum:
    """The settings of a client, its sources of time, tokens and random numbers, its doubts, queues and figures.

    Args:
        masters: the addresses of the masters, for messages.
        options: the options of the client (`redlatch.options`), which describe the attributes of the same names.
        random: returns a float in [0, 1).
        trust_local_holder: if True, a single attempt fails locally while another lock of this client holds the name.

    Attributes:
        moving_ns: until when failed attempts wait for a handover to end; 0 if there is none.
        released_ns: when the client was closed and ended all its leases; 0 if it was not.
        size, majority: how many masters there are, and how many must agree.
        order: the indexes of the masters in an order that is the same for every order of the list.
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
        "replicas",
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
        self.replicas: int = options.replicas
        self.doubts = Doubts()
        self.queues = WaitQueues()
        self.queues.doubts = self.doubts
        self.groups = Groups()
        self.figures = self.groups.named("")

    def use(self, masters: tuple[str, ...]) -> None:
        """Use these masters from now on; no ballot on them is made before the handover ends."""
        self.masters = masters
        self.size = len(masters)
        self.majority = quorum_of(self.size)
        self.order = tuple(sorted(range(self.size), key=masters.__getitem__))

    def ballot(self, command: Command, until_ns: int = 0) -> Ballot:
        """Return a ballot of all masters; `until_ns` is 0 if no caller waits for it."""
        return new_ballot(command, self.size, self.majority, until_ns)

    def validity_ns(self, ttl_ms: int) -> int:
        """Return the ttl minus the drift: the validity, counted from before the first byte was sent."""
        # Written out: in the compiled build a name would not be a C integer.
        return ttl_ms * 1_000_000 - drift_ns(ttl_ms, self.drift_factor)

    def ttl_ms_for(self, validity_ns: int) -> int:
        return max(0, int((validity_ns + 2_000_000) / (1 - self.drift_factor)) // 1_000_000)

    def wait_ns(self, ttl_ms: int) -> int:
        """Return how long one round waits for answers: short against the ttl (Redis page), by default at most 1 s."""
        if self.attempt_ns is not None:
            return self.attempt_ns
        return min(1_000_000_000, max(100_000_000, ttl_ms * 1_000_000 // 20))

    def wait_within(self, ttl_ms: int, left_ns: int) -> int:
        """Return how long an attempt waits. With a short timeout, it is still one real attempt of up to 100 ms."""
        return min(self.wait_ns(ttl_ms), max(100_000_000, left_ns))

    def lone_ns(self, wait_ns: int, round_ns: int) -> int:
        """Return how long an attempt waits for the master that it asks first.

        `round_ns` is the duration of the last lost attempt that asked all masters.
        """
        if self.attempt_ns is not None:
            return wait_ns // 10
        return min(wait_ns // 10, max(10 * MILLISECOND, 8 * round_ns))
