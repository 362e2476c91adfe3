"""Acquiring: when attempts win, which deadline they have, when they are repeated, and how an interrupt is undone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scripted_votes import (
    BEGINNING,
    INTERRUPTIONS,
    KEY,
    LATENCY,
    MS,
    NAME,
    SECOND,
    TTL_MS,
    VALIDITY,
    Play,
    Votes,
    undo,
)

from redlatch import impl
from redlatch.errors import QuorumUnavailable

some_votes = st.integers(1, 7).flatmap(lambda size: st.text("yn!.", min_size=size, max_size=size))
votes_without_failures = st.integers(1, 7).flatmap(lambda size: st.text("yn", min_size=size, max_size=size))


def counted(votes: str) -> str:
    """Return the votes that count: those until the ballot is decided."""
    masters = len(votes)
    quorum = masters // 2 + 1
    for count in range(masters):
        seen = votes[:count]
        if seen.count("y") >= quorum or seen.count("n") + seen.count("!") > masters - quorum:
            return seen
    return votes


def attempts_of(least: int, most: int) -> st.SearchStrategy[list[str]]:
    """Draw the votes of several attempts on the same 1 to 7 masters."""
    return st.integers(1, 7).flatmap(
        lambda size: st.lists(st.text("yn!.", min_size=size, max_size=size), min_size=least, max_size=most)
    )


# --- acquire: the decision ---------------------------------------------------------------------------


@given(votes=some_votes)
def test_an_attempt_succeeds_if_and_only_if_a_quorum_said_yes(build: impl.Implementation, votes: str) -> None:
    play = Play(len(votes), build=build)
    quorum = len(votes) // 2 + 1
    play.hold.claim(object())
    try:
        play.follow(play.acquire_module.acquire(play.quorum, play.hold, TTL_MS, BEGINNING), itertools.repeat(votes))
    except QuorumUnavailable:
        pass
    won = counted(votes).count("y") >= quorum
    assert play.hold.state == (play.claims.HELD if won else play.claims.FREE)


@given(votes=votes_without_failures)
def test_when_every_master_answers_there_is_a_yes_or_a_no_and_no_error(build: impl.Implementation, votes: str) -> None:
    play = Play(len(votes), build=build)
    assert play.acquire(votes) == (votes.count("y") > len(votes) // 2)


@given(votes=some_votes)
def test_failures_and_silence_of_a_minority_never_raise(build: impl.Implementation, votes: str) -> None:
    masters = len(votes)
    if votes.count("!") + votes.count(".") <= masters - (masters // 2 + 1):
        play = Play(masters, build=build)
        assert play.acquire(votes) in (True, False)


@given(attempts=attempts_of(1, 6))
def test_every_attempt_has_a_token_of_its_own_and_is_undone_unless_won_or_refused_by_all(
    build: impl.Implementation, attempts: list[str]
) -> None:
    play = Play(len(attempts[0]), build=build)
    give_up = BEGINNING + 1000 * SECOND

    def last(_: Any) -> str:
        play.now = give_up
        return "n" * play.masters

    play.hold.claim(object())
    steps = play.acquire_module.acquire(play.quorum, play.hold, TTL_MS, give_up)
    try:
        play.follow(steps, itertools.chain(attempts, itertools.repeat(last)))
    except QuorumUnavailable:
        pass
    won = play.hold.state == play.claims.HELD
    asked = [effect for effect in play.of("Ballot") if type(effect.command).__name__ == "Acquire"]
    tokens = [ballot.command.token for ballot in asked if ballot.asked >= -1]
    assert len(set(tokens)) == len(tokens)
    refused = {ballot.command.token for ballot in asked if ballot.asked >= -1 and ballot.no == ballot.size}
    undone = [ballot.command.token for effect in play.of("Send") for ballot in effect.ballots]
    assert undone == [token for token in (tokens[:-1] if won else tokens) if token not in refused]
    assert [kind for kind in play.kinds() if "Acquire" in kind or "Release" in kind] == [
        kind
        for token in tokens
        for kind in [
            *["Ballot Acquire" for ballot in asked if ballot.command.token == token],
            *["Send Release" for each in undone if each == token],
        ]
    ]


def test_the_undo_is_for_the_same_key_and_since_the_same_moment_as_the_attempt(play: Play) -> None:
    assert not play.acquire("nnn")
    ask, undo = play.effects
    [undone] = undo.ballots
    assert (undone.command.key, undone.command.token, undone.command.since_ns) == (
        KEY,
        ask.command.token,
        ask.command.since_ns,
    )
    assert undone.command.releases


def test_a_won_attempt_leaves_its_token_in_the_hold_and_undoes_nothing(play: Play) -> None:
    assert play.acquire("yyy")
    assert play.kinds() == ["Ballot Acquire"]
    assert play.hold.token == play.effects[0].command.token


def test_two_acquires_of_one_object_use_two_tokens(play: Play) -> None:
    assert play.acquire("yyy")
    play.release("yyy")
    assert play.acquire("yyy", give_up_ns=None)
    first, last = (ask.command.token for ask in play.of("Ballot") if type(ask.command).__name__ == "Acquire")
    assert first != last


# --- acquire: the clock ------------------------------------------------------------------------------


def test_the_deadline_counts_from_before_the_first_ask_however_long_the_votes_take(play: Play) -> None:
    assert play.acquire(play.jump(BEGINNING + 500 * MS, "yyy"))
    assert play.hold.deadline_ns == BEGINNING + VALIDITY
    assert play.hold.elapsed_ns == 500 * MS


def test_the_deadline_is_fixed_before_the_ask_is_yielded(play: Play) -> None:
    play.hold.claim(object())
    steps = play.acquire_module.acquire(play.quorum, play.hold, TTL_MS, None)
    ballot = next(steps)
    # The driver needs some time to send.
    play.now += 10 * MS
    play.vote(ballot, "yyy")
    assert next(steps, None) is None
    assert play.hold.deadline_ns == BEGINNING + VALIDITY


def test_each_attempt_has_a_deadline_of_its_own(play: Play) -> None:
    assert play.acquire("nnn", "yyy", give_up_ns=None)
    second = play.of("Ballot")[-1].command.since_ns
    assert second > BEGINNING
    assert play.hold.deadline_ns == second + VALIDITY


def test_a_quorum_one_nanosecond_before_the_deadline_wins(play: Play) -> None:
    assert play.acquire(play.jump(BEGINNING + VALIDITY - 1, "yyy"))
    assert play.hold.held(play.now)


def test_a_quorum_exactly_at_the_deadline_is_too_late_and_undone(play: Play) -> None:
    assert not play.acquire(play.jump(BEGINNING + VALIDITY, "yyyyy"))
    assert play.kinds() == ["Ballot Acquire", "Send Release"]
    assert play.hold.state == play.claims.FREE


def test_a_process_that_was_stopped_beyond_its_ttl_with_votes_in_flight_gets_no_lock(play: Play) -> None:
    assert not play.acquire(play.jump(BEGINNING + 10 * TTL_MS * MS, "yyyyy"))
    assert play.of("Send")[0].ballots[0].command.token == play.of("Ballot")[0].command.token


def test_the_clock_is_read_after_the_last_counted_vote(play: Play) -> None:
    def late(_: Any) -> str:
        # Between the votes and the decision.
        play.now = BEGINNING + VALIDITY
        return "yyy"

    assert not play.acquire(late)


def test_an_attempt_waits_no_longer_than_a_round_and_never_past_its_deadline(play: Play) -> None:
    play.acquire("nnn")
    assert play.of("Ballot")[0].until_ns == BEGINNING + play.quorum.wait_ns(TTL_MS) < BEGINNING + VALIDITY


def test_a_very_short_ttl_bounds_the_wait_by_the_deadline(play: Play) -> None:
    play.hold.claim(object())
    assert not play.run(play.acquire_module.acquire(play.quorum, play.hold, 10, BEGINNING), "nnn")
    assert play.of("Ballot")[0].until_ns == BEGINNING + 10 * MS - MS // 10 - 2 * MS


# --- acquire: trying again ---------------------------------------------------------------------------


def test_one_attempt_is_made_even_without_time_to_wait(play: Play) -> None:
    assert play.acquire("yyy", give_up_ns=0)


def test_without_time_to_wait_a_busy_lock_is_given_up_without_a_pause(play: Play) -> None:
    assert play.acquire("nnn", give_up_ns=0) is False
    assert play.kinds() == ["Ballot Acquire", "Send Release"]


@given(chance=st.floats(0, 1, exclude_max=True), busy=st.integers(1, 12))
def test_the_pauses_are_jittered_and_double_up_to_the_longest(
    build: impl.Implementation, chance: float, busy: int
) -> None:
    play = Play(chance=chance, build=build)
    ends = []

    def no(_: Any) -> str:
        ends.append(play.now)
        return "nnn"

    assert play.acquire(*[no] * busy, "yyy", give_up_ns=None)
    pauses = [pause.until_ns - end - LATENCY for pause, end in zip(play.of("Pause"), ends, strict=True)]
    bounds = [min(50 * MS, 4 * MS * 2**number) for number in range(busy)]
    assert pauses == [pytest.approx(bound * chance, abs=1) for bound in bounds]


def test_a_pause_is_cut_where_the_time_to_wait_ends_and_one_last_attempt_follows(play: Play) -> None:
    play.chance = 0.999
    give_up = BEGINNING + 2 * LATENCY + MS
    assert play.acquire("nnn", "nnn", give_up_ns=give_up) is False
    assert [pause.until_ns for pause in play.of("Pause")] == [give_up]


def test_a_split_vote_is_undone_and_tried_again(play: Play) -> None:
    assert play.acquire("ynnyn", "yyy", give_up_ns=None)
    assert play.kinds() == [
        "Ballot Acquire",
        "Send Release",
        "Watch Look",
        "Pause",
        # First only one master is asked.
        "Ballot Acquire",
        # The others are asked after the first one granted.
        "Ballot Acquire",
    ]
    _, first, others = (effect for effect in play.of("Ballot"))
    assert first.asked == ~others.asked == 1 << play.quorum.order[crc32(KEY) % 5]
    assert (others.size, others.quorum) == (4, 2)


def test_the_error_counts_all_masters_although_one_was_asked_first(play: Play) -> None:
    first = play.quorum.order[crc32(KEY) % 5]
    with pytest.raises(QuorumUnavailable, match=r"of 5 masters 4 did not answer within .*; 3 must agree"):
        play.acquire("nnnnn", "".join(".y"[index == first] for index in range(5)), give_up_ns=None)


def test_a_minority_that_fails_beside_a_majority_that_is_busy_is_only_busy(play: Play) -> None:
    assert play.acquire("nn!", give_up_ns=0) is False


def test_an_attempt_whose_masters_failed_is_repeated_at_once(play: Play) -> None:
    assert play.acquire("!!!", "yyy", give_up_ns=0)
    assert play.kinds() == ["Ballot Acquire", "Send Release", "Ballot Acquire"]


def test_a_second_failure_in_a_row_raises_with_each_masters_cause(play: Play) -> None:
    with pytest.raises(QuorumUnavailable, match="sku:42") as caught:
        play.acquire("!!!", "y!y!!", give_up_ns=None)
    assert {master: str(cause) for master, cause in caught.value.causes.items()} == {
        "master-1:6379": "broken 1",
        "master-3:6379": "broken 3",
        "master-4:6379": "broken 4",
    }
    assert caught.value.name == NAME
    assert caught.value.elapsed == 2 * LATENCY / SECOND


def test_failures_that_are_not_in_a_row_do_not_add_up(play: Play) -> None:
    assert play.acquire("!!!", "nnn", "!!!", "nnn", "!!!", "yyy", give_up_ns=None)


def test_a_failed_attempt_does_not_lengthen_the_next_pause(play: Play) -> None:
    assert play.acquire("!!!", "nnn", "yyy", give_up_ns=None)
    [pause] = play.of("Pause")
    assert pause.until_ns - (BEGINNING + 3 * LATENCY) == play.quorum.retry.pause_ns(0, play.chance)


def test_silence_of_a_majority_raises_at_once(play: Play) -> None:
    with pytest.raises(QuorumUnavailable, match="did not answer"):
        play.acquire("yy...", give_up_ns=None)
    assert play.kinds() == ["Ballot Acquire", "Send Release"]


def test_a_lock_is_busy_if_one_silent_master_keeps_the_ballot_open(play: Play) -> None:
    assert play.acquire("nny..", give_up_ns=0) is False


def test_after_quorum_unavailable_the_same_object_may_acquire_again(play: Play) -> None:
    with pytest.raises(QuorumUnavailable):
        play.acquire("!!!", "!!!")
    assert play.hold.state == play.claims.FREE
    assert play.acquire("yyy")


# --- acquire: patience while a quorum is lost ---------------------------------------------------------


def lost_for(play: Play, until_ns: int, votes: str = "!!!") -> Iterator[Votes]:
    """Return votes by which a quorum is lost until this time, and then votes yes."""
    while play.now < until_ns:
        yield votes
    yield "yyy"


def ride(play: Play, votes: Iterator[Votes], give_up_ns: int | None) -> bool:
    """Acquire with as many votes as it asks for; return whether the lock was won."""
    play.hold.claim(play.ticket)
    play.follow(play.acquire_module.acquire(play.quorum, play.hold, TTL_MS, give_up_ns), votes)
    return bool(play.hold.state == play.claims.HELD)


@pytest.fixture
def patient(implementation: impl.Implementation) -> Play:
    """A play whose client has a patience of two seconds."""
    return Play(3, build=implementation, patience=2)


@pytest.mark.parametrize("votes", ["!!!", "y!!", "n!!"])
def test_a_quorum_that_comes_back_within_the_patience_gives_the_lock(patient: Play, votes: str) -> None:
    back = BEGINNING + 2 * SECOND - 50 * MS
    assert ride(patient, lost_for(patient, back, votes), None)
    assert back <= patient.now < back + 60 * MS
    assert patient.queues.outages == {}


def test_silent_masters_are_ridden_out_too(patient: Play) -> None:
    def silent(_: Any) -> str:
        patient.now += 97 * MS
        return ""

    assert ride(patient, iter([silent, silent, silent, "yyy"]), None)


def test_an_outage_longer_than_the_patience_raises_when_it_is_over(patient: Play) -> None:
    with pytest.raises(QuorumUnavailable, match="of 3 masters 2 failed") as caught:
        ride(patient, lost_for(patient, BEGINNING + 60 * SECOND), None)
    assert patient.now == BEGINNING + 2 * SECOND + LATENCY
    assert caught.value.elapsed == (2 * SECOND + LATENCY) / SECOND
    assert patient.hold.state == patient.claims.FREE


def test_the_timeout_limits_the_patience(patient: Play) -> None:
    with pytest.raises(QuorumUnavailable):
        ride(patient, lost_for(patient, BEGINNING + 60 * SECOND), BEGINNING + SECOND)
    assert patient.now == BEGINNING + SECOND + LATENCY


def test_a_single_attempt_has_no_patience(patient: Play) -> None:
    with pytest.raises(QuorumUnavailable):
        ride(patient, lost_for(patient, BEGINNING + 60 * SECOND), 0)
    assert patient.now == BEGINNING + 2 * LATENCY


def test_a_verdict_renews_the_patience(patient: Play) -> None:
    """The lock is held by another holder between two outages, each of which is shorter than the patience."""

    def script() -> Iterator[Votes]:
        for _ in range(3):
            yield from itertools.repeat("!!!", 9)
            yield "nnn"
        yield "yyy"

    assert ride(patient, script(), None)
    assert patient.now - BEGINNING > 3 * SECOND


def test_a_lost_quorum_is_asked_at_the_pace_of_the_back_off(patient: Play) -> None:
    """Each pause is twice as long as the one before; from the fourth on it takes 200 ms at least."""
    patient.chance = 0.0
    with pytest.raises(QuorumUnavailable):
        ride(patient, lost_for(patient, BEGINNING + 60 * SECOND), None)
    attempts = [effect for effect in patient.of("Ballot") if type(effect.command).__name__ == "Acquire"]
    pauses = [effect.until_ns for effect in patient.of("Pause")]
    # The first two attempts follow each other without a pause, and each attempt takes a round trip.
    assert len(attempts) == len(pauses) + 2
    between = [(later - pause - LATENCY) // MS for pause, later in itertools.pairwise(pauses)]
    assert between[:3] == [50, 100, 200]
    assert set(between[3:-1]) == {200}
    # The last pause ends with the patience.
    assert pauses[-1] == BEGINNING + 2 * SECOND


def test_the_last_attempt_waits_no_longer_than_the_patience(patient: Play) -> None:
    """A silent master would be waited for, for half a second with this ttl; but at least 100 ms."""
    waits: list[int] = []

    def silent(ballot: Any) -> str:
        waits.append(ballot.until_ns - (patient.now - LATENCY))
        patient.now = ballot.until_ns
        return ""

    patient.hold.claim(patient.ticket)
    steps = patient.acquire_module.acquire(patient.quorum, patient.hold, 10_000, None)
    with pytest.raises(QuorumUnavailable):
        patient.follow(steps, itertools.repeat(silent))
    assert waits[0] == 500 * MS
    assert BEGINNING + 2 * SECOND <= patient.now <= BEGINNING + 2 * SECOND + 100 * MS


# --- interruptions -----------------------------------------------------------------------------------

BUSY = ("nnn", "!!!", "yynnn", "nnn")


@pytest.mark.parametrize("how", INTERRUPTIONS)
@pytest.mark.parametrize("point", range(20))
def test_an_acquire_interrupted_at_any_effect_is_undone_with_its_last_token(play: Play, how: str, point: int) -> None:
    ticket = object()
    play.hold.claim(ticket)
    steps = play.acquire_module.acquire(play.quorum, play.hold, TTL_MS, None)
    script = itertools.cycle(BUSY)
    for _ in range(point + 1):
        play.perform(next(steps), script)
    last = [ballot.command.token for ballot in play.of("Ballot") if ballot.command.token][-1]
    try:
        INTERRUPTIONS[how](steps)
    except (KeyboardInterrupt, OSError):
        pass
    command = undo(play.hold, ticket)
    assert isinstance(command, play.commands.Release)
    assert (command.key, command.token) == (KEY, last)
    # The object is free for another attempt.
    play.hold.claim(object())


@pytest.mark.parametrize("how", INTERRUPTIONS)
def test_an_acquire_interrupted_before_its_first_effect_has_nothing_to_undo(play: Play, how: str) -> None:
    ticket = object()
    play.hold.claim(ticket)
    steps = play.acquire_module.acquire(play.quorum, play.hold, TTL_MS, None)
    try:
        INTERRUPTIONS[how](steps)
    except (KeyboardInterrupt, OSError):
        pass
    assert undo(play.hold, ticket) is None
    play.hold.claim(object())


def test_an_acquire_interrupted_between_its_grant_and_its_caller_is_undone(held: Play) -> None:
    token = held.hold.token
    command = undo(held.hold, held.ticket)
    assert command.token == token
    assert not held.hold.held(held.now)


def test_a_refused_acquire_has_nothing_to_undo(play: Play) -> None:
    assert not play.acquire("nnn")
    assert undo(play.hold, play.ticket) is None
