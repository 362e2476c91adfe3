"""The fair lock: the ticket and the place that each attempt asks for, and how a waiter waits to be called."""

from __future__ import annotations

from typing import Any

import pytest
from support.script_calls import ScriptCall, script_call
from support.scripted_votes import BEGINNING, KEY, MS, NAME, SECOND, TTL_MS, Play

from redlatch import impl
from redlatch.options import ClientOptions
from redlatch.votes.family_scripts import BELLS, SKEW_US

KEPT, NEW, CHANGED = b"0", b"1", b"2"
NOW_US = 1_800_000_000_000_000
QUEUE, ALIVE = KEY + b"\0queue", KEY + b"\0alive"


class Waiter:
    """One acquire of a fair lock on five masters, step by step."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.wall = NOW_US
        quorums = play.build.module("quorum.quorum")
        self.quorum = play.quorum = quorums.Quorum(
            masters=play.quorum.masters,
            options=ClientOptions("", guard=None),
            clock=play.quorum.clock,
            random=play.quorum.random,
            tokens=play.quorum.tokens,
            fences=quorums.Fences(lambda: self.wall),
        )
        self.kind = play.build.module("quorum.kinds.fair").Fair([KEY, QUEUE, ALIVE])
        self.hold = play.holds.Hold(NAME, KEY, self.kind)
        self.hold.claim(play.ticket)
        self.steps = play.acquire_module.acquire(self.quorum, self.hold, TTL_MS, None)

    @property
    def me(self) -> bytes:
        return b"%d" % self.kind.number

    @property
    def bell(self) -> bytes:
        return QUEUE + b":" + self.me

    def asks(self, effect: Any) -> ScriptCall:
        """Return the call of an attempt."""
        call = script_call(effect.command)
        assert call.script == "FAIR_ACQUIRE"
        return call

    def attempt(self) -> tuple[Any, bytes, bytes]:
        """Return the ballot of the next attempt, its ticket and its place."""
        ballot = next(self.steps)
        *_, ticket, alive, place = self.asks(ballot).arguments
        assert alive == b"2500"
        return ballot, ticket, place

    def refuse(self, ballot: Any, *answers: int) -> None:
        """Let each master in turn refuse with this answer."""
        for index, answer in enumerate(answers):
            if answer:
                ballot.count_answer(index, answer, False)
            else:
                ballot.no += 1
        ballot.decided = ballot.settled()

    def fail(self, ballot: Any) -> None:
        """Let a quorum of connections break; the other masters refuse."""
        ballot.failed, ballot.decided = 3, True
        ballot.causes = {index: ConnectionResetError() for index in range(3)}
        assert next(self.steps) == [ballot]
        ballot.no, ballot.decided = 2, True

    def undo(self) -> Any:
        """Return the command that the next effect sends."""
        [ballot] = next(self.steps).ballots
        return ballot.command


@pytest.fixture
def waiter(play: Play) -> Waiter:
    return Waiter(play)


def test_the_first_attempt_draws_a_ticket_by_the_wall_clock(waiter: Waiter) -> None:
    ballot, ticket, place = waiter.attempt()
    _, keys, arguments, _ = waiter.asks(ballot)
    assert keys == [KEY, QUEUE, ALIVE, waiter.bell]
    assert BELLS <= int(waiter.me) < 2 * BELLS
    assert arguments[:3] == [ballot.command.token, b"%d" % TTL_MS, waiter.me]
    assert (int(ticket), place) == (NOW_US, NEW)


def test_a_ticket_that_is_too_low_is_raised_at_once_and_the_undo_names_the_old_one(waiter: Waiter) -> None:
    first, old, _ = waiter.attempt()
    high = NOW_US + 2 * SKEW_US
    waiter.refuse(first, 0, -high, 0)
    # It waits for the two masters that have not answered: if all refuse, nothing must be undone.
    assert next(waiter.steps) == [first]
    undo = waiter.undo()
    assert script_call(undo)[:3] == (
        "FAIR_UNDO",
        [KEY, QUEUE, ALIVE, waiter.bell],
        [first.command.token, waiter.me, old, b"2500"],
    )
    _, ticket, place = waiter.attempt()
    assert (int(ticket), place) == (high + 1, CHANGED)
    # The release names the new ticket, with which it leaves the queue.
    assert script_call(waiter.hold.releasing()).arguments == [waiter.hold.token, waiter.me, ticket]


def test_an_undo_that_is_sent_again_does_not_enter_the_queue(waiter: Waiter) -> None:
    _, ticket, _ = waiter.attempt()
    undo = waiter.kind.undoing(KEY, waiter.hold.lease, False)
    again = undo.again()
    assert script_call(again).script == "FAIR_UNDO"
    assert script_call(again).arguments == [waiter.hold.token, waiter.me, ticket, b"0"]
    assert undo.releases and again.releases


def test_a_quorum_that_refuses_lets_the_waiter_keep_its_place(waiter: Waiter) -> None:
    first, ticket, _ = waiter.attempt()
    waiter.refuse(first, 0, 0, 0, 0, 0)
    [called] = next(waiter.steps).ballots
    assert (type(called.command).__name__, called.command.key) == ("Called", waiter.bell)
    assert next(waiter.steps) == [called]
    called.yes = 3
    assert waiter.attempt()[1:] == (ticket, KEPT)


def test_attempts_without_a_verdict_ask_for_the_place_again(waiter: Waiter) -> None:
    first, ticket, _ = waiter.attempt()
    # No master may have checked the ticket.
    waiter.fail(first)
    waiter.undo()
    assert waiter.attempt()[1:] == (ticket, CHANGED)


def test_after_a_long_wait_in_the_queue_of_the_client_the_first_ticket_is_a_fresh_one(waiter: Waiter) -> None:
    waiter.kind.begin(waiter.quorum, waiter.hold, None)
    waiter.wall += SECOND
    lease = waiter.play.build.module("quorum.lease").new_lease(b"token", 0, 0)
    command = waiter.kind.acquiring(waiter.quorum, KEY, lease, TTL_MS)
    # It is still accepted as simultaneous with the newest one.
    assert int(script_call(command).arguments[3]) == waiter.wall - SKEW_US // 2


def test_a_release_reaches_masters_that_saw_only_the_first_attempt(waiter: Waiter) -> None:
    first, _, _ = waiter.attempt()
    waiter.play.now += MS
    waiter.fail(first)
    waiter.undo()
    waiter.attempt()
    assert waiter.hold.lease.since_ns > BEGINNING
    release = waiter.hold.releasing()
    assert release.releases and release.since_ns == BEGINNING


def test_the_first_waiter_also_watches_the_lock_and_asks_when_it_should_have_expired(waiter: Waiter) -> None:
    first, _, _ = waiter.attempt()
    # Three masters say that this waiter is the first, and when the key of the lock expires.
    waiter.refuse(first, -301, -201, -101, 0, 0)
    [called] = next(waiter.steps).ballots
    assert script_call(called.command)[:2] == ("FAIR_LOOK", [KEY, waiter.bell])
    assert waiter.play.queues.watches.by_key == {KEY: [called], waiter.bell: [called]}
    assert next(waiter.steps) == [called]
    # All masters push, and nobody has called the waiter.
    for index, left_ms in enumerate((300, 200, 100, 500, 500)):
        called.count_answer(index, left_ms, True)
    before = waiter.play.now
    assert next(waiter.steps) == [called]
    # By then the key has expired on three masters, a quorum.
    assert before + 300 * MS <= called.until_ns <= before + 302 * MS


def test_a_waiter_that_is_not_the_first_does_not_watch_the_lock(waiter: Waiter) -> None:
    first, _, _ = waiter.attempt()
    waiter.refuse(first, 0, 0, 0, 0, 0)
    [called] = next(waiter.steps).ballots
    assert next(waiter.steps) == [called]
    # But a change by this client itself, of which no master pushes anything, calls it.
    assert waiter.play.queues.watches.by_key == {KEY: [called], waiter.bell: [called]}


@pytest.mark.parametrize("how", ["close", "throw"])
def test_a_wait_that_is_interrupted_leaves_no_watch(waiter: Waiter, how: str) -> None:
    first, _, _ = waiter.attempt()
    waiter.refuse(first, 0, 0, 0, 0, 0)
    next(waiter.steps)
    if how == "close":
        waiter.steps.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            waiter.steps.throw(KeyboardInterrupt())
    assert not waiter.play.queues.watches.by_key
    assert waiter.kind.behind() is None


def test_an_undo_ends_the_watch_so_that_the_next_wait_asks_again(play: Play) -> None:
    waiter = Waiter(play)
    play.queues.crowd(KEY)
    first, _, _ = waiter.attempt()
    first.yes, first.failed = 1, 1
    waiter.refuse(first, 0, 0, 0)
    assert script_call(waiter.undo()).script == "FAIR_UNDO"
    # One master may have called this waiter before the undo, and pushes nothing of what this client has undone.
    [again] = next(waiter.steps).ballots
    assert again is not first.behind
    assert waiter.play.queues.watches.by_key == {KEY: [again], waiter.bell: [again]}


def test_a_waiter_that_kept_its_place_says_when_its_ticket_has_changed(waiter: Waiter) -> None:
    first, _, _ = waiter.attempt()
    waiter.refuse(first, 0, 0, 0, 0, 0)
    [called] = next(waiter.steps).ballots
    called.yes = 3
    next(waiter.steps)
    second, _, place = waiter.attempt()
    assert place == KEPT
    waiter.refuse(second, -NOW_US - 1, 0, 0, 0, 0)
    _, ticket, place = waiter.attempt()
    assert (int(ticket), place) == (NOW_US + 2, CHANGED)


def test_on_a_crowded_key_the_first_attempt_already_asks_to_be_called(
    implementation: impl.Implementation, play: Play
) -> None:
    waiter = Waiter(play)
    play.queues.crowd(KEY)
    first, _, _ = waiter.attempt()
    assert (type(first.behind.command).__name__, first.behind.command.key) == ("Called", waiter.bell)
    waiter.refuse(first, 0, 0, 0, 0, 0)
    # It was sent behind the attempt.
    assert next(waiter.steps) == [first.behind]


def test_a_release_names_the_bell_of_the_waiter_that_the_winner_was_told_of(waiter: Waiter) -> None:
    first, ticket, _ = waiter.attempt()
    later = BELLS + 7
    # Two masters know who is next, and a third one knows nobody.
    first.count_answer(0, later, False)
    first.count_answer(1, later, False)
    first.yes += 1
    first.decided = first.settled()
    assert next(waiter.steps, None) is None
    assert waiter.hold.state == waiter.play.claims.HELD
    _, keys, arguments, _ = script_call(waiter.hold.releasing())
    assert keys == [KEY, QUEUE, ALIVE, waiter.bell, QUEUE + b":%d" % later]
    assert arguments == [waiter.hold.token, waiter.me, ticket, b"%d" % later]


def test_only_a_refusal_or_a_release_calls_the_waiter_that_an_answer_names(waiter: Waiter) -> None:
    first, _, _ = waiter.attempt()
    later = BELLS + 7
    bell = QUEUE + b":%d" % later
    assert first.command.follow(later) is None
    assert first.command.follow(-later).key == bell
    assert first.command.follow(-NOW_US) is None
    for undo in (waiter.hold.releasing(), waiter.kind.undoing(KEY, waiter.hold.lease, False)):
        assert undo.follow(later).key == undo.follow(-later).key == bell
        assert undo.follow(1) is undo.follow(0) is None
