"""The engine over socket pairs: the test plays the masters, byte by byte."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.far_ends import FarEnds

from redlatch import impl
from redlatch.wire.server_traits import Traits

FULL_TEXT, BY_SHA, DELIFEQ = range(3)
OK, NIL, NULL, YES, NO = b"+OK\r\n", b"$-1\r\n", b"_\r\n", b":1\r\n", b":0\r\n"
BUSY = b"-BUSY a script runs\r\n"
NOSCRIPT = b"-NOSCRIPT No matching script\r\n"
UNKNOWN = b"-ERR unknown command 'DELIFEQ', with args beginning with: \r\n"
NOPERM = b"-NOPERM User lk has no permissions to run the 'delifeq' command\r\n"


class Rig(FarEnds):
    """A Fleet without a guard, whose masters the test plays."""

    def __init__(self, build: impl.Implementation, masters: int, dialect: int = DELIFEQ, up: bool = True) -> None:
        self.engine = build.module("wire.engine.fleet")
        self.ballot: Any = build.module("votes.ballot").Ballot
        self.watch: Any = build.module("quorum.waiting.watches").Watch
        self.commands = build.module("votes.commands")
        self.now_ns = build.module("wire.engine.net").now_ns
        addresses = [f"master-{index}:1" for index in range(masters)]
        super().__init__(self.engine.Fleet(addresses, masters // 2 + 1, build.module("wire.engine.net").BootClock()))
        self.dialect = dialect
        self.tokens = (b"token-%d" % number for number in itertools.count(1))
        for index in range(masters if up else 0):
            self.adopt(index)

    def adopt(self, index: int, dialect: int | None = None, tracking: bool = False) -> None:
        """Give link `index` a new connection."""
        traits = Traits({"run_id": f"run-{index}", "role": "master", "redis_version": "7.0.0"}, 3, tracking)
        self.fleet.adopt(index, self.connect(index), traits, self.dialect if dialect is None else dialect)

    def submit(self, kind: str = "Acquire", token: bytes | None = None, since_ns: int = 0, flush: bool = True) -> Any:
        """Submit one command with a waiter, and send it."""
        more = (10_000,) if kind in ("Acquire", "Extend") else ()
        command = getattr(self.commands, kind)(b"the-key", token or next(self.tokens), since_ns, *more)
        ballot = self.ballot(command, self.fleet.size, self.fleet.quorum)
        ballot.waiter = object()
        self.fleet.submit(ballot)
        if flush:
            self.fleet.flush()
        return ballot

    def got(self, index: int) -> list[tuple[str, bytes]]:
        """Return what master `index` received since the last call: (name of the command, token)."""
        found = []
        for command in self.commands_of(index):
            name = command[0].decode()
            token = {"SET": 2, "DELIFEQ": 2, "DELEX": 3}.get(name, 4)
            found.append((name, command[token] if len(command) > token else b""))
        return found

    def votes(self, ballot: Any) -> tuple[int, int, int]:
        return ballot.yes, ballot.no, ballot.failed

    def is_up(self, index: int) -> bool:
        return self.fleet.links[index].reader is not None


@pytest.fixture
def rig(implementation: impl.Implementation) -> Iterator[Rig]:
    """Three masters, all connected."""
    rig = Rig(implementation, 3)
    yield rig
    rig.close()


@pytest.fixture
def dialling(implementation: impl.Implementation) -> Iterator[Rig]:
    """Three masters, none connected yet."""
    rig = Rig(implementation, 3, up=False)
    yield rig
    rig.close()


# --- row 42: silent masters ---------------------------------------------------------------------------


def split_vote(rig: Rig, kind: str = "Acquire") -> Any:
    """Submit a command that master 0 accepts and master 1 refuses; master 2 has not answered."""
    ballot = rig.submit(kind, since_ns=rig.now_ns())
    rig.reply(0, b"+OK\r\n" if kind == "Acquire" else b":1\r\n")
    rig.reply(1, b"$-1\r\n" if kind == "Acquire" else b":0\r\n")
    return ballot


def wait_out(rig: Rig, ballot: Any) -> None:
    """Pump until the ballot is decided, or until it no longer waits for silent masters."""
    while not ballot.decided and rig.fleet.silence.waiting:
        rig.fleet.pump(1_000_000_000)


@pytest.mark.parametrize("kind", ["Acquire", "Release"])
def test_row_42_a_split_vote_waits_a_few_rounds_for_a_silent_master(rig: Rig, kind: str) -> None:
    ballot = split_vote(rig, kind)
    assert not ballot.decided
    assert ballot.hurry_ns - rig.now_ns() < 1_000_000_000
    wait_out(rig, ballot)
    assert ballot.decided
    assert ballot.yes < ballot.quorum
    assert not ballot.unavailable()
    assert rig.fleet.decided == [ballot]


def test_row_42_a_split_vote_does_not_wait_for_a_suspected_master(rig: Rig) -> None:
    wait_out(rig, split_vote(rig))
    assert rig.fleet.silence.suspects == 1
    assert split_vote(rig).decided
    rig.got(2)
    assert [name for name, _ in rig.got(2)] == []
    rig.submit()
    # The suspected master still gets the command.
    assert [name for name, _ in rig.got(2)] == ["SET"]


def test_row_42_ballots_wait_again_for_a_suspected_master_that_answers(rig: Rig) -> None:
    wait_out(rig, split_vote(rig))
    rig.reply(2, b"+OK\r\n")
    assert rig.fleet.silence.suspects == 0
    # However slow this process is, it is not late now.
    rig.fleet.links[2].silent_ns = 60_000_000_000
    ballot = split_vote(rig)
    assert not ballot.decided
    rig.reply(2, b"+OK\r\n")
    assert ballot.decided
    assert ballot.yes == 2


def test_row_42_a_new_connection_ends_the_suspicion(rig: Rig) -> None:
    wait_out(rig, split_vote(rig))
    rig.lose(2)
    assert rig.fleet.silence.suspects == 0
    rig.adopt(2)
    assert not split_vote(rig).decided


def test_row_42_a_master_whose_votes_are_always_late_gets_more_patience(rig: Rig) -> None:
    link = rig.fleet.links[2]
    patience = link.silent_ns
    for _ in range(2):
        assert link.silent_ns == patience
        wait_out(rig, split_vote(rig))
        # Pretend that its vote is 30 ms later.
        link.suspected_ns -= 30_000_000
        rig.reply(2, b"+OK\r\n")
    assert patience + 30_000_000 < link.silent_ns / 2 < patience + 250_000_000
    ballot = split_vote(rig)
    assert ballot.hurry_ns - rig.now_ns() > 30_000_000


def test_row_42_a_vote_after_a_stop_does_not_increase_the_patience(rig: Rig) -> None:
    link = rig.fleet.links[2]
    patience = link.silent_ns
    for late_ns in (30_000_000, 300_000_000, 30_000_000, 300_000_000):
        wait_out(rig, split_vote(rig))
        link.suspected_ns -= late_ns
        rig.reply(2, b"+OK\r\n")
    assert link.silent_ns == patience


def test_row_42_a_new_connection_resets_the_lateness_of_votes(rig: Rig) -> None:
    link = rig.fleet.links[2]
    wait_out(rig, split_vote(rig))
    rig.lose(2)
    rig.adopt(2)
    rig.submit()
    rig.reply(2, b"+OK\r\n")
    assert link.late_ns == 0


def test_row_42_an_unawaited_release_counts_the_answer_of_a_suspected_master(rig: Rig) -> None:
    wait_out(rig, split_vote(rig))
    ballot = rig.submit("Release")
    ballot.waiter, ballot.released_lock = None, object()
    rig.reply(0, b":1\r\n")
    rig.reply(1, b":0\r\n")
    wait_out(rig, ballot)
    rig.reply(2, b"+OK\r\n", b":0\r\n")
    assert rig.fleet.lost == [ballot]


def test_row_42_a_master_that_is_dialled_for_long_is_suspected(rig: Rig) -> None:
    rig.lose(2)
    ballot = split_vote(rig)
    assert not ballot.decided
    wait_out(rig, ballot)
    assert ballot.decided
    assert rig.fleet.silence.suspects == 1
    rig.adopt(2)
    assert rig.fleet.silence.suspects == 0


def test_row_42_a_ballot_waits_for_silent_masters_until_a_quorum_has_voted(rig: Rig) -> None:
    wait_out(rig, split_vote(rig))
    ballot = rig.submit()
    rig.reply(0, b"+OK\r\n")
    rig.reply(1, b"-LOADING\r\n")
    assert not ballot.decided
    rig.reply(2, b"+OK\r\n", b"+OK\r\n")
    assert ballot.yes == 2


@pytest.mark.parametrize("kind", ["Extend", "Owned", "Locked"])
def test_row_42_queries_and_extensions_wait_for_a_suspected_master(rig: Rig, kind: str) -> None:
    wait_out(rig, split_vote(rig))
    ballot = split_vote(rig, kind)
    assert not ballot.decided
    rig.reply(2, b"+OK\r\n", b":1\r\n")
    assert ballot.decided
    assert ballot.yes == 2


def test_row_42_a_suspected_master_is_not_asked_alone(rig: Rig) -> None:
    wait_out(rig, split_vote(rig))
    command = rig.commands.Acquire(b"the-key", b"token", rig.now_ns(), 10_000)
    ballot = rig.ballot(command, 3, 2)
    ballot.waiter = object()
    ballot.ask_only(2, rig.now_ns() + 10**9)
    rig.fleet.submit(ballot)
    assert ballot.decided
    assert ballot.yes == ballot.no == 0


# --- votes -------------------------------------------------------------------------------------------


def test_a_command_reaches_every_master_with_one_flush(rig: Rig) -> None:
    ballot = rig.submit()
    assert [rig.got(index) for index in range(3)] == [[("SET", ballot.command.token)]] * 3


def test_nothing_is_sent_before_the_flush(rig: Rig) -> None:
    rig.submit(flush=False)
    assert rig.got(0) == []


def test_yes_no_and_error_are_counted_separately(rig: Rig) -> None:
    ballot = rig.submit()
    rig.reply(0, OK)
    rig.reply(1, NULL)
    rig.reply(2, BUSY)
    assert rig.votes(ballot) == (1, 1, 1)
    assert {index: str(cause) for index, cause in ballot.causes.items()} == {2: "BUSY a script ..."}
    assert all(rig.is_up(index) for index in range(3))


@pytest.mark.parametrize("nothing", [NULL, NIL])
def test_null_in_either_protocol_is_a_no_to_an_acquire(rig: Rig, nothing: bytes) -> None:
    ballot = rig.submit()
    rig.reply(0, nothing)
    assert rig.votes(ballot) == (0, 1, 0)


@pytest.mark.parametrize("kind", ["Release", "Extend", "Owned", "Locked"])
def test_1_and_0_are_yes_and_no_to_everything_else(rig: Rig, kind: str) -> None:
    ballot = rig.submit(kind)
    rig.reply(0, YES)
    rig.reply(1, NO)
    assert rig.votes(ballot) == (1, 1, 0)


def test_replies_are_assigned_to_ballots_in_the_order_of_their_commands(rig: Rig) -> None:
    first, second, third = rig.submit(), rig.submit("Release"), rig.submit()
    rig.reply(0, OK, NO, NULL)
    assert [rig.votes(each) for each in (first, second, third)] == [(1, 0, 0), (0, 1, 0), (0, 1, 0)]


def test_every_master_has_an_order_of_its_own(rig: Rig) -> None:
    first, second = rig.submit(), rig.submit()
    rig.reply(0, OK, NULL)
    rig.reply(1, OK)
    assert rig.votes(first) == (2, 0, 0)
    assert rig.votes(second) == (0, 1, 0)


def test_a_ballot_is_decided_by_a_quorum_of_yes_before_the_rest_has_answered(rig: Rig) -> None:
    ballot = rig.submit()
    rig.reply(0, OK)
    assert not ballot.decided and rig.fleet.decided == []
    rig.reply(1, OK)
    assert ballot.decided and rig.fleet.decided == [ballot]


def test_a_ballot_is_decided_when_no_quorum_can_say_yes_any_more(rig: Rig) -> None:
    ballot = rig.submit()
    rig.reply(0, NULL)
    assert not ballot.decided
    rig.reply(1, BUSY)
    assert ballot.decided


def test_a_ballot_is_decided_only_once(rig: Rig) -> None:
    ballot = rig.submit()
    for index in range(3):
        rig.reply(index, OK)
    assert rig.fleet.decided == [ballot]


def test_a_ballot_without_a_waiter_is_not_reported(rig: Rig) -> None:
    ballot = rig.ballot(rig.commands.Release(b"k", b"t", 0), 3, 2)
    rig.fleet.submit(ballot)
    rig.fleet.flush()
    rig.reply(0, YES)
    rig.reply(1, YES)
    assert ballot.decided and rig.fleet.decided == []


def test_a_late_reply_is_counted_for_its_own_ballot_and_not_for_the_next(rig: Rig) -> None:
    first = rig.submit()
    rig.reply(0, OK)
    rig.reply(1, OK)
    second = rig.submit()
    rig.reply(2, NULL)
    assert rig.votes(first) == (2, 1, 0)
    assert rig.votes(second) == (0, 0, 0)
    rig.reply(2, OK)
    assert rig.votes(second) == (1, 0, 0)


@given(votes=st.lists(st.sampled_from("yn!"), min_size=1, max_size=7), data=st.data())
def test_a_ballot_is_decided_by_the_first_vote_that_settles_it_in_any_order(
    build: impl.Implementation, votes: list[str], data: st.DataObject
) -> None:
    rig = Rig(build, len(votes))
    try:
        quorum = len(votes) // 2 + 1
        ballot = rig.submit()
        seen = ""
        for index in data.draw(st.permutations(range(len(votes)))):
            settled = seen.count("y") >= quorum or len(seen) - seen.count("y") > len(votes) - quorum
            assert bool(ballot.decided) == settled
            rig.reply(index, {"y": OK, "n": NULL, "!": BUSY}[votes[index]])
            seen += votes[index]
        assert ballot.decided
        assert rig.votes(ballot) == tuple(votes.count(vote) for vote in "yn!")
    finally:
        rig.close()


conversation = st.lists(
    st.sampled_from(
        [
            ("Acquire", OK),
            ("Acquire", NULL),
            ("Acquire", NIL),
            ("Acquire", BUSY),
            ("Release", YES),
            ("Release", NO),
            ("Release", b"-NOSCRIPT a | b > c * d\r\n"),
            ("Extend", b"-OOM command not allowed\r\n"),
            ("Locked", YES),
        ]
    ),
    min_size=1,
    max_size=8,
)


@given(talk=conversation, data=st.data())
def test_replies_count_the_same_wherever_their_bytes_are_cut(
    build: impl.Implementation, talk: list[tuple[str, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(reply for _, reply in talk)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(stream) - 1)))))
    results = []
    for places in ([], cuts, range(1, len(stream))):
        rig = Rig(build, 1, dialect=FULL_TEXT)
        try:
            ballots = [rig.submit(kind) for kind, _ in talk]
            for start, end in itertools.pairwise([0, *places, len(stream)]):
                rig.reply(0, stream[start:end])
            results.append([rig.votes(ballot) for ballot in ballots])
            assert rig.is_up(0)
        finally:
            rig.close()
    assert results[0] == results[1] == results[2]
    assert all(sum(votes) == 1 for votes in results[0])


def test_receiving_from_one_link_counts_its_replies_alone(rig: Rig) -> None:
    ballot = rig.submit()
    rig.far[0].sendall(OK)
    rig.far[1].sendall(OK)
    rig.fleet.receive(1)
    assert rig.votes(ballot) == (1, 0, 0)
    rig.fleet.receive(2)
    assert rig.votes(ballot) == (1, 0, 0)


# --- unexpected replies ------------------------------------------------------------------------------

WRONG_FOR_ACQUIRE = [YES, NO, b"+QUEUED\r\n", b"+ok\r\n", b"$5\r\nhello\r\n", b"$0\r\n\r\n", b"#t\r\n", b",1.5\r\n"]
WRONG_FOR_RELEASE = [OK, NULL, NIL, b":2\r\n", b":-1\r\n", b"#t\r\n", b"#f\r\n", b",1\r\n", b"$1\r\n1\r\n"]
AGGREGATES = [
    b"*0\r\n",
    b"*-1\r\n",
    b"*1\r\n+OK\r\n",
    b"%0\r\n",
    b"~1\r\n:1\r\n",
    b">2\r\n+a\r\n+b\r\n",
    b"|1\r\n+a\r\n+b\r\n",
]
GARBAGE = [
    b"HTTP/1.1 200 OK\r\n",
    b"\0\0\0\0",
    b"\r\n",
    b":x\r\n",
    b"$x\r\n",
    b"$9223372036854775808\r\n",
    b"OK\r\n",
    b"OK\n",
]


@pytest.mark.parametrize("reply", WRONG_FOR_ACQUIRE + AGGREGATES + GARBAGE)
def test_a_reply_that_is_no_answer_to_an_acquire_closes_its_connection_and_is_no_vote(rig: Rig, reply: bytes) -> None:
    ballot, waiting = rig.submit(), rig.submit()
    rig.reply(1, reply)
    assert rig.fallen() == [1]
    assert not rig.is_up(1)
    assert rig.votes(ballot) == rig.votes(waiting) == (0, 0, 1)
    assert list(ballot.causes) == [1]


YEAR = 365 * 86_400_000_000


@pytest.mark.parametrize("answer", [2, -(101 * YEAR), -(1 << 62), -(10**30)])
def test_a_counter_that_is_nonsense_closes_its_connection_and_is_not_kept(rig: Rig, answer: int) -> None:
    """Found by an attack: one such number went to all masters, and the lock could not be acquired any more."""
    ballot = fenced(rig, b"mine")
    rig.reply(1, b":%d\r\n" % answer)
    assert rig.fallen() == [1]
    assert (rig.votes(ballot), ballot.answers) == ((0, 0, 1), None)


@pytest.mark.parametrize("answer", [1, -1, -(99 * YEAR)])
def test_a_counter_in_the_century_after_the_proposal_is_kept(rig: Rig, answer: int) -> None:
    ballot = fenced(rig, b"mine")
    rig.reply(1, b":%d\r\n" % answer)
    assert rig.fallen() == []
    assert ballot.answers == {1: answer}


@pytest.mark.parametrize("reply", WRONG_FOR_RELEASE + AGGREGATES)
def test_a_reply_that_is_no_answer_to_a_release_closes_its_connection_and_is_no_vote(rig: Rig, reply: bytes) -> None:
    ballot = rig.submit("Release")
    rig.reply(1, reply)
    assert rig.fallen() == [1]
    assert rig.votes(ballot) == (0, 0, 1)


@pytest.mark.parametrize(
    "header", [b"*4294967295\r\n", b"%2147483647\r\n", b"~9223372036854775807\r\n", b">1000000\r\n"]
)
def test_a_huge_array_is_refused_without_being_parsed(rig: Rig, header: bytes) -> None:
    ballot = rig.submit()
    rig.reply(0, header)
    assert rig.fallen() == [0]
    assert repr(header)[2:10] in str(ballot.causes[0])


def test_an_aggregate_after_a_good_reply_is_refused(rig: Rig) -> None:
    rig.submit(), rig.submit()
    rig.reply(0, OK + b"*1\r\n+OK\r\n")
    assert rig.fallen() == [0]


def test_an_aggregate_at_the_beginning_of_a_later_chunk_is_refused(rig: Rig) -> None:
    rig.submit(), rig.submit()
    rig.reply(0, b"+O")
    rig.reply(0, b"K\r\n")
    rig.reply(0, b"*1\r\n+OK\r\n")
    assert rig.fallen() == [0]


def test_more_replies_than_commands_close_the_connection(rig: Rig) -> None:
    ballot = rig.submit()
    rig.reply(0, OK, OK)
    assert rig.fallen() == [0]
    assert ballot.yes <= 1


def test_an_unrequested_reply_closes_the_connection(rig: Rig) -> None:
    rig.reply(0, OK)
    assert rig.fallen() == [0]
    assert "a reply to no command" in str(rig.fleet.links[0].cause)


def test_a_line_without_an_end_closes_the_connection(rig: Rig) -> None:
    rig.submit()
    for _ in range(100):
        rig.far[0].sendall(b"+" if not _ else b"x" * 1000)
        rig.fleet.pump(0)
        if not rig.is_up(0):
            break
    assert rig.fallen() == [0]


def test_a_string_of_a_huge_length_closes_the_connection_before_it_arrives(rig: Rig) -> None:
    rig.submit()
    rig.reply(0, b"$400000000\r\n")
    for _ in range(100):
        if rig.is_up(0):
            rig.reply(0, b"x" * 1000)
    assert rig.fallen() == [0]


def test_the_other_masters_still_count_when_one_sends_nonsense(rig: Rig) -> None:
    ballot = rig.submit()
    rig.far[0].sendall(b"nonsense\r\n")
    rig.far[1].sendall(OK)
    rig.far[2].sendall(OK)
    rig.fleet.pump(0)
    assert rig.votes(ballot) == (2, 0, 1)


def test_the_error_of_a_broken_link_names_the_master(rig: Rig) -> None:
    ballot = rig.submit()
    rig.reply(2, b"+QUEUED\r\n")
    assert "master-2:1" in str(ballot.causes[2])


# --- pushes ------------------------------------------------------------------------------------------


def invalidate(key: bytes) -> bytes:
    """Return the push that reports a changed key."""
    return b">2\r\n$10\r\ninvalidate\r\n*1\r\n$%d\r\n%b\r\n" % (len(key), key)


FLUSHED = [b">2\r\n$10\r\ninvalidate\r\n_\r\n", b">2\r\n$10\r\ninvalidate\r\n*-1\r\n"]


@pytest.mark.parametrize("key", [b"k", b"the key\r\n:1\r\n>2\r\n", b"\xff" * 512])
def test_a_push_names_the_changed_key_and_is_no_reply(rig: Rig, key: bytes) -> None:
    ballot = rig.submit()
    rig.reply(1, invalidate(key))
    assert rig.fleet.changed == [(1, key)]
    assert rig.votes(ballot) == (0, 0, 0)
    rig.reply(1, OK)
    assert rig.votes(ballot) == (1, 0, 0)
    assert rig.is_up(1)


@pytest.mark.parametrize("push", FLUSHED)
def test_a_push_may_report_that_all_keys_have_changed(rig: Rig, push: bytes) -> None:
    rig.reply(2, push)
    assert rig.fleet.changed == [(2, None)]
    assert rig.is_up(2)


def test_pushes_may_come_while_no_command_is_pending(rig: Rig) -> None:
    rig.reply(0, invalidate(b"a"), invalidate(b"b"))
    assert rig.fleet.changed == [(0, b"a"), (0, b"b")]
    assert rig.is_up(0)


def test_pushes_between_replies_change_no_order(rig: Rig) -> None:
    first, second = rig.submit(), rig.submit("Release")
    rig.reply(0, invalidate(b"a"), OK, invalidate(b"b"), FLUSHED[0], NO, invalidate(b"c"))
    assert (rig.votes(first), rig.votes(second)) == ((1, 0, 0), (0, 1, 0))
    assert rig.fleet.changed == [(0, b"a"), (0, b"b"), (0, None), (0, b"c")]


@pytest.mark.parametrize("push", [invalidate(b"some:key"), invalidate(b"x" * 512), *FLUSHED])
def test_a_push_that_comes_in_two_pieces_is_understood_wherever_it_is_split(
    implementation: impl.Implementation, push: bytes
) -> None:
    rig = Rig(implementation, 1)
    for cut in range(1, len(push)):
        ballot = rig.submit()
        rig.reply(0, push[:cut])
        assert rig.fleet.changed == []
        rig.reply(0, push[cut:], OK)
        assert len(rig.fleet.changed) == 1
        assert rig.votes(ballot) == (1, 0, 0)
        rig.fleet.changed.clear()
    rig.close()


def test_a_push_that_comes_byte_by_byte_between_replies_is_understood(rig: Rig) -> None:
    first, second = rig.submit(), rig.submit("Release")
    for byte in OK + invalidate(b"some:key") + YES + FLUSHED[0]:
        rig.reply(0, bytes([byte]))
    assert (rig.votes(first), rig.votes(second)) == ((1, 0, 0), (1, 0, 0))
    assert rig.fleet.changed == [(0, b"some:key"), (0, None)]


@pytest.mark.parametrize(
    "push",
    [
        b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
        b">2\r\n$10\r\ninvalidatE\r\n*1\r\n$1\r\na\r\n",
        b">2\r\n+invalidate\r\n*1\r\n$1\r\na\r\n",
        b">2\r\n$10\r\ninvalidate\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n",
        b">2\r\n$10\r\ninvalidate\r\n*0\r\n+OK\r\n+OK\r\n",
        b">2\r\n$10\r\ninvalidate\r\n*1\r\n$-1\r\n+OK\r\n",
        b">2\r\n$10\r\ninvalidate\r\n*1\r\n:1\r\n+OK\r\n",
        b">2\r\n$10\r\ninvalidate\r\n*1\r\n$577\r\n",
        b">2\r\n$10\r\ninvalidate\r\n*1\r\n$999\r\n" + b"x" * 999 + b"\r\n",
        b">2\r\n$10\r\ninvalidate\r\n*1\r\n$4294967295\r\n",
        b">2\r\n$10\r\ninvalidate\r\n*1\r\n$0000000000000001\r\na\r\n",
        b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nab\r\n",
        b">2\r\n$10\r\ninvalidate\r\n*4294967295\r\n",
        b">4294967295\r\n",
        b">-1\r\n",
        b">\r\n",
        b">" + b"1" * 100,
    ],
)
def test_any_other_push_closes_its_connection_and_is_no_vote(rig: Rig, push: bytes) -> None:
    ballot = rig.submit()
    rig.reply(0, push)
    assert rig.votes(ballot) == (0, 0, 1)
    assert not rig.is_up(0) and rig.is_up(1)
    assert rig.fleet.changed == []
    assert "master-0:1 answered with" in str(ballot.causes[0])


def test_no_reply_after_an_unknown_push_is_counted(rig: Rig) -> None:
    first, second = rig.submit(), rig.submit()
    rig.reply(0, OK, b">1\r\n+hello-there-somebody\r\n", OK)
    assert (rig.votes(first), rig.votes(second)) == ((1, 0, 0), (0, 0, 1))


@pytest.mark.parametrize("cut", [1, 10, 21, 30])
def test_half_a_push_of_an_old_connection_does_not_hide_a_reply_on_the_new_one(rig: Rig, cut: int) -> None:
    rig.reply(0, invalidate(b"some:key")[:cut])
    rig.lose(0)
    rig.adopt(0)
    ballot = rig.submit()
    rig.reply(0, OK)
    assert rig.votes(ballot) == (1, 0, 0)
    assert rig.fleet.changed == []


@given(keys=st.lists(st.binary(max_size=40), max_size=6), cuts=st.lists(st.integers(0, 400), max_size=12))
def test_any_keys_in_any_pieces_are_reported_in_their_order(
    build: impl.Implementation, keys: list[bytes], cuts: list[int]
) -> None:
    rig = Rig(build, 1)
    ballots = [rig.submit() for _ in keys]
    said = b"".join(invalidate(key) + OK for key in keys)
    places = sorted({0, len(said), *[cut for cut in cuts if cut < len(said)]})
    for start, end in itertools.pairwise(places):
        rig.reply(0, said[start:end])
    assert rig.fleet.changed == [(0, key) for key in keys]
    assert [rig.votes(ballot) for ballot in ballots] == [(1, 0, 0)] * len(keys)
    rig.close()


# --- looks -------------------------------------------------------------------------------------------


def look(rig: Rig, tracking: bool) -> Any:
    """Ask every master for the key; with `tracking` the masters also track it."""
    for link in rig.fleet.links:
        link.traits.tracking = tracking
    ballot = rig.watch(rig.commands.Look(b"the-key"), rig.fleet.size, rig.fleet.quorum)
    ballot.waiter = object()
    rig.fleet.submit(ballot)
    rig.fleet.flush()
    return ballot


def test_a_look_counts_masters_without_the_key_and_keeps_the_ttls_of_the_others(rig: Rig) -> None:
    ballot = look(rig, tracking=True)
    assert [name for name, _ in rig.got(0)] == ["CLIENT", "PTTL"]
    rig.reply(0, OK, b":-2\r\n")
    rig.reply(1, OK, b":1500\r\n")
    rig.reply(2, OK, b":-1\r\n")
    assert rig.votes(ballot) == (1, 2, 0)
    assert ballot.answers == {1: 1500, 2: -1}
    assert ballot.watchable()


def test_the_ttls_of_masters_that_do_not_push_are_not_kept(rig: Rig) -> None:
    ballot = look(rig, tracking=False)
    assert [name for name, _ in rig.got(0)] == ["PTTL"]
    rig.reply(0, b":-2\r\n")
    rig.reply(1, b":1500\r\n")
    rig.reply(2, b":1500\r\n")
    assert rig.votes(ballot) == (1, 2, 0)
    assert not ballot.answers and not ballot.watchable()


@pytest.mark.parametrize("reply", [OK, b"$1\r\na\r\n", b"*0\r\n"])
def test_a_reply_that_is_no_number_is_no_answer_to_a_look(rig: Rig, reply: bytes) -> None:
    ballot = look(rig, tracking=True)
    rig.reply(0, OK, reply)
    assert not rig.is_up(0)
    assert rig.votes(ballot) == (0, 0, 1)


def test_the_answer_of_a_master_that_cannot_track_a_look_counts(rig: Rig) -> None:
    ballot = look(rig, tracking=True)
    rig.reply(0, b"-ERR CLIENT CACHING can be called only when the client is in tracking mode\r\n", b":1500\r\n")
    assert rig.votes(ballot) == (0, 1, 0)
    assert rig.is_up(0)


def test_a_look_that_waited_for_its_master_is_tracked(rig: Rig) -> None:
    rig.lose(0)
    look(rig, tracking=True)
    rig.adopt(0, tracking=True)
    rig.fleet.flush()
    assert [name for name, _ in rig.got(0)] == ["CLIENT", "PTTL"]


def test_a_number_other_than_1_and_0_is_no_vote_on_another_command(rig: Rig) -> None:
    ballot = rig.submit("Release")
    rig.reply(0, b":1500\r\n")
    assert not rig.is_up(0)
    assert rig.votes(ballot) == (0, 0, 1)


# --- connections that break and come back ------------------------------------------------------------


def test_a_closed_connection_fails_only_its_pending_commands(rig: Rig) -> None:
    answered, open_one = rig.submit(), rig.submit()
    rig.reply(0, OK)
    rig.far[0].close()
    rig.fleet.pump(0)
    assert rig.fallen() == [0]
    assert rig.votes(answered) == (1, 0, 0)
    assert rig.votes(open_one) == (0, 0, 1)
    assert isinstance(open_one.causes[0], ConnectionResetError)


def test_a_connection_that_breaks_at_the_flush_fails_the_staged_commands(rig: Rig) -> None:
    rig.far[0].close()
    ballot = rig.submit()
    assert rig.fallen() == [0]
    assert rig.votes(ballot) == (0, 0, 1)


def test_a_connection_that_breaks_is_reported_once_with_its_socket(rig: Rig) -> None:
    rig.far[0].close()
    rig.submit()
    rig.fleet.pump(0)
    [(link, sock)] = rig.fleet.fallen
    assert link.index == 0 and sock.fileno() >= 0
    rig.fallen()


def test_commands_submitted_while_a_master_is_dialled_wait_for_it(dialling: Rig) -> None:
    ballot = dialling.submit()
    assert dialling.votes(ballot) == (0, 0, 0)
    dialling.adopt(1)
    dialling.fleet.flush()
    assert dialling.got(1) == [("SET", ballot.command.token)]
    dialling.reply(1, OK)
    assert dialling.votes(ballot) == (1, 0, 0)


def test_waiting_commands_are_sent_in_their_order(dialling: Rig) -> None:
    ballots = [dialling.submit(), dialling.submit("Release"), dialling.submit()]
    dialling.adopt(0)
    dialling.fleet.flush()
    assert [token for _, token in dialling.got(0)] == [ballot.command.token for ballot in ballots]


def test_a_failed_dial_fails_the_waiting_commands_with_its_cause(dialling: Rig) -> None:
    ballot = dialling.submit()
    cause = ConnectionRefusedError("no")
    dialling.fleet.fail(2, cause)
    assert ballot.causes == {2: cause}


def test_a_master_that_is_down_votes_failed_at_once(dialling: Rig) -> None:
    cause = ConnectionRefusedError("no")
    dialling.fleet.fail(0, cause)
    dialling.fleet.fail(1, cause)
    ballot = dialling.submit()
    assert ballot.decided and dialling.fleet.decided == [ballot]
    assert ballot.causes == {0: cause, 1: cause}


def test_a_master_that_was_down_votes_again_when_it_is_back(dialling: Rig) -> None:
    dialling.fleet.fail(0, ConnectionRefusedError("no"))
    dialling.adopt(0)
    ballot = dialling.submit()
    dialling.reply(0, OK)
    assert dialling.votes(ballot) == (1, 0, 0)


def test_the_replies_of_an_old_connection_are_never_counted_on_the_new_one(rig: Rig) -> None:
    old = rig.submit()
    rig.far[0].sendall(b"+O")
    rig.fleet.pump(0)
    rig.lose(0)
    rig.adopt(0)
    new = rig.submit()
    rig.reply(0, OK)
    assert rig.votes(old) == (0, 0, 1)
    assert rig.votes(new) == (1, 0, 0)


def test_half_a_reply_of_an_old_connection_does_not_hide_an_aggregate_on_the_new_one(rig: Rig) -> None:
    rig.submit()
    rig.reply(0, b"+O")
    rig.lose(0)
    rig.adopt(0)
    ballot = rig.submit()
    rig.reply(0, b"*1000000\r\n")
    assert rig.fallen() == [0]
    assert rig.votes(ballot) == (0, 0, 1)


def test_at_most_max_pending_commands_wait_for_a_master_and_the_rest_fails(dialling: Rig) -> None:
    most = dialling.engine.MAX_PENDING
    for _ in range(most):
        last = dialling.submit(token=b"t", flush=False)
    assert dialling.votes(last) == (0, 0, 0)
    assert dialling.votes(dialling.submit()) == (0, 0, 3)


def test_a_waiting_set_is_not_sent_if_its_release_found_no_room(dialling: Rig) -> None:
    dialling.fleet.max_pending = 2
    attempts = [dialling.submit("Acquire", token) for token in (b"one", b"two")]
    for token in (b"one", b"two"):
        dialling.submit("Release", token)
    dialling.adopt(0)
    dialling.fleet.flush()
    assert dialling.got(0) == []
    assert [dialling.votes(attempt) for attempt in attempts] == [(0, 0, 3)] * 2


def test_a_master_that_returns_gets_more_than_max_pending_releases_and_is_not_dropped(rig: Rig) -> None:
    rig.fleet.max_pending = 4
    for token in (b"one", b"two", b"three"):
        rig.submit("Release", token)
    rig.far[0].close()
    rig.fleet.pump(0)
    assert rig.fallen() == [0]
    for token in (b"four", b"five", b"six"):
        rig.submit("Release", token)
    rig.adopt(0)
    rig.submit("Acquire", b"seven")
    assert rig.fallen() == []
    assert [token for _, token in rig.got(0)] == [b"one", b"two", b"three", b"four", b"five", b"six", b"seven"]


def test_at_most_max_owed_releases_are_kept_and_the_oldest_are_left_to_their_ttl(rig: Rig) -> None:
    rig.fleet.max_owed = 2
    for token in (b"one", b"two", b"three"):
        rig.submit("Release", token)
    rig.lose(0)
    assert [token for _, token in rig.fleet.links[0].owed] == [b"two", b"three"]


def test_a_master_that_accepts_commands_and_answers_none_is_dropped(build: impl.Implementation) -> None:
    rig = Rig(build, 1)
    rig.fleet.stall_ns = 0
    try:
        first = rig.submit()
        for count in range(rig.engine.MAX_PENDING):
            rig.submit(token=b"t", flush=False)
            if count % 1000 == 0:
                rig.fleet.flush()
                rig.got(0)
        assert rig.fallen() == [0]
        assert isinstance(first.causes[0], TimeoutError)
    finally:
        rig.close()


def test_a_master_that_does_not_even_accept_commands_is_dropped(build: impl.Implementation) -> None:
    rig = Rig(build, 1)
    rig.fleet.stall_ns = 0
    try:
        token = b"t" * 1000
        first = rig.submit(token=token)
        # Add what the buffers of the socket hold.
        most = rig.engine.MAX_UNSENT // len(token) + 10
        for _ in range(most):
            if rig.is_up(0):
                rig.submit(token=token)
        assert rig.fallen() == [0]
        assert isinstance(first.causes[0], TimeoutError)
    finally:
        rig.close()


def test_a_master_that_owes_many_replies_but_answers_is_not_dropped(build: impl.Implementation) -> None:
    rig = Rig(build, 1)
    rig.fleet.max_pending = 4
    rig.fleet.stall_ns = 20_000_000_000

    def pass_time(seconds: int) -> None:
        rig.fleet.links[0].full_ns -= seconds * 1_000_000_000

    try:
        for _ in range(10):
            rig.submit(token=b"t")
        # The time is longer than a silent master gets, but this master answers.
        for _ in range(3):
            pass_time(15)
            rig.reply(0, OK)
            rig.submit(token=b"t")
            assert rig.is_up(0)
        pass_time(25)
        rig.submit(token=b"t")
        assert rig.fallen() == [0]
    finally:
        rig.close()


def test_row_44_a_master_that_answers_too_few_commands_is_dropped_although_it_sends_some_replies(
    build: impl.Implementation,
) -> None:
    rig = Rig(build, 1)
    rig.fleet.max_pending = 32
    rig.fleet.stall_ns = 10_000_000
    try:
        for _ in range(40):
            rig.submit(token=b"t")
        until = rig.now_ns() + 10_000_000_000
        while rig.is_up(0):
            assert rig.now_ns() < until, "a few replies keep the master connected"
            # Too few: two replies of each 32 would be enough.
            rig.reply(0, OK)
            time.sleep(0.015)
            rig.submit(token=b"t")
        assert rig.fallen() == [0]
    finally:
        rig.close()


def test_row_44_a_master_that_has_answered_every_command_gets_a_new_stall_period(build: impl.Implementation) -> None:
    rig = Rig(build, 1)
    rig.fleet.max_pending = 1600
    # Two commands therefore exceed the limit.
    rig.fleet.max_unsent = 0
    rig.fleet.stall_ns = 1
    try:
        for _ in range(5):
            rig.submit(token=b"t")
            rig.reply(0, OK)
            time.sleep(0.001)
        assert rig.is_up(0)
    finally:
        rig.close()


@pytest.mark.parametrize("what", ["most_pending", "most_unsent"])
def test_row_44_a_master_that_owes_more_than_the_limit_is_dropped_however_much_it_answers(
    what: str, build: impl.Implementation
) -> None:
    rig = Rig(build, 1)
    rig.fleet.max_pending = rig.fleet.max_unsent = 0
    rig.fleet.stall_ns = 3600 * 10**9
    setattr(rig.fleet, what, 10 if what == "most_pending" else 1000)
    try:
        first = rig.submit()
        for _ in range(20):
            rig.submit(token=b"t", flush=False)
            rig.submit(token=b"t", flush=False)
            rig.reply(0, OK)
        assert rig.fallen() == [0]
        assert rig.votes(first) == (1, 0, 0)
    finally:
        rig.close()


def test_row_44_a_slow_master_may_owe_the_batches_of_512_tasks(
    build: impl.Implementation,
) -> None:
    rig = Rig(build, 1)
    rig.fleet.stall_ns = 3600 * 10**9
    try:
        command = rig.commands.Acquire(b"a-name-of-some-length", b"t" * 32, 0, 60_000)
        ballot = rig.ballot(command, 1, 1)
        for _ in range(512 * 1024):
            rig.fleet.submit(ballot)
        rig.fleet.flush()
        assert rig.is_up(0)
        assert rig.fleet.links[0].owing() == 512 * 1024
    finally:
        rig.close()


def test_row_44_many_flush_pushes_at_once_are_passed_on_as_one(rig: Rig) -> None:
    rig.adopt(0, tracking=True)
    rig.fallen()
    rig.reply(0, b">2\r\n$10\r\ninvalidate\r\n_\r\n" * 500)
    assert rig.fleet.changed == [(0, None)]
    assert rig.is_up(0)


def test_row_44_a_master_that_pushes_more_than_it_should_is_dropped(rig: Rig) -> None:
    push = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$7\r\nthe-key\r\n"
    most = rig.engine.PUSHES_AHEAD
    rig.adopt(0, tracking=True)
    look = rig.watch(rig.commands.LookAsFirst(b"the-key", b"the-bell"), 3, 2)
    for _ in range(3):
        rig.fleet.submit(look)
        rig.fleet.flush()
        rig.reply(0, OK + b":1000\r\n", push * 2)
    for _ in range(most // 16):
        rig.reply(0, push * 16)
    assert rig.is_up(0)
    assert len(rig.fleet.changed) == 6 + most
    rig.reply(0, push)
    assert rig.fallen() == [0]
    assert ", more pushes than expected" in str(rig.fleet.links[0].cause)
    assert len(rig.fleet.changed) == 6 + most


def test_row_44_commands_with_missing_scripts_are_not_kept_without_bound(rig: Rig) -> None:
    rig.adopt(0, dialect=BY_SHA)
    rig.fleet.most_unsent = 500
    ballots = [rig.submit("Release", b"%032d" % number) for number in range(10)]
    rig.fallen()
    rig.reply(0, NOSCRIPT * 10)
    assert rig.fallen() == [0]
    assert [ballot.failed for ballot in ballots] == [1] * 10
    assert sorted(token for _, token in rig.fleet.links[0].owed) == [b"%032d" % number for number in range(10)]


# --- releases that must not be forgotten -------------------------------------------------------------


def test_a_release_that_got_no_answer_is_sent_first_on_the_next_connection(rig: Rig) -> None:
    release = rig.submit("Release", since_ns=rig.now_ns())
    rig.lose(0)
    later = rig.submit()
    rig.adopt(0)
    rig.fleet.flush()
    assert rig.got(0) == [("DELIFEQ", release.command.token), ("SET", later.command.token)]


def test_the_answer_to_a_release_that_was_sent_again_is_no_second_vote(rig: Rig) -> None:
    release = rig.submit("Release")
    rig.lose(0)
    rig.adopt(0)
    rig.fleet.flush()
    rig.reply(0, YES)
    assert rig.votes(release) == (0, 0, 1)
    assert rig.is_up(0)


def test_a_release_that_was_answered_is_not_sent_again(rig: Rig) -> None:
    rig.submit("Release")
    rig.reply(0, YES)
    rig.lose(0)
    rig.adopt(0)
    rig.fleet.flush()
    assert rig.got(0) == []


@pytest.mark.parametrize("kind", ["Acquire", "Extend", "Owned", "Locked"])
def test_nothing_but_a_release_is_sent_again(rig: Rig, kind: str) -> None:
    rig.submit(kind)
    rig.lose(0)
    rig.adopt(0)
    rig.fleet.flush()
    assert rig.got(0) == []


def test_a_release_made_while_the_master_is_down_is_owed_if_the_master_may_know_its_token(rig: Rig) -> None:
    known_since = rig.now_ns()
    rig.lose(0)
    rig.fleet.fail(0, ConnectionRefusedError("no"))
    release = rig.submit("Release", since_ns=known_since)
    assert rig.votes(release) == (0, 0, 1)
    rig.adopt(0)
    rig.fleet.flush()
    assert rig.got(0) == [("DELIFEQ", release.command.token)]


def test_a_release_of_a_token_that_the_master_cannot_know_is_not_owed(rig: Rig) -> None:
    rig.lose(0)
    rig.fleet.fail(0, ConnectionRefusedError("no"))
    rig.submit("Release", since_ns=rig.now_ns())
    rig.adopt(0)
    rig.fleet.flush()
    assert rig.got(0) == []


def test_a_release_to_a_master_that_was_never_connected_is_not_owed(dialling: Rig) -> None:
    dialling.fleet.fail(0, ConnectionRefusedError("no"))
    dialling.submit("Release", since_ns=dialling.now_ns())
    dialling.adopt(0)
    dialling.fleet.flush()
    assert dialling.got(0) == []


def test_a_token_is_released_once_however_often_it_was_tried(rig: Rig) -> None:
    for _ in range(3):
        rig.submit("Release", token=b"one")
    rig.lose(0)
    rig.adopt(0)
    rig.fleet.flush()
    assert rig.got(0) == [("DELIFEQ", b"one")]


def test_an_owed_release_survives_a_connection_that_breaks_again(rig: Rig) -> None:
    rig.submit("Release", token=b"one")
    for _ in range(3):
        rig.lose(0)
        rig.adopt(0)
        rig.fleet.flush()
        assert rig.got(0) == [("DELIFEQ", b"one")]


def send_again(rig: Rig, ballot: Any) -> Any:
    """Submit the command of a release again, as a release without a verdict does."""
    again = rig.ballot(ballot.command, rig.fleet.size, rig.fleet.quorum)
    again.waiter = object()
    rig.fleet.submit(again)
    rig.fleet.flush()
    return again


def test_row_60_a_release_whose_answer_was_lost_may_have_been_obeyed(rig: Rig) -> None:
    release = rig.submit("Release")
    rig.lose(0)
    assert (release.command.tried, release.unsent) == (0b001, 0)


@pytest.mark.parametrize("parked", [False, True])
def test_row_60_a_release_that_a_broken_link_was_not_sent_has_not_been_obeyed(rig: Rig, parked: bool) -> None:
    known_since = rig.now_ns()
    rig.lose(0)
    if parked:
        release = rig.submit("Release", since_ns=known_since)
    rig.fleet.fail(0, ConnectionRefusedError("no"))
    if not parked:
        release = rig.submit("Release", since_ns=known_since)
    assert (release.command.tried, release.unsent) == (0, 0b001)


@pytest.mark.parametrize(("reply", "tried"), [(b":1\r\n", 0b001), (b":0\r\n", 0)])
def test_row_60_an_owed_release_whose_answer_reaches_no_caller_may_have_been_obeyed(
    rig: Rig, reply: bytes, tried: int
) -> None:
    known_since = rig.now_ns()
    rig.lose(0)
    rig.fleet.fail(0, ConnectionRefusedError("no"))
    release = rig.submit("Release", since_ns=known_since)
    rig.adopt(0)
    rig.fleet.flush()
    assert release.command.tried == 0b001
    rig.reply(0, reply)
    assert release.command.tried == tried


@pytest.mark.parametrize(("reply", "tried"), [(b":1\r\n", 0b001), (b":0\r\n", 0)])
def test_row_60_a_release_that_has_waited_for_a_connection_until_nobody_waits_for_it(
    rig: Rig, reply: bytes, tried: int
) -> None:
    rig.lose(0)
    release = rig.submit("Release")
    assert release.unsent == 0b001
    again = send_again(rig, release)
    rig.adopt(0)
    rig.fleet.flush()
    assert (release.command.tried, release.unsent, again.unsent) == (0b001, 0b001, 0)
    rig.reply(0, reply)
    assert release.command.tried == tried
    rig.reply(0, b":0\r\n")
    assert (again.refusers, again.command.tried) == (0b001, tried)


def test_row_60_the_answer_to_an_owed_release_goes_to_the_caller_that_has_sent_it_again(rig: Rig) -> None:
    known_since = rig.now_ns()
    rig.lose(0)
    rig.fleet.fail(0, ConnectionRefusedError("no"))
    release = rig.submit("Release", since_ns=known_since)
    rig.fleet.links[0].dialling = True
    again = send_again(rig, release)
    other = rig.submit("Acquire")
    rig.adopt(0)
    rig.fleet.flush()
    # Once, and before whatever else waits for the connection.
    assert rig.got(0) == [("DELIFEQ", release.command.token), ("SET", other.command.token)]
    rig.reply(0, b":0\r\n", OK)
    assert (rig.votes(again), again.refusers, again.command.tried) == ((0, 1, 0), 0b001, 0)
    assert rig.votes(other) == (1, 0, 0)


def test_row_60_each_refusal_of_a_release_is_noted_and_no_other_one(rig: Rig) -> None:
    release, extension = rig.submit("Release"), rig.submit("Extend")
    rig.reply(1, b":0\r\n", b":0\r\n")
    rig.reply(2, b":1\r\n", b":0\r\n")
    assert (release.refusers, extension.refusers) == (0b010, 0)


@pytest.mark.parametrize("reply", [b":1\r\n", b"+OK\r\n:1\r\n"])
def test_each_yes_to_a_release_is_noted_also_to_a_copy_for_which_no_caller_waits(rig: Rig, reply: bytes) -> None:
    if reply.startswith(b"+"):
        rig.submit("Acquire")
    release, extension = rig.submit("Release"), rig.submit("Extend")
    rig.reply(1, reply, b":1\r\n")
    rig.reply(2, *[OK] * reply.startswith(b"+"), b":0\r\n", b":1\r\n")
    rig.lose(0)
    rig.adopt(0)
    rig.fleet.flush()
    rig.reply(0, b":1\r\n")
    assert (release.command.obeyed, extension.command.obeyed) == (0b011, 0)


@pytest.mark.parametrize("when", ["sent", "link down"])
def test_row_60_an_unawaited_release_waits_for_the_next_connection(rig: Rig, when: str) -> None:
    known_since = rig.now_ns()
    for index in (0, 1) if when == "link down" else ():
        rig.lose(index)
        rig.fleet.fail(index, ConnectionRefusedError("no"))
    release = rig.ballot(rig.commands.Release(b"the-key", b"token", known_since), 3, 2)
    release.released_lock = object()
    rig.fleet.submit(release)
    rig.fleet.flush()
    for index in (0, 1) if when == "sent" else ():
        rig.lose(index)
    assert rig.votes(release) == (0, 0, 0) and not release.decided
    for index in (0, 1):
        rig.adopt(index)
        rig.fleet.flush()
        rig.reply(index, b":0\r\n")
    assert (rig.votes(release), release.refusers) == ((0, 2, 0), 0b011)
    assert release.command.tried == (0b011 if when == "sent" else 0)
    assert rig.fleet.lost == [release]


def test_an_owed_release_is_written_in_the_dialect_of_the_server_that_comes_back(rig: Rig) -> None:
    rig.submit("Release", token=b"one")
    rig.lose(0)
    rig.adopt(0, FULL_TEXT)
    rig.fleet.flush()
    assert rig.got(0) == [("EVAL", b"one")]


def test_the_fleet_counts_the_answers_to_releases_that_have_not_come(rig: Rig) -> None:
    assert rig.fleet.owing() == 0
    rig.submit(), rig.submit("Release")
    assert rig.fleet.owing() == 3
    rig.reply(0, OK, YES)
    assert rig.fleet.owing() == 2


# --- operations that were interrupted ----------------------------------------------------------------


def interrupting(rig: Rig) -> Any:
    """Return a ballot on a command that raises KeyboardInterrupt when its bytes are made."""

    def payload(self: Any, dialect: int) -> bytes:
        raise KeyboardInterrupt

    return rig.ballot(type("Interrupting", (rig.commands.Command,), {"payload": payload})(b"k", b"t", 0), 3, 2)


def test_mend_closes_nothing_if_no_operation_was_interrupted(rig: Rig) -> None:
    ballot = rig.submit()
    rig.fleet.recover()
    rig.reply(0, OK)
    rig.fleet.recover()
    assert rig.fallen() == []
    assert rig.votes(ballot) == (1, 0, 0)


def test_mend_closes_every_connection_after_an_interrupted_operation(rig: Rig) -> None:
    ballot = rig.submit()
    with pytest.raises(KeyboardInterrupt):
        rig.fleet.submit(interrupting(rig))
    assert rig.fleet.torn
    rig.fleet.recover()
    assert sorted(rig.fallen()) == [0, 1, 2]
    assert rig.votes(ballot) == (0, 0, 3)
    assert not rig.fleet.torn


def test_mend_closes_every_connection_if_received_bytes_were_not_counted(rig: Rig) -> None:
    ballot = rig.submit()
    rig.far[0].sendall(OK)
    # Ctrl-C strikes before the caller has the bytes.
    rig.fleet.wires.wait(0)
    rig.fleet.recover()
    assert sorted(rig.fallen()) == [0, 1, 2]
    assert rig.votes(ballot) == (0, 0, 3)


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("operation", ["submit", "flush", "pump", "receive", "hurry", "fail"])
def test_the_next_operation_first_mends_an_interrupted_one(rig: Rig, operation: str, taken: bool) -> None:
    # This is the state after a second Ctrl-C, which struck during `recover` itself.
    ballot = rig.submit()
    rig.lose(2)
    if taken:
        rig.far[0].sendall(OK)
        rig.fleet.wires.wait(0)
    else:
        with pytest.raises(KeyboardInterrupt):
            rig.fleet.submit(interrupting(rig))
    arguments = {"pump": (0,), "receive": (1,), "fail": (2, ConnectionRefusedError("nobody there"))}
    if operation == "submit":
        rig.submit(flush=False)
    else:
        getattr(rig.fleet, operation)(*arguments.get(operation, ()))
    assert sorted(rig.fallen()) == [0, 1]
    assert rig.votes(ballot) == (0, 0, 3)
    assert not (rig.fleet.torn or rig.fleet.wires.taken)


def test_a_new_connection_survives_the_mending_of_an_earlier_interruption(rig: Rig) -> None:
    rig.lose(2)
    with pytest.raises(KeyboardInterrupt):
        rig.fleet.submit(interrupting(rig))
    rig.adopt(2)
    assert sorted(rig.fallen()) == [0, 1]
    ballot = rig.submit()
    rig.reply(2, OK)
    assert rig.votes(ballot) == (1, 0, 0)


def test_new_connections_work_as_before_after_mend(rig: Rig) -> None:
    with pytest.raises(KeyboardInterrupt):
        rig.fleet.submit(interrupting(rig))
    rig.fleet.recover()
    rig.fallen()
    for index in range(3):
        rig.adopt(index)
    ballot = rig.submit()
    rig.reply(0, OK)
    rig.fleet.recover()
    assert rig.votes(ballot) == (1, 0, 0)


def test_a_pending_release_is_owed_after_an_interrupted_operation(rig: Rig) -> None:
    rig.submit("Release", token=b"one")
    with pytest.raises(KeyboardInterrupt):
        rig.fleet.submit(interrupting(rig))
    rig.fleet.recover()
    rig.fallen()
    rig.adopt(0)
    rig.fleet.flush()
    assert rig.got(0) == [("DELIFEQ", b"one")]


# --- scripts and commands that a server does not have ------------------------------------------------


def with_dialect(rig: Rig, dialect: int) -> None:
    """Connect master 0 again with this dialect."""
    rig.lose(0)
    rig.adopt(0, dialect)


def test_a_script_that_was_flushed_is_sent_in_full_and_its_answer_counts(rig: Rig) -> None:
    with_dialect(rig, BY_SHA)
    ballot = rig.submit("Release")
    assert [name for name, _ in rig.got(0)] == ["EVALSHA"]
    rig.reply(0, NOSCRIPT)
    assert rig.votes(ballot) == (0, 0, 0)
    rig.fleet.flush()
    assert rig.got(0) == [("EVAL", ballot.command.token)]
    rig.reply(0, YES)
    assert rig.votes(ballot) == (1, 0, 0)


def test_a_change_by_a_script_that_was_sent_again_is_reported_while_others_have_not_answered(
    implementation: impl.Implementation,
) -> None:
    # The server pushes nothing for changes by our own connection.
    rig = Rig(implementation, 3, BY_SHA)
    rig.submit("Release")
    rig.reply(0, NOSCRIPT)
    rig.fleet.flush()
    rig.reply(0, YES)
    assert rig.fleet.changed == [(0, b"the-key")]
    rig.close()


def test_after_a_flushed_script_the_next_is_called_by_its_sha_again(rig: Rig) -> None:
    with_dialect(rig, BY_SHA)
    rig.submit("Release")
    rig.reply(0, NOSCRIPT)
    rig.fleet.flush()
    rig.got(0)
    rig.submit("Release")
    assert [name for name, _ in rig.got(0)] == ["EVALSHA"]


def test_a_client_that_ends_sends_a_flushed_script_in_full_before_it_waits_on(rig: Rig) -> None:
    with_dialect(rig, BY_SHA)
    ballot = rig.submit("Release")
    rig.got(0)
    rig.far[0].sendall(NOSCRIPT)
    rig.fleet.await_answers(rig.now_ns() + 20_000_000)
    assert rig.got(0) == [("EVAL", ballot.command.token)]


def fenced(rig: Rig, token: bytes) -> Any:
    """Submit a command that acquires with a script."""
    command = rig.commands.AcquireFenced(b"the-key", b"the-counter", token, 0, 10_000, 1, 1)
    ballot = rig.ballot(command, rig.fleet.size, rig.fleet.quorum)
    rig.fleet.submit(ballot)
    rig.fleet.flush()
    return ballot


def test_a_flushed_script_that_acquires_is_sent_in_full_while_nothing_undoes_it(rig: Rig) -> None:
    with_dialect(rig, BY_SHA)
    ballot = fenced(rig, b"mine")
    rig.submit("Release", token=b"another")
    assert [name for name, _ in rig.got(0)] == ["EVALSHA", "EVALSHA"]
    rig.reply(0, NOSCRIPT)
    rig.fleet.flush()
    assert [name for name, _ in rig.got(0)] == ["EVAL"]
    assert rig.votes(ballot) == (0, 0, 0)


def test_a_flushed_script_that_acquires_is_not_sent_again_after_its_undo(rig: Rig) -> None:
    with_dialect(rig, BY_SHA)
    ballot = fenced(rig, b"mine")
    rig.submit("Release", token=b"mine")
    rig.got(0)
    rig.reply(0, NOSCRIPT)
    rig.fleet.flush()
    assert rig.got(0) == []
    assert rig.votes(ballot) == (0, 0, 1)
    fenced(rig, b"next")
    # The master has the script from now on.
    assert [name for name, _ in rig.got(0)] == ["EVAL"]


def test_a_release_sent_before_an_undone_acquire_was_refused_is_sent_in_full(rig: Rig) -> None:
    """The client called all of them by their SHA. The acquire is not sent again, but the releases must not be lost."""
    with_dialect(rig, BY_SHA)
    undone = fenced(rig, b"mine")
    rig.submit("Release", token=b"mine")
    other = rig.submit("Release", token=b"another")
    rig.got(0)
    for _ in range(3):
        rig.reply(0, NOSCRIPT)
    rig.fleet.flush()
    assert rig.got(0) == [("EVAL", b"mine"), ("EVAL", b"another")]
    rig.reply(0, NO)
    rig.reply(0, YES)
    assert rig.votes(undone) == (0, 0, 1)
    assert rig.votes(other) == (1, 0, 0)
    late = rig.submit("Release")
    assert [name for name, _ in rig.got(0)] == ["EVAL"]
    rig.reply(0, NOPERM)
    assert rig.votes(late) == (0, 0, 1), "what was sent in full is not sent in full again"


@pytest.mark.parametrize("error", [UNKNOWN, NOPERM])
def test_a_missing_native_command_is_replaced_by_the_script_permanently(rig: Rig, error: bytes) -> None:
    ballot = rig.submit("Release")
    assert rig.got(0) == [("DELIFEQ", ballot.command.token)]
    rig.reply(0, error)
    rig.fleet.flush()
    assert rig.got(0) == [("EVAL", ballot.command.token)]
    rig.reply(0, YES)
    assert rig.votes(ballot) == (1, 0, 0)
    rig.submit("Release")
    assert [name for name, _ in rig.got(0)] == ["EVALSHA"]


def test_only_the_master_without_the_native_command_gets_the_script(rig: Rig) -> None:
    rig.submit("Release")
    rig.got(1)
    rig.reply(0, UNKNOWN)
    rig.fleet.flush()
    assert rig.got(1) == []
    rig.submit("Release")
    assert [name for name, _ in rig.got(1)] == ["DELIFEQ"]


def test_each_master_that_lacks_a_script_gets_its_text(rig: Rig) -> None:
    ballot = rig.submit("Extend")
    for index in range(3):
        rig.got(index)
        rig.reply(index, NOSCRIPT)
    rig.fleet.flush()
    assert [rig.got(index) for index in range(3)] == [[("EVAL", ballot.command.token)]] * 3
    for index in range(3):
        rig.reply(index, YES)
    assert rig.votes(ballot) == (3, 0, 0)


def test_a_text_that_is_refused_too_is_a_failure_and_not_sent_a_third_time(rig: Rig) -> None:
    ballot = rig.submit("Extend")
    rig.got(0)
    rig.reply(0, NOSCRIPT)
    rig.fleet.flush()
    rig.got(0)
    rig.reply(0, NOPERM)
    rig.fleet.flush()
    assert rig.votes(ballot) == (0, 0, 1)
    assert rig.got(0) == []


def test_the_answers_keep_their_order_when_a_script_is_sent_again_behind_others(rig: Rig) -> None:
    release, acquire = rig.submit("Release"), rig.submit("Acquire")
    rig.reply(0, UNKNOWN, OK)
    rig.fleet.flush()
    rig.reply(0, NO)
    assert rig.votes(release) == (0, 1, 0)
    assert rig.votes(acquire) == (1, 0, 0)


def test_a_refused_set_is_not_sent_again_after_the_release_that_undoes_it(rig: Rig) -> None:
    acquire = rig.submit("Acquire")
    rig.submit("Release", token=acquire.command.token)
    rig.got(0)
    rig.reply(0, b"-NOPERM User lk has no permissions to run the 'set' command\r\n")
    rig.fleet.flush()
    assert rig.got(0) == []
    assert rig.votes(acquire) == (0, 0, 1)


@pytest.mark.parametrize(
    "error", [b"-OOM x\r\n", b"-READONLY x\r\n", b"-LOADING x\r\n", b"-MISCONF x\r\n", b"-NOAUTH x\r\n"]
)
@pytest.mark.parametrize("kind", ["Acquire", "Release", "Extend"])
def test_any_other_error_is_a_failure_and_no_vote(rig: Rig, kind: str, error: bytes) -> None:
    ballot = rig.submit(kind)
    rig.got(0)
    rig.reply(0, error)
    rig.fleet.flush()
    assert rig.votes(ballot) == (0, 0, 1)
    assert rig.got(0) == []
    assert rig.is_up(0)


def test_the_repr_of_a_link_shows_its_address_and_state(rig: Rig) -> None:
    assert repr(rig.fleet.links[1]) == "<Link master-1:1 up>"
    rig.far[1].close()
    rig.fleet.pump(0)
    rig.fallen()
    assert repr(rig.fleet.links[1]) == "<Link master-1:1 dialling>"
    rig.fleet.fail(1, OSError())
    assert repr(rig.fleet.links[1]) == "<Link master-1:1 down>"


def test_a_link_whose_master_was_replaced_is_closed_with_the_cause(rig: Rig) -> None:
    ballot = rig.submit()
    cause = ConnectionAbortedError("another one is the master")
    rig.fleet.drop(1, cause)
    assert rig.votes(ballot) == (0, 0, 1)
    assert ballot.causes == {1: cause}
    assert rig.fallen() == [1]
    # A repeated announcement changes nothing.
    rig.fleet.drop(1, cause)
    assert rig.fallen() == []
