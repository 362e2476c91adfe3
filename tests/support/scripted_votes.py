"""The algorithm without sockets: a test runs its generators with scripted votes, clock, tokens and random numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from types import ModuleType
from typing import Any

from redlatch import impl
from redlatch.options import ClientOptions

MS = 1_000_000
SECOND = 1000 * MS
TTL_MS = 1000
# The ttl less 1 % and 2 ms.
VALIDITY = TTL_MS * MS - TTL_MS * MS // 100 - 2 * MS
LATENCY = 3 * MS
BEGINNING = 7_000 * SECOND
NAME, KEY = "sku:42", b"locks:sku:42"

# The votes of a ballot in the order of their arrival (y, n, ! for a failure, . for a missing vote), or a function that
# gets the ballot and returns them.
Votes = str | Callable[[Any], str]


def clock_of(build: impl.Implementation, read: Callable[[], int]) -> Any:
    """Return a clock of that build that reads the value of `read`."""

    class Shown(build.module("votes.units").Clock):  # type: ignore[misc]
        def now(self) -> int:
            return read()

    return Shown()


def undo(hold: Any, ticket: object) -> Any:
    """End an acquire as a driver does after an interrupt; return the command that it sends, or None."""
    try:
        return hold.undoing(ticket)
    finally:
        hold.end_undoing(ticket)


class Play:
    """One holder, N masters and their environment, with the effects in their order."""

    def __init__(
        self, masters: int = 5, chance: float = 0.5, build: impl.Implementation | None = None, patience: float = 0
    ) -> None:
        self.build = build = build or impl.current
        self.extending = build.module("quorum.extend").extend
        self.releasing = build.module("quorum.release").release
        self.releasing_nowait = build.module("quorum.release").release_nowait
        self.inquiry: ModuleType = build.module("quorum.inquiry")
        self.effects_module: ModuleType = build.module("quorum.effects")
        self.acquire_module: ModuleType = build.module("quorum.acquire")
        self.contention_module: ModuleType = build.module("quorum.waiting.contention")
        self.batch: ModuleType = build.module("quorum.batch")
        self.new_attempt = build.module("quorum.attempt").new_attempt
        self.commands: ModuleType = build.module("votes.commands")
        self.ballots: ModuleType = build.module("votes.ballot")
        self.watches: ModuleType = build.module("quorum.waiting.watches")
        self.claims: ModuleType = build.module("quorum.claim")
        self.holds: ModuleType = build.module("quorum.hold")
        self.quorums = quorums = build.module("quorum.quorum")
        self.masters = masters
        self.now = BEGINNING
        self.chance = chance
        self.tokens = (b"token-%d" % number for number in itertools.count(1))
        self.effects: list[Any] = []
        self.rest = ""
        self.quorum = build.module("quorum.calls").Calls(
            masters=tuple(f"master-{index}:6379" for index in range(masters)),
            options=ClientOptions("", guard=None, patience=patience),
            clock=clock_of(build, lambda: self.now),
            random=lambda: self.chance,
            tokens=build.module("quorum.quorum").Tokens(lambda: [next(self.tokens)]),
            fences=quorums.Fences(lambda: 1000),
        )
        self.plain = build.module("quorum.kinds.plain").PLAIN
        self.hold = self.holds.Hold(NAME, KEY, self.plain)
        self.ticket = object()

    @property
    def queues(self) -> Any:
        """The queues of the client."""
        return self.quorum.queues

    def vote(self, ballot: Any, votes: str) -> None:
        """Cast these votes, as far as they are counted before the ballot is decided."""
        for index, vote in enumerate(votes):
            if ballot.settled():
                break
            if vote == "y":
                ballot.yes += 1
            elif vote == "n":
                ballot.no += 1
                ballot.refusers |= ballot.command.releases << index
            elif vote == "!":
                ballot.failed += 1
                ballot.causes = {**(ballot.causes or {}), index: ConnectionRefusedError(f"broken {index}")}
        ballot.decided = ballot.settled()

    def run(self, steps: Iterator[Any], *script: Votes) -> Any:
        """Run a generator to its end; each ballot takes the next votes of the script, and LATENCY."""
        rest = iter(script)
        verdict = self.follow(steps, rest)
        left = list(rest)
        assert not left, f"it ended without asking for {left}"
        return verdict

    def follow(self, steps: Iterator[Any], rest: Iterator[Votes]) -> Any:
        """Run a generator to its end, or to its answer, with as many votes as it asks for."""
        for effect in steps:
            if isinstance(effect, self.effects_module.Answer):
                return effect.value
            self.perform(effect, rest)
        return None

    def perform(self, effect: Any, rest: Iterator[Votes]) -> None:
        """Perform one effect."""
        self.effects.append(effect)
        asked = effect if isinstance(effect, list) else [effect] if isinstance(effect, self.ballots.Ballot) else []
        self.now += LATENCY if asked else 0
        for ballot in asked:
            if type(ballot.command).__name__ == "Look":
                # The masters do not push, so the waiter polls.
                ballot.no, ballot.decided = self.masters, True
                continue
            # These are the rest of the votes; one master was asked before the others.
            if ballot.asked < -1:
                votes = "".join(vote for index, vote in enumerate(self.rest) if ballot.asked >> index & 1)
            else:
                given = next(rest, None)
                assert given is not None, "it asked once too often"
                votes = given if isinstance(given, str) else given(ballot)
            if ballot.asked >= 0:
                self.rest = votes.ljust(self.masters, ".")
                votes = self.rest[ballot.asked.bit_length() - 1]
            self.vote(ballot, votes)
        if isinstance(effect, self.effects_module.Pause):
            self.now = max(self.now, effect.until_ns)

    def acquire(self, *script: Votes, give_up_ns: int | None = BEGINNING) -> Any:
        """Claim and acquire, with one attempt by default; return whether the lock was granted."""
        self.ticket = object()
        self.hold.claim(self.ticket)
        self.run(self.acquire_module.acquire(self.quorum, self.hold, TTL_MS, give_up_ns), *script)
        return self.hold.state == self.claims.HELD

    def extend(self, *script: Votes, ttl_ms: int = TTL_MS) -> Any:
        return self.run(self.extending(self.quorum, self.hold, ttl_ms), *script)

    def release(self, *script: Votes) -> Any:
        return self.run(self.releasing(self.quorum, self.hold, SECOND), *script)

    def kinds(self) -> list[str]:
        """Return the names of all effects so far, with their commands."""
        names = []
        for effect in self.effects:
            ballots = effect if isinstance(effect, list) else getattr(effect, "ballots", [effect])
            commands = [type(ballot.command).__name__ for ballot in ballots if hasattr(ballot, "command")]
            names.append(" ".join([type(effect).__name__, *commands]))
        return names

    def of(self, kind: str) -> list[Any]:
        """Return the effects of one kind so far."""
        return [effect for effect in self.effects if type(effect).__name__ == kind]

    def jump(self, to_ns: int, votes: str) -> Votes:
        """Return votes that arrive when the clock reads `to_ns`."""

        def come(_: Any) -> str:
            self.now = to_ns
            return votes

        return come


INTERRUPTIONS: dict[str, Callable[[Generator[Any, Any, Any]], object]] = {
    "closed": lambda steps: steps.close(),
    "Ctrl-C": lambda steps: steps.throw(KeyboardInterrupt()),
    "an error": lambda steps: steps.throw(OSError("no")),
}
