"""One master in memory: its ends of connections, and the times at which its keys expire."""

from __future__ import annotations

import select
import socket

from redlatch.testing.memory.master import Line, MemoryMaster, encode
from redlatch.testing.memory.timeline import Timeline


def test_a_line_returns_whole_commands_only() -> None:
    near, far = socket.socketpair()
    with near:
        line = Line(far, select.poll())
        near.sendall(b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nTI")
        assert line.receive() == [[b"PING"]]
        near.sendall(b"ME\r\n")
        assert line.receive() == [[b"TIME"]]
        line.close()


def test_a_line_sends_the_rest_when_there_is_room() -> None:
    near, far = socket.socketpair()
    data = b"x" * 4_000_000
    with near:
        line = Line(far, select.poll())
        assert line.send(data)
        assert not line.send()
        came = b""
        while len(came) < len(data):
            came += near.recv(1 << 20)
            line.send()
        assert came == data
        line.close()


def test_a_line_is_closed_when_the_client_has_closed_its_end() -> None:
    for unread in (b"", b"a reply that nobody reads"):
        near, far = socket.socketpair()
        line = Line(far, select.poll())
        if unread:
            assert line.send(unread)
        near.close()
        assert line.receive() == [] and line.fd < 0
        assert not line.send(b"another one")


def test_a_key_expires_at_its_time_also_if_that_has_changed() -> None:
    timeline = Timeline()
    master = MemoryMaster(0, timeline)
    master.keys.execute([b"SET", b"shorter", b"1", b"PX", b"9000"])
    master.keys.execute([b"PEXPIRE", b"shorter", b"2000"])
    master.keys.execute([b"SET", b"longer", b"1", b"PX", b"1000"])
    master.keys.execute([b"PEXPIRE", b"longer", b"5000"])
    master.keys.execute([b"SET", b"kept", b"1"])
    found = []
    timeline.note_timeout(timeline.clock.now() + 10_000_000_000)
    for _ in range(3):
        timeline.move()
        found.append(sorted(master.keys.values))
    assert found == [[b"kept", b"longer", b"shorter"], [b"kept", b"longer"], [b"kept"]]


def test_replies_are_encoded_as_servers_do() -> None:
    assert encode([None, 7, b"seven", [b"x"]]) == b"*4\r\n_\r\n:7\r\n$5\r\nseven\r\n*1\r\n$1\r\nx\r\n"
