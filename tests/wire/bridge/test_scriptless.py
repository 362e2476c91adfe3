"""A bridge to a server without scripts, which the test plays at the other end of a socket pair."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import redis.exceptions as redis_errors
from hiredis import PushNotification, Reader
from support.faces import PATIENCE, in_thread
from support.forked import in_child

from redlatch.errors import MasterRefused
from redlatch.votes import family_scripts
from redlatch.votes.commands import pack
from redlatch.votes.scripts import EXTEND, LOCKED, RELEASE
from redlatch.wire.bridge import bridge
from redlatch.wire.bridge.bridge import BREAKS, ENDS, open_bridge
from redlatch.wire.bridge.scriptless import NEEDED, NEEDS, TOGETHER, TOUCHED, TraitsWithoutScripts, Transactor
from redlatch.wire.bridge.transactions import TRIES
from redlatch.wire.engine.net import CLOSED

RELEASING = pack(b"EVALSHA", RELEASE.sha, 1, b"k", b"t")
READ = b"+OK\r\n$1\r\nt\r\n+OK\r\n"
PUSH = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"
FLUSH = b">2\r\n$10\r\ninvalidate\r\n_\r\n"


class Ends:
    """The engine's end of the bridge, and the server's end of its connection."""

    def __init__(self) -> None:
        near, self.server = socket.socketpair()
        self.engine, _ = open_bridge(lambda: Transactor(near, "played:1"), PATIENCE)
        for sock in (self.engine, self.server):
            sock.settimeout(PATIENCE)
        self._asked, self._answered = Reader(), Reader()

    def ask(self, *commands: bytes) -> None:
        self.engine.sendall(b"".join(commands))

    def asked(self, count: int) -> list[bytes]:
        """Return the next commands that reach the server, each as one line."""
        return [b" ".join(self._next(self._asked, self.server)) for _ in range(count)]

    def answer(self, *replies: bytes) -> None:
        self.server.sendall(b"".join(replies))

    def reply(self) -> Any:
        return self._next(self._answered, self.engine)

    @staticmethod
    def _next(reader: Reader, sock: socket.socket) -> Any:
        while (found := reader.gets()) is False:
            data = sock.recv(65536)
            if not data:
                return "closed"
            reader.feed(data)
        return found

    def close(self) -> None:
        self.engine.close()
        self.server.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_commands_that_call_no_script_leave_together_and_their_replies_come_back_unchanged(ends: Ends) -> None:
    ends.ask(pack("SET", "k", "t"), pack("PTTL", "k"), pack("STRLEN", "k"), pack("DELIFEQ", "k", "t"))
    assert ends.asked(4) == [b"SET k t", b"PTTL k", b"STRLEN k", b"DELIFEQ k t"]
    ends.answer(b"+OK\r\n", b":-2\r\n", b"_\r\n", b"-OOM no memory\r\n")
    assert [ends.reply() for _ in range(3)] == [b"OK", -2, None]
    assert str(ends.reply()) == "OOM no memory"


def test_more_commands_than_leave_together_are_answered_in_order(ends: Ends) -> None:
    count = TOGETHER + 3
    ends.ask(*[pack("PTTL", number) for number in range(count)])
    assert ends.asked(TOGETHER)[-1] == b"PTTL %d" % (TOGETHER - 1)
    ends.answer(*[b":%d\r\n" % number for number in range(TOGETHER)])
    assert ends.asked(3)[-1] == b"PTTL %d" % (count - 1)
    ends.answer(*[b":%d\r\n" % number for number in range(TOGETHER, count)])
    assert [ends.reply() for _ in range(count)] == list(range(count))


def test_a_transaction_waits_for_the_commands_before_it_and_those_behind_it_wait(ends: Ends) -> None:
    ends.ask(pack("PTTL", "a"), RELEASING, pack("PTTL", "b"))
    assert ends.asked(1) == [b"PTTL a"]
    ends.answer(b":1\r\n")
    assert ends.asked(3) == [b"WATCH k", b"GET k", b"MULTI"]
    ends.answer(READ)
    assert ends.asked(2) == [b"DEL k", b"EXEC"]
    ends.answer(b"+QUEUED\r\n*1\r\n:1\r\n")
    assert ends.asked(1) == [b"PTTL b"]
    ends.answer(b":2\r\n")
    assert [ends.reply() for _ in range(3)] == [1, 1, 2]


def test_the_text_of_a_script_is_known_too(ends: Ends) -> None:
    ends.ask(pack(b"EVAL", LOCKED.text, 1, b"k"))
    assert ends.asked(1) == [b"GET k"]
    ends.answer(b"$0\r\n\r\n")
    assert ends.reply() == 1


def test_pushes_keep_their_place_among_replies(ends: Ends) -> None:
    ends.ask(pack("PTTL", "k"), pack("PTTL", "l"))
    ends.asked(2)
    ends.answer(b":1\r\n", PUSH, b":2\r\n", FLUSH)
    assert [ends.reply() for _ in range(4)] == [1, [b"invalidate", [b"k"]], 2, [b"invalidate", None]]


def test_a_flush_within_a_transaction_is_told_before_its_reply(ends: Ends) -> None:
    ends.ask(RELEASING)
    ends.asked(3)
    ends.answer(b"+OK\r\n", FLUSH, b"_\r\n+OK\r\n")
    told = ends.reply()
    assert isinstance(told, PushNotification)
    assert told == [b"invalidate", None]
    assert ends.asked(1) == [b"DISCARD"]
    ends.answer(b"+OK\r\n")
    assert ends.reply() == 0


def test_a_push_passes_while_no_command_comes_in_pieces_too(ends: Ends) -> None:
    for start in range(len(PUSH + FLUSH)):
        ends.answer((PUSH + FLUSH)[start : start + 1])
    assert [ends.reply() for _ in range(2)] == [[b"invalidate", [b"k"]], [b"invalidate", None]]


def test_a_touched_key_that_keeps_its_token_is_no_vote_in_the_end(ends: Ends) -> None:
    ends.ask(RELEASING)
    for _ in range(TRIES):
        ends.asked(3)
        ends.answer(READ)
        ends.asked(2)
        ends.answer(b"+QUEUED\r\n_\r\n")
    error = TraitsWithoutScripts.reply_error(str(ends.reply()))
    assert isinstance(error, redis_errors.ResponseError)
    assert "changed the key" in str(error)


def test_a_script_of_the_family_is_refused_and_nothing_is_sent(ends: Ends) -> None:
    ends.ask(pack(b"EVALSHA", family_scripts.FAIR_ACQUIRE.sha, 1, b"k"), pack("PTTL", "k"))
    assert ends.asked(1) == [b"PTTL k"]
    error = TraitsWithoutScripts.reply_error(str(ends.reply()))
    assert isinstance(error, MasterRefused)
    assert str(error) == NEEDED


# --- a connection that breaks -------------------------------------------------------------------------------


def test_a_server_that_goes_while_no_command_is_under_way_ends_the_connection(ends: Ends) -> None:
    """The engine knows no reply without a command, so the reason goes to the log."""
    ends.server.shutdown(socket.SHUT_RDWR)
    assert ends.reply() == "closed"


@pytest.mark.parametrize("at", ["read", "exec", "behind"])
def test_a_server_that_goes_is_a_broken_connection_and_says_why(ends: Ends, at: str) -> None:
    ends.ask(RELEASING)
    ends.asked(3)
    if at in ("exec", "behind"):
        ends.answer(READ)
        ends.asked(2)
        ends.answer(b"+QUEUED\r\n" if at == "exec" else b"")
    ends.server.shutdown(socket.SHUT_RDWR)
    error = TraitsWithoutScripts.reply_error(str(ends.reply()))
    assert type(error) is ConnectionResetError
    assert str(error) == CLOSED
    assert TraitsWithoutScripts({}, 3).ends(error)
    assert ends.reply() == "closed"


@pytest.mark.parametrize(
    "nonsense",
    [b":1\r\n:2\r\n", b"\0\1\r\n", b"*1000000000\r\n", b"$999999999\r\n", b"*2\r\nx\r\n"],
    ids=["two replies", "no RESP", "elements", "bytes", "garbled"],
)
def test_nonsense_ends_the_connection_with_its_reason(ends: Ends, nonsense: bytes) -> None:
    ends.ask(pack("PTTL", "k"))
    ends.asked(1)
    ends.answer(nonsense)
    while isinstance(reply := ends.reply(), int):
        pass
    error = TraitsWithoutScripts.reply_error(str(reply))
    assert type(error) is ConnectionError
    assert "played:1" in str(error)


@pytest.mark.parametrize("unasked", [b":1\r\n", b">1\r\n$7\r\nmessage\r\n"])
def test_a_reply_to_no_command_and_an_unknown_push_end_the_connection(ends: Ends, unasked: bytes) -> None:
    ends.answer(unasked)
    assert ends.reply() == "closed"


def test_a_nonsensical_reply_to_exec_ends_the_connection(ends: Ends) -> None:
    ends.ask(RELEASING)
    ends.asked(3)
    ends.answer(READ)
    ends.asked(2)
    ends.answer(b"+QUEUED\r\n:7\r\n")
    assert str(ends.reply()).startswith(ENDS)


@pytest.mark.parametrize("word", [NEEDS, TOUCHED, BREAKS, ENDS])
def test_a_server_cannot_speak_with_our_words(ends: Ends, word: str) -> None:
    """Our own errors are not filtered, so a server could else show what it was sent."""
    ends.ask(pack("SET", "k", "s3cr3t"))
    ends.asked(1)
    ends.answer(b"-%b s3cr3t\r\n" % word.encode())
    error = TraitsWithoutScripts.reply_error(str(ends.reply()))
    assert "s3cr3t" not in str(error)
    assert not TraitsWithoutScripts({}, 3).ends(error)


def test_a_bridge_ends_when_the_engine_leaves_although_the_server_is_silent(ends: Ends) -> None:
    ends.ask(RELEASING)
    ends.asked(3)
    ends.engine.close()
    assert ends.server.recv(1) == b""


def test_a_bridge_whose_engine_has_left_still_performs_what_it_was_sent(ends: Ends) -> None:
    ends.ask(RELEASING)
    ends.asked(3)
    ends.engine.close()
    ends.answer(READ)
    assert ends.asked(2) == [b"DEL k", b"EXEC"]
    ends.answer(b"+QUEUED\r\n*1\r\n:1\r\n")
    assert ends.server.recv(1) == b""


def test_many_commands_do_not_block_a_server_that_reads_late(ends: Ends) -> None:
    big = b"x" * 900
    asking = in_thread(ends.ask, *[pack(b"PTTL", big)] * TOGETHER * 8)
    total = 0
    for _ in range(TOGETHER * 8):
        ends.asked(1)
        ends.answer(b":1\r\n")
        total += 1
        if total % 64 == 0:
            assert sum(ends.reply() for _ in range(64)) == 64
    asking.result(PATIENCE)


def test_a_forked_child_has_neither_end(ends: Ends) -> None:
    """Else the server and the engine would not see that the parent has closed the connection."""
    ends.ask(pack("PTTL", "k"))
    assert ends.asked(1) == [b"PTTL k"]
    there = [sock for sock in bridge._closed_at_fork if sock.fileno() >= 0]
    assert len(there) >= 2

    def owns_none() -> None:
        assert [sock.fileno() for sock in there] == [-1] * len(there)

    in_child(owns_none)
    ends.answer(b":1\r\n")
    assert ends.reply() == 1


def test_extend_is_translated(ends: Ends) -> None:
    ends.ask(pack(b"EVALSHA", EXTEND.sha, 1, b"k", b"t", 1000))
    assert ends.asked(4) == [b"WATCH k", b"GET k", b"PTTL k", b"MULTI"]
    ends.answer(b"+OK\r\n$1\r\nt\r\n:5\r\n+OK\r\n")
    assert ends.asked(2) == [b"PEXPIRE k 1000", b"EXEC"]
    ends.answer(b"+QUEUED\r\n*1\r\n:1\r\n")
    assert ends.reply() == 1
