"""The wait queues of one client without I/O: a test moves the holds and the waiters step by step."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from redlatch import Handoff, impl
from redlatch.options import ClientOptions

from .scripted_votes import BEGINNING, KEY, NAME, SECOND, VALIDITY, Play

OTHER = b"locks:sku:43"
FOR_EVER = BEGINNING + 1000 * SECOND


class World:
    """The holds of one client and its queues, moved step by step."""

    def __init__(self, build: impl.Implementation, masters: int = 3, **options: Any) -> None:
        self.play = Play(masters, build=build)
        self.waiting = build.module("quorum.waiting.queues")
        self.claims: ModuleType = self.play.claims
        self.holds: ModuleType = self.play.holds
        self.lease = build.module("quorum.lease").new_lease
        self.ballots: ModuleType = self.play.ballots
        self.watches: ModuleType = self.play.watches
        self.now = BEGINNING
        self.quorum = self.play.quorum = self.quorum_of(build, self.play.quorum.masters, **options)

    @property
    def queues(self) -> Any:
        """The queues of the client."""
        return self.quorum.queues

    def quorum_of(self, build: impl.Implementation, masters: tuple[str, ...], **options: Any) -> Any:
        handoff = {option: options.pop(option) for option in ("tenure", "count") if option in options}
        trusts = options.pop("trust_local_holder", True)
        return build.module("quorum.calls").Calls(
            masters=masters,
            options=ClientOptions("", guard=None, handoff=Handoff(**handoff), **options),
            clock=self.play.quorum.clock,
            random=lambda: 0.5,
            tokens=self.play.quorum.tokens,
            fences=self.play.quorum.fences,
            trust_local_holder=trusts,
        )

    def hold(self, key: bytes = KEY) -> Any:
        hold = self.holds.Hold(NAME, key, self.play.plain)
        hold.state = self.claims.WAITING
        return hold

    def holder(self, key: bytes = KEY) -> Any:
        """Return a hold that became the head and acquired the lock."""
        hold = self.hold(key)
        assert self.queues.become_head(hold, self.now)
        hold.ask(self.lease(b"token", self.now, self.now + VALIDITY))
        hold.keep(0)
        return hold

    def waiter(self, key: bytes = KEY, until_ns: int = FOR_EVER) -> Any:
        """Return the queue entry of a waiter."""
        hold = self.hold(key)
        assert not self.queues.become_head(hold, self.now)
        entry = self.join(hold, until_ns)
        assert not self.queues.become_head(hold, self.now)
        return entry

    def join(self, hold: Any, until_ns: int = FOR_EVER) -> Any:
        """Put a hold into its queue and return its entry."""
        entry = self.waiting.QueueEntry(hold, until_ns)
        self.queues.join(self.quorum, entry, self.now)
        return entry

    def head(self, key: bytes = KEY) -> Any:
        return self.queues.heads.get(key)

    def called(self) -> list[Any]:
        """Return the entries and watches that were called since the last call."""
        called = list(self.queues.called)
        self.queues.called.clear()
        return called

    def hand_off(self, hold: Any) -> bool:
        return bool(self.queues.hand_off(self.quorum, hold, self.now))

    def leave(self, hold: Any, backs_off: bool = False) -> None:
        self.queues.leave(hold, self.now, backs_off)


def look(world: World, *answers: int) -> Any:
    """Return a look that is decided: -2 means that the key is gone, other answers are its remaining milliseconds."""
    ballot = world.watches.Watch(world.play.commands.Look(KEY), world.quorum.size, world.quorum.majority)
    world.queues.watches.add(ballot.command.key, ballot)
    for index, answer in enumerate(answers):
        if answer == -2:
            ballot.yes += 1
        else:
            ballot.no += 1
            ballot.count_answer(index, answer, True)
    ballot.decided = ballot.settled()
    return ballot
