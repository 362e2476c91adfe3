"""Readers and writers: who would wait for itself, and the keys and names in their commands."""

from __future__ import annotations

import weakref
from types import ModuleType
from typing import Any

import pytest
from support.script_calls import script_call
from support.scripted_votes import BEGINNING, KEY, NAME, SECOND, TTL_MS, VALIDITY, Play

from redlatch import AlreadyHeld, impl

HOLDERS, WRITER, WAITS = KEYS = [KEY, KEY + b"\0writer", KEY + b"\0waits"]


class Owner:
    """A thread or a task."""


class Both:
    """The readers and writers of one lock object; `owner` makes the next call."""

    def __init__(self, play: Play, kinds: ModuleType) -> None:
        self.play = play
        self.kinds = kinds
        self.owner: Owner | None = Owner()
        self.holders: weakref.WeakKeyDictionary[Owner, list[Any]] = weakref.WeakKeyDictionary()

    def hold(self, kind: str) -> Any:
        """Make the hold of a new Reader or Writer, which the play then acquires."""
        made = getattr(self.kinds, kind)(KEYS, self.holders, lambda: self.owner)
        self.play.hold = self.play.holds.Hold(NAME, KEY, made)
        return self.play.hold

    def held(self, kind: str) -> Any:
        hold = self.hold(kind)
        assert self.play.acquire("yyy")
        return hold


@pytest.fixture
def both(play: Play, implementation: impl.Implementation) -> Both:
    return Both(play, implementation.module("quorum.kinds.readwrite"))


def asked(play: Play) -> Any:
    """Return the call of the last attempt."""
    return script_call(play.of("Ballot")[-1].command)


@pytest.mark.parametrize(
    ("outer", "inner", "why"),
    [
        ("Writer", "Reader", "read without a read lock"),
        ("Writer", "Writer", "not re-entrant"),
        ("Reader", "Writer", "cannot be upgraded"),
    ],
)
def test_an_owner_that_would_wait_for_itself_is_refused_before_any_master_is_asked(
    both: Both, outer: str, inner: str, why: str
) -> None:
    both.held(outer)
    both.play.effects.clear()
    both.hold(inner)
    with pytest.raises(AlreadyHeld, match=why) as caught:
        both.play.acquire()
    assert caught.value.name == NAME
    assert not both.play.effects


@pytest.mark.parametrize("outer", ["Reader", "Writer"])
def test_the_lock_of_another_owner_or_one_that_ran_out_refuses_nobody(both: Both, outer: str) -> None:
    first = both.owner
    both.held(outer)
    both.owner = Owner()
    both.play.queues.leave(both.play.hold, both.play.now, False)
    both.held("Writer")
    both.play.now += VALIDITY
    both.owner = first
    both.play.queues.leave(both.play.hold, both.play.now, False)
    assert both.held("Writer").held(both.play.now)


@pytest.mark.parametrize("outer", ["Reader", "Writer"])
def test_a_released_lock_is_forgotten_and_refuses_nobody(both: Both, outer: str) -> None:
    both.held(outer)
    both.play.release("yyy")
    assert list(both.holders.values()) == [[]]
    assert both.held("Writer").held(both.play.now)


def test_only_a_nested_read_passes_over_the_waiting_writers(both: Both) -> None:
    both.held("Reader")
    assert asked(both.play)[:2] == ("READ_ACQUIRE", KEYS)
    both.held("Reader")
    script, keys, _, _ = asked(both.play)
    # No writer ever writes its name to this key.
    assert (script, keys) == ("READ_ACQUIRE", [HOLDERS, WRITER, KEY + b"\0nested"])
    both.owner = Owner()
    both.held("Reader")
    assert asked(both.play)[:2] == ("READ_ACQUIRE", KEYS)


def test_a_coroutine_that_was_made_outside_any_task_belongs_to_the_task_that_runs_it(both: Both) -> None:
    runs, both.owner = both.owner, None
    hold = both.hold("Reader")
    hold.claim(both.play.ticket)
    play = both.play
    steps = play.acquire_module.acquire(play.quorum, hold, TTL_MS, BEGINNING)
    both.owner = runs
    play.run(steps, "yyy")
    assert runs is not None
    assert both.holders[runs] == [hold]


def test_without_any_owner_a_lock_is_nobodys(both: Both) -> None:
    both.owner = None
    both.held("Reader")
    both.held("Reader")
    assert not both.holders


def test_an_end_before_the_lock_was_recorded_changes_nothing(both: Both) -> None:
    outer = both.held("Reader")
    inner = both.hold("Reader")
    inner.kind.begin(both.play.quorum, inner, both.owner)
    inner.kind.end(inner)
    assert list(both.holders.values()) == [[outer]]


def test_each_attempt_of_a_writer_waits_under_the_token_of_the_first(both: Both) -> None:
    hold = both.hold("Writer")
    assert both.play.acquire("nnn", "nn", "yyy", give_up_ns=BEGINNING + SECOND)
    first, second = [
        ballot.command for ballot in both.play.of("Ballot") if script_call(ballot.command).script == "WRITE_ACQUIRE"
    ]
    assert first.token != second.token
    for command in (first, second):
        _, keys, arguments, _ = script_call(command)
        assert (keys, arguments) == (KEYS, [command.token, b"%d" % TTL_MS, b"2500", first.token])
    # The first attempt may have left that name on a master whose connection broke later.
    release = hold.releasing()
    assert script_call(release)[:3] == ("WRITE_RELEASE", KEYS, [second.token, first.token])
    assert release.releases and release.since_ns == BEGINNING


def test_the_undo_between_two_attempts_keeps_the_name_of_the_writer(both: Both) -> None:
    both.hold("Writer")
    assert both.play.acquire("ynnn", "yyy", give_up_ns=BEGINNING + SECOND)
    undos = [ballot for send in both.play.of("Send") for ballot in send.ballots if ballot.command.releases]
    assert [script_call(ballot.command).arguments[1] for ballot in undos] == [b""]


def test_a_writer_that_gives_up_removes_its_name(both: Both) -> None:
    both.hold("Writer")
    assert not both.play.acquire("nnn", "nn")
    [undo] = [ballot for send in both.play.of("Send") for ballot in send.ballots]
    token = both.play.of("Ballot")[0].command.token
    assert script_call(undo.command)[:3] == ("WRITE_RELEASE", KEYS, [token, token])


@pytest.mark.parametrize(("kind", "prefix"), [("Reader", "READ"), ("Writer", "WRITE")])
def test_the_other_commands_name_the_token_and_all_keys(both: Both, kind: str, prefix: str) -> None:
    hold = both.held(kind)
    made, lease = hold.kind, hold.lease
    assert script_call(made.extending(KEY, lease, 777))[:3] == (f"{prefix}_EXTEND", KEYS, [lease.token, b"777"])
    assert script_call(made.owned(KEY, lease))[:3] == (f"{prefix}_OWNED", KEYS, [lease.token])
    assert script_call(made.locked(KEY))[:3] == ("FULL", [HOLDERS], [b"1"])
