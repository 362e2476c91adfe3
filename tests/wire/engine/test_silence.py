"""Masters that are silent: when they are suspected, and what a late vote teaches, on a clock that a test moves."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from support.scripted_votes import BEGINNING, MS, clock_of

from redlatch import impl

FOR_EVER = 1 << 62


class Fleet:
    """Three links, of which the last one does not vote."""

    def __init__(self, build: impl.Implementation) -> None:
        self.now = BEGINNING
        self.commands: ModuleType = build.module("votes.commands")
        self.ballots: ModuleType = build.module("votes.ballot")
        link = build.module("wire.engine.link").Link
        self.links = [link(index, f"master-{index}:1") for index in range(3)]
        self.silent = self.links[2]
        self.silence: Any = build.module("wire.engine.silence").Silence(self.links, clock_of(build, lambda: self.now))

    def ballot(self, kind: str = "Acquire", round_ns: int = MS) -> Any:
        """Return a ballot that all links were sent, with one yes and one no after `round_ns`."""
        more = (10_000,) if kind in ("Acquire", "Extend") else ()
        command = getattr(self.commands, kind)(b"k", b"token", self.now, *more)
        ballot = self.ballots.Ballot(command, 3, 2, FOR_EVER)
        self.now += round_ns
        ballot.yes, ballot.no = 1, 1
        self.silent.pending.append(ballot)
        return ballot

    def suspect(self) -> Any:
        """Let the silent master be suspected because of a new ballot; return the ballot."""
        ballot = self.ballot()
        assert not self.silence.spares(ballot)
        self.now = ballot.hurry_ns
        assert self.silence.suspect(self.now) == [ballot]
        self.silence.forget(self.now)
        return ballot

    def vote_late(self, late_ns: int) -> None:
        """Let the silent master vote so long after its suspicion."""
        self.now = self.silent.suspected_ns + late_ns
        self.silent.advance()
        self.silence.learn(self.silent)
        self.silence.trust(self.silent)


@pytest.fixture
def fleet(implementation: impl.Implementation) -> Fleet:
    return Fleet(implementation)


def test_a_missing_master_has_several_rounds_and_at_least_ten_milliseconds(fleet: Fleet) -> None:
    short = fleet.ballot()
    assert not fleet.silence.spares(short)
    assert short.hurry_ns == fleet.now + 10 * MS
    long = fleet.ballot(round_ns=8 * MS)
    assert not fleet.silence.spares(long)
    assert long.hurry_ns == fleet.now + 4 * 8 * MS
    assert fleet.silence.waiting == [short, long]
    assert fleet.silence.due_ns == short.hurry_ns


def test_one_late_reply_makes_the_next_silent_master_no_long_wait(fleet: Fleet) -> None:
    ballot = fleet.ballot(round_ns=5000 * MS)
    fleet.silence.spares(ballot)
    assert ballot.hurry_ns == fleet.now + 4 * 10 * MS


@pytest.mark.parametrize("kind", ["Extend", "Owned"])
def test_extensions_and_questions_wait_for_every_vote(fleet: Fleet, kind: str) -> None:
    ballot = fleet.ballot(kind)
    fleet.suspect()
    assert not fleet.silence.spares(ballot)
    assert not ballot.hurry_ns
    assert not fleet.silence.lacks_only_suspects(ballot)


def test_only_a_master_that_has_not_voted_by_then_is_suspected(fleet: Fleet) -> None:
    ballot = fleet.ballot()
    fleet.silence.spares(ballot)
    assert fleet.silence.suspect(ballot.hurry_ns - 1) == [ballot]
    assert fleet.silence.suspects == 0
    fleet.silence.suspect(ballot.hurry_ns)
    assert [link.suspected for link in fleet.links] == [False, False, True]
    # It is suspected only once.
    fleet.silence.suspect(ballot.hurry_ns)
    assert fleet.silence.suspects == 1


def test_a_master_that_is_still_dialled_is_suspected_too(fleet: Fleet) -> None:
    ballot = fleet.ballot()
    fleet.silent.pending.clear()
    fleet.silent.parked.append(ballot)
    fleet.silence.spares(ballot)
    fleet.silence.suspect(ballot.hurry_ns)
    assert fleet.silent.suspected


def test_the_next_ballot_does_not_wait_for_a_suspected_master(fleet: Fleet) -> None:
    fleet.suspect()
    ballot = fleet.ballot()
    assert fleet.silence.lacks_only_suspects(ballot)
    assert fleet.silence.spares(ballot)
    # A ballot that does not ask that master waits for the others.
    ballot.asked = 0b011
    assert not fleet.silence.lacks_only_suspects(ballot)
    fleet.silence.trust(fleet.silent)
    fleet.silence.trust(fleet.silent)
    assert fleet.silence.suspects == 0
    ballot.asked = -1
    assert not fleet.silence.spares(ballot)


def test_ballots_that_are_decided_or_were_due_are_not_watched_any_more(fleet: Fleet) -> None:
    first, second, third = fleet.ballot(), fleet.ballot(), fleet.ballot(round_ns=20 * MS)
    for ballot in (first, second, third):
        fleet.silence.spares(ballot)
    second.decided = True
    fleet.silence.forget(first.hurry_ns)
    assert fleet.silence.waiting == [third]
    assert fleet.silence.due_ns == third.hurry_ns
    third.decided = True
    fleet.silence.forget(first.hurry_ns)
    assert fleet.silence.due_ns == FOR_EVER


def test_from_its_second_late_vote_on_a_far_master_gets_the_time_that_it_needs(fleet: Fleet) -> None:
    usual = fleet.silent.silent_ns
    fleet.suspect()
    fleet.vote_late(30 * MS)
    # A single late vote may be chance.
    assert fleet.silent.silent_ns == usual
    fleet.suspect()
    fleet.vote_late(40 * MS)
    assert fleet.silent.silent_ns == 2 * (usual + 30 * MS)
    ballot = fleet.ballot()
    fleet.silence.spares(ballot)
    assert ballot.hurry_ns == fleet.now + fleet.silent.silent_ns


def test_only_the_missing_vote_teaches_how_far_a_master_is(fleet: Fleet) -> None:
    # The master owes the reply to an older command, which nobody waits for.
    fleet.silent.pending.append(fleet.ballots.Ballot(fleet.commands.Look(b"k"), 3, 2))
    fleet.suspect()
    assert fleet.silent.missing_vote == 1
    fleet.vote_late(30 * MS)
    assert (fleet.silent.missing_vote, fleet.silent.late_ns) == (1, 0)
    fleet.vote_late(40 * MS)
    assert fleet.silent.late_ns == fleet.silent.silent_ns + 40 * MS
    # The engine asks for no lesson from later replies.
    assert fleet.silent.missing_vote == -1


def test_a_vote_that_comes_much_later_is_of_a_master_that_had_stopped(fleet: Fleet) -> None:
    usual = fleet.silent.silent_ns
    for late_ns in (30 * MS, 300 * MS, 30 * MS):
        fleet.suspect()
        fleet.vote_late(late_ns)
    assert fleet.silent.silent_ns == usual


def test_a_master_is_given_half_a_second_at_most(fleet: Fleet) -> None:
    for _ in range(8):
        fleet.suspect()
        fleet.vote_late(240 * MS)
    assert fleet.silent.silent_ns == 500 * MS
