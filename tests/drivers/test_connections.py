"""`Connections`: what a caller sees of a list of masters while they are dialled for the first time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from redlatch.config import masters_of
from redlatch.drivers.connections import Connections
from redlatch.errors import ConfigurationError
from redlatch.guard.admission import Admissions
from redlatch.guard.marker import MARKER
from redlatch.guard.settings import Guard
from redlatch.testing import embedded
from redlatch.wire.connect import Connection, dial
from redlatch.wire.engine import Fleet
from redlatch.wire.net import BootClock


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with embedded.masters(1) as [url]:
        yield url


class Watched:
    """A socket that notes when it is closed whether `is_complete` says that every master has been tried."""

    def __init__(self, connection: Connection, connections: Connections, seen: list[bool]) -> None:
        self.sock, self.connections, self.seen = connection.sock, connections, seen

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self.seen.append(self.connections.is_complete())
        self.sock.close()


def test_nobody_sees_all_masters_tried_before_the_last_verdict_stands(url: str) -> None:
    # Else a caller between the two would take a wrong list for a good one.
    masters = masters_of([url, url.replace("127.0.0.1", "localhost")])
    connections = Connections(masters, 2, BootClock(), Fleet, lambda index, outcome: None)
    connections.muster()
    try:
        connections.arrive(0, dial(masters[0], 10.0))
        assert not connections.is_complete()
        twin, seen = dial(masters[1], 10.0), list[bool]()
        twin.sock = Watched(twin, connections, seen)  # type: ignore[assignment]
        connections.arrive(1, twin)
        assert seen == [False]
        assert connections.is_complete()
        with pytest.raises(ConfigurationError, match=r"^masters\[1\]: .*run_id"):
            connections.check()
    finally:
        connections.close()


@pytest.mark.parametrize("how", ["close", "disown"])
def test_a_connection_that_broke_just_before_the_end_is_closed(url: str, how: str) -> None:
    masters = masters_of([url])
    connections = Connections(masters, 1, BootClock(), Fleet, lambda index, outcome: None)
    connections.muster()
    try:
        connections.arrive(0, dial(masters[0], 10.0))
        connections.fleet.torn = True
        connections.fleet.mend()
        [(_, sock)] = connections.fleet.fallen
        getattr(connections, how)()
        assert sock.fileno() == -1
    finally:
        connections.close()


class Interrupted(Admissions):
    """A guard whose client another thread closes just before a connection is judged."""

    connections: Connections

    def decide(self, *args: Any) -> Any:
        self.connections.close()
        return super().decide(*args)


def test_a_connection_that_is_judged_while_the_client_closes_is_closed_without_an_error(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    masters = masters_of([url])
    made = list[Interrupted]()

    def guard(set_back: Any) -> Admissions:
        numbers: list[int] = []
        sources = lambda: 0, lambda: 0.5, numbers.append
        made.append(Interrupted((masters[0].address,), Guard(), MARKER, 1000, 0.01, *sources, set_back))
        return made[0]

    connections = Connections(masters, 1, BootClock(), Fleet, lambda index, outcome: None, guard=guard)
    connections.muster()
    made[0].connections = connections
    connection = dial(masters[0], 10.0, extension=made[0].handshake(0))
    connections.arrive(0, connection)
    assert connection.sock.fileno() == -1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
