"""`BackgroundThread` and `PushReader`: when they read, when held locks are attended to, and when they end."""

from __future__ import annotations

import gc
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from support.faces import PATIENCE, await_true
from support.interleaving import meet

from redlatch.drivers import background
from redlatch.drivers.background import BackgroundThread, Bell, PushReader


class Recorder:
    """A driver that records the calls of its background thread."""

    def __init__(self, attend: float | None = None) -> None:
        self.closed = False
        self.attended: list[float] = []
        self.read: list[float] = []
        self.threads: set[int] = set()
        self.answer = attend
        self.fails = False

    def attend(self) -> float | None:
        self.threads.add(threading.get_ident())
        self.attended.append(time.monotonic())
        return self.answer

    def read_late_replies(self) -> None:
        self.threads.add(threading.get_ident())
        self.read.append(time.monotonic())
        if self.fails:
            self.fails = False
            raise SystemExit


@pytest.fixture(autouse=True)
def period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "PERIOD", 0.2)


def started(driver: Any) -> BackgroundThread:
    thread = BackgroundThread(driver)
    thread.start()
    return thread


def ended(thread: BackgroundThread) -> bool:
    return bool(thread._unstarted)


def end(driver: Recorder, thread: BackgroundThread) -> None:
    driver.closed, driver.answer = True, None
    thread.read_later()
    await_true(lambda: ended(thread))


def test_it_reads_a_moment_after_it_was_asked_and_once_for_many_requests() -> None:
    driver = Recorder()
    thread = started(driver)
    begun = time.monotonic()
    for _ in range(100):
        thread.read_later()
    await_true(lambda: bool(driver.read))
    assert driver.read[0] - begun >= 0.2
    assert len(driver.read) == 1
    end(driver, thread)


def test_it_reads_again_after_a_reading_that_failed() -> None:
    driver = Recorder()
    driver.fails = True
    thread = started(driver)
    thread.read_later()
    await_true(lambda: len(driver.read) == 2)
    end(driver, thread)


def test_it_attends_only_after_it_was_asked_to() -> None:
    driver = Recorder()
    thread = started(driver)
    thread.read_later()
    await_true(lambda: bool(driver.read))
    assert not driver.attended
    thread.attend_by(0)
    await_true(lambda: bool(driver.attended))
    end(driver, thread)


def test_one_thread_reads_and_attends() -> None:
    driver = Recorder(attend=0.01)
    thread = started(driver)
    thread.attend_by(0)
    thread.read_later()
    await_true(lambda: bool(driver.read) and len(driver.attended) > 2)
    assert len(driver.threads) == 1
    end(driver, thread)


def test_it_does_not_end_while_a_closed_driver_has_something_to_attend_to() -> None:
    driver = Recorder(attend=0.01)
    driver.closed = True
    thread = BackgroundThread(driver)
    thread.attend_by(0)
    await_true(lambda: len(driver.attended) > 3)
    end(driver, thread)


def test_a_request_after_its_end_starts_it_again() -> None:
    driver = Recorder()
    thread = started(driver)
    end(driver, thread)
    driver.answer = 0.01
    thread.attend_by(0)
    await_true(lambda: bool(driver.attended))
    end(driver, thread)


def test_a_request_just_after_the_last_look_at_the_bell_starts_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Recorder()
    thread = started(driver)
    end(driver, thread)
    driver.answer = 0.01
    thread._unstarted.pop()  # a thread has looked for a ring, and is about to say that it has ended
    meet(monkeypatch, Bell, "ring", lambda: thread._unstarted.append(None))
    thread.attend_by(0)
    await_true(lambda: bool(driver.attended))
    end(driver, thread)


def test_it_ends_when_the_driver_is_collected() -> None:
    driver = Recorder()
    thread = started(driver)
    reference = weakref.ref(driver)
    del driver
    gc.collect()
    assert reference() is None
    await_true(lambda: ended(thread))


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
