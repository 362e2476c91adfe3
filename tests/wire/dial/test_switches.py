"""Listening to sentinels: what is reported, how the listener goes on, and that it ends.

tests/test_sentinel.py has real sentinels.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, ClassVar

import pytest
from support.dialling import master_of
from support.faces import await_true, descriptors
from support.forked import in_child
from support.played_sentinel import SUBSCRIBED, PlayedSentinel, message, played

from redlatch.masters.master import Found, Group
from redlatch.votes.commands import pack
from redlatch.wire.dial import subscription, switches
from redlatch.wire.dial.sentinels import find_master
from redlatch.wire.dial.switches import Switch, SwitchListener

PATIENCE = 5.0
SUBSCRIBE = pack("SUBSCRIBE", "+switch-master")
NEW = ("10.0.0.2", 6380)
SWITCH = message("g 10.0.0.1 6379 10.0.0.2 6380")


def all_name_it(group: Group, unanswered: set[int]) -> Found:
    """Answer in place of the sentinels. tests/wire/dial/test_sentinels.py has how they are asked."""
    return Found(NEW, group.number_question())


class Far:
    """The far end of the listener: a sentinel that the test plays."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(PATIENCE)
        self.sock = socket.socket()

    @property
    def host(self) -> str:
        return "{}:{}".format(*self.server.getsockname())

    def accept(self, answer: bytes = SUBSCRIBED, asked: bytes = SUBSCRIBE) -> None:
        """Take the next subscription."""
        self.sock.close()
        self.sock, _ = self.server.accept()
        self.sock.settimeout(PATIENCE)
        assert self.sock.recv(1000) == asked
        self.sock.sendall(answer)

    def ended(self) -> bool:
        """Wait for the end of the connection; return whether it came."""
        # A connection that is closed before its last bytes were read is reset.
        with contextlib.suppress(ConnectionResetError):
            while data := self.sock.recv(1000):
                assert data == pack("PING")
        return True

    def close(self) -> None:
        self.server.close()
        self.sock.close()


@pytest.fixture
def far() -> Iterator[Far]:
    far = Far()
    yield far
    far.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switches, "PAUSE", 0.01)
    monkeypatch.setattr(switches, "find_master", all_name_it)
    monkeypatch.setattr(subscription, "PAUSE", 0.01)
    monkeypatch.setattr(subscription, "TIMEOUT", PATIENCE)


Heard = SimpleQueue[Switch]


@pytest.fixture
def listen() -> Iterator[Callable[..., tuple[Group, Heard]]]:
    """Start a listener for the group "g" at some far ends."""
    listeners = []

    def start(*ends: Far, query: str = "") -> tuple[Group, Heard]:
        group = master_of(f"redis+sentinel://{','.join([end.host for end in ends])}/g{query}").group
        assert group is not None
        heard: Heard = SimpleQueue()
        listeners.append(SwitchListener(group, heard.put))
        listeners[-1].start()
        return group, heard

    yield start
    for listener in listeners:
        listener.close()


def await_questions(heard: Heard, count: int) -> None:
    """Wait until the sentinels were asked so many times. After each time the master is reported."""
    for _ in range(count):
        assert heard.get(timeout=PATIENCE).address == NEW


def test_when_a_subscription_begins_the_sentinels_are_asked(far: Far, listen: Any) -> None:
    group, heard = listen(far)
    for moved in (True, False):
        # An announcement between the two subscriptions would have been missed.
        far.accept()
        assert heard.get(timeout=PATIENCE) == Switch(NEW, moved)
        assert group.successor(Found(("10.0.0.1", 6379), 1)) == NEW


def test_after_an_announcement_the_sentinels_are_asked(far: Far, listen: Any) -> None:
    _, heard = listen(far)
    far.accept()
    await_questions(heard, 1)
    far.sock.sendall(SWITCH)
    await_questions(heard, 1)


def test_each_sentinel_is_heard(listen: Any) -> None:
    ends = [Far(), Far()]
    _, heard = listen(*ends)
    for end in ends:
        end.accept()
        await_questions(heard, 1)
        end.sock.sendall(SWITCH)
        await_questions(heard, 1)
    for end in ends:
        end.close()


def test_a_message_may_come_in_pieces(far: Far, listen: Any) -> None:
    _, heard = listen(far)
    far.accept()
    await_questions(heard, 1)
    far.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for start in range(0, len(SWITCH), 7):
        far.sock.sendall(SWITCH[start : start + 7])
    await_questions(heard, 1)


@pytest.mark.parametrize(
    "other",
    [
        message("another 10.0.0.1 6379 10.0.0.2 6380"),
        message("g 10.0.0.1 6379 10.0.0.2"),
        message("g 10.0.0.1 6379 10.0.0.2 6380", channel="+sdown"),
        message(""),
        b"*2\r\n$4\r\npong\r\n$0\r\n\r\n",
        b"*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n:1\r\n",
        b":1\r\n",
    ],
)
def test_anything_else_is_ignored(far: Far, listen: Any, other: bytes) -> None:
    _, heard = listen(far)
    far.accept()
    await_questions(heard, 1)
    far.sock.sendall(other)
    # The listener subscribes again, and all that was sent before has been read.
    far.sock.shutdown(socket.SHUT_WR)
    far.accept()
    await_questions(heard, 1)
    assert heard.empty()


