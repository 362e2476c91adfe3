"""`Resources`: a client gives back what it has when it is closed, forgotten or forked."""

from __future__ import annotations

import gc
import socket
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from redlatch.drivers.connections import Connections
from redlatch.guard.admission import Admissions
from redlatch.guard.marker import MARKER
from redlatch.guard.settings import Guard
from redlatch.masters.listed import masters_of
from redlatch.testing import embedded
from redlatch.wire.connect import dial
from redlatch.wire.engine import Fleet
from redlatch.wire.net import BootClock


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with embedded.masters(1) as [url]:
        yield url


@pytest.mark.parametrize("how", ["close", "disown"])
def test_a_connection_that_broke_just_before_the_end_is_closed(url: str, how: str) -> None:
    masters = masters_of([url])
    connections = Connections(masters, 1, BootClock(), Fleet, lambda index, outcome: None)
    connections.make_fleet()
    try:
        connections.arrive(0, dial(masters[0], 10.0))
        connections.fleet.torn = True
        connections.fleet.recover()
        [(_, sock)] = connections.fleet.fallen
        getattr(connections, how)()
        assert sock.fileno() == -1
    finally:
        connections.close()


def test_a_connection_that_no_driver_has_taken_is_closed(url: str) -> None:
    [master] = masters_of([url])
    connections = Connections([master], 1, BootClock(), Fleet, lambda index, outcome: None)
    connections.make_fleet()
    connection = dial(master, 10.0)
    connections.arrivals.append((0, connection))
    connections.close()
    assert connection.sock.fileno() == -1
    assert (connections.lifecycle.closed, connections.lifecycle.usable, connections.is_closing()) == (True, False, True)


def test_the_sockets_of_a_forgotten_client_are_dismissed(url: str) -> None:
    [master] = masters_of([url])
    dismissed: list[socket.socket] = []

    def dismiss(sock: socket.socket) -> None:
        dismissed.append(sock)
        sock.close()

    connections = Connections([master], 1, BootClock(), Fleet, lambda index, outcome: None)
    connections.make_fleet()
    connections.arrive(0, dial(master, 10.0))
    connections.dismiss = dismiss
    del connections
    gc.collect()
    assert len(dismissed) == 1


@pytest.mark.parametrize("where", ["not taken", "waits for the other masters"])
def test_the_collector_finds_no_connection_of_a_forgotten_client_before_the_client(url: str, where: str) -> None:
    """It finalizes the objects of a cycle one by one, here the socket first: "unclosed socket"."""
    masters = masters_of([url, "redis://127.0.0.1:1"])

    def guard(set_back: Any) -> Admissions:
        sources = lambda: 0, lambda: 0.5, lambda number: None
        return Admissions(tuple([m.address for m in masters]), Guard(), MARKER, 1000, 0.01, *sources, set_back)

    gc.collect()
    gc.disable()
    try:
        # Older than its client, so that the collector comes to it first.
        connection = dial(masters[0], 10.0, extension=guard(lambda index, by_ns: None).handshake(0))
        connections = Connections(masters, 2, BootClock(), Fleet, lambda index, outcome: None, guard=guard)
        connections.make_fleet()
        if where == "not taken":
            connections.arrivals.append((0, connection))
        else:
            connections.arrive(0, connection)
        cycle: list[Any] = [connections]
        cycle.append(cycle)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sock = weakref.ref(connection.sock)
            del connection, connections, cycle
            gc.collect()
            assert [str(each.message) for each in caught] == []
            # It is gone, and an open socket would have warned.
            assert sock() is None
    finally:
        gc.enable()
