"""An outage: until when an acquire rides it out, and who knows of it without an attempt."""

from __future__ import annotations

from typing import Any

import pytest

from redlatch import QuorumUnavailable, impl

PATIENCE = 100


@pytest.fixture
def outage(implementation: impl.Implementation) -> Any:
    return implementation.module("quorum.outage").Outage(1000, QuorumUnavailable("of 3 masters 2 failed"))


def test_an_outage_has_its_beginning_and_its_last_error(outage: Any) -> None:
    assert outage.since_ns == 1000
    outage.error = QuorumUnavailable("of 3 masters 3 failed")
    assert str(outage.error) == "of 3 masters 3 failed"


@pytest.mark.parametrize(
    ("began", "until", "rides_until"),
    [
        # An acquire counts from the beginning of the outage, or from its own beginning if that is later.
        (900, 10_000, 1000 + PATIENCE),
        (1060, 10_000, 1060 + PATIENCE),
        # Its timeout limits it.
        (900, 1050, 1050),
        # A single attempt.
        (900, 0, 0),
    ],
)
def test_an_acquire_rides_it_out_within_its_timeout(outage: Any, began: int, until: int, rides_until: int) -> None:
    assert outage.rides_until_ns(PATIENCE, began, until) == rides_until


def test_without_patience_an_acquire_gives_up_at_once(outage: Any) -> None:
    assert outage.rides_until_ns(0, 900, 10_000) == 0


@pytest.mark.parametrize(
    ("began", "until", "now", "known"),
    [
        (900, 9999, 1000 + PATIENCE - 1, False),
        (900, 9999, 1000 + PATIENCE, True),
        # Time before the acquire began does not count.
        (1050, 9999, 1000 + PATIENCE, False),
        # The timeout ends first.
        (900, 1040, 1040, True),
    ],
)
def test_a_waiter_knows_an_outage_that_it_has_ridden_out(
    outage: Any, began: int, until: int, now: int, known: bool
) -> None:
    assert outage.known(PATIENCE, began, until, now) is known


def test_without_patience_a_waiter_knows_it_from_two_others_that_gave_up(outage: Any) -> None:
    assert not outage.known(0, 900, 9999, 1010)
    outage.give_up(1000)
    assert not outage.known(0, 900, 9999, 1010)
    outage.give_up(1020)
    assert outage.known(0, 1000, 9999, 1030)
    # This waiter began after the first one had asked.
    assert not outage.known(0, 1001, 9999, 1030)
