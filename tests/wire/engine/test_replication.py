"""Votes that wait for replicas: one WAIT for each flush, and what its reply decides. The test plays the masters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.far_ends import FarEnds

from redlatch import impl
from redlatch.errors import NotReplicated
from redlatch.wire.engine.replication import PROBE_NS
from redlatch.wire.server_traits import Traits

OK, NIL, YES, NO = b"+OK\r\n", b"_\r\n", b":1\r\n", b":0\r\n"
SECOND = 1_000_000_000


class Play(FarEnds):
    """One master with replicas; its clock is the test's."""

    def __init__(self, build: impl.Implementation, synced: int = -1, replicas: int = 2) -> None:
        self.commands = build.module("votes.commands")
        self.ballot: Any = build.module("votes.ballot").Ballot
        clock_of: Any = build.module("votes.units").Clock
        self.now = SECOND

        class Clock(clock_of):  # type: ignore[misc]
            def now(_) -> int:
                return self.now

        super().__init__(build.module("wire.engine.fleet").Fleet(["master-0:1"], 1, Clock()))
        self.fleet.synced = synced
        self.adopt(replicas)

    def adopt(self, replicas: int = 2) -> None:
        info = {"run_id": "run", "role": "master", "redis_version": "7.0.0"}
        info |= {f"slave{number}": "ip=10.0.0.2,port=1,state=online,offset=1,lag=0" for number in range(replicas)}
        traits = Traits(info, 3)
        self.fleet.adopt(0, self.connect(0), traits, traits.dialect)

    def submit(self, kind: str = "Acquire", key: bytes = b"the-key", flush: bool = True) -> Any:
        more = {"Acquire": (10_000,), "Extend": (10_000,), "AcquireFenced": (10_000, 5, 9)}.get(kind, ())
        keys = (key, key + b"fence") if kind == "AcquireFenced" else (key,)
        ballot = self.ballot(getattr(self.commands, kind)(*keys, b"token", self.now, *more), 1, 1, self.now + SECOND)
        ballot.waiter = object()
        self.fleet.submit(ballot)
        if flush:
            self.fleet.flush()
        return ballot

    def got(self) -> list[list[bytes]]:
        """Return the commands of the master that matter here, with the numbers of WAIT."""
        return [command if command[0] == b"WAIT" else command[:1] for command in self.commands_of(0)]

    def answer(self, *replies: bytes) -> None:
        self.reply(0, *replies)
        self.fleet.flush()


@pytest.fixture
def play(implementation: impl.Implementation) -> Iterator[Play]:
    play = Play(implementation)
    yield play
    play.close()


def test_a_yes_counts_once_all_replicas_have_it(play: Play) -> None:
    ballot = play.submit()
    # The timeout leaves time for the reply.
    assert play.got() == [[b"SET"], [b"WAIT", b"2", b"850"]]
    play.answer(OK)
    assert not ballot.decided
    play.answer(b":2\r\n")
    assert ballot.decided and ballot.yes == 1


def test_a_vote_that_too_few_replicas_have_fails(play: Play) -> None:
    ballot = play.submit()
    play.answer(OK, b":1\r\n")
    assert (ballot.yes, ballot.failed) == (0, 1)
    assert isinstance(ballot.causes[0], NotReplicated)
    assert str(ballot.causes[0]) == "master-0:1: 2 replicas must have a lock before it counts, 1 have the last writes"


def test_a_no_does_not_wait(play: Play) -> None:
    ballot = play.submit()
    play.answer(NIL)
    assert ballot.decided and ballot.no == 1


def test_one_wait_covers_all_commands_of_a_flush(play: Play) -> None:
    ballots = [play.submit(key=b"key-%d" % number, flush=False) for number in range(3)]
    play.fleet.flush()
    assert [command[0] for command in play.got()] == [b"SET", b"SET", b"SET", b"WAIT"]
    play.answer(OK, NIL, OK, b":2\r\n")
    assert [(ballot.yes, ballot.no) for ballot in ballots] == [(1, 0), (0, 1), (1, 0)]


def test_at_most_one_wait_is_outstanding(play: Play) -> None:
    first = play.submit(key=b"first")
    second = play.submit(key=b"second")
    assert [command[0] for command in play.got()] == [b"SET", b"WAIT", b"SET"]
    play.answer(OK, b":2\r\n")
    assert first.decided and not second.decided
    assert [command[0] for command in play.got()] == [b"WAIT"]
    play.answer(OK)
    play.answer(b":2\r\n")
    assert second.yes == 1


