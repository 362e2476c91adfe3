"""The semaphore: which slot an attempt asks for, and what the answers of the masters say about the others."""

from __future__ import annotations

from types import ModuleType

import pytest
from support.script_calls import script_call
from support.scripted_votes import BEGINNING, KEY, MS, NAME, TTL_MS, Play

from redlatch import impl

ALL_TAKEN = 1 << 50
TOKENS = KEY + b"\0tokens"


class Attempts:
    """The attempts of one holder on five masters; a quorum is three, so a slot may be taken on two."""

    def __init__(self, play: Play, semaphore: ModuleType, permits: int) -> None:
        self.play = play
        self.kind = semaphore.Slot([KEY, TOKENS], permits)
        self.hold = play.holds.Hold(NAME, KEY, self.kind)
        self.kind.begin(play.quorum, self.hold, None)
        self.lease = play.build.module("quorum.lease").new_lease(b"token", BEGINNING, BEGINNING)

    def ask(self) -> list[int]:
        """Begin an attempt; return its slot, the first slot and the number of slots to report, and the permits."""
        self.command = self.kind.acquiring(self.play.quorum, KEY, self.lease, TTL_MS)
        script, keys, (token, ttl, *numbers), _ = script_call(self.command)
        assert (script, keys, token, ttl) == ("SLOT_ACQUIRE", [KEY, TOKENS], b"token", b"%d" % TTL_MS)
        return [int(number) for number in numbers]

    def ask_slot(self) -> int:
        """Begin an attempt; return its slot."""
        self.command = self.kind.acquiring(self.play.quorum, KEY, self.lease, TTL_MS)
        return int(script_call(self.command).arguments[2])

    def note_answers(self, *taken: int) -> bool:
        """Return whether to ask again at once after each master in turn has reported these slots as taken."""
        ballot = self.play.quorum.ballot(self.command)
        for index, mask in enumerate(taken):
            ballot.count_answer(index, -mask, False)
        assert ballot.no == len(taken)
        return bool(self.kind.note_answers(self.play.quorum, ballot))


@pytest.fixture
def semaphore(implementation: impl.Implementation) -> ModuleType:
    return implementation.module("quorum.kinds.semaphore")


@pytest.mark.parametrize(("chance", "slot"), [(0.0, 0), (0.5, 1), (0.999, 2)])
def test_the_first_attempt_asks_for_any_slot(play: Play, semaphore: ModuleType, chance: float, slot: int) -> None:
    play.chance = chance
    assert Attempts(play, semaphore, 3).ask() == [slot, 0, 3, 3]


def test_the_next_attempt_asks_for_a_slot_that_may_be_free_on_a_quorum(play: Play, semaphore: ModuleType) -> None:
    attempts = Attempts(play, semaphore, 3)
    assert attempts.ask()[0] == 1
    # Three masters have slot 0 and two have slot 2.
    assert attempts.note_answers(0b111, 0b111, 0b011, 0b010, 0b010)
    assert attempts.ask()[0] == 2


def test_the_slot_that_was_just_refused_is_not_asked_for_again_at_once(play: Play, semaphore: ModuleType) -> None:
    attempts = Attempts(play, semaphore, 2)
    assert attempts.ask()[0] == 1
    # By the answers slot 1 might be free on a quorum.
    assert attempts.note_answers(0b01, 0b01, 0b01, 0b10, 0b10) is False
    assert attempts.note_answers(0b10, 0b10) is True
    assert attempts.ask()[0] == 0


def test_if_no_slot_can_be_free_the_holder_waits_and_then_starts_over(play: Play, semaphore: ModuleType) -> None:
    attempts = Attempts(play, semaphore, 3)
    attempts.ask()
    # By the first three masters all slots are taken, whatever the others would say.
    assert not attempts.note_answers(*[0b111 + ALL_TAKEN] * 3)
    play.chance = 0.0
    # The slot was drawn before the chance changed.
    assert attempts.ask() == [1, 0, 3, 3]


@pytest.mark.parametrize(("full", "again"), [(2, True), (3, False)])
def test_two_of_five_masters_that_are_full_decide_nothing(
    play: Play, semaphore: ModuleType, full: int, again: bool
) -> None:
    attempts = Attempts(play, semaphore, 3)
    attempts.ask()
    assert attempts.note_answers(*[0b111 + ALL_TAKEN] * full, *[0b010] * (5 - full)) == again


def test_each_window_of_a_large_semaphore_is_asked_about_once(play: Play, semaphore: ModuleType) -> None:
    attempts = Attempts(play, semaphore, 120)
    seen = []
    while True:
        slot, first, count, permits = attempts.ask()
        assert first <= slot < first + count <= permits == 120
        seen.append((first, count))
        # All slots that a window reports are taken, but not all of the semaphore.
        if not attempts.note_answers(*[(1 << count) - 1] * 5):
            break
    assert sorted(seen) == [(0, 50), (50, 50), (100, 20)]
    # With the attempts of a plain lock, a single try would not reach the last window.
    assert attempts.kind.late - type(attempts.kind)([KEY, TOKENS], 1).late == 2


