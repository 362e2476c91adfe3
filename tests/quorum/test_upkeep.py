"""`Term` and `Upkeep`: when a lease is over, while other threads change it."""

from __future__ import annotations

import pytest
from support.upkeep_play import NOW, TTL_MS, Play

from redlatch.loss import RAN_OUT
from redlatch.quorum.lease import new_lease
from redlatch.quorum.upkeep import TOGETHER_NS
from redlatch.votes.units import MILLISECOND, SECOND


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    return Play(monkeypatch)


def test_a_lease_whose_deadline_has_passed_is_over(play: Play) -> None:
    assert play.term.over(NOW + SECOND)
    assert not play.term.over(NOW + SECOND - 1)


def test_a_lock_that_is_released_meanwhile_is_not_over(play: Play) -> None:
    play.meet(play.released)
    assert not play.term.over(NOW + SECOND)
    assert not play.term.over(NOW)


def test_a_lock_that_was_released_has_no_deadline_that_could_be_over(play: Play) -> None:
    play.released()
    assert play.hold.deadline_ns == 0
    assert not play.term.over(NOW)


def test_a_lease_that_was_handed_off_and_came_back_meanwhile_is_not_over(play: Play) -> None:
    play.meet(play.handed_back)
    assert not play.term.over(NOW + SECOND)
    assert play.upkeep.live()


def test_the_reason_of_an_earlier_loss_says_nothing_about_a_lease_that_came_by_a_hand_off(play: Play) -> None:
    play.term.reason = RAN_OUT
    assert play.upkeep.reason == "its validity ran out"
    play.released()
    play.hold.claim(object())
    play.hold.to_waiting()
    # `acquire` has not returned yet, so no care for the lease has begun.
    play.hold.take_lease(new_lease(b"another", NOW, NOW + SECOND), play.hold)
    assert play.upkeep.reason is None


def test_a_loss_that_is_noted_while_an_extension_ends_is_noted_once(play: Play) -> None:
    play.schedule.add(play.term)
    assert [term for _, term in play.lost_at(NOW + SECOND)] == [play.term]
    # The thread that extends has seen before that the lease is live.
    play.schedule.add(play.upkeep.begin(NOW + SECOND))
    assert play.lost_at(NOW + 2 * SECOND) == []


def test_a_lease_that_is_acquired_again_after_a_loss_has_a_new_upkeep(play: Play) -> None:
    play.schedule.add(play.term)
    play.lost_at(NOW + SECOND)
    term = play.acquired_again()
    assert term is not play.term
    assert term.live()


def test_a_verification_of_a_lock_that_is_not_renewed_asks_for_no_ttl_of_its_own(play: Play) -> None:
    assert play.term.renewal_ttl_ms(NOW) == TTL_MS
    play.upkeep.renews = False
    assert play.term.renewal_ttl_ms(NOW) == 0
    assert not play.term.gains(play.quorum, NOW)
    play.term.doubted = True
    assert play.term.gains(play.quorum, NOW)


def test_a_lock_that_is_looked_at_with_others_before_its_time_is_renewed_at_its_time(play: Play) -> None:
    """A ttl of 100 ms is so short that a renewal 30 ms before its time gains nothing. Found by the simulator."""
    play.upkeep.ttl_ms = 100
    play.hold.lease = play.hold.lease.until(NOW + 96 * MILLISECOND)
    renew_ns = play.term.usual_ns()
    play.term.plan(renew_ns)
    assert NOW < renew_ns < NOW + TOGETHER_NS
    assert not play.term.is_due(play.quorum, NOW)
    assert play.term.due_ns == renew_ns
    assert play.term.is_due(play.quorum, renew_ns)


def test_a_lease_without_a_known_end_is_not_verified(play: Play) -> None:
    play.hold.borrow(b"of another holder")
    play.term.doubted = True
    assert not play.term.gains(play.quorum, NOW)


def test_a_verification_after_max_hold_asks_for_no_negative_ttl(play: Play) -> None:
    play.upkeep.max_hold_ns = SECOND
    assert play.term.renewal_ttl_ms(NOW + 2 * SECOND) == 0


def test_the_last_renewal_before_max_hold_is_not_followed_by_others(play: Play) -> None:
    play.upkeep.max_hold_ns = 2 * SECOND
    assert play.term.gains(play.quorum, NOW)
    # The deadline is a drift before the end of max_hold.
    play.hold.lease = play.hold.lease.until(NOW + 2 * SECOND - 30 * MILLISECOND)
    assert not play.term.gains(play.quorum, NOW + SECOND // 2)
