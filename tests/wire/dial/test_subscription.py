"""The subscription at one sentinel: how it is made and read. test_switches.py has what follows from announcements."""

from __future__ import annotations

import _thread
import math
import select
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.dialling import master_of
from support.faces import await_true, descriptors
from support.played_sentinel import PlayedSentinel, message, played

from redlatch.masters.server import Server
from redlatch.wire.dial import subscription
from redlatch.wire.dial.conversation import seconds
from redlatch.wire.dial.subscription import Allowance, Subscribing, Subscription

PATIENCE = 5.0


def server_at(url: str) -> Server:
    group = master_of(f"redis+sentinel://{url}/g").group
    assert group is not None
    return group.sentinels[0]


@pytest.fixture
def sentinel() -> Iterator[PlayedSentinel]:
    with played(1, 1001) as [sentinel]:
        yield sentinel


def read(subscribed: Subscription) -> list[Any]:
    """Wait until there is something to read, and read it."""
    source = subscribed.source()
    assert source is not None
    assert select.select([source], [], [], PATIENCE)[0]
    return subscribed.messages()


@pytest.fixture
def subscribed(sentinel: PlayedSentinel) -> Iterator[Subscription]:
    """A subscription that has begun."""
    made = Subscription(server_at(sentinel.url))
    made.attend(seconds())
    # The end of the thread, and then the reply.
    assert read(made) == read(made) == []
    await_true(lambda: sentinel.subscribers)
    yield made
    made.close()


def test_a_new_subscription_is_news(subscribed: Subscription) -> None:
    assert subscribed.news
    assert subscribed.sock is not None


def test_it_returns_what_was_announced(sentinel: PlayedSentinel, subscribed: Subscription) -> None:
    sentinel.push(message("one") + message("other", channel="+sdown") + message("two"))
    assert read(subscribed) == [b"one", b"two"]


def test_it_returns_what_one_small_read_has_brought_and_rests(
    sentinel: PlayedSentinel, subscribed: Subscription
) -> None:
    """Found by an attack: a flood of messages was read, and kept, without end."""
    long = message("x" * 400)
    sentinel.flood(long * 10_000)
    for _ in range(5):
        before = time.monotonic()
        assert 0 < len(read(subscribed)) * len(long) <= 2 * subscription.PIECE
        assert subscribed.rests >= before + subscription.REST


def test_it_is_tried_again_after_a_pause(sentinel: PlayedSentinel) -> None:
    server = server_at(sentinel.url)
    sentinel.close()
    refused, before = Subscription(server), time.monotonic()
    refused.attend(before)
    assert refused.due == math.inf
    assert read(refused) == []
    assert refused.source() is None
    assert refused.due >= before + subscription.PAUSE


def test_it_is_tried_again_if_no_thread_can_start(sentinel: PlayedSentinel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    opened = descriptors()
    unstarted = Subscription(server_at(sentinel.url))
    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    unstarted.attend(0.0)
    assert unstarted.source() is None
    assert 0.0 < unstarted.due < math.inf
    assert descriptors() == opened


@pytest.mark.parametrize("ready", [False, True])
def test_a_connection_that_is_abandoned_is_closed(sentinel: PlayedSentinel, ready: bool) -> None:
    threads, opened = _thread._count(), descriptors()
    subscribing = Subscribing(server_at(sentinel.url))
    if ready:
        select.select([subscribing.done], [], [], PATIENCE)
        await_true(lambda: sentinel.subscribers)
    subscribing.abandon()
    subscribing.abandon()
    # The sentinel closes its end, and its thread ends.
    await_true(lambda: _thread._count() <= threads and descriptors() <= opened)


def test_an_allowance_is_for_some_times_at_once_and_then_for_once_in_a_period() -> None:
    allowance, now = Allowance(), 1000.0
    for _ in range(subscription.BURST):
        assert allowance.due <= now
        allowance.spend(now)
    assert allowance.due == now + subscription.PERIOD
    allowance.spend(now + subscription.PERIOD)
    assert allowance.due == now + 2 * subscription.PERIOD
    # After a long silence there are not more at once than at first.
    for _ in range(subscription.BURST):
        allowance.spend(now + 1000.0)
    assert allowance.due == now + 1000.0 + subscription.PERIOD


def test_a_socket_is_waited_for_only_while_there_is_one(subscribed: Subscription) -> None:
    assert isinstance(subscribed.source(), socket.socket)
    subscribed.close()
    assert subscribed.source() is None
