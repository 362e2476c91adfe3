"""The numbers of the algorithm: quorum, drift, validity, how long an attempt waits, when it is tried again.

All arithmetic is on integers of nanoseconds since boot (`wire.net.now_ns`). One text, twice: it is compiled as
`redlatch._c.protocol.policy` (see `redlatch._c`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from redlatch.errors import ConfigurationError

from .ballot import Ballot, new_ballot
from .commands import Command

MILLISECOND = 1_000_000
SECOND = 1_000_000_000

# More than there ever will be, of waiters or of anything else that is counted.
UNBOUNDED = 1 << 62

# Seconds: a master is kept out for so long at most. A lock that is needed for longer is renewed.
LONGEST_MAX_TTL = 7 * 86_400


def quorum_of(masters: int) -> int:
    """Return how many of `masters` must agree: more than half."""
    return masters // 2 + 1


@dataclass(frozen=True, slots=True)
class Retry:
    """Jittered exponential back-off between two attempts on a lock that somebody else holds.

    The n-th pause is drawn evenly from 0 to min(longest, first * 2**n) ("full jitter": contenders that
    started together do not meet again, see the Redis documentation on distributed locks).

    Args:
        first: seconds, the bound of the first pause. Default 0.004.
        longest: seconds, the bound that the others grow to. Default 0.050.

    Raises:
        ConfigurationError, TypeError: a bound cannot work.
    """

    first: float = 0.004
    longest: float = 0.050

    def __post_init__(self) -> None:
        for bound in (self.first, self.longest):
            if isinstance(bound, bool) or not isinstance(bound, (int, float)):
                raise TypeError(f"retry: seconds as numbers are needed, not {type(bound).__name__}")
        if not 0 < self.first <= self.longest < float("inf"):
            raise ConfigurationError(
                f"retry: 0 < first <= longest is needed, in seconds; got first={self.first}, longest={self.longest}"
            )

    def pause_ns(self, attempt: int, random: float) -> int:
        """Return the pause after attempt number `attempt` (from 0); `random` is even in [0, 1)."""
        bound = min(self.longest, self.first * 2.0 ** min(attempt, 32))
        return int(bound * random * SECOND)

    def courtesy_ns(self, random: float) -> int:
        """Return how long to pause for waiters of other processes that poll: nearly all of them look in that time."""
        return int(self.longest * (0.5 + random / 2) * SECOND)

    def again_ns(self, attempt: int, round_ns: int, random: float) -> int:
        """Return the n-th pause where the key was gone each time: its first bound is the last round trip."""
        bound = min(int(self.longest * SECOND), round_ns << min(attempt, 32))
        return int(bound * random)


@dataclass(frozen=True, slots=True)
class Handoff:
    """For how long a lock may pass from one waiter of a client to the next without a word to the masters.

    Then it is released, and other processes have their turn first.

    Args:
        tenure: seconds from when it was won; 0 releases it every time. Default 0.1.
        count: how often it may be passed on; 0 is never. Default 10,000.

    Raises:
        ConfigurationError, TypeError: a bound cannot work.
    """

    tenure: float = 0.1
    count: int = 10_000

    def __post_init__(self) -> None:
        if isinstance(self.tenure, bool) or not isinstance(self.tenure, (int, float)):
            raise TypeError(f"handoff: tenure in seconds is needed, not {type(self.tenure).__name__}")
        if isinstance(self.count, bool) or not isinstance(self.count, int):
            raise TypeError(f"handoff: count as a whole number is needed, not {type(self.count).__name__}")
        if not 0 <= self.tenure < float("inf") or not 0 <= self.count < UNBOUNDED:
            raise ConfigurationError(
                f"handoff: finite bounds of at least 0 are needed; got tenure={self.tenure}, count={self.count}"
            )


@dataclass(frozen=True, slots=True)
class Guard:
    """What keeps a master out that may have forgotten locks, or whose clock has jumped (see `protocol.guard`).

    All clients of the same masters and prefix must give the same `max_ttl`; one that differs is refused.

    Args:
        max_ttl: seconds, the longest ttl of any lock; and so the time for which a master is kept out. Default 60.
        trust_persistence: whether a master that was restarted is believed to have kept every key: it must have an
            append-only file, and should write it always (``appendfsync always``). Default False.

    Raises:
        ConfigurationError, TypeError: an argument cannot work.
    """

    max_ttl: float = 60.0
    trust_persistence: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.max_ttl, bool) or not isinstance(self.max_ttl, (int, float)):
            raise TypeError(f"guard: max_ttl in seconds is needed, not {type(self.max_ttl).__name__}")
        if not isinstance(self.trust_persistence, bool):
            raise TypeError(f"guard: trust_persistence is True or False, not {type(self.trust_persistence).__name__}")
        if not 0.001 <= self.max_ttl <= LONGEST_MAX_TTL:
            raise ConfigurationError(
                f"guard: a max_ttl of 0.001 to {LONGEST_MAX_TTL} seconds is needed; got {self.max_ttl}"
            )

    @property
    def max_ttl_ms(self) -> int:
        """The longest ttl in whole milliseconds."""
        return round(self.max_ttl * 1000)


DEFAULT_GUARD = Guard()


class Clock:
    """Tells the time that every deadline is measured with; `wire.net` has the real one."""

    def now(self) -> int:
        """Return nanoseconds since boot."""
        raise NotImplementedError


class Tokens:
    """Values that are never used twice, for every attempt one.

    Args:
        draw: returns some more of them.
    """

    def __init__(self, draw: Callable[[], list[bytes]]) -> None:
        self._draw = draw
        self._stock: list[bytes] = []

    def take(self) -> bytes:
        """Return the next one."""
        while True:
            try:
                return self._stock.pop()
            except IndexError:
                self._stock.extend(self._draw())


class Fences:
    """Proposes numbers for fenced locks: above all that this client has seen, and not below its wall clock.

    The clock is a hint only: where others are ahead a second round takes more than their numbers.

    Args:
        wall: tells microseconds since 1970.
    """

    def __init__(self, wall: Callable[[], int]) -> None:
        self._wall = wall
        self._seen = 0

    def propose(self) -> int:
        """Return a number to begin with."""
        return max(self._seen + 1, self._wall())

    def now(self) -> int:
        """Return the wall clock alone: for what must go on as time does (tickets of fair locks)."""
        return self._wall()

    def note(self, number: int) -> None:
        """Take note of a number that was seen, or is used up."""
        self._seen = max(self._seen, number)


class Policy:
    """What one client's locks have in common.

    Args:
        masters: their addresses, for messages.
        drift_factor: the share of the ttl that clocks may go wrong by.
        attempt_ns: how long one attempt waits for answers; None takes 5 % of the ttl, at least 0.1 s and at most 1 s.
        retry: the pauses between attempts.
        clock: tells the time.
        random: a float in [0, 1).
        tokens: where the token of every attempt comes from.
        fences: where the numbers of fenced locks come from.
        handoff: for how long a lock may pass from one waiter of a client to the next.
        max_waiters: how many of a client may wait for one name.
        refuse_late: whether who would wait for longer than its timeout is refused at once.
        guard: what keeps masters out; None lets all of them vote.
        hearsay: whether who tries once believes this client's own holder, and asks no master.

    Attributes:
        max_ttl_ms: the longest ttl.
        polls: whether waiters poll, because fewer masters than a quorum push changes.
        doubted_ns: what was granted, or extended, before then has lost a vote; 0 is nothing.
        size, quorum: how many masters there are, and how many must agree.
        order: their indexes in an order that does not depend on that of the list.
        tenure_ns, tenure_count: the bounds of `handoff`.
    """

    __slots__ = (
        "_me",
        "attempt_ns",
        "clock",
        "doubted_ns",
        "drift_factor",
        "fences",
        "guard",
        "hearsay",
        "masters",
        "max_ttl_ms",
        "max_waiters",
        "order",
        "polls",
        "quorum",
        "random",
        "refuse_late",
        "retry",
        "size",
        "tenure_count",
        "tenure_ns",
        "tokens",
    )

    def __init__(
        self,
        *,
        masters: tuple[str, ...],
        drift_factor: float,
        attempt_ns: int | None,
        retry: Retry,
        clock: Clock,
        random: Callable[[], float],
        tokens: Tokens,
        fences: Fences,
        handoff: Handoff | None = None,
        max_waiters: int = UNBOUNDED,
        refuse_late: bool = False,
        guard: Guard | None = None,
        hearsay: bool = True,
    ) -> None:
        self.masters = masters
        self.size = len(masters)
        self.quorum = quorum_of(self.size)
        self.drift_factor = drift_factor
        self.attempt_ns = attempt_ns
        self.retry = retry
        self.clock = clock
        self.random = random
        self.tokens = tokens
        self.order = tuple(sorted(range(self.size), key=masters.__getitem__))
        self.fences = fences
        handoff = handoff or Handoff()
        self.tenure_ns = int(min(handoff.tenure, 1e9) * SECOND)
        self.tenure_count = handoff.count
        self.max_waiters = max_waiters
        self._me = b""
        self.refuse_late = refuse_late
        self.guard = guard
        self.hearsay = hearsay
        self.max_ttl_ms = UNBOUNDED if guard is None else guard.max_ttl_ms
        self.polls = False
        self.doubted_ns = 0

    def ballot(self, command: Command, until_ns: int = 0) -> Ballot:
        """Return a ballot of all masters on a command; 0 says that nobody waits for it."""
        return new_ballot(command, self.size, self.quorum, until_ns)

    def validity_ns(self, ttl_ms: int) -> int:
        """Return for how long after its first byte was sent a ttl may be believed: ttl - drift."""
        return ttl_ms * 1_000_000 - drift_ns(ttl_ms, self.drift_factor)  # compiled, a name would be no C number

    def ttl_ms_for(self, validity_ns: int) -> int:
        """Return the ttl that may be believed for so long; 0 where there is none."""
        return max(0, int((validity_ns + 2_000_000) / (1 - self.drift_factor)) // 1_000_000)

    def doubt(self, doubted_ns: int) -> None:
        """Take note that a master's votes before then may be void."""
        self.doubted_ns = max(self.doubted_ns, doubted_ns)

    def doubts(self, asked_ns: int) -> bool:
        """Tell whether what was asked for then may have lost a vote since."""
        return asked_ns < self.doubted_ns

    def me(self) -> bytes:
        """Return this client's name in queues on the masters: a token, drawn with the first of them."""
        if not self._me:
            self._me = self.tokens.take()
        return self._me

    def patience_ns(self, ttl_ms: int) -> int:
        """Return how long one round of commands waits for answers (the Redis page: small against the ttl).

        By default it is at most 1 s, so that a long ttl does not make callers wait long for silent masters.
        """
        if self.attempt_ns is not None:
            return self.attempt_ns
        return min(1_000_000_000, max(100_000_000, ttl_ms * 1_000_000 // 20))  # names would not be C integers

    def patience_within(self, ttl_ms: int, left_ns: int) -> int:
        """Return how long an attempt waits for answers if `left_ns` of its caller's timeout are left.

        It waits for at least 100 ms (or `patience_ns`, if that is less), so that a caller with a short timeout gets
        one real attempt.
        """
        return min(self.patience_ns(ttl_ms), max(100_000_000, left_ns))

    def lone_ns(self, patience_ns: int, round_ns: int) -> int:
        """Return how long to wait for the master that is asked first; then all the others are asked, too.

        Args:
            patience_ns: how long a whole attempt waits for answers.
            round_ns: how long the last attempt took that asked all masters at once and was not won.
        """
        if self.attempt_ns is not None:
            return patience_ns // 10
        return min(patience_ns // 10, max(10 * MILLISECOND, 8 * round_ns))


def drift_ns(ttl_ms: int, drift_factor: float) -> int:
    """Return what is taken off a ttl for clocks that run at different rates: drift_factor of it, and 2 ms.

    "1 % + 2 ms" is the allowance of redlock-py, pottery, RedLock.net and aioredlock; 2 ms also cover the
    1 ms grain of Redis' expiry.
    """
    return int(ttl_ms * 1_000_000 * drift_factor) + 2_000_000
