"""Locks with a chosen token, as the drop-ins use them: what is undone, and in which order releases run."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from support.script_calls import script_call
from support.scripted_votes import BEGINNING, KEY, NAME, SECOND, Play

from redlatch import ConfigurationError, impl
from redlatch.votes.commands import BY_SHA, DELEX, DELIFEQ, FULL_TEXT

CHOSEN = b"chosen"


@pytest.fixture
def foreign(implementation: impl.Implementation) -> ModuleType:
    return implementation.module("quorum.kinds.foreign")


def holding(play: Play, kind: Any) -> Any:
    play.hold = play.holds.Hold(NAME, KEY, kind)
    return kind


def tokens_of(play: Play) -> list[bytes]:
    return [ballot.command.token for ballot in play.of("Ballot") if type(ballot.command).__name__ == "Acquire"]


def test_every_attempt_uses_the_chosen_token(foreign: ModuleType, play: Play) -> None:
    holding(play, foreign.Given(CHOSEN))
    assert play.acquire("nnn", "nn", "yyy", give_up_ns=BEGINNING + SECOND)
    assert tokens_of(play) == [CHOSEN, CHOSEN]


def test_a_token_of_its_own_is_used_for_one_attempt_only(foreign: ModuleType, play: Play) -> None:
    holding(play, foreign.Given(CHOSEN, once=True))
    assert play.acquire("nnn", "nn", "yyy", give_up_ns=BEGINNING + SECOND)
    first, second = tokens_of(play)
    assert first == CHOSEN != second


def test_a_promised_token_is_used_from_then_on(foreign: ModuleType, play: Play) -> None:
    kind = holding(play, foreign.Given(b"", once=True))
    assert kind.hand_off_group == foreign.CHOSEN_ONES
    kind.promise(CHOSEN)
    # A lease of another holder would have another token.
    assert kind.hand_off_group == foreign.NEVER
    assert play.acquire("yyy")
    assert play.hold.token == CHOSEN
    assert play.hold.token_exposed


@pytest.mark.parametrize("once", [False, True])
def test_an_attempt_without_a_yes_is_undone_only_if_no_other_holder_has_the_token(
    foreign: ModuleType, play: Play, once: bool
) -> None:
    holding(play, foreign.Given(CHOSEN, once))
    # Two masters are silent, and may have the key for us or for another holder with this token.
    assert not play.acquire("nnn", "")
    assert ("Send" in "".join(play.kinds())) == once


def test_an_attempt_with_a_yes_is_undone_whoever_has_the_token(foreign: ModuleType, play: Play) -> None:
    holding(play, foreign.Given(CHOSEN))
    assert not play.acquire("ynnn")
    assert play.kinds() == ["Ballot Acquire", "Send InOrder"]


@pytest.mark.parametrize("once", [False, True])
def test_only_a_token_that_others_may_have_counts_as_exposed(foreign: ModuleType, play: Play, once: bool) -> None:
    holding(play, foreign.Given(CHOSEN, once))
    assert play.acquire("yyy")
    assert play.hold.token_exposed == (not once)


def test_a_release_of_a_shared_token_calls_no_script_by_its_sha(foreign: ModuleType, play: Play) -> None:
    holding(play, foreign.Given(CHOSEN))
    assert play.acquire("yyy")
    release = play.hold.releasing()
    assert release.releases
    assert (release.key, release.token, release.since_ns) == (KEY, CHOSEN, BEGINNING)
    for dialect in (BY_SHA, FULL_TEXT):
        assert script_call(release, dialect) == ("RELEASE", [KEY], [CHOSEN], True)
    plain = play.commands.Release(KEY, CHOSEN, BEGINNING)
    for dialect in (DELIFEQ, DELEX):
        assert release.payload(dialect) == plain.payload(dialect)


def test_a_release_of_a_token_of_its_own_is_a_plain_release(foreign: ModuleType, play: Play) -> None:
    holding(play, foreign.Given(CHOSEN, once=True))
    assert play.acquire("yyy")
    assert type(play.hold.releasing()).__name__ == "Release"


@pytest.mark.parametrize("once", [False, True])
def test_a_release_with_a_signal_names_the_list_and_how_long_its_element_stays(
    foreign: ModuleType, play: Play, once: bool
) -> None:
    holding(play, foreign.Signalled(CHOSEN, once, b"signal:sku:42", 1000))
    assert play.acquire("yyy")
    call = script_call(play.hold.releasing())
    assert call == ("SIGNAL_RELEASE", [KEY, b"signal:sku:42"], [CHOSEN, b"1000"], not once)
    assert play.hold.releasing().releases


def test_a_token_has_at_most_512_bytes(foreign: ModuleType) -> None:
    foreign.Given(b"x" * 512)
    with pytest.raises(ConfigurationError, match=r"^token: "):
        foreign.Given(b"x" * 513)
