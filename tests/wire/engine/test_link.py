"""The link to one master: its FIFO, and the releases that it owes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from redlatch import impl
from redlatch.wire.server_traits import Traits


@pytest.fixture
def commands(implementation: impl.Implementation) -> ModuleType:
    return implementation.module("votes.commands")


@pytest.fixture
def ballot(implementation: impl.Implementation) -> Any:
    """Return a function that makes the ballot of a command."""
    return lambda command: implementation.module("votes.ballot").Ballot(command, 3, 2)


@pytest.fixture
def link(implementation: impl.Implementation) -> Any:
    return implementation.module("wire.engine.link").Link(0, "master-0:1")


def test_a_new_link_is_being_dialled_and_owes_nothing(link: Any) -> None:
    assert (link.up, link.dialling, link.suspected) == (False, True, False)
    assert (link.owing(), link.pending, link.owed) == (0, [], {})


def test_each_reply_answers_the_oldest_command(link: Any, commands: ModuleType, ballot: Any) -> None:
    first, second = (ballot(commands.Acquire(b"k", token, 0, 1000)) for token in (b"a", b"b"))
    link.pending += [first, second]
    assert link.owing() == 2
    link.advance()
    # The first ballot is freed at once, although its place is still there.
    assert (link.owing(), link.pending) == (1, [None, second])
    assert not link.waits_for(first) and link.waits_for(second)


def test_cutting_the_front_keeps_the_count_of_all_replies(link: Any, commands: ModuleType, ballot: Any) -> None:
    link.pending += [ballot(commands.Look(b"k")) for _ in range(3)]
    for _ in range(2):
        link.advance()
    before = link.cut + link.head
    link.cut_front()
    assert link.cut + link.head == before == 2
    assert (len(link.pending), link.owing()) == (1, 1)


def test_a_ballot_that_is_parked_is_waited_for(link: Any, commands: ModuleType, ballot: Any) -> None:
    parked = ballot(commands.Look(b"k"))
    assert not link.waits_for(parked)
    link.parked.append(parked)
    assert link.waits_for(parked)


def test_a_link_owes_a_bounded_number_of_releases_and_forgets_the_oldest(
    link: Any, commands: ModuleType, ballot: Any
) -> None:
    releases = [ballot(commands.Release(b"k", b"token-%d" % number, 0)) for number in range(4)]
    for release in releases:
        link.owe(release, 3)
    assert list(link.owed.values()) == releases[1:]


def test_a_link_owes_the_release_of_each_key_that_has_one_chosen_token(
    link: Any, commands: ModuleType, ballot: Any
) -> None:
    releases = [ballot(commands.Release(key, b"chosen", 0)) for key in (b"a", b"b")]
    for release in releases:
        link.owe(release, 3)
    assert list(link.owed.values()) == releases


def test_the_release_of_another_key_with_the_same_token_undoes_nothing(
    link: Any, commands: ModuleType, ballot: Any
) -> None:
    acquire = commands.Acquire(b"k", b"chosen", 0, 1000)
    link.pending += [ballot(acquire), ballot(commands.Release(b"another", b"chosen", 0))]
    assert not link.has_undone(acquire)


@pytest.mark.parametrize(
    ("later", "undone"), [([b"mine"], True), ([b"others"], False), ([], False), ([b"others", b"mine"], True)]
)
def test_a_command_is_undone_if_the_release_of_its_token_was_sent_behind_it(
    link: Any, commands: ModuleType, ballot: Any, later: list[bytes], undone: bool
) -> None:
    acquire = commands.Acquire(b"k", b"mine", 0, 1000)
    link.pending += [ballot(acquire), *[ballot(commands.Release(b"k", token, 0)) for token in later]]
    link.advance()
    assert link.has_undone(acquire) == undone


def test_a_release_that_comes_after_a_look_at_the_others_undoes_a_command(
    link: Any, commands: ModuleType, ballot: Any
) -> None:
    acquire = commands.Acquire(b"k", b"mine", 0, 1000)
    link.pending += [ballot(acquire) for _ in range(300)]
    assert not link.has_undone(acquire)
    link.pending.append(ballot(commands.Release(b"k", b"mine", 0)))
    for _ in range(300):
        link.advance()
    link.cut_front()
    assert link.has_undone(acquire)
    link.advance()
    assert not link.has_undone(acquire)
    link.pending += [ballot(commands.Release(b"k", b"%d" % number, 0)) for number in range(300)]
    assert not link.has_undone(acquire)
    assert link.has_undone(commands.Acquire(b"k", b"299", 0, 1000))


def test_releases_that_were_answered_are_forgotten(link: Any, commands: ModuleType, ballot: Any) -> None:
    acquire = commands.Acquire(b"k", b"mine", 0, 1000)
    for number in range(1000):
        # The link is never without a command.
        link.pending += [ballot(commands.Release(b"k", b"%d" % number, 0))]
        assert not link.has_undone(acquire)
        if number:
            link.advance()
            link.cut_front()
    assert len(link.sent) < 10


def test_a_command_that_cannot_be_undone_is_never_undone(link: Any, commands: ModuleType, ballot: Any) -> None:
    link.pending.append(ballot(commands.Release(b"k", b"mine", 0)))
    assert not link.has_undone(commands.Extend(b"k", b"mine", 0, 1000))


def test_a_release_that_was_answered_before_does_not_undo_a_command(
    link: Any, commands: ModuleType, ballot: Any
) -> None:
    link.pending.append(ballot(commands.Release(b"k", b"mine", 0)))
    link.advance()
    assert not link.has_undone(commands.Acquire(b"k", b"mine", 0, 1000))


def test_the_reason_for_a_closed_connection_names_the_master_and_the_reply(link: Any) -> None:
    link.traits = Traits({"run_id": "a"}, 3)
    assert str(link.unexpected([1, 2], " to a SET")) == (
        "master-0:1 answered with list to a SET; the connection was closed"
    )


def test_the_repr_shows_the_state_of_the_connection(link: Any) -> None:
    shown = [repr(link)]
    link.dialling = False
    shown.append(repr(link))
    link.up = True
    shown.append(repr(link))
    assert shown == ["<Link master-0:1 dialling>", "<Link master-0:1 down>", "<Link master-0:1 up>"]
