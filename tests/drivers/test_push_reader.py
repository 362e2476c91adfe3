"""`PushReader`: it has pushes read while no thread is in a call, and ends when no key is watched."""

from __future__ import annotations

import gc
import socket
import threading
import weakref
from collections.abc import Iterator
from functools import partial

import pytest
from support.faces import PATIENCE, await_true

from redlatch.drivers.push_reader import PushReader


class Driver:
    """The driver of a client with one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.watched = True
        self.read: list[bytes] = []
        self.threads: set[int] = set()
        self.fails = False
        self.reader = PushReader(self)

    def sockets(self) -> list[int]:
        self.threads.add(threading.get_ident())
        return [self._sock.fileno(), -1] if self.watched else []

    def read_late_replies(self) -> None:
        data = self._sock.recv(100)
        if self.fails:
            raise SystemExit
        self.read.append(data)

    def running(self) -> bool:
        """Return whether the reader runs."""
        return not self.reader._unstarted


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def test_it_has_each_push_read_as_it_comes(pair: tuple[socket.socket, socket.socket]) -> None:
    driver = Driver(pair[0])
    driver.reader.start()
    for number in range(5):
        pair[1].send(b"%d" % number)
        await_true(lambda: len(driver.read) > number)  # noqa: B023
    assert b"".join(driver.read) == b"01234"
    driver.watched = False
    await_true(lambda: not driver.running())


def test_one_thread_looks_however_often_it_is_started(pair: tuple[socket.socket, socket.socket]) -> None:
    driver = Driver(pair[0])
    for _ in range(10):
        driver.reader.start()
    pair[1].send(b"x")
    await_true(lambda: bool(driver.read))
    assert len(driver.threads) == 1
    driver.watched = False
    await_true(lambda: not driver.running())


def test_it_ends_while_nothing_is_watched_and_starts_again(pair: tuple[socket.socket, socket.socket]) -> None:
    driver = Driver(pair[0])
    driver.watched = False
    driver.reader.start()
    await_true(lambda: bool(driver.threads) and not driver.running())
    driver.watched = True
    driver.reader.start()
    pair[1].send(b"x")
    await_true(lambda: bool(driver.read))
    driver.watched = False
    await_true(lambda: not driver.running())


def test_it_goes_on_after_an_error(pair: tuple[socket.socket, socket.socket], caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(pair[0])
    driver.fails = True
    driver.reader.start()
    pair[1].send(b"x")
    await_true(lambda: any("reading what the masters push failed" in record.message for record in caplog.records))
    driver.fails = False
    pair[1].send(b"y")
    await_true(lambda: driver.read == [b"y"])
    driver.watched = False
    await_true(lambda: not driver.running())


def test_it_keeps_no_driver_alive(pair: tuple[socket.socket, socket.socket]) -> None:
    driver = Driver(pair[0])
    reader = driver.reader
    reader.start()
    await_true(partial(bool, driver.threads))
    gone = threading.Event()
    weakref.finalize(driver, gone.set)
    del driver
    gc.collect()
    assert gone.wait(PATIENCE)
    await_true(lambda: bool(reader._unstarted))
