"""An outage: when it begins and ends, and until when an acquire rides it out."""

from __future__ import annotations

from typing import Any

import pytest

from redlatch import impl

LONGEST = 100


@pytest.fixture
def outage(implementation: impl.Implementation) -> Any:
    return implementation.module("quorum.outage").Outage(LONGEST)


@pytest.fixture
def ballot(implementation: impl.Implementation) -> Any:
    return implementation.module("votes.ballot").Ballot(implementation.module("votes.commands").Look(b"key"), 3, 2)


def test_an_outage_begins_with_the_first_attempt_without_a_verdict(outage: Any, ballot: Any) -> None:
    assert (outage.since_ns, outage.ballot) == (0, None)
    outage.note(ballot, 1000, 1010)
    outage.note(ballot, 1050, 1055)
    assert (outage.since_ns, outage.waited_ns) == (1000, 5)
    assert outage.ballot is ballot


def test_a_verdict_ends_it_and_the_next_one_begins_anew(outage: Any, ballot: Any) -> None:
    outage.note(ballot, 1000, 1010)
    outage.end()
    assert (outage.since_ns, outage.ballot) == (0, None)
    outage.note(ballot, 1020, 1025)
    assert outage.since_ns == 1020


@pytest.mark.parametrize(("gap", "since"), [(LONGEST, 1000), (LONGEST + 1, 1010 + LONGEST + 1)])
def test_an_attempt_that_comes_much_later_begins_another_outage(outage: Any, ballot: Any, gap: int, since: int) -> None:
    """Nobody may have asked in between, so nobody knows whether a quorum was back."""
    outage.note(ballot, 1000, 1010)
    outage.note(ballot, 1010 + gap, 1020 + gap)
    assert outage.since_ns == since


@pytest.mark.parametrize(
    ("began", "until", "rides_until"),
    [
        # An acquire counts from the beginning of the outage, or from its own beginning if that is later.
        (900, 10_000, 1000 + LONGEST),
        (1060, 10_000, 1060 + LONGEST),
        # Its timeout limits it.
        (900, 1050, 1050),
        # A single attempt.
        (900, 0, 0),
    ],
)
def test_an_acquire_rides_it_out_within_its_timeout(
    outage: Any, ballot: Any, began: int, until: int, rides_until: int
) -> None:
    outage.note(ballot, 1000, 1010)
    assert outage.rides_until_ns(began, until) == rides_until


@pytest.mark.parametrize(
    ("began_ns", "until_ns", "now_ns", "over"),
    [
        (0, 9999, 1000 + LONGEST - 1, False),
        (0, 9999, 1000 + LONGEST, True),
        # Time before the acquire began does not count.
        (1050, 9999, 1000 + LONGEST, False),
        # The timeout ends first.
        (0, 1040, 1040, True),
    ],
)
def test_a_waiter_has_ridden_it_out_when_its_own_time_is_over(
    outage: Any, ballot: Any, began_ns: int, until_ns: int, now_ns: int, over: bool
) -> None:
    outage.note(ballot, 1000, 1010)
    assert outage.known(began_ns, until_ns, now_ns) is over


def test_nobody_has_ridden_out_what_was_not_seen_for_a_while(outage: Any, ballot: Any) -> None:
    assert not outage.known(0, 9999, 5000)
    outage.note(ballot, 1000, 1010)
    assert not outage.known(0, 9999, 1010 + LONGEST + 1)


def test_without_patience_an_acquire_gives_up_at_once(implementation: impl.Implementation, ballot: Any) -> None:
    outage = implementation.module("quorum.outage").Outage(0)
    outage.note(ballot, 1000, 1010)
    assert outage.rides_until_ns(900, 10_000) == 0


def test_without_patience_a_waiter_knows_it_from_two_others_that_gave_up(
    implementation: impl.Implementation, ballot: Any
) -> None:
    outage = implementation.module("quorum.outage").Outage(0)

    def give_up(started_ns: int) -> None:
        outage.note(ballot, started_ns, started_ns + 10)
        outage.give_up(started_ns)

    give_up(1000)
    assert not outage.known(900, 9999, 1010)
    # This attempt was under way at the same time.
    give_up(1009)
    assert not outage.known(900, 9999, 1019)
    give_up(1020)
    assert outage.known(1000, 9999, 1030)
    # This waiter began after the first one had asked.
    assert not outage.known(1001, 9999, 1030)
    # An attempt of its own would have ended by now.
    assert outage.known(1000, 9999, 1040)
    assert not outage.known(1000, 9999, 1041)


def test_a_verdict_makes_nothing_known(implementation: impl.Implementation, ballot: Any) -> None:
    outage = implementation.module("quorum.outage").Outage(0)
    for started_ns in (1000, 1020):
        outage.note(ballot, started_ns, started_ns + 10)
        outage.give_up(started_ns)
    outage.end()
    outage.note(ballot, 1032, 1042)
    outage.give_up(1032)
    assert not outage.known(900, 9999, 1042)