@pytest.mark.parametrize("bad", [b"hello\r\n", b"*99999999\r\n", b"$99999999\r\n", b"$130000\r\n" + b"x" * 131_072])
def test_after_a_reply_that_is_no_message_it_subscribes_again(far: Far, listen: Any, bad: bytes) -> None:
    _, heard = listen(far)
    far.accept()
    await_questions(heard, 1)
    far.sock.sendall(bad)
    far.accept()
    await_questions(heard, 1)
    far.sock.sendall(SWITCH)
    await_questions(heard, 1)


@pytest.mark.parametrize("answer", [b"", b"-NOAUTH Authentication required.\r\n"])
def test_it_subscribes_until_that_succeeds_and_logs_the_failure_once(
    far: Far, listen: Any, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "redlatch")
    _, heard = listen(far)
    for _ in range(3):
        far.accept(answer)
        far.sock.close()
    far.accept()
    await_questions(heard, 1)
    far.sock.sendall(SWITCH)
    await_questions(heard, 1)
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        f"sentinel {far.host} announces nothing"
    ]


def test_it_logs_in_with_the_password_of_the_sentinels(far: Far, listen: Any) -> None:
    listen(far, query="?sentinel_password=s3cr3tpw")
    far.accept(b"+OK\r\n", pack("AUTH", "s3cr3tpw"))
    assert far.sock.recv(1000) == SUBSCRIBE


def test_a_credential_provider_that_exits_does_not_end_the_thread(far: Far, listen: Any) -> None:
    group, heard = listen(far)
    far.accept()
    await_questions(heard, 1)

    class Provider:
        failures: ClassVar = [SystemExit, KeyboardInterrupt]

        def get_credentials(self) -> Any:
            if self.failures:
                raise self.failures.pop()
            return ()

    group.sentinels[0]._options["credential_provider"] = Provider()
    far.accept()
    assert not Provider.failures
    await_questions(heard, 1)
    far.sock.sendall(SWITCH)
    await_questions(heard, 1)


