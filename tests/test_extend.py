"""Row 39: an extension never shortens a key on the server, whatever the order in which its copies arrive.

A holder asks for a short ttl, gets no answer, and then asks for a longer one, which wins. A late copy of the first
request must not let the server forget the lock before the holder's deadline.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from support.faces import PATIENCE, Face, Faced, ask, await_true
from support.proxy import Proxy, end_of
from support.selection import on_one_face

from redlatch import QuorumUnavailable
from redlatch.votes import family_scripts, scripts
from redlatch.votes.commands import pack

pytestmark = pytest.mark.one_loop

# Seconds. The clients have no guard, so no pulse precedes a command.
SHORT, LONGER, LONG = 4.0, 10.0, 30.0

KINDS: dict[str, tuple[Callable[[Any, str], Any], scripts.Script]] = {
    "plain": (lambda client, name: client.lock(name, ttl=LONG), scripts.EXTEND),
    "fenced": (lambda client, name: client.lock(name, ttl=LONG, fence=True), scripts.EXTEND),
    "fair": (lambda client, name: client.fair_lock(name, ttl=LONG), scripts.EXTEND),
    "reader": (lambda client, name: client.rw_lock(name, ttl=LONG).read(), family_scripts.READ_EXTEND),
    "writer": (lambda client, name: client.rw_lock(name, ttl=LONG).write(), family_scripts.WRITE_EXTEND),
    "semaphore": (lambda client, name: client.semaphore(name, 2, ttl=LONG), family_scripts.SLOT_EXTEND),
}


def stays(url: str, name: str) -> float:
    """Return how many seconds the master will keep every key and entry of a lock."""
    with ask(url) as master:
        seconds, microseconds = master.time()
        now = seconds + microseconds / 1e6
        keys = [key for key in master.keys(f"*{name}*") if not key.endswith((b"\0fence", b"\0queue"))]
        assert keys
        ends: list[float] = [master.pttl(key) / 1000 for key in keys]
        for key in keys:
            if master.type(key) == b"zset":
                ends += [score / 1000 - now for _, score in master.zrange(key, 0, -1, withscores=True)]
        return min(ends)


def send_late(url: str, command: tuple[bytes, ...]) -> bytes:
    """Send a command on a new connection, like late bytes of a connection that the client gave up."""
    where = urlsplit(url)
    with socket.create_connection((where.hostname, where.port), PATIENCE) as sock:
        sock.sendall(pack(*command))
        reply = b""
        while end_of(reply) is None:
            reply += sock.recv(65536)
        return reply


def last_call(proxy: Proxy, script: scripts.Script, ttl: float) -> tuple[bytes, ...]:
    """Return the client's last extension to this ttl."""
    wanted = b"%d" % (ttl * 1000)

    def calls() -> list[tuple[bytes, ...]]:
        return [c for c in list(proxy.commands) if c[1] in (script.sha, script.text) and wanted in c]

    # The client may return before the proxy has read the command.
    await_true(lambda: bool(calls()))
    return calls()[-1]


def make_it_connect_anew(before: list[Proxy]) -> None:
    """Cut all connections, open the gates, and wait until the client has shaken hands with every master again."""
    for proxy in before:
        proxy.cut()
        proxy.requests.set()
    await_true(lambda: all(proxy.answered.count((b"INFO", b"memory")) == 2 for proxy in before))


def acquire_everywhere(client: Faced, lock: Faced, three: list[str], before: list[Proxy], name: str) -> None:
    """Acquire a lock with the votes of all masters, so that a gate holds back only later commands."""
    first = client.lock(f"first-{name}")

    # A master that connects late is not asked.
    def asks_all() -> bool:
        assert first.acquire()
        asked = all(ask(url).exists(f"first-{name}") for url in three)
        first.release()
        return asked

    await_true(asks_all)
    assert lock.acquire()
    await_true(lambda: all(ask(url).keys(f"*{name}*") for url in three))
    await_true(lambda: all(proxy.quiet() for proxy in before))


