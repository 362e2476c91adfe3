"""One link of the engine under arbitrary bytes: its votes and pushes, and the memory that it keeps."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from redlatch import impl
from redlatch.guard.admission import Admissions
from redlatch.guard.handshake import HandshakeReport
from redlatch.guard.marker import FINAL, Marker
from redlatch.guard.settings import Guard
from redlatch.wire.server_traits import Traits

# The most bytes that a connection may keep, whatever the server sent.
MOST_BYTES = 256 << 10

ADDRESS = "master:1"

# Words that a server may send, and words that it must not send.
WORDS = [
    *(b"+OK\r\n", b":1\r\n", b":0\r\n", b"_\r\n", b"$-1\r\n", b":-2\r\n", b":5000\r\n", b":-5000\r\n", b"+QUEUED\r\n"),
    *(b"+1000000000000000 1000\r\n", b"+1000000000000000 60000\r\n", b"+1 1 1\r\n"),
    *(b"-OOM no\r\n", b"-NOSCRIPT no\r\n", b"-READONLY no\r\n", b"-LOADING no\r\n", b"-ERR unknown command\r\n"),
    *(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n", b">2\r\n$10\r\ninvalidate\r\n_\r\n", b">3\r\n$7\r\nmessage\r\n"),
    *(
        b"$3\r\nabc\r\n",
        b"*1\r\n+OK\r\n",
        b"%1\r\n",
        b"#t\r\n",
        b",1.5\r\n",
        b"(123\r\n",
        b"*4294967295\r\n",
        b"\r\n",
        b"\n",
    ),
    *(
        b"*-1\r\n",
        b"$1000000000\r\n",
        b":1",
        b"\r",
        b":99999999999999999999\r\n",
        b":+1\r\n",
        b"_",
        b"+",
        b"-",
        b"\0",
        b"\xff",
    ),
]


@dataclass(frozen=True)
class Outcome:
    """The state of the engine after the bytes.

    Attributes:
        up: whether the connection is still open.
        votes: of each ballot (yes, no, failed, decided, answers).
        changed: the keys that pushes named.
        kept: how many received bytes the link keeps.
    """

    up: bool
    votes: tuple[Any, ...]
    changed: tuple[Any, ...]
    kept: int


class Wire:
    """A fleet of one link, whose master is the far end of a socket pair."""

    def __init__(self, build: impl.Implementation) -> None:
        commands, ballot = build.module("votes.commands"), build.module("votes.ballot").Ballot
        clock = build.module("wire.engine.net").BootClock()
        self.fleet = build.module("wire.engine.fleet").Fleet([ADDRESS], 1, clock, True)
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        traits = Traits({"run_id": "r", "role": "master", "redis_version": "7.0.0"}, 3, True)
        self.fleet.adopt(0, self.near, traits, commands.BY_SHA, _monitor())
        made = [
            commands.Acquire(b"k", b"t1", 0, 1000),
            commands.Release(b"k", b"t2", 0),
            commands.Extend(b"k", b"t3", 0, 1000),
            commands.Look(b"k"),
            commands.AcquireFenced(b"k", b"{k}\0fence", b"t4", 0, 1000, 5, 6),
            commands.Pulse(b"k", b"m", 1000),
            commands.Locked(b"k", b"", 0),
        ]
        self.ballots = [ballot(command, 1, 1) for command in made]
        for one in self.ballots:
            one.waiter = object()
            self.fleet.submit(one)
        self.fleet.flush()

    def hear(self, pieces: Iterable[bytes]) -> Outcome:
        """Send bytes from the master piece by piece, and return the state of the engine after them."""
        link = self.fleet.links[0]
        for piece in pieces:
            try:
                self.far.sendall(piece)
            except OSError:
                # The engine has closed its end.
                break
            self.fleet.pump(0)
            if not link.up:
                break
        votes = [(one.yes, one.no, one.failed, one.decided, one.answers) for one in self.ballots]
        changed = () if not link.up else tuple(key for _, key in self.fleet.changed)
        return Outcome(link.up, tuple(map(str, votes)), changed, len(link.tail))

    def close(self) -> None:
        """Close both ends."""
        for _, sock in self.fleet.fallen:
            if sock is not None:
                sock.close()
        self.fleet.wires.close()
        self.near.close()
        self.far.close()


def _monitor() -> Any:
    admissions = Admissions(
        (ADDRESS,), Guard(), b"g", 1000, 0.01, lambda: 10**15, lambda: 0.5, lambda number: None, lambda index, ns: None
    )
    marker = Marker("r", 10**15, 10**15, 0, 0, FINAL, True, 60_000, False, False, ADDRESS, (ADDRESS,), 1000)
    report = HandshakeReport("r", marker.text(), 10**15, 10**9, 10**9 + 1000, False)
    admission = admissions.decide(0, report, [report])
    assert admission is not None and admission.admitted
    return admissions.monitor(0)


def hear(build: impl.Implementation, pieces: Iterable[bytes]) -> Outcome:
    """Return the state of a new link after some pieces; check that it keeps no more than it may."""
    wire = Wire(build)
    try:
        outcome = wire.hear(pieces)
    finally:
        wire.close()
    assert outcome.kept <= MOST_BYTES
    return outcome


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """Cut bytes into pieces."""
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]


def try_one(builds: list[impl.Implementation], data: bytes, ways: Iterable[list[bytes]]) -> None:
    """Check that some bytes have the same effect in every build, in one piece and in many."""
    whole = hear(builds[0], [data])
    for build in builds:
        for pieces in ways:
            got = hear(build, pieces)
            assert (got.up, got.votes, got.changed) == (whole.up, whole.votes, whole.changed), (build.name, pieces)
