"""Horizons (G3): a vote on a ttl counts only from a master that had stored the ttl before the attempt began."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.far_ends import FarEnds

from redlatch import impl
from redlatch.errors import MasterQuarantined
from redlatch.votes.units import SECOND
from redlatch.wire.server_traits import Traits

FULL_TEXT, BY_SHA, DELIFEQ = range(3)
OK, NIL, YES, REFUSAL = b"+OK\r\n", b"_\r\n", b":1\r\n", b"-MISCONF no disk\r\n"
DEFAULT, LONG = 1000, 5000


class Monitor:
    """A monitor that believes every answer."""

    def __init__(self, horizon_ms: int) -> None:
        self.horizon_ms = horizon_ms

    def pulse(self) -> tuple[bytes, bytes, int]:
        return b"marker", b"identity", DEFAULT

    def refusal(self, ttl_ms: int) -> None:
        """Every ttl is allowed."""

    def answered(self, sent_ns: int, came_ns: int, server_us: int, horizon_ms: int) -> MasterQuarantined | None:
        assert sent_ns <= came_ns
        return None if server_us else MasterQuarantined("its marker was changed or is gone")

    def flushed(self, now_ns: int) -> MasterQuarantined:
        raise AssertionError("nobody flushes")


class Rig(FarEnds):
    """A guarded Fleet, whose masters the test plays."""

    def __init__(self, build: impl.Implementation, masters: int) -> None:
        self.commands = build.module("votes.commands")
        self.new: Any = build.module("votes.ballot").Ballot
        self.now_ns = build.module("wire.engine.net").now_ns
        addresses = [f"master-{index}:1" for index in range(masters)]
        clock = build.module("wire.engine.net").BootClock()
        super().__init__(build.module("wire.engine.fleet").Fleet(addresses, masters // 2 + 1, clock, True))
        self.tokens = iter(range(1, 1 << 30))

    def adopt(self, index: int, horizon_ms: int = DEFAULT) -> None:
        traits = Traits({"run_id": f"run-{index}", "role": "master", "redis_version": "9"}, 3, False)
        self.fleet.adopt(index, self.connect(index), traits, DELIFEQ, Monitor(horizon_ms))
        self.fleet.flush()

    def acquire(self, ttl_ms: int = DEFAULT, until_ns: int = 0, only: int | None = None) -> Any:
        command = self.commands.Acquire(b"key", b"token-%d" % next(self.tokens), self.now_ns(), ttl_ms)
        return self.submit(command, until_ns, only)

    def submit(self, command: Any, until_ns: int = 0, only: int | None = None) -> Any:
        ballot = self.new(command, self.fleet.size, self.fleet.quorum, until_ns)
        if only is not None:
            ballot.ask_only(only, until_ns)
        ballot.waiter = object()
        self.fleet.submit(ballot)
        self.fleet.flush()
        return ballot

    def got(self, index: int) -> list[tuple[str, bytes]]:
        """Return what a master received: the names of commands, each with a ttl or a horizon."""
        found = []
        for words in self.commands_of(index):
            name = words[0].decode()
            found.append(("PULSE" if name.startswith("EVAL") else name, words[-1]))
        return found

    def names(self, index: int) -> list[str]:
        return [name for name, _ in self.got(index)]

    def reply(self, index: int, *replies: bytes) -> None:
        super().reply(index, *replies)
        self.fleet.flush()

    def beat(self, index: int, horizon_ms: int) -> bytes:
        """Return the answer to a pulse."""
        return b"+1800000000000000 %d\r\n" % horizon_ms

    def lose(self, index: int) -> None:
        super().lose(index)
        self.fleet.flush()

    def wait(self) -> None:
        """Wait until the masters that have not answered are suspected."""
        while self.fleet.silence.waiting:
            self.fleet.pump(SECOND)
        self.fleet.flush()

    def settle(self) -> None:
        """Answer the pulse that goes ahead of the first command, and forget what the masters received."""
        for index in self.far:
            for name in self.names(index):
                self.reply(index, {"PULSE": self.beat(index, DEFAULT), "SET": OK, "DELIFEQ": YES}[name])


@pytest.fixture
def dialling(implementation: impl.Implementation) -> Iterator[Rig]:
    """Three masters, none connected yet."""
    rig = Rig(implementation, 3)
    yield rig
    rig.close()


@pytest.fixture
def rig(dialling: Rig) -> Rig:
    """Three masters, which have stored the default ttl."""
    for index in range(3):
        dialling.adopt(index)
    dialling.acquire()
    dialling.settle()
    return dialling


def test_a_ttl_that_all_masters_have_stored_costs_no_round_trip(rig: Rig) -> None:
    ballot = rig.acquire()
    assert [rig.got(index) for index in range(3)] == [[("SET", b"%d" % DEFAULT)]] * 3
    for index in range(2):
        rig.reply(index, OK)
    assert ballot.decided and ballot.won()


def test_a_longer_ttl_is_stored_by_a_quorum_before_any_master_gets_the_command(rig: Rig) -> None:
    ballot = rig.acquire(LONG)
    assert [rig.got(index) for index in range(3)] == [[("PULSE", b"%d" % LONG)]] * 3
    rig.reply(0, rig.beat(0, LONG))
    assert [rig.names(index) for index in range(3)] == [[]] * 3
    rig.reply(1, rig.beat(1, LONG))
    assert [rig.names(index) for index in range(3)] == [[]] * 3
    rig.reply(2, rig.beat(2, LONG))
    assert [rig.names(index) for index in range(3)] == [["SET"]] * 3
    assert (ballot.failed, ballot.decided) == (0, False)
    rig.reply(0, OK)
    rig.reply(1, OK)
    assert ballot.decided and ballot.won()


def test_a_silent_master_gets_the_command_with_the_others_and_has_no_vote(rig: Rig) -> None:
    ballot = rig.acquire(LONG)
    for index in range(2):
        rig.reply(index, rig.beat(index, LONG))
        assert rig.names(index) == ["PULSE"]
    rig.wait()
    assert [rig.names(index) for index in range(3)] == [["SET"], ["SET"], ["PULSE", "SET"]]
    rig.reply(2, rig.beat(2, LONG) + OK)
    rig.reply(0, OK)
    assert (ballot.yes, ballot.failed, ballot.decided) == (1, 1, False)


def test_a_master_that_stores_the_ttl_during_an_attempt_votes_on_the_next_one(rig: Rig) -> None:
    first = rig.acquire(LONG)
    for index in range(2):
        rig.reply(index, rig.beat(index, LONG))
    rig.wait()
    rig.reply(2, rig.beat(2, LONG))
    assert [rig.names(index) for index in range(3)] == [["PULSE", "SET"]] * 3
    assert first.failed == 1
    rig.acquire(LONG)
    assert [rig.names(index) for index in range(3)] == [["SET"]] * 3


def test_a_silent_master_that_sends_a_late_byte_is_suspected_again(rig: Rig) -> None:
    """Found by an attack: nobody waited for it a second time, so that each attempt waited until its end."""
    ballot = rig.acquire(LONG)
    for index in range(2):
        rig.reply(index, rig.beat(index, LONG))
    for late in (b"+", b"1", b"8"):  # of its answer to the raise, which does not come
        rig.wait()
        for index in range(2):
            assert rig.names(index)[-1:] == ["SET"]
            rig.reply(index, OK)
        rig.wait()
        assert ballot.decided and ballot.won()
        rig.reply(2, late)
        ballot = rig.acquire(LONG)
        assert [rig.names(index) for index in range(2)] == [[], []]


def test_one_pulse_raises_the_horizon_for_all_that_wait(rig: Rig) -> None:
    ballots = [rig.acquire(LONG) for _ in range(3)]
    assert rig.names(0) == ["PULSE"]
    for index in range(3):
        rig.reply(index, rig.beat(index, LONG))
    assert rig.names(0) == ["SET"] * 3
    assert not any(ballot.decided for ballot in ballots)


def test_other_commands_do_not_wait(rig: Rig) -> None:
    rig.acquire(LONG)
    rig.submit(rig.commands.Owned(b"key", b"t", rig.now_ns()))
    rig.acquire()
    assert rig.names(0)[0] == "PULSE"
    assert len(rig.names(1)) == 3


def test_a_release_takes_back_what_was_not_sent(rig: Rig) -> None:
    ballot = rig.acquire(LONG)
    rig.submit(ballot.command.undo())
    for index in range(3):
        rig.reply(index, rig.beat(index, LONG))
    assert [rig.names(index) for index in range(3)] == [["PULSE", "DELIFEQ"]] * 3
    assert not ballot.decided


def test_an_attempt_whose_time_is_over_is_not_sent(rig: Rig) -> None:
    ballot = rig.acquire(LONG, until_ns=rig.now_ns())
    rig.fleet.record_silent(ballot)
    assert ballot.silent == (0, 1, 2)
    for index in range(2):
        rig.reply(index, rig.beat(index, LONG))
    assert rig.names(0) == ["PULSE"]
    assert not rig.fleet.held
    # The driver may ask again, after the ballot was given up.
    rig.fleet.record_silent(ballot)
    assert ballot.silent == (1, 2)


def test_a_quorum_that_refuses_to_store_a_ttl_fails_the_attempt_and_says_why(rig: Rig) -> None:
    ballot = rig.acquire(LONG)
    rig.reply(0, REFUSAL)
    assert not ballot.decided
    rig.reply(1, REFUSAL)
    assert ballot.decided and ballot.unavailable()
    assert [str(ballot.causes[index]) for index in range(2)] == ["MISCONF no disk"] * 2
    assert set(ballot.causes) == {0, 1}
    assert not rig.fleet.held


def test_the_next_attempt_waits_for_masters_that_refused_an_earlier_one(rig: Rig) -> None:
    rig.acquire(LONG)
    for index in range(2):
        rig.reply(index, REFUSAL)
    ballot = rig.acquire(LONG)
    assert not ballot.decided
    rig.adopt(1, LONG)
    rig.reply(2, rig.beat(2, LONG))
    assert not ballot.decided
    assert [rig.names(index)[-1] for index in (1, 2)] == ["SET", "SET"]


def test_a_master_whose_raise_fails_does_not_hold_up_the_others(rig: Rig) -> None:
    ballot = rig.acquire(LONG)
    rig.reply(0, REFUSAL)
    rig.reply(1, rig.beat(1, LONG))
    rig.reply(2, rig.beat(2, LONG))
    assert [rig.names(index) for index in (1, 2)] == [["PULSE", "SET"]] * 2
    assert ballot.failed == 1


def test_a_ballot_goes_on_when_the_master_that_it_waits_for_breaks_during_a_flush(rig: Rig) -> None:
    ballot = rig.acquire(LONG)
    for index in range(2):
        rig.reply(index, rig.beat(index, LONG))
    rig.far[2].close()
    rig.submit(rig.commands.Owned(b"key", b"t", rig.now_ns()))
    assert not rig.fleet.links[2].up
    assert [rig.names(index)[-1] for index in range(2)] == ["SET", "SET"]
    assert (ballot.failed, ballot.decided) == (1, False)


TOO_LOW = b"+1800000000000000 %d\r\n" % (LONG - 1)


@pytest.mark.parametrize("answer", [TOO_LOW, b":0\r\n", b":1800000000000000\r\n", b"+OK\r\n", b"+1 2 3\r\n", b"_\r\n"])
def test_a_pulse_without_the_expected_answer_closes_the_connection(rig: Rig, answer: bytes) -> None:
    rig.acquire(LONG)
    rig.reply(0, answer)
    assert not rig.fleet.links[0].up


def test_a_client_with_a_longer_default_ttl_raises_the_horizon_when_it_connects(dialling: Rig) -> None:
    for index in range(3):
        dialling.adopt(index, DEFAULT - 1)
        assert dialling.got(index) == [("PULSE", b"%d" % DEFAULT)]
    ballot = dialling.acquire()
    for index in range(3):
        assert dialling.names(index) in ([], ["PULSE"])
        dialling.reply(index, dialling.beat(index, DEFAULT))
    assert not ballot.decided
    assert dialling.names(1)[-1] == "SET"


def test_no_byte_leaves_before_a_quorum_is_connected(dialling: Rig) -> None:
    ballot = dialling.acquire()
    dialling.adopt(0)
    assert "SET" not in dialling.names(0)
    dialling.adopt(2)
    assert [dialling.names(index)[-1] for index in (0, 2)] == ["SET", "SET"]
    assert (ballot.failed, ballot.decided) == (1, False)


def test_a_pulse_goes_ahead_of_an_attempt_that_waited_for_connections(dialling: Rig) -> None:
    """Without it, votes would count although the marker may expire at any moment."""
    dialling.acquire()
    dialling.acquire()
    dialling.adopt(0)
    dialling.adopt(2)
    assert [dialling.names(index) for index in (0, 2)] == [["PULSE", "SET", "SET"]] * 2


def test_an_attempt_fails_when_a_quorum_cannot_be_connected(dialling: Rig) -> None:
    ballot = dialling.acquire()
    dialling.fleet.fail(0, ConnectionRefusedError("no"))
    assert not ballot.decided
    dialling.fleet.fail(1, ConnectionRefusedError("no"))
    assert ballot.decided and ballot.unavailable()
    assert not dialling.fleet.held


def test_a_broken_connection_starts_again_from_the_horizon_that_is_read(rig: Rig) -> None:
    rig.acquire(LONG)
    for index in range(3):
        rig.reply(index, rig.beat(index, LONG))
        rig.got(index)
    rig.lose(2)
    rig.adopt(2, DEFAULT)
    for index in range(3):
        rig.got(index)
    ballot = rig.acquire(LONG)
    assert "SET" not in rig.names(0)
    assert rig.got(2) == [("PULSE", b"%d" % DEFAULT), ("PULSE", b"%d" % LONG)]
    rig.reply(2, rig.beat(2, DEFAULT), rig.beat(2, LONG))
    assert "SET" in rig.names(0)
    assert ballot.failed == 0


def test_a_master_that_connects_between_two_parts_of_an_attempt_has_no_vote(rig: Rig) -> None:
    rig.lose(2)
    first = rig.acquire(only=0)
    assert "SET" in rig.names(0)
    rig.adopt(2)
    rig.reply(0, OK)
    second = first.ask_others(3, 2, rig.now_ns() + SECOND)
    second.waiter = object()
    rig.fleet.submit(second)
    rig.fleet.flush()
    assert "SET" in rig.names(1)
    assert rig.names(2) == ["SET"]
    rig.reply(2, OK)
    assert rig.fleet.links[2].up
    assert (second.yes, second.failed) == (0, 1)


def test_a_lone_ballot_waits_for_a_quorum_too(rig: Rig) -> None:
    rig.acquire(LONG, only=1)
    assert [rig.names(index) for index in range(3)] == [["PULSE"]] * 3
    rig.reply(1, rig.beat(1, LONG))
    assert rig.names(1) == []
    rig.reply(2, rig.beat(2, LONG))
    assert rig.names(1) == []
    rig.wait()
    assert [rig.names(index) for index in range(3)] == [[], ["SET"], []]


def test_what_waits_is_withdrawn_when_the_client_closes(rig: Rig) -> None:
    ballot = rig.acquire(LONG)
    rig.fleet.abandon()
    for index in range(3):
        rig.reply(index, rig.beat(index, LONG))
        assert rig.names(index) == ["PULSE"]
    assert not ballot.won()


def test_a_look_sends_a_pulse_on_every_link(rig: Rig) -> None:
    rig.fleet.look()
    rig.fleet.flush()
    assert [rig.names(index) for index in range(3)] == [["PULSE"]] * 3


def test_without_a_guard_every_ttl_is_sent_at_once(implementation: impl.Implementation) -> None:
    clock = implementation.module("wire.engine.net").BootClock()
    fleet = implementation.module("wire.engine.fleet").Fleet(["a:1"], 1, clock)
    assert fleet.horizon_ms > 1 << 60
    ballot = implementation.module("votes.ballot").Ballot(
        implementation.module("votes.commands").Acquire(b"key", b"token", 0, 1 << 40), 1, 1
    )
    fleet.submit(ballot)
    assert list(fleet.links[0].parked) == [ballot]


# --- other masters (see `Fleet.replace`) ------------------------------------------------------------------


class Moving(Rig):
    """A guarded Fleet of two masters with room for three."""

    def __init__(self, build: impl.Implementation) -> None:
        super().__init__(build, 2)
        clock = build.module("wire.engine.net").BootClock()
        self.fleet = build.module("wire.engine.fleet").Fleet(["a:1", "b:1"], 2, clock, True, 3)

    def move(self) -> None:
        self.fleet.replace(["c:1", "d:1", "e:1"], 2, ConnectionAbortedError("left"))


@pytest.fixture
def moving(implementation: impl.Implementation) -> Iterator[Moving]:
    rig = Moving(implementation)
    yield rig
    rig.close()


def test_all_that_is_under_way_fails_when_the_masters_are_replaced(moving: Moving) -> None:
    moving.adopt(0)
    sent = moving.acquire()
    held = moving.acquire(LONG)
    parked = moving.submit(moving.commands.Release(b"key", b"token", moving.now_ns()))
    moving.move()
    for ballot in (sent, held, parked):
        assert (ballot.decided, ballot.failed) == (True, 2)
        assert {str(cause) for cause in ballot.causes.values()} <= {"left"}
    assert [link.address for link, _ in moving.fleet.fallen] == ["a:1"]
    assert [link.address for link in moving.fleet.links] == ["c:1", "d:1", "e:1"]


@pytest.mark.parametrize("only", [None, 1])
def test_an_attempt_that_was_made_before_is_not_sent_to_the_new_masters(moving: Moving, only: int | None) -> None:
    """It would count the votes of two masters as a quorum of five, say."""
    command = moving.commands.Acquire(b"key", b"early", moving.now_ns(), DEFAULT)
    ballot = moving.new(command, moving.fleet.size, moving.fleet.quorum, 0)
    if only is not None:
        ballot.ask_only(only, 0)
    moving.move()
    for index in range(3):
        moving.adopt(index)
        moving.got(index)
    moving.fleet.submit(ballot)
    moving.fleet.flush()
    assert ballot.decided
    assert ballot.unavailable()
    assert [moving.got(index) for index in range(3)] == [[], [], []]


def test_attempts_that_were_made_afterwards_are_sent(moving: Moving) -> None:
    moving.move()
    for index in range(3):
        moving.adopt(index)
    ballot = moving.acquire()
    assert ("SET", b"%d" % DEFAULT) in moving.got(2)
    assert (ballot.size, ballot.quorum) == (3, 2)


def test_a_link_without_a_monitor_takes_releases_and_has_no_vote_on_a_ttl(moving: Moving) -> None:
    traits = Traits({"run_id": "run-0", "role": "master", "redis_version": "9"}, 3, False)
    for index in range(2):
        moving.fleet.adopt(index, moving.connect(index), traits, DELIFEQ)
    attempt = moving.acquire()
    assert (attempt.decided, attempt.failed) == (True, 2)
    release = moving.submit(moving.commands.Release(b"key", b"token", moving.now_ns()))
    names = moving.names(0)
    assert names[-1] == "DELIFEQ"
    moving.reply(0, *[OK if name == "SET" else YES for name in names])
    assert release.yes == 1