@on_one_face("threads")
@pytest.mark.parametrize("kind", KINDS)
def test_row_39_a_late_copy_of_a_shorter_extension_takes_no_time_away(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, kind: Any
) -> None:
    make, script = KINDS[kind]
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=1.0, guard=None)
    lock = make(client, name)
    acquire_everywhere(client, lock, three, before, name)
    for proxy in before:
        proxy.requests.clear()
    with pytest.raises(QuorumUnavailable):
        lock.extend(SHORT)
    late = [last_call(proxy, script, SHORT) for proxy in before]
    make_it_connect_anew(before)
    lock.extend(LONGER)
    assert lock.remaining() > SHORT
    for url, command in zip(three, late, strict=True):
        assert send_late(url, command) == b":1\r\n"
    assert all(stays(url, name) > lock.remaining() for url in three)
    lock.release()


@on_one_face("threads")
@pytest.mark.parametrize("kind", KINDS)
def test_row_39_a_script_that_is_resent_after_a_longer_extension_takes_no_time_away(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, kind: Any
) -> None:
    make, script = KINDS[kind]
    before = proxies(three)
    missing = [threading.Event() for _ in before]

    def spoil_at(index: int) -> Any:
        def spoil(command: tuple[bytes, ...], reply: bytes) -> bytes:
            if reply.startswith(b"-NOSCRIPT"):
                missing[index].set()
            return reply

        return spoil

    for index, proxy in enumerate(before):
        proxy.spoil = spoil_at(index)
    client = connect([proxy.url for proxy in before], attempt_timeout=1.0, guard=None)
    lock = make(client, name)
    acquire_everywhere(client, lock, three, before, name)
    for proxy, url in zip(before, three, strict=True):
        proxy.replies.clear()
        ask(url).script_flush()
    with pytest.raises(QuorumUnavailable):
        lock.extend(SHORT)
    for url, event in zip(three, missing, strict=True):
        assert event.wait(PATIENCE)
        ask(url).script_load(script.text)
    extending = lock.start("extend", LONGER)
    await_true(lambda: all(proxy.count(script.sha, b"%d" % (LONGER * 1000)) for proxy in before))
    for proxy in before:
        proxy.replies.set()
    extending.result(PATIENCE)
    again = b"EVAL", script.text, b"%d" % (SHORT * 1000)
    await_true(lambda: all(any(set(again) <= set(command) for command in list(proxy.answered)) for proxy in before))
    assert lock.remaining() > SHORT
    assert all(stays(url, name) > lock.remaining() for url in three)
    lock.release()


@on_one_face("asyncio")
def test_row_39_no_rival_wins_before_the_holders_deadline(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=1.0, guard=None)
    lock = client.lock(name, ttl=LONG)
    rival = connect(three).lock(name)
    acquire_everywhere(client, lock, three, before, name)
    for proxy in before:
        proxy.requests.clear()
    with pytest.raises(QuorumUnavailable):
        lock.extend(2.5)
    late = [last_call(proxy, scripts.EXTEND, 2.5) for proxy in before]
    make_it_connect_anew(before)
    lock.extend(LONGER)
    for url, command in zip(three, late, strict=True):
        send_late(url, command)
    assert not rival.acquire(timeout=2.8)
    assert lock.remaining() > 0
    lock.release()
    assert rival.acquire(timeout=PATIENCE)


@pytest.mark.parametrize("kind", KINDS)
def test_row_39_a_shorter_ttl_ends_the_holders_validity_and_leaves_the_key(
    connect: Face, three: list[str], name: str, kind: Any
) -> None:
    make, _ = KINDS[kind]
    lock = make(connect(three), name)
    assert lock.acquire()
    lock.extend(SHORT)
    assert 0 < lock.remaining() < SHORT
    assert all(stays(url, name) > LONGER for url in three)
    # The release frees the key at once.
    lock.release()
    with redis.Redis.from_url(three[0], retry=None) as master:
        await_true(lambda: not [key for key in master.keys(f"*{name}*") if not key.endswith(b"\0fence")])
