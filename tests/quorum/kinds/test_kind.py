"""The base of all kinds: commands of a plain lock, and no hand-off, unless a kind says otherwise."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from support.scripted_votes import BEGINNING, KEY, NAME, SECOND, TTL_MS, Play

from redlatch import impl


@pytest.fixture
def kinds(implementation: impl.Implementation) -> ModuleType:
    return implementation.module("quorum.kinds.kind")


@pytest.fixture
def lease(implementation: impl.Implementation) -> Any:
    return implementation.module("quorum.lease").new_lease(b"token", BEGINNING, BEGINNING + SECOND)


def test_a_kind_has_the_commands_of_a_plain_lock(kinds: ModuleType, play: Play, lease: Any) -> None:
    kind = kinds.Kind()
    commands = {
        "Acquire": kind.acquiring(play.quorum, KEY, lease, TTL_MS),
        "Release": kind.releasing(KEY, lease),
        "Extend": kind.extending(KEY, lease, TTL_MS),
        "Owned": kind.owned(KEY, lease),
        "Locked": kind.locked(KEY),
    }
    assert [type(command).__name__ for command in commands.values()] == list(commands)
    assert {command.key for command in commands.values()} == {KEY}
    locked = commands.pop("Locked")
    assert not locked.token
    assert {(command.token, command.since_ns) for command in commands.values()} == {(b"token", BEGINNING)}
    assert commands["Acquire"].ttl_ms == commands["Extend"].ttl_ms == TTL_MS
    repair = kind.repairing(KEY, lease, TTL_MS)
    assert repair.payload(0) == commands["Acquire"].payload(0)


def test_a_release_undoes_the_last_attempt_unless_the_kind_has_another_one(
    kinds: ModuleType, play: Play, lease: Any
) -> None:
    class Own(kinds.Kind):  # type: ignore[misc,name-defined]
        def undoing(self, key: bytes, lease: Any, last: bool) -> Any:
            return play.commands.Release(key + b"\0last" * last, lease.token, lease.since_ns)

    class Kept(Own):
        def releasing(self, key: bytes, lease: Any) -> Any:
            return None

    assert Own().releasing(KEY, lease).key == KEY + b"\0last"
    hold = play.holds.Hold(NAME, KEY, Kept())
    assert hold.undoing_attempt().key == KEY + b"\0last"
    assert hold.releasing() is None


def test_each_lease_has_a_new_token_and_the_times_of_its_attempt(kinds: ModuleType, play: Play) -> None:
    first, second = (kinds.Kind().lease(play.quorum, KEY, 5, 7) for _ in range(2))
    assert first.token != second.token
    assert (first.since_ns, first.deadline_ns) == (5, 7)


def test_a_kind_must_define_how_it_waits(kinds: ModuleType) -> None:
    with pytest.raises(NotImplementedError):
        kinds.Kind().wait(None)


def test_an_acquire_that_ends_is_undone_although_all_masters_refused_unless_the_kind_does_not_sign_off(
    kinds: ModuleType, play: Play
) -> None:
    for signs_off in (True, False):
        kind = kinds.Kind()
        if not signs_off:
            kind.signs_off = False
        play.hold = play.holds.Hold(NAME, KEY, kind)
        play.effects.clear()
        # The third no decides. The kind waits for the two masters that have not answered.
        assert not play.acquire("nnn", "nn", give_up_ns=play.now)
        assert play.kinds() == ["Ballot Acquire", "list Acquire", *["Send Release"] * signs_off]


@pytest.mark.parametrize(
    ("from_group", "to_group", "handed_off"),
    [
        ("NEVER", "NEVER", False),
        ("NEVER", "PLAIN_ONES", False),
        ("PLAIN_ONES", "NEVER", False),
        ("PLAIN_ONES", "CHOSEN_ONES", False),
        ("PLAIN_ONES", "PLAIN_ONES", True),
        ("CHOSEN_ONES", "CHOSEN_ONES", True),
    ],
)
def test_a_lease_is_handed_off_only_within_a_group_that_is_not_never(
    kinds: ModuleType, play: Play, from_group: str, to_group: str, handed_off: bool
) -> None:
    first, second = kinds.Kind(), kinds.Kind()
    assert first.hand_off_group == kinds.NEVER
    first.hand_off_group, second.hand_off_group = getattr(kinds, from_group), getattr(kinds, to_group)
    play.hold = play.holds.Hold(NAME, KEY, first)
    assert play.acquire("yyy")
    assert play.hold.may_hand_off_to(play.holds.Hold(NAME, KEY, second)) == handed_off