@pytest.mark.parametrize("kind", ["Release", "Owned"])
def test_releases_and_questions_do_not_wait(play: Play, kind: str) -> None:
    ballot = play.submit(kind)
    assert [command[0] for command in play.got()] == [b"EVALSHA"]
    play.answer(YES)
    assert ballot.yes == 1


@pytest.mark.parametrize(("kind", "reply"), [("Extend", YES), ("AcquireFenced", b":5\r\n")])
def test_extensions_and_numbers_wait(play: Play, kind: str, reply: bytes) -> None:
    ballot = play.submit(kind)
    play.answer(reply)
    assert not ballot.decided
    play.answer(b":2\r\n")
    assert ballot.yes == 1


def test_while_replicas_lag_commands_fail_at_once_and_are_not_sent(play: Play) -> None:
    play.submit()
    play.answer(OK, b":0\r\n")
    play.got()
    ballot = play.submit()
    assert ballot.failed == 1 and isinstance(ballot.causes[0], NotReplicated)
    assert play.got() == []


def test_a_short_wait_finds_that_the_replicas_are_back(play: Play) -> None:
    play.submit()
    play.answer(OK, b":0\r\n")
    play.got()
    play.now += PROBE_NS
    assert play.submit().failed == 1
    assert play.got() == [[b"WAIT", b"2", b"1"]]
    play.answer(b":2\r\n")
    ballot = play.submit()
    play.answer(OK, b":2\r\n")
    assert ballot.yes == 1


def test_no_replica_is_never_enough(implementation: impl.Implementation) -> None:
    play = Play(implementation, replicas=0)
    ballot = play.submit()
    assert play.got() == [[b"SET"], [b"WAIT", b"1", b"850"]]
    play.answer(OK, b":0\r\n")
    assert ballot.failed == 1
    assert str(ballot.causes[0]) == "master-0:1 has no replica that could take over"
    play.close()


def test_a_number_of_replicas_is_enough(implementation: impl.Implementation) -> None:
    play = Play(implementation, synced=1, replicas=3)
    ballot = play.submit()
    assert play.got() == [[b"SET"], [b"WAIT", b"1", b"850"]]
    play.answer(OK, b":1\r\n")
    assert ballot.yes == 1
    play.close()


def test_replicas_are_counted_once_a_second_and_a_new_one_must_have_the_vote_too(play: Play) -> None:
    play.now += SECOND
    ballot = play.submit()
    assert [command[0] for command in play.got()] == [b"SET", b"EVALSHA", b"WAIT"]
    play.answer(OK, b":3\r\n", b":2\r\n")
    assert not ballot.decided
    assert [command[:2] for command in play.got()] == [[b"WAIT", b"3"]]
    play.answer(b":3\r\n")
    assert ballot.yes == 1


def test_votes_that_wait_fail_if_the_connection_breaks(play: Play) -> None:
    ballot = play.submit()
    play.answer(OK)
    play.lose(0)
    assert ballot.failed == 1


def test_a_parked_command_waits_for_replicas_too(play: Play) -> None:
    play.lose(0)
    ballot = play.submit()
    play.adopt()
    play.fleet.flush()
    assert [command[0] for command in play.got()] == [b"SET", b"WAIT"]
    play.answer(OK)
    assert not ballot.decided
    play.answer(b":2\r\n")
    assert ballot.yes == 1


def test_a_vote_that_comes_behind_the_wait_of_its_flush_gets_another_one(play: Play) -> None:
    ballot = play.submit("Extend")
    play.answer(b"-NOSCRIPT No matching script\r\n")
    assert [command[0] for command in play.got()] == [b"EVALSHA", b"WAIT", b"EVAL"]
    play.answer(b":2\r\n", YES)
    assert not ballot.decided
    assert [command[0] for command in play.got()] == [b"WAIT"]
    play.answer(b":2\r\n")
    assert ballot.yes == 1


def test_a_server_that_refuses_wait_is_left(play: Play) -> None:
    ballot = play.submit()
    play.answer(OK, b"-NOPERM no permissions to run the 'wait' command\r\n")
    assert ballot.failed == 1
    assert play.fallen() == [0]


def test_closing_undoes_a_vote_that_waits(play: Play) -> None:
    ballot = play.submit()
    play.answer(OK)
    play.got()
    play.fleet.abandon()
    assert ballot.decided and not ballot.won()
    assert play.got() == [[b"EVALSHA"]]
