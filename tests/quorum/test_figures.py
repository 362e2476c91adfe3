"""The figures of groups of locks, and what is counted in them: each end once, whatever ends it."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_votes import BEGINNING, INTERRUPTIONS, LATENCY, MS, SECOND, TTL_MS, VALIDITY, Play

from redlatch import LockStats, impl
from redlatch.errors import LockLost, QuorumUnavailable


def figures(play: Play) -> LockStats:
    stats: LockStats = play.quorum.figures.stats(0, 0)
    return stats


def ends(play: Play) -> dict[str, int]:
    """Return the ends of acquires that were counted."""
    stats = figures(play)
    counts = {
        "acquired": stats.acquired,
        "busy": stats.busy,
        "timed_out": stats.timed_out,
        "unavailable": stats.unavailable,
        "cancelled": stats.cancelled,
    }
    return {what: count for what, count in counts.items() if count}


# --- acquires ------------------------------------------------------------------------------------------


def test_a_lock_that_is_won_counts_with_its_time(play: Play) -> None:
    assert play.acquire("yyy")
    assert ends(play) == {"acquired": 1}
    assert figures(play).acquire_time.sum == LATENCY / SECOND


@pytest.mark.parametrize(("give_up_ns", "what"), [(0, "busy"), (BEGINNING + 1, "timed_out")])
def test_a_lock_of_another_holder_is_busy_or_costs_the_timeout(play: Play, give_up_ns: int, what: str) -> None:
    assert not play.acquire("nnn", give_up_ns=give_up_ns)
    assert ends(play) == {what: 1}
    assert figures(play).acquire_time.count == 0


def test_an_acquire_without_a_quorum_counts_as_unavailable(play: Play) -> None:
    with pytest.raises(QuorumUnavailable):
        play.acquire("!!!", "!!!", give_up_ns=BEGINNING + SECOND)
    assert ends(play) == {"unavailable": 1}


@pytest.mark.parametrize("way", INTERRUPTIONS)
@pytest.mark.parametrize("begun", [True, False])
def test_an_acquire_that_something_else_ends_counts_as_cancelled(play: Play, way: str, begun: bool) -> None:
    play.hold.claim(play.ticket)
    steps = play.acquire_module.acquire(play.quorum, play.hold, TTL_MS, None)
    if begun:
        next(steps)
    try:
        INTERRUPTIONS[way](steps)
    except (KeyboardInterrupt, OSError):
        pass
    # A driver may end it twice, after a second interrupt.
    steps.close()
    assert ends(play) == {"cancelled": 1}


def test_the_end_of_an_acquire_that_has_won_or_failed_is_not_counted_again(play: Play) -> None:
    play.hold.claim(play.ticket)
    steps = play.acquire_module.acquire(play.quorum, play.hold, TTL_MS, 0)
    play.follow(steps, iter(["nnn"]))
    steps.close()
    assert ends(play) == {"busy": 1}


@pytest.mark.parametrize(("votes", "split"), [("ynnny", 1), ("nnn", 0), ("yyy", 0), ("ynyny", 0)])
def test_votes_are_split_if_some_masters_agree_and_others_refuse(play: Play, votes: str, split: int) -> None:
    play.acquire(votes)
    assert figures(play).split_votes == split


# --- releases and losses ---------------------------------------------------------------------------------


def test_the_time_held_ends_when_the_release_begins(held: Play) -> None:
    held.now += 100 * MS
    held.release("yyy")
    assert figures(held).hold_time.sum == pytest.approx(100 * MS / SECOND)
    assert figures(held).lost == {}


def test_a_lock_that_ran_out_before_its_release_was_lost(held: Play) -> None:
    held.now += VALIDITY
    with pytest.raises(LockLost):
        held.release("yyy")
    assert figures(held).lost == {"expired": 1}
    assert figures(held).hold_time.count == 1


def test_a_lock_that_a_quorum_has_forgotten_was_lost(held: Play) -> None:
    with pytest.raises(LockLost):
        held.release("nnn")
    assert figures(held).lost == {"forgotten": 1}


def test_a_loss_that_an_extension_has_found_is_not_counted_by_the_release(held: Play) -> None:
    with pytest.raises(LockLost):
        held.extend("nnn")
    with pytest.raises(LockLost):
        held.release("nnn")
    assert figures(held).lost == {"forgotten": 1}
    assert figures(held).hold_time.count == 1


@pytest.mark.parametrize("late", [False, True])
def test_a_release_that_nobody_waits_for_is_counted(held: Play, late: bool) -> None:
    held.now += VALIDITY if late else 0
    steps = held.releasing_nowait(held.quorum, held.hold, None)
    if late:
        with pytest.raises(LockLost):
            held.run(steps)
    else:
        held.run(steps)
    assert figures(held).hold_time.count == 1
    assert figures(held).lost == ({"expired": 1} if late else {})


def test_a_release_without_an_answer_ends_nothing_and_the_next_one_does(held: Play) -> None:
    with pytest.raises(QuorumUnavailable):
        held.release("!!!", "!!!")
    assert figures(held).hold_time.count == 0
    held.release("yyy")
    assert figures(held).hold_time.count == 1


# --- extensions ------------------------------------------------------------------------------------------


def test_an_extension_counts_with_what_was_left_of_the_validity(held: Play) -> None:
    deadline = held.hold.deadline_ns
    held.now += 300 * MS
    held.extend("yyy")
    assert figures(held).renewals == 1
    assert figures(held).renewal_slack.sum == (deadline - held.now) / SECOND


def test_an_extension_without_a_quorum_has_failed(held: Play) -> None:
    with pytest.raises(QuorumUnavailable):
        held.extend("!!!", "!!!")
    assert (figures(held).renewals, figures(held).renewals_failed) == (0, 1)


# --- batches -----------------------------------------------------------------------------------------------


def batch_of(play: Play, number: int) -> list[Any]:
    return [play.holds.Hold(b"%d" % place, b"locks:%d" % place, play.plain) for place in range(number)]


def test_each_lock_of_a_batch_counts(play: Play) -> None:
    holds = batch_of(play, 3)
    steps = play.batch.acquire_many(play.quorum, holds, play.ticket, TTL_MS)
    play.run(steps, "yyy", "nnn", "yyy")
    assert ends(play) == {"acquired": 2, "busy": 1}
    won = [hold for hold in holds if hold.state == play.claims.HELD]
    play.run(play.batch.release_many(play.quorum, won, SECOND, {}), "yyy", "nnn")
    assert figures(play).hold_time.count == 2
    assert figures(play).lost == {"forgotten": 1}


def test_all_locks_of_a_multi_lock_count_once_however_often_it_tries(play: Play) -> None:
    holds = batch_of(play, 2)
    steps = play.batch.acquire_all(play.quorum, holds, play.ticket, TTL_MS, BEGINNING + 50 * SECOND)
    # The first attempt gets one of two, and gives it back; the second one gets both.
    play.run(steps, "yyy", "nnn", "yyy", "yyy")
    assert ends(play) == {"acquired": 2}
    assert figures(play).acquire_time.count == 2


@pytest.mark.parametrize("begun", [True, False])
def test_a_batch_that_is_interrupted_has_won_nothing(play: Play, begun: bool) -> None:
    holds = batch_of(play, 2)
    steps = play.batch.acquire_many(play.quorum, holds, play.ticket, TTL_MS)
    if begun:
        next(steps)
    steps.close()
    steps.close()
    assert ends(play) == {"cancelled": 2}


def test_a_batch_without_a_quorum_counts_each_lock_as_unavailable(play: Play) -> None:
    steps = play.batch.acquire_many(play.quorum, batch_of(play, 2), play.ticket, TTL_MS)
    with pytest.raises(QuorumUnavailable):
        play.run(steps, "yyy", "!!!", "!!!")
    assert ends(play) == {"unavailable": 2}


# --- groups ------------------------------------------------------------------------------------------------


def groups_of(implementation: impl.Implementation) -> Any:
    return implementation.module("quorum.figures").Groups()


def test_what_is_counted_is_read(implementation: impl.Implementation) -> None:
    figures = groups_of(implementation).named("")
    figures.win(1_000_000)
    figures.refuse(True)
    figures.refuse(False)
    figures.refuse(False)
    figures.renew(2_000_000_000)
    figures.lose("expired")
    figures.lose("expired")
    figures.hold_time.count(3_000_000)
    stats = figures.stats(held=4, waiting=5)
    assert (stats.acquired, stats.busy, stats.timed_out, stats.renewals) == (1, 1, 2, 1)
    assert (stats.lost, stats.held, stats.waiting) == ({"expired": 2}, 4, 5)
    assert (stats.acquire_time.sum, stats.hold_time.sum, stats.renewal_slack.sum) == (0.001, 0.003, 2.0)


def test_what_was_read_does_not_change(implementation: impl.Implementation) -> None:
    figures = groups_of(implementation).named("")
    figures.lose("expired")
    stats = figures.stats(0, 0)
    figures.lose("forgotten")
    figures.win(1)
    assert (stats.lost, stats.acquired, stats.acquire_time.count) == ({"expired": 1}, 0, 0)


def test_a_group_keeps_its_figures(implementation: impl.Implementation) -> None:
    groups = groups_of(implementation)
    assert groups.named("orders") is groups.named("orders")
    assert groups.named("orders") is not groups.named("")
    assert list(groups.by_name) == ["", "orders"]


def test_names_of_locks_as_groups_do_not_fill_the_memory(implementation: impl.Implementation) -> None:
    groups = groups_of(implementation)
    most = implementation.module("quorum.figures").MOST_GROUPS
    for number in range(10 * most):
        groups.named(f"order:{number}").refuse(True)
    assert len(groups.by_name) == most + 2
    assert groups.named("(others)").busy == 9 * most
    assert groups.named("order:0").busy == 1