def test_a_silent_sentinel_is_asked_for_a_sign_of_life_and_then_left(
    far: Far, listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "SILENCE", 0.05)
    listen(far)
    far.accept()
    assert far.sock.recv(1000) == pack("PING")
    far.sock.sendall(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n")
    assert far.sock.recv(1000) == pack("PING")
    assert far.ended()
    far.accept()


def test_an_error_of_the_client_does_not_end_the_thread(
    far: Far, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group = master_of(f"redis+sentinel://{far.host}/g").group
    assert group is not None
    heard: Heard = SimpleQueue()

    def fail(switch: Switch) -> None:
        heard.put(switch)
        raise ZeroDivisionError

    listener = SwitchListener(group, fail)
    listener.start()
    far.accept()
    for _ in range(2):
        await_questions(heard, 1)
        far.sock.sendall(SWITCH)
    await_questions(heard, 1)
    listener.close()
    assert far.ended()
    assert "listening to the sentinels of g failed" in caplog.text


def test_closing_ends_the_thread_and_its_connections(far: Far, listen: Any) -> None:
    group = master_of(f"redis+sentinel://{far.host}/g").group
    assert group is not None
    opened, threads = descriptors(), _thread._count()
    listener = SwitchListener(group, lambda switch: None)
    listener.start()
    listener.start()
    far.accept()
    listener.close()
    listener.close()
    assert far.ended()
    far.sock.close()
    await_true(lambda: descriptors() <= opened and _thread._count() <= threads)


def test_a_listener_that_is_closed_does_not_start(far: Far) -> None:
    group = master_of(f"redis+sentinel://{far.host}/g").group
    assert group is not None
    listener = SwitchListener(group, lambda switch: None)
    listener.close()
    listener.start()
    far.server.settimeout(0)
    with pytest.raises(BlockingIOError):
        far.server.accept()


def test_the_thread_ends_after_a_close_although_nobody_refers_to_the_listener(far: Far, listen: Any) -> None:
    group = master_of(f"redis+sentinel://{far.host}/g").group
    assert group is not None
    listener = SwitchListener(group, lambda switch: None)
    gone = weakref.ref(listener)
    listener.start()
    far.accept()
    listener.close()
    del listener
    await_true(lambda: gc.collect() >= 0 and gone() is None)


def test_closing_in_a_forked_child_leaves_the_listener_of_the_parent(far: Far, listen: Any) -> None:
    group = master_of(f"redis+sentinel://{far.host}/g").group
    assert group is not None
    heard: Heard = SimpleQueue()
    listener = SwitchListener(group, heard.put)
    listener.start()
    far.accept()
    await_questions(heard, 1)
    opened = descriptors()

    def close() -> None:
        listener.close()
        # The two ends of the wake-up, and the connection.
        assert descriptors() == opened - 3

    in_child(close)
    far.sock.sendall(SWITCH)
    await_questions(heard, 1)
    listener.close()


# --- with sentinels that answer ---------------------------------------------------------------------------

FORMER, WRONG, PROMOTED = ("127.0.0.1", 1001), ("127.0.0.1", 1002), ("127.0.0.1", 1003)


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[PlayedSentinel]]:
    """Three sentinels that all name one master."""
    monkeypatch.setattr(switches, "find_master", find_master)
    with played(3, FORMER[1]) as sentinels:
        yield sentinels


@pytest.fixture
def listened(three: list[PlayedSentinel]) -> Iterator[Heard]:
    """Listen to the three."""
    group = master_of(f"redis+sentinel://{','.join([each.url for each in three])}/g").group
    assert group is not None
    heard: Heard = SimpleQueue()
    listener = SwitchListener(group, heard.put)
    listener.start()
    await_true(lambda: all([each.subscribers for each in three]))
    yield heard
    listener.close()
    gone = weakref.ref(listener)
    del listener
    # The thread ends, whatever the sentinels send.
    await_true(lambda: gc.collect() >= 0 and gone() is None)


def await_switch(heard: Heard, address: tuple[str, int]) -> None:
    while (switch := heard.get(timeout=PATIENCE)).address == FORMER:
        pass
    assert switch == Switch(address, moved=True)


def test_an_announcement_of_one_sentinel_moves_nothing_until_a_majority_names_the_address(
    three: list[PlayedSentinel], listened: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "PERIOD", 0.01)
    liar, other, _ = three
    liar.port = WRONG[1]
    liar.flood(message(f"g 127.0.0.1 {FORMER[1]} 127.0.0.1 {WRONG[1]}"), times_a_second=200)
    for _ in range(10):
        assert listened.get(timeout=PATIENCE).address == FORMER
    other.announce(WRONG[1], "g")
    await_switch(listened, WRONG)


def test_a_flood_of_announcements_causes_few_questions_and_delays_no_other_sentinel(
    three: list[PlayedSentinel], listened: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "PERIOD", 60.0)
    liar, *others = three
    told = liar.flood(message(f"g 127.0.0.1 {FORMER[1]} 127.0.0.1 {WRONG[1]}"), times_a_second=1000)
    await_true(lambda: told.count > 500)
    # Each of the others may have been a reason once, at the beginning of its subscription.
    assert liar.questions <= subscription.BURST + 2
    for other in others:
        other.announce(PROMOTED[1], "g")
    await_switch(listened, PROMOTED)


def test_a_flood_of_whole_messages_delays_no_other_sentinel_and_ends_with_the_listener(
    three: list[PlayedSentinel], listened: Heard
) -> None:
    """Found by an attack: the thread read for ever, as each read ended with the end of a message."""
    short = message("x" * 19)
    assert len(short) == 64
    liar, *others = three
    flood = liar.flood(short * 8192)
    await_true(lambda: flood.count > 0)
    for other in others:
        other.announce(PROMOTED[1], "g")
    await_switch(listened, PROMOTED)


def test_a_slow_look_up_of_a_name_delays_neither_the_other_sentinels_nor_the_end_of_the_listener(
    three: list[PlayedSentinel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by an attack: the look-up blocked the thread, so that a fail-over was noticed seconds late."""
    over, looked_up, known = threading.Event(), list[str](), socket.getaddrinfo

    def look_up(host: Any, *args: Any, **options: Any) -> Any:
        if host == "slow.example":
            looked_up.append(host)
            over.wait(PATIENCE * 4)
        return known("127.0.0.1" if host == "slow.example" else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    slow, *others = three
    urls = ["slow.example:" + slow.url.rpartition(":")[2], *[each.url for each in others]]
    group = master_of(f"redis+sentinel://{','.join(urls)}/g").group
    assert group is not None
    heard: Heard = SimpleQueue()
    threads = _thread._count()
    listener = SwitchListener(group, heard.put)
    listener.start()
    await_true(lambda: looked_up and all([each.subscribers for each in others]), PATIENCE)
    for other in others:
        other.announce(PROMOTED[1], "g")
    await_switch(heard, PROMOTED)
    listener.close()
    gone = weakref.ref(listener)
    del listener
    await_true(lambda: gc.collect() >= 0 and gone() is None)
    # One to subscribe, and one to ask; they are not repeated while they go on.
    assert looked_up == ["slow.example"] * 2
    over.set()
    # The connections that were made too late are closed, else the threads of the sentinel would go on.
    await_true(lambda: slow.subscribers and _thread._count() <= threads)


def test_without_a_majority_the_sentinels_are_asked_again(three: list[PlayedSentinel], listened: Heard) -> None:
    first, second, third = three
    first.port, second.port, third.port = 1011, 1012, 1013
    first.announce(first.port, "g")
    # Without a further announcement.
    second.port = first.port
    await_switch(listened, ("127.0.0.1", first.port))
