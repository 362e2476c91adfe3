"""Batches: many locks in one round, with a result for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from support.scripted_votes import BEGINNING, KEY, LATENCY, MS, NAME, SECOND, TTL_MS, VALIDITY, Play, Votes, undo

from redlatch import impl
from redlatch.errors import LockLost, NotOwned, QuorumUnavailable


def names(play: Play, count: int) -> list[Any]:
    """Return `count` free holds."""
    return [play.holds.Hold(f"{NAME}-{number}", b"%b-%d" % (KEY, number), play.plain) for number in range(count)]


def acquire_many(play: Play, holds: list[Any], *script: Votes) -> None:
    play.run(play.batch.acquire_many(play.quorum, holds, play.ticket, TTL_MS), *script)


def release_many(play: Play, holds: list[Any], *script: Votes) -> dict[int, Any]:
    errors: dict[int, Any] = {}
    play.run(play.batch.release_many(play.quorum, holds, SECOND, errors), *script)
    return errors


def test_many_acquires_are_one_round_with_a_result_each(play: Play) -> None:
    holds = names(play, 3)
    acquire_many(play, holds, "yyy", "nnn", "ynyy")
    assert play.kinds() == ["Send Acquire Acquire Acquire", "list Acquire Acquire Acquire", "Send Release"]
    assert [hold.state for hold in holds] == [play.claims.HELD, play.claims.FREE, play.claims.HELD]
    assert play.effects[2].ballots[0].command.key == holds[1].key
    assert len({ballot.command.token for ballot in play.effects[0].ballots}) == 3
    assert {hold.deadline_ns for hold in holds} == {0, BEGINNING + VALIDITY}


def test_the_locks_of_the_holds_that_were_not_won_are_none(play: Play) -> None:
    holds = names(play, 3)
    acquire_many(play, holds, "yyy", "nnn", "ynyy")
    assert play.holds.those_held(["a", "b", "c"], holds) == ["a", None, "c"]


def test_a_lost_attempt_of_a_batch_keeps_its_claim_until_its_undo_was_sent(play: Play) -> None:
    """A caller that is interrupted before that undoes what still has a claim."""
    holds = names(play, 3)
    steps = play.batch.acquire_many(play.quorum, holds, play.ticket, TTL_MS)
    rest = iter(["yyy", "ynnn", "nnn"])
    for effect in steps:
        play.perform(effect, rest)
        if play.kinds()[-1] == "Send Release Release":
            break
    assert [hold.ticket is play.ticket for hold in holds] == [True, True, True]
    steps.close()
    assert [undo(hold, play.ticket) is not None for hold in holds] == [True, True, True]


def test_a_batch_repeats_only_the_names_whose_masters_failed(play: Play) -> None:
    holds = names(play, 3)
    with pytest.raises(QuorumUnavailable, match=f"{NAME}-2"):
        acquire_many(play, holds, "yyy", "!!!", "!!!", "yyy", "!!!")
    first = ["Send Acquire Acquire Acquire", "list Acquire Acquire Acquire", "Send Release Release"]
    assert play.kinds() == [*first, "Send Acquire Acquire", "list Acquire Acquire", "Send Release"]
    assert [hold.state for hold in holds] == [play.claims.HELD, play.claims.HELD, play.claims.FREE]
    undone = [undo(hold, play.ticket) for hold in holds]
    assert [command and command.key for command in undone] == [holds[0].key, holds[1].key, None]


def test_masters_that_stay_silent_are_not_asked_again_by_an_acquire_of_many(play: Play) -> None:
    with pytest.raises(QuorumUnavailable):
        acquire_many(play, names(play, 2), "yyy", "y")
    assert play.kinds() == ["Send Acquire Acquire", "list Acquire Acquire", "Send Release"]


def test_a_batch_undoes_grants_that_come_after_the_validity(play: Play) -> None:
    holds = names(play, 2)
    acquire_many(play, holds, "yyy", play.jump(BEGINNING + VALIDITY, "yyy"))
    assert play.kinds()[2:] == ["Send Release Release"]
    assert [hold.state for hold in holds] == [play.claims.FREE, play.claims.FREE]


def test_a_large_batch_is_split_into_rounds_and_parts(play: Play) -> None:
    size, part = play.batch.BATCH, play.batch.PART
    holds = names(play, 2 * size + 1)
    acquire_many(play, holds, *["yyy"] * len(holds))
    assert [len(effect) for effect in play.of("list")] == [size, size, 1]
    assert [len(effect.ballots) for effect in play.of("Send")] == [part] * (2 * size // part) + [1]
    assert all(hold.state == play.claims.HELD for hold in holds)
    assert release_many(play, holds, *["yyy"] * len(holds)) == {}
    assert all(hold.state == play.claims.FREE for hold in holds)


def test_each_of_many_releases_has_a_result_of_its_own(play: Play) -> None:
    holds = names(play, 5)
    acquire_many(play, holds[:4], *["yyy"] * 4)
    play.effects.clear()
    errors = release_many(play, holds, "yyy", "nnn", "!!!", "!!!", "yyy", "!!!")
    assert play.kinds() == [f"{kind}{' Release' * count}" for count in (4, 2) for kind in ("Send", "list")]
    assert [(place, type(error)) for place, error in sorted(errors.items())] == [
        (1, LockLost),
        (3, QuorumUnavailable),
        (4, NotOwned),
    ]
    assert [hold.state for hold in holds] == [*[play.claims.FREE] * 3, play.claims.UNCONFIRMED, play.claims.FREE]


def test_many_releases_after_the_deadline_are_lost_and_still_delete_the_keys(play: Play) -> None:
    holds = names(play, 2)
    acquire_many(play, holds, "yyy", "yyy")
    play.now = BEGINNING + VALIDITY
    errors = release_many(play, holds, "yyy", "nnn")
    assert [type(errors[place]) for place in (0, 1)] == [LockLost, LockLost]
    assert play.kinds()[2:] == ["Send Release Release", "list Release Release"]


def test_a_lock_of_a_batch_with_a_pending_operation_is_waited_for(held: Play) -> None:
    extensions = [held.extending(held.quorum, held.hold, TTL_MS) for _ in range(2)]
    errors: dict[int, Any] = {}
    held.run(held.batch.together(extensions, errors), "yyy", "yyy")
    assert held.kinds() == ["Send Extension", "list Extension", "Pause", "Send Extension", "list Extension"]
    assert not errors


def test_a_waiter_that_watches_a_key_is_woken_after_a_batch_has_sent_its_releases(held: Play) -> None:
    command = held.commands.Look(held.hold.key)
    look = held.watches.Watch(command, held.quorum.size, held.quorum.majority, BEGINNING + VALIDITY)
    held.queues.watches.add(held.hold.key, look)
    steps = held.batch.together([held.releasing_nowait(held.quorum, held.hold, None)], {})
    sent = next(steps)
    assert [type(ballot.command).__name__ for ballot in sent.ballots] == ["Release"]
    assert not look.decided
    assert next(steps, None) is None
    assert look.decided


def test_acquire_all_that_gives_up_notifies_the_watchers_of_undone_keys(play: Play) -> None:
    """The masters push no change to the client that made it."""
    [hold] = names(play, 1)
    look = play.watches.Watch(play.commands.Look(hold.key), 5, 3, BEGINNING + SECOND)
    play.queues.watches.add(hold.key, look)
    play.run(play.batch.acquire_all(play.quorum, [hold], play.ticket, TTL_MS, 0), "ynnnn")
    assert hold.state == play.claims.FREE
    assert look.decided


# --- acquire_all: patience while a quorum is lost -----------------------------------------------------


def ride_all(play: Play, holds: list[Any], votes: Iterator[Votes], give_up_ns: int | None) -> None:
    """Acquire all locks with as many votes as that asks for."""
    play.follow(play.batch.acquire_all(play.quorum, holds, play.ticket, TTL_MS, give_up_ns), votes)


@pytest.fixture
def patient(implementation: impl.Implementation) -> Play:
    """A play whose client has a patience of two seconds."""
    return Play(3, build=implementation, patience=2)


def test_acquire_all_rides_out_a_lost_quorum_and_holds_nothing_meanwhile(patient: Play) -> None:
    holds = names(patient, 2)
    back = BEGINNING + 2 * SECOND - 60 * MS

    def votes() -> Iterator[Votes]:
        while patient.now < back:
            # The first name is won each time, and must be released.
            yield from ("yyy", "!!!", "!!!")
        yield from ("yyy", "yyy")

    ride_all(patient, holds, votes(), None)
    assert [hold.state for hold in holds] == [patient.claims.HELD] * 2
    assert back <= patient.now < back + 60 * MS
    effects = patient.effects
    pauses = [place for place, effect in enumerate(effects) if type(effect).__name__ == "Pause"]
    for place in pauses:
        assert [ballot.command.key for ballot in effects[place - 1].ballots] == [holds[0].key]
    assert len(pauses) > 20


def test_acquire_all_raises_when_its_patience_is_over(patient: Play) -> None:
    holds = names(patient, 2)
    with pytest.raises(QuorumUnavailable) as caught:
        ride_all(patient, holds, itertools.repeat("!!!"), None)
    assert patient.now - BEGINNING == 2 * SECOND + 2 * LATENCY
    assert caught.value.elapsed == (2 * SECOND + 2 * LATENCY) / SECOND


@pytest.mark.parametrize("timeout", [0, SECOND])
def test_the_timeout_limits_the_patience_of_acquire_all(patient: Play, timeout: int) -> None:
    with pytest.raises(QuorumUnavailable):
        ride_all(patient, names(patient, 2), itertools.repeat("!!!"), BEGINNING + timeout if timeout else 0)
    assert patient.now - BEGINNING == timeout + 2 * LATENCY


def test_acquire_many_has_no_patience(patient: Play) -> None:
    holds = names(patient, 2)
    with pytest.raises(QuorumUnavailable):
        acquire_many(patient, holds, *["!!!"] * 4)
    assert patient.now == BEGINNING + 2 * LATENCY
