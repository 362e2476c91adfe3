"""A ballot: which votes decide it, and what its result is."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redlatch import impl
from redlatch.votes.scripts import RELEASE

KEY, COUNTER, TOKEN = b"locks:sku:42", b"counter", b"token"


class Maker:
    """Make ballots of one build, of five masters unless a test says otherwise."""

    def __init__(self, build: impl.Implementation) -> None:
        self.ballots: ModuleType = build.module("votes.ballot")
        self.commands: ModuleType = build.module("votes.commands")

    def command(self, kind: str) -> Any:
        more = {"Acquire": (1000,), "Extend": (1000,), "AcquireFenced": (1000, 5, 9)}.get(kind, ())
        start = (KEY,) if kind == "Look" else (KEY, COUNTER, TOKEN, 77) if kind == "AcquireFenced" else (KEY, TOKEN, 77)
        return getattr(self.commands, kind)(*start, *more)

    def ballot(self, kind: str, votes: str = "", masters: int = 5) -> Any:
        """Return a ballot with these votes: y, n, or ! for a failed vote."""
        ballot = self.ballots.new_ballot(self.command(kind), masters, masters // 2 + 1, 100)
        return cast(ballot, votes)


def cast(ballot: Any, votes: str) -> Any:
    """Count these votes as the engine does."""
    for vote in votes:
        ballot.yes += vote == "y"
        ballot.no += vote == "n"
        ballot.failed += vote == "!"
    ballot.decided = ballot.settled()
    return ballot


@pytest.fixture
def make(implementation: impl.Implementation) -> Maker:
    return Maker(implementation)


@pytest.mark.parametrize(
    ("votes", "settled", "won", "refused", "unavailable"),
    [
        ("", False, False, False, True),
        ("yy", False, False, False, True),
        ("yyn", False, False, False, False),
        ("yyy", True, True, False, False),
        ("nnn", True, False, True, False),
        ("!!!", True, False, False, True),
        ("nn!", True, False, False, False),
        ("yy!nn", True, False, False, False),
    ],
)
def test_the_votes_on_an_acquire_decide(
    make: Maker, votes: str, settled: bool, won: bool, refused: bool, unavailable: bool
) -> None:
    ballot = make.ballot("Acquire", votes)
    verdict = ballot.settled(), ballot.won(), ballot.refused(), ballot.unavailable()
    assert verdict == (settled, won, refused, unavailable)


@pytest.mark.parametrize(
    ("votes", "settled"),
    [("yyy", True), ("nnn", True), ("!!!", True), ("nn!", False), ("nn!y", False), ("nn!yy", True)],
)
def test_a_release_waits_for_one_kind_of_vote_or_for_all_votes(make: Maker, votes: str, settled: bool) -> None:
    assert make.ballot("Release", votes).settled() is settled


@given(votes=st.integers(1, 7).flatmap(lambda size: st.text("yn!", min_size=size, max_size=size)))
@pytest.mark.parametrize("kind", ["Acquire", "Release", "Extend"])
def test_no_vote_after_the_decision_changes_whether_a_ballot_is_won(
    build: impl.Implementation, kind: str, votes: str
) -> None:
    ballot = Maker(build).ballot(kind, "", len(votes))
    verdicts = [cast(ballot, vote).won() for vote in votes if not ballot.decided]
    rest = votes[len(verdicts) :]
    assert ballot.decided
    assert cast(ballot, rest).won() == verdicts[-1] == (votes.count("y") > len(votes) // 2)


def test_a_ballot_that_was_withdrawn_is_not_won_by_votes_that_come_later(make: Maker) -> None:
    ballot = make.ballot("Acquire", "yy")
    ballot.withdraw()
    assert not cast(ballot, "yyy").won()


def test_the_ballot_of_the_first_master_and_the_ballot_of_the_others_ask_each_master_once(make: Maker) -> None:
    first = make.ballot("Acquire")
    first.ask_only(2, 50)
    others = first.ask_others(5, 3, 90)
    assert (first.asked, first.size, first.quorum, first.until_ns, first.lone()) == (0b100, 1, 1, 50, True)
    assert (others.asked, others.size, others.quorum, others.until_ns, others.lone()) == (~0b100, 4, 2, 90, False)
    assert others.command is first.command


def test_a_ballot_of_all_masters_is_not_lone_even_if_there_is_only_one(make: Maker) -> None:
    assert not make.ballot("Acquire", masters=1).lone()


def test_a_fence_that_is_too_low_is_decided_by_a_second_round(make: Maker) -> None:
    ballot = make.ballot("AcquireFenced", masters=3)
    ballot.count_answer(0, 5, False)
    ballot.count_answer(1, -7, False)
    assert (ballot.yes, ballot.no, ballot.answers) == (1, 0, {0: 5, 1: -7})
    # The third vote may be a yes, and then no second round is needed.
    assert not ballot.settled()
    ballot.no += 1
    assert ballot.settled() and ballot.won()
    assert ballot.missing() == 0


def test_a_look_is_settled_by_masters_without_the_key_or_with_a_push(make: Maker) -> None:
    ballot = make.ballot("Look", masters=3)
    ballot.count_answer(0, 300, False)
    assert (ballot.no, ballot.answers) == (1, None)
    ballot.count_answer(1, 300, True)
    assert (ballot.no, ballot.answers) == (2, {1: 300})
    assert not ballot.settled()
    ballot.yes += 1
    assert ballot.settled()


def test_a_refusal_with_a_number_is_a_no_that_keeps_the_number(make: Maker) -> None:
    commands = make.commands
    lease = commands.Release(KEY, TOKEN, 77)
    command = commands.Scripted(KEY, lease, RELEASE, [], [], meaning=commands.REFUSAL)
    ballot = make.ballots.Ballot(command, 3, 2)
    ballot.count_answer(2, 40, False)
    assert (ballot.yes, ballot.no, ballot.answers) == (0, 1, {2: 40})


def test_an_answer_that_may_name_a_waiter_is_a_vote_by_its_sign(make: Maker) -> None:
    commands = make.commands
    lease = commands.Release(KEY, TOKEN, 77)
    command = commands.Scripted(KEY, lease, RELEASE, [KEY], []).calls(b"bell:", 40, 50)
    ballot = make.ballots.Ballot(command, 5, 3)
    for index, answer in enumerate((40, 1, -50, 0)):
        ballot.count_answer(index, answer, False)
    assert (ballot.yes, ballot.no, ballot.answers) == (2, 2, {0: 40, 1: 1, 2: -50, 3: 0})
    named = [command.follow(answer) for answer in (40, -50, 39, -49, 1, 0)]
    assert [None if ring is None else ring.key for ring in named] == [b"bell:40", b"bell:50", None, None, None, None]
    assert named[0].payload(commands.BY_SHA) == commands.pack(b"SET", b"bell:40", b"c", b"PX", 2500)


@pytest.mark.parametrize(
    ("kind", "votes", "suspects", "spared"),
    [
        ("Acquire", "ynn", 2, True),
        ("Acquire", "ynn", 1, False),
        ("Acquire", "yn", 3, False),
        ("Acquire", "ynnnn", 2, False),
        ("Release", "ynn", 2, True),
        ("Extend", "ynn", 2, False),
        ("Owned", "ynn", 2, False),
    ],
)
def test_an_attempt_and_a_release_are_decided_without_masters_that_are_suspected(
    make: Maker, kind: str, votes: str, suspects: int, spared: bool
) -> None:
    assert make.ballot(kind, votes).spares(suspects) is spared


def test_a_release_that_reports_a_loss_waits_for_suspected_masters(make: Maker) -> None:
    ballot = make.ballot("Release", "ynn")
    ballot.released_lock = object()
    assert not ballot.spares(2)


def test_a_ballot_that_waits_anew_waits_for_all_votes(make: Maker) -> None:
    ballot = make.ballot("Acquire", "yyy")
    ballot.reopen(900)
    assert (ballot.until_ns, ballot.decided) == (900, False)
    assert not cast(ballot, "n").decided
    assert cast(ballot, "!").decided


def test_a_ballot_without_missing_votes_waits_no_second_time(make: Maker) -> None:
    ballot = make.ballot("Acquire", "yyynn")
    ballot.reopen(900)
    assert ballot.decided
