"""Repairing: when the key of a held lock is set again on a master that lacks it, with what and for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.scripted_votes import KEY, MS, SECOND, TTL_MS, VALIDITY, Play

MASTER = 3


def extending(play: Play, ttl_ms: int = TTL_MS) -> Any:
    """Begin an extension; return its command."""
    return next(play.extending(play.quorum, play.hold, ttl_ms)).command


def test_a_master_that_lacks_the_key_gets_it_with_the_token_of_the_lease(held: Play) -> None:
    extension = extending(held, 4000)
    held.now += 10 * MS
    repair = extension.repair(MASTER, held.now)
    token = held.hold.token
    for dialect in range(4):
        expected = held.commands.Acquire(KEY, token, held.hold.lease.since_ns, 3989).payload(dialect)
        assert repair.payload(dialect) == expected
    assert (repair.key, repair.token, repair.yes, repair.releases, repair.ttl_ms) == (KEY, token, b"OK", False, 0)


def test_a_no_is_the_only_other_answer_to_an_extension(held: Play) -> None:
    extension = extending(held)
    assert [extension.expects(answer) for answer in (0, 2, -1)] == [True, False, False]
    assert extension.no not in (0, None)
    assert extension.meaning == held.commands.LACKS


def test_a_repair_lives_no_longer_than_the_extension_from_its_beginning(held: Play) -> None:
    extension = extending(held, 500)
    began = held.now
    held.now += 200 * MS
    assert extension.repair(MASTER, held.now).payload(0).endswith(b"$3\r\n299\r\n")
    for late in (499, 500, 10_000):
        assert extension.repair(MASTER, began + late * MS) is None


def test_a_repair_is_not_undone_when_a_client_is_closed_and_calls_no_script_by_its_sha(held: Play) -> None:
    repair = extending(held).repair(MASTER, held.now)
    assert repair.undo() is None
    assert repair.again() is repair
    assert repair.payload(held.commands.BY_SHA) == repair.payload(held.commands.FULL_TEXT)


def lost_by_time(play: Play) -> None:
    play.now += VALIDITY


def key_deleted(play: Play) -> None:
    play.hold.lose(play.now)


def in_doubt(play: Play) -> None:
    play.quorum.doubts.add(play.now + 1)


def released(play: Play) -> None:
    next(play.releasing(play.quorum, play.hold, SECOND))


def sent_only(play: Play) -> None:
    list(play.releasing_nowait(play.quorum, play.hold, None))


def interrupted(play: Play) -> None:
    assert play.hold.undoing(play.ticket) is not None


def released_again(play: Play) -> None:
    assert play.hold.resend_release(play.ticket, play.now) is not None


def acquired_anew(play: Play) -> None:
    play.release("yyy")
    assert play.acquire("yyy")


def token_given_out(play: Play) -> None:
    play.hold.token_exposed = True


@pytest.mark.parametrize(
    "happens",
    [
        lost_by_time,
        key_deleted,
        in_doubt,
        released,
        sent_only,
        interrupted,
        released_again,
        acquired_anew,
        token_given_out,
    ],
)
def test_there_is_no_repair_unless_the_lock_is_surely_held(held: Play, happens: Callable[[Play], None]) -> None:
    extension = extending(held, 60_000)
    assert extension.repair(MASTER, held.now) is not None
    happens(held)
    assert extension.repair(MASTER, held.now) is None


def test_a_lock_that_was_acquired_elsewhere_is_not_repaired(play: Play) -> None:
    play.hold.claim(play.ticket)
    play.hold.borrow(b"token-elsewhere")
    extension = extending(play)
    assert extension.repair(MASTER, play.now) is None


def test_it_is_noted_which_masters_lacked_the_key_in_the_last_extension(held: Play) -> None:
    first = extending(held)
    for index in (0, MASTER):
        first.repair(index, held.now)
    assert held.hold.lacking == (held.now, 0b1001)
    held.now += MS
    held.hold.extending = None
    extending(held).repair(1, held.now)
    assert held.hold.lacking == (held.now, 0b10)
