"""The holds of a client that may have a lease without being the head of a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.scripted_votes import KEY, NAME, TTL_MS, Play

Make = Callable[[], Any]


@pytest.fixture
def make(play: Play, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make tables that remove holds that count no more as soon as there are more than two."""
    module = play.build.module("quorum.waiting.unqueued_holds")
    monkeypatch.setattr(module, "MOST_UNQUEUED", 2)
    unqueued: Make = module.UnqueuedHolds
    return unqueued


def hold_of(play: Play, lasts_ns: int = 0) -> Any:
    """Return a hold: FREE, or with a lease that lasts so long from now."""
    hold = play.holds.Hold(NAME, KEY, play.plain)
    if lasts_ns:
        hold.claim(object())
        hold.ask(play.build.module("quorum.lease").new_lease(b"token", play.now, play.now + lasts_ns))
        hold.keep(0)
    return hold


def test_a_hold_that_is_noted_often_counts_once(play: Play, make: Make) -> None:
    unqueued, hold = make(), hold_of(play, 1)
    for _ in range(100):
        unqueued.note([hold], play.now)
        assert unqueued.holds() == [hold]
    # It was not looked through each time.
    free = hold_of(play)
    unqueued.note([free], play.now)
    assert free in unqueued.holds()


def test_many_entries_are_reduced_to_those_that_count(play: Play, make: Make) -> None:
    unqueued = make()
    held, over, free, waiting = hold_of(play, 5), hold_of(play, 1), hold_of(play), hold_of(play)
    waiting.claim(object())
    waiting.to_waiting()
    unqueued.note([held, over], play.now)
    assert unqueued.holds() == [held, over]
    unqueued.note([free, waiting], play.now + 2)
    assert unqueued.holds() == [held, waiting]
    # Only more than 2 + 2 * 2 entries are looked through again.
    unqueued.note([hold_of(play) for _ in range(4)], play.now + 2)
    assert len(unqueued.holds()) == 6
    unqueued.note([hold_of(play)], play.now + 2)
    assert unqueued.holds() == [held, waiting]


def test_a_hold_through_which_another_thread_acquires_meanwhile_stays(
    play: Play, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    if play.build.name != "python":
        pytest.skip("calls of compiled methods cannot be watched")
    unqueued, hold = make(), hold_of(play)
    held = type(hold).held

    def acquire_meanwhile(each: Any, now_ns: int) -> bool:
        was_held: bool = held(each, now_ns)
        if each is hold and hold.ticket is None:
            hold.claim(object())
            hold.to_waiting()
            unqueued.note([hold], now_ns)
        return was_held

    monkeypatch.setattr(type(hold), "held", acquire_meanwhile)
    unqueued.note([hold_of(play), hold_of(play), hold], play.now)
    assert unqueued.holds() == [hold]


@pytest.mark.parametrize("kind", ["semaphore", "reader", "batch"])
def test_a_holder_that_is_no_head_is_found(play: Play, kind: str) -> None:
    if kind == "batch":
        play.run(play.batch.acquire_many(play.quorum, [play.hold], play.ticket, TTL_MS), "yyy")
    else:
        kinds = play.build.module("quorum.kinds." + ("semaphore" if kind == "semaphore" else "readwrite"))
        play.hold.kind = (
            kinds.Slot([KEY, b"tokens"], 1)
            if kind == "semaphore"
            else kinds.Reader([KEY, b"writer", b"waits"], {}, object)
        )
        play.hold.claim(play.ticket)
        acquire = play.acquire_module.acquire
        play.run(acquire(play.quorum, play.hold, TTL_MS, None), "yyy")
    assert play.queues.heads == {}
    assert play.queues.held() == [play.hold]


def test_a_plain_holder_is_a_head_and_is_not_noted(play: Play) -> None:
    play.hold.claim(play.ticket)
    play.run(play.acquire_module.acquire(play.quorum, play.hold, TTL_MS, None), "yyy")
    assert play.queues.held() == [play.hold]
    assert play.queues.unqueued.holds() == []


def test_a_holder_whose_lease_is_in_doubt_is_found_when_another_hold_is_the_head(play: Play) -> None:
    play.queues.doubts = play.quorum.doubts
    play.hold.claim(play.ticket)
    play.run(play.acquire_module.acquire(play.quorum, play.hold, TTL_MS, None), "yyy")
    play.quorum.doubts.add(play.now)
    rival = play.holds.Hold(NAME, KEY, play.plain)
    assert play.queues.become_head(rival, play.now)
    assert play.queues.held() == [play.hold]
