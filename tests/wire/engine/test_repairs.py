"""Repairs: after a quorum has extended a lock, the engine sets its key again on the masters that lack it (row 73)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.far_ends import FarEnds
from support.scripted_votes import KEY, MS, SECOND, TTL_MS, Play

from redlatch import impl
from redlatch.wire.server_traits import Traits

from .test_horizon import Monitor

DELIFEQ = 2
OK, NIL, YES, NO, OOM = b"+OK\r\n", b"_\r\n", b":1\r\n", b":0\r\n", b"-OOM no memory\r\n"


class Rig(FarEnds):
    """A holder whose masters the test plays.

    Args:
        guarded: whether the fleet has a guard.
    """

    def __init__(self, build: impl.Implementation, guarded: bool) -> None:
        self.play = Play(3, build=build)
        self.hold = self.play.hold
        assert self.play.acquire("yyy")
        clock = self.play.quorum.clock
        super().__init__(build.module("wire.engine.fleet").Fleet(list(self.play.quorum.masters), 2, clock, guarded))
        self.guarded = guarded
        for index in range(3):
            self.adopt(index)
        self.play.now += MS

    def adopt(self, index: int, horizon_ms: int = TTL_MS) -> None:
        traits = Traits({"run_id": f"run-{index}", "role": "master", "redis_version": "9"}, 3, False)
        monitor = Monitor(horizon_ms) if self.guarded else None
        self.fleet.adopt(index, self.connect(index), traits, DELIFEQ, monitor)
        self.fleet.flush()
        # The next pulse is far away.
        self.fleet.pulse_ns = 1 << 62

    def extend(self, ttl_ms: int = TTL_MS) -> Any:
        """Begin an extension, and return its ballot."""
        ballot = next(self.play.extending(self.play.quorum, self.hold, ttl_ms))
        ballot.waiter = object()
        self.fleet.submit(ballot)
        self.fleet.flush()
        assert [self.names(index) for index in range(3)] == [["EVALSHA"]] * 3
        return ballot

    def release(self) -> None:
        """Begin a release, as its caller does."""
        steps = self.play.releasing(self.play.quorum, self.hold, SECOND)
        self.fleet.submit(next(steps))
        self.fleet.flush()

    def names(self, index: int) -> list[str]:
        """Return the names of the commands that a master received."""
        return [words[0].decode() for words in self.commands_of(index)]

    def reply(self, index: int, *replies: bytes) -> None:
        super().reply(index, *replies)
        self.fleet.flush()


@pytest.fixture(params=[True, False], ids=["guarded", "unguarded"])
def rig(request: pytest.FixtureRequest, implementation: impl.Implementation) -> Iterator[Rig]:
    rig = Rig(implementation, request.param)
    yield rig
    rig.close()


@pytest.fixture
def guarded(implementation: impl.Implementation) -> Iterator[Rig]:
    rig = Rig(implementation, True)
    yield rig
    rig.close()


@pytest.mark.parametrize("order", [(2, 0, 1), (0, 2, 1), (0, 1, 2)], ids=["first", "second", "last"])
def test_a_master_that_lacks_the_key_gets_it_whenever_it_answers(rig: Rig, order: tuple[int, ...]) -> None:
    rig.extend()
    for index in order:
        rig.reply(index, NO if index == 2 else YES)
    assert [rig.names(index) for index in (0, 1)] == [[], []]
    [words] = rig.commands_of(2)
    assert words[:4] + words[4:5] == [b"SET", KEY, rig.hold.token, b"NX", b"PX"]
    assert 0 < int(words[5]) < TTL_MS


def test_the_usual_extension_sends_nothing_more(rig: Rig) -> None:
    rig.extend()
    for index in range(3):
        rig.reply(index, YES)
    assert [rig.names(index) for index in range(3)] == [[], [], []]


@pytest.mark.parametrize("others", [(NO, YES), (OOM, YES), (NO, NO)])
def test_without_a_quorum_no_key_is_set(rig: Rig, others: tuple[bytes, bytes]) -> None:
    ballot = rig.extend()
    rig.reply(0, others[0])
    rig.reply(1, others[1])
    rig.reply(2, NO)
    assert ballot.decided
    assert [rig.names(index) for index in range(3)] == [[], [], []]


@pytest.mark.parametrize("answer", [OK, NIL, OOM])
def test_a_repair_is_no_vote_whatever_its_answer_is(rig: Rig, answer: bytes) -> None:
    ballot = rig.extend()
    for index, vote in enumerate((YES, YES, NO)):
        rig.reply(index, vote)
    rig.reply(2, answer)
    assert (ballot.yes, ballot.no, ballot.failed) == (2, 1, 0)
    assert rig.fleet.links[2].up
    # A rival may have had the key for a moment.
    assert rig.names(2) == ["SET", "SET"] if answer == NIL else ["SET"]


def test_a_repair_that_is_refused_is_sent_again_a_few_times(rig: Rig) -> None:
    rig.extend()
    for index, vote in enumerate((YES, YES, NO)):
        rig.reply(index, vote)
    sent = 0
    while rig.names(2):
        sent += 1
        rig.reply(2, NIL)
    assert sent == 8
    assert not rig.fleet.links[2].owing()


def test_a_repair_that_is_refused_is_not_sent_again_behind_a_release(rig: Rig) -> None:
    rig.extend()
    for index, vote in enumerate((YES, YES, NO)):
        rig.reply(index, vote)
    rig.release()
    rig.reply(2, NIL)
    assert rig.names(2) == ["SET", "DELIFEQ"]


def test_no_repair_follows_a_release(rig: Rig) -> None:
    rig.extend()
    rig.reply(0, YES)
    rig.reply(1, YES)
    rig.release()
    rig.reply(2, NO)
    assert rig.names(2) == ["DELIFEQ"]


def test_a_release_follows_the_repair_on_the_same_connection(rig: Rig) -> None:
    rig.extend()
    rig.reply(2, NO)
    rig.reply(0, YES)
    rig.reply(1, YES)
    rig.release()
    assert rig.names(2) == ["SET", "DELIFEQ"]


def test_the_release_is_owed_if_the_connection_breaks_after_the_repair(rig: Rig) -> None:
    rig.extend()
    rig.reply(2, NO)
    rig.reply(0, YES)
    rig.reply(1, YES)
    rig.lose(2)
    rig.fleet.fail(2, OSError("refused"))
    rig.play.now += MS
    rig.release()
    rig.adopt(2)
    assert rig.names(2)[0] == "DELIFEQ"


@pytest.mark.parametrize("horizon_ms", [TTL_MS, TTL_MS // 2])
def test_a_connection_that_was_made_since_the_extension_gets_no_repair(guarded: Rig, horizon_ms: int) -> None:
    guarded.extend()
    guarded.reply(2, NO)
    guarded.lose(2)
    guarded.play.now += MS
    guarded.adopt(2, horizon_ms)
    guarded.names(2)
    guarded.reply(0, YES)
    guarded.reply(1, YES)
    assert "SET" not in guarded.names(2)


def test_a_master_that_does_not_know_the_ttl_gets_no_repair(guarded: Rig) -> None:
    guarded.lose(2)
    guarded.adopt(2, TTL_MS // 2)
    guarded.names(2)
    ballot = next(guarded.play.extending(guarded.play.quorum, guarded.hold, TTL_MS))
    ballot.waiter = object()
    # It does not answer the raise, and the others do not wait for it.
    link = guarded.fleet.links[2]
    link.suspected = True
    guarded.fleet.submit(ballot)
    guarded.fleet.flush()
    assert guarded.names(2) == ["EVALSHA"]
    for index in (0, 1):
        guarded.reply(index, YES)
    assert (ballot.yes, ballot.failed) == (2, 1)
    guarded.reply(2, b"+1800000000000000 1000\r\n", NO)
    assert guarded.names(2) == []
    link.suspected = False


def test_a_master_of_an_earlier_list_gets_no_repair(rig: Rig) -> None:
    rig.extend()
    rig.reply(2, NO)
    rig.fleet.replace([f"other-{index}:1" for index in range(3)], 2, ConnectionAbortedError("moved"))
    rig.fallen()
    rig.adopt(2)
    assert rig.names(2) == []