def test_only_an_attempt_on_a_slot_that_may_be_free_must_pause_for_its_rivals(
    play: Play, semaphore: ModuleType
) -> None:
    attempts = Attempts(play, semaphore, 120)
    _, _, count, _ = attempts.ask()
    assert attempts.note_answers(*[(1 << count) - 1] * 5)
    # It only asks about another window.
    assert not attempts.kind.apart
    attempts.ask()
    assert attempts.note_answers(0)
    assert attempts.kind.apart


def test_the_undo_names_the_slot_that_was_asked_for_not_the_next_one(play: Play, semaphore: ModuleType) -> None:
    attempts = Attempts(play, semaphore, 3)
    assert attempts.ask()[0] == 1
    assert attempts.note_answers(0b110, 0b110, 0b110)
    undo = attempts.kind.undoing(KEY, attempts.lease, True)
    assert script_call(undo)[:3] == ("SLOT_RELEASE", [KEY, TOKENS], [b"token", b"1"])
    assert undo.releases
    assert attempts.ask()[0] == 0


def test_the_other_commands_name_the_slot_or_the_permits(play: Play, semaphore: ModuleType) -> None:
    attempts = Attempts(play, semaphore, 3)
    attempts.ask()
    kind, lease = attempts.kind, attempts.lease
    assert script_call(kind.extending(KEY, lease, 777))[:3] == ("SLOT_EXTEND", [KEY, TOKENS], [b"token", b"1", b"777"])
    assert script_call(kind.owned(KEY, lease))[:3] == ("SLOT_OWNED", [KEY, TOKENS], [b"token", b"1"])
    assert script_call(kind.locked(KEY))[:3] == ("FULL", [KEY], [b"3"])


# --- permits of a rate limit -----------------------------------------------------------------------------------------


class Permits(Attempts):
    """The attempts on a permit that lives for 1.5 s on the masters."""

    def __init__(self, play: Play, semaphore: ModuleType, permits: int) -> None:
        super().__init__(play, semaphore, permits)
        self.kind = semaphore.Permit([KEY, TOKENS], permits, lives_ms=1500, slack_ns=7)
        self.hold = play.holds.Hold(NAME, KEY, self.kind)
        self.kind.begin(play.quorum, self.hold, None)
        self.command = self.kind.acquiring(play.quorum, KEY, self.lease, TTL_MS)


def test_a_permit_lives_as_long_as_it_was_made_for_and_is_only_undone(play: Play, semaphore: ModuleType) -> None:
    permits = Permits(play, semaphore, 3)
    script, keys, arguments, _ = script_call(permits.command)
    assert (script, keys, arguments[:3]) == ("RATE_ACQUIRE", [KEY, TOKENS], [b"token", b"1500", b"1"])
    assert script_call(permits.command.undo())[:3] == ("SLOT_RELEASE", [KEY, TOKENS], [b"token", b"1"])
    assert permits.kind.releasing(KEY, permits.lease) is None
    undone = permits.kind.undoing(KEY, permits.lease, True)
    assert script_call(undone)[:3] == ("SLOT_RELEASE", [KEY, TOKENS], [b"token", b"1"])


def test_a_waiter_asks_again_when_a_quorum_should_have_a_free_permit(play: Play, semaphore: ModuleType) -> None:
    permits = Permits(play, semaphore, 3)
    watches = play.build.module("quorum.waiting.watches")
    look = watches.new_watch(play.quorum, play.commands.Look(KEY, True), BEGINNING)
    for index in range(3):
        look.count_answer(index, 1400, True)
        look.no += 1
    assert permits.kind.left_ns(play.quorum, look) == 1400 * MS
    # One master has a free permit now, and the third of five has one after 300 ms.
    assert not permits.note_answers(*[ALL_TAKEN + left for left in (900, 300, 100, 800)], 0b001)
    play.now += 100 * MS
    assert permits.kind.left_ns(play.quorum, look) == 200 * MS
    play.now += 300 * MS
    assert permits.kind.left_ns(play.quorum, look) == 0


def test_a_full_master_counts_all_its_permits_as_taken(play: Play, semaphore: ModuleType) -> None:
    permits = Permits(play, semaphore, 2)
    # Two masters are full, and the third has only the permit that was asked for.
    assert permits.note_answers(ALL_TAKEN, ALL_TAKEN, 0b10, 0b10, 0b10)
    assert permits.ask_slot() == 0
    assert not permits.note_answers(ALL_TAKEN, ALL_TAKEN, 0b01, 0b10, 0b11)
