"""A bridge answers the commands of one connection in a thread of its own."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hiredis import Reader
from support.faces import PATIENCE

from redlatch.votes.commands import pack
from redlatch.wire.bridge import bridge as bridging
from redlatch.wire.bridge.bridge import BREAKS, ENDS, VOIDS, BackendLost, failure, open_bridge


class Echo:
    """A backend that repeats what it is asked, and tells of changes."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.changed: list[bytes | None] = []
        self.changes_with: dict[bytes, bytes] = {}
        self.lost: BackendLost | None = None
        self.wakes, self.wakened = socket.socketpair()

    def answers(self, commands: list[list[bytes]]) -> Iterator[bytes]:
        return map(self._answer, commands)

    def _answer(self, words: list[bytes]) -> bytes:
        if words[0] == b"LOSE":
            raise BackendLost("it has\ngone", voids=words[1] == b"voids", breaks=words[1] == b"breaks")
        if words[0] == b"FAIL":
            raise ZeroDivisionError("a fault")
        if words[0] in self.changes_with:
            self.changed.append(self.changes_with[words[0]])
        return b"+%b\r\n" % b" ".join(words)

    def wait(self, sock: socket.socket) -> None:
        ready, _, _ = select.select([sock, self.wakened], [], [])
        if self.wakened in ready:
            self.wakened.recv(1)
            if self.lost is not None:
                raise self.lost

    def changes(self) -> list[bytes | None]:
        changed, self.changed = self.changed, []
        return changed

    def close(self) -> None:
        self.wakes.close()
        self.wakened.close()
        self.closed.set()


class Bridged:
    """The engine's end of a bridge."""

    def __init__(self) -> None:
        self.sock, self.backend = open_bridge(Echo, PATIENCE)
        self.sock.settimeout(PATIENCE)
        self._reader = Reader()

    def send(self, *commands: bytes) -> None:
        self.sock.sendall(b"".join(commands))

    def reply(self) -> Any:
        while (reply := self._reader.gets()) is False:
            data = self.sock.recv(100)
            if not data:
                return "closed"
            self._reader.feed(data)
        return reply


@pytest.fixture
def bridge() -> Iterator[Bridged]:
    bridged = Bridged()
    yield bridged
    bridged.sock.close()
    assert bridged.backend.closed.wait(PATIENCE)


def test_the_socket_for_the_engine_does_not_block() -> None:
    sock, backend = open_bridge(Echo, PATIENCE)
    assert not sock.getblocking()
    sock.close()
    assert backend.closed.wait(PATIENCE)


def test_commands_are_answered_in_order_however_they_arrive(bridge: Bridged) -> None:
    whole = pack("A", "1") + pack("B") + pack("C", b"\0")
    for byte in whole:
        bridge.send(bytes([byte]))
    bridge.send(whole)
    assert [bridge.reply() for _ in range(6)] == [b"A 1", b"B", b"C \0"] * 2


def test_a_change_is_pushed_while_no_command_comes(bridge: Bridged) -> None:
    bridge.backend.changed = [b"key"]
    bridge.backend.wakes.send(b"x")
    assert bridge.reply() == [b"invalidate", [b"key"]]
    bridge.send(pack("A"))
    assert bridge.reply() == b"A"


def test_a_change_that_is_heard_during_a_command_comes_behind_its_reply(bridge: Bridged) -> None:
    # The engine takes a push for a key only after the reply to the question that watches it.
    bridge.backend.changes_with = {b"LOOK": b"key"}
    bridge.send(pack("LOOK"))
    assert [bridge.reply(), bridge.reply()] == [b"LOOK", [b"invalidate", [b"key"]]]


def test_a_flush_is_pushed(bridge: Bridged) -> None:
    bridge.backend.changed = [None]
    bridge.backend.wakes.send(b"x")
    assert bridge.reply() == [b"invalidate", None]


@pytest.mark.parametrize(("how", "word"), [("nonsense", ENDS), ("voids", VOIDS), ("breaks", BREAKS)])
def test_a_backend_that_is_lost_says_why_and_the_connection_ends(bridge: Bridged, how: str, word: str) -> None:
    bridge.send(pack("LOSE", how), pack("A"))
    assert str(bridge.reply()) == f"{word} it has gone"
    assert bridge.reply() == "closed"
    assert bridge.backend.closed.wait(PATIENCE)


def test_a_backend_that_is_lost_while_no_command_waits_closes_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The engine knows no reply without a command.
    sock, backend = open_bridge(Echo, PATIENCE)
    sock.settimeout(PATIENCE)
    backend.lost = BackendLost("it has gone")
    backend.wakes.send(b"x")
    with caplog.at_level("INFO"):
        assert sock.recv(100) == b""
        assert backend.closed.wait(PATIENCE)
    assert "a bridge ends: it has gone" in caplog.text
    sock.close()


def test_a_backend_that_cannot_be_closed_ends_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(Echo):
        def close(self) -> None:
            super().close()
            raise ZeroDivisionError("a fault")

    sock, backend = open_bridge(Stubborn, PATIENCE)
    sock.settimeout(PATIENCE)
    sock.sendall(pack("LOSE", "0"))
    while sock.recv(100):
        pass
    sock.close()
    assert backend.closed.wait(PATIENCE)
    assert "a bridge has failed" in caplog.text


def test_a_forked_child_closes_its_copy_of_the_other_end(bridge: Bridged) -> None:
    child = os.fork()
    if not child:
        bridge.sock.close()
        # Both ends are closed in the child, so the parent's are the only ones.
        theirs = [each.fileno() for each in list(bridging._closed_at_fork)]
        os._exit(0 if theirs and set(theirs) == {-1} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    bridge.send(pack("A"))
    assert bridge.reply() == b"A"


def test_a_forked_child_closes_its_copy_of_the_engines_end() -> None:
    """The fork may come before the engine has its end; a copy of it would keep the bridge and its backend alive."""
    sock, backend = open_bridge(Echo, PATIENCE)
    ends, end = os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        os.read(ends, 1)
        os._exit(0)
    sock.close()
    assert backend.closed.wait(PATIENCE)
    os.close(end)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(ends)


def test_a_fault_of_a_backend_is_logged_and_ends_the_connection(
    bridge: Bridged, caplog: pytest.LogCaptureFixture
) -> None:
    bridge.send(pack("FAIL"))
    assert str(bridge.reply()) == f"{ENDS} a fault"
    assert bridge.reply() == "closed"
    assert any("a bridge has failed" in record.getMessage() for record in caplog.records)


def test_what_a_backend_raises_at_the_beginning_is_raised_here() -> None:
    def make() -> Echo:
        raise ValueError("no such backend")

    with pytest.raises(ValueError, match="no such backend"):
        open_bridge(make, PATIENCE)


def test_a_backend_that_comes_too_late_is_closed() -> None:
    come, made = threading.Event(), []

    def make() -> Echo:
        come.wait(PATIENCE)
        made.append(Echo())
        return made[0]

    with pytest.raises(TimeoutError, match="after"):
        open_bridge(make, 0.01)
    come.set()
    while not made:
        pass
    assert made[0].closed.wait(PATIENCE)


def test_an_engine_that_leaves_without_reading_ends_the_bridge(bridge: Bridged) -> None:
    bridge.send(*[pack("A")] * 1000)
    bridge.sock.close()
    assert bridge.backend.closed.wait(PATIENCE)


def test_a_failure_is_one_line() -> None:
    assert failure(RuntimeError("a\r\nb")) == b"-ERR a b\r\n"
