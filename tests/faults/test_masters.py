"""The faults of masters, networks and stopped processes; each test names its row of the fault matrix.

Everything is real except the faults on the wire, which a proxy makes. The module is longer than others because it is
the fault matrix, row after row.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
from support.faces import PATIENCE, Face, await_true, finish, in_thread, line_of, refused, run_script, wins
from support.masters import SERVERS, Farm, Keys
from support.proxy import Proxy
from support.selection import on_one_face

from redlatch import (
    Client,
    ConfigurationError,
    Guard,
    LockLost,
    NotOwned,
    QuorumUnavailable,
    Retry,
    impl,
)
from redlatch.testing import embedded

# An attempt_timeout for tests in which masters are silent.
SOON = 1.0
# A ttl that no test outlives: a key that is gone was deleted.
LONG = 60.0


def ask(url: Any) -> Any:
    return redis.Redis.from_url(url, socket_timeout=PATIENCE, retry=None, decode_responses=True)


def addresses(urls: Any) -> Any:
    return {url.partition("://")[2] for url in urls}


def calls_of(url: Any, command: Any) -> Any:
    """Return how often a master has run a command."""
    with ask(url) as server:
        return server.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0)


def tokens_set(proxy: Any, name: Any) -> Any:
    """Return the values that SETs of `name` carried, in order."""
    return [command[2] for command in list(proxy.commands) if command[:2] == (b"SET", name.encode())]


def sent_after_set(proxy: Any, token: Any) -> Any:
    """Return whether another command with the token followed the SET that carried it: its release."""
    return proxy.count(token) > 1


def handshakes(proxy: Any) -> Any:
    """Return the number of finished handshakes with a guard; TIME is their last command."""
    return list(proxy.answered).count((b"TIME",))


def once(word: Any, fault: Any) -> Any:
    """Make a Spoil that changes the reply to the first command that contains `word` to `fault(reply)`."""
    left = itertools.count()

    def spoil(command: Any, reply: Any) -> Any:
        return fault(reply) if word in command and next(left) == 0 else reply

    return spoil


def works(connect: Any, urls: Any, name: Any, keys: Any) -> None:
    """Check that a new client can run a whole cycle and leaves no key."""
    lock = connect(urls).lock(name, ttl=LONG)
    assert lock.acquire(timeout=PATIENCE)
    assert lock.owned()
    lock.release()
    await_true(lambda: not keys(urls, name))


# --- rows 1 and 2: the client is stopped ---------------------------------------------------------------

THREADS_CHILD = """
import sys, redlatch
name, *urls = sys.argv[1:]
client = redlatch.Client(urls, attempt_timeout=30)
client.connect()
print("ready", flush=True)
sys.stdin.readline()
lock = client.lock(name, ttl=1.0)
try:
    won = lock.acquire(blocking=False)
except redlatch.QuorumUnavailable:
    won = "unavailable"
print(won, lock.remaining(), flush=True)
sys.stdin.readline()
try:
    lock.check()
except redlatch.LockError as error:
    print(type(error).__name__, lock.remaining(), flush=True)
sys.stdin.readline()
client.close()
"""

ASYNCIO_CHILD = """
import asyncio, sys, redlatch
name, *urls = sys.argv[1:]
async def main():
    client = redlatch.AsyncClient(urls, attempt_timeout=30)
    await client.connect()
    print("ready", flush=True)
    sys.stdin.readline()
    lock = client.lock(name, ttl=1.0)
    try:
        won = await lock.acquire(blocking=False)
    except redlatch.QuorumUnavailable:
        won = "unavailable"
    print(won, lock.remaining(), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    try:
        lock.check()
    except redlatch.LockError as error:
        print(type(error).__name__, lock.remaining(), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await client.close()
asyncio.run(main())
"""


@pytest.fixture(params=["threads", "asyncio"])
def child(request: pytest.FixtureRequest, implementation: impl.Implementation) -> Iterator[Any]:
    """Start a process that acquires when it gets a line."""
    started = []

    def start(name: Any, urls: Any) -> Any:
        text = {"threads": THREADS_CHILD, "asyncio": ASYNCIO_CHILD}[request.param]
        process = run_script(text, implementation.name, name, *urls, wait=False)
        started.append(process)
        assert line_of(process) == "ready\n", process.communicate()
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def tell(process: Any) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


def stop(process: Any) -> None:
    """Stop a process and wait until it is stopped."""
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def test_row_1_a_client_that_was_stopped_with_its_replies_in_flight_gets_no_lock(
    child: Any, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    before = proxies(three)
    process = child(name, [proxy.url for proxy in before])
    await_true(lambda: all(proxy.greeted() for proxy in before))
    for proxy in before:
        proxy.replies.clear()
    tell(process)
    await_true(lambda: all(proxy.count("SET", name) for proxy in before))
    stop(process)
    for proxy in before:
        # The replies wait in the kernel until the client resumes.
        proxy.replies.set()
    with Client(three) as rival:
        winner = rival.lock(name, ttl=LONG)
        assert winner.acquire(timeout=PATIENCE)
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.readline() == "False 0.0\n"
        for proxy in before:
            await_true(
                partial(lambda proxy: all(sent_after_set(proxy, token) for token in tokens_set(proxy, name)), proxy)
            )
        assert winner.owned()
        winner.release()
    await_true(lambda: not keys(three, name))


def test_row_2_a_holder_that_was_stopped_longer_than_its_ttl_learns_of_the_loss_at_once(
    child: Any, three: list[str], name: str, keys: Keys
) -> None:
    process = child(name, three)
    tell(process)
    assert process.stdout.readline().startswith("True ")
    stop(process)
    await_true(lambda: not keys(three, name))
    os.kill(process.pid, signal.SIGCONT)
    tell(process)
    assert process.stdout.readline() == "LockLost 0.0\n"
    tell(process)
    assert finish(process)[1] == ""


def test_row_1_replies_that_come_after_the_validity_are_no_votes(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    client.connect()
    for proxy in before:
        proxy.replies.clear()
    lock = client.lock(name, ttl=0.3)
    with pytest.raises(QuorumUnavailable):
        lock.acquire(blocking=False)
    for proxy in before:
        proxy.replies.set()
    # Its replies come after the late ones, so the client has read those.
    assert client.lock(f"{name}-other").acquire()
    assert lock.remaining() == 0.0
    with pytest.raises(NotOwned):
        lock.check()


# --- D1, D3, rows 12, 13, 16: replies are lost, commands are late ----------------------------------------


def test_row_12_a_set_whose_reply_was_lost_is_undone_and_the_attempt_repeated(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    client.connect()
    for proxy in before:
        proxy.spoil = once(b"SET", lambda reply: None)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire(blocking=False)
    # A master whose connection was found broken only then takes no part in the second attempt.
    await_true(lambda: sum(len(tokens_set(proxy, name)) in (2, 3) for proxy in before) >= 2)
    lock.release()
    await_true(lambda: not keys(three, name))


def test_row_12_a_set_whose_reply_was_lost_on_a_minority_leaves_no_key_there(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    (before,) = proxies(three[:1])
    client = connect([before.url, *three[1:]])
    client.connect()
    before.spoil = once(b"SET", lambda reply: None)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire(blocking=False)
    lock.release()
    await_true(lambda: before.accepted == 2)
    await_true(lambda: not keys(three, name))


def test_row_12_a_release_whose_reply_was_lost_is_repeated(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    for proxy in before:
        proxy.spoil = once(lock.token, lambda reply: None)
    lock.release()
    await_true(lambda: not keys(three, name))


def test_row_12_a_release_that_never_arrived_is_repeated(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    # Otherwise a proxy would still hold the SET, and would not read the next command.
    await_true(lambda: len(keys(three, name)) == len(three))
    for proxy in before:
        proxy.requests.clear()
    releasing = lock.start("release")
    await_true(lambda: all(sent_after_set(proxy, tokens_set(proxy, name)[0]) for proxy in before))
    for proxy in before:
        proxy.cut(abrupt=True)
        proxy.requests.set()
    releasing.result(PATIENCE)
    await_true(lambda: not keys(three, name))


def test_rows_13_and_16_a_stopped_majority_is_an_error_and_gets_its_release_later(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str, keys: Keys
) -> None:
    masters = fleet(5)
    client = connect(masters.urls, attempt_timeout=SOON)
    client.connect()
    for index in range(3):
        masters.pause(index)
    with pytest.raises(QuorumUnavailable):
        client.lock(name, ttl=LONG).acquire()
    for index in range(3):
        masters.resume(index)
    for url in masters.urls:
        await_true(partial(lambda url: calls_of(url, "set") > 0, url))
    await_true(lambda: not keys(masters.urls, name))
    assert client.lock(name).acquire(timeout=PATIENCE)


def test_row_13_a_release_is_kept_for_a_stopped_master(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str, keys: Keys
) -> None:
    masters = fleet(3)
    client = connect(masters.urls, attempt_timeout=SOON)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    masters.pause(0)
    lock.release()
    masters.resume(0)
    await_true(lambda: not keys(masters.urls, name))


def test_row_16_a_release_from_a_stopped_majority_fails_and_can_be_repeated(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str, keys: Keys
) -> None:
    masters = fleet(3)
    client = connect(masters.urls, attempt_timeout=SOON)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    for index in range(2):
        masters.pause(index)
    with pytest.raises(QuorumUnavailable):
        lock.release()
    for index in range(2):
        masters.resume(index)
    lock.release()
    assert not keys(masters.urls, name)


# --- D5 to D7, rows 6, 7, 9, 33: extending --------------------------------------------------------------


def test_row_9_an_extend_that_is_under_way_does_not_outlive_the_release(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    token = lock.token
    await_true(lambda: all(proxy.greeted() for proxy in before))
    for proxy in before:
        proxy.replies.clear()
    extending = lock.start("extend", LONG)
    await_true(lambda: all(proxy.count(token) == 2 for proxy in before))
    releasing = lock.start("release")
    await_true(lambda: all(proxy.count(token) == 3 for proxy in before))
    for proxy in before:
        proxy.replies.set()
    releasing.result(PATIENCE)
    # The votes of the extension may have been counted just before the release, but the lock must not stay held.
    with contextlib.suppress(NotOwned):
        extending.result(PATIENCE)
    assert lock.remaining() == 0.0
    await_true(lambda: not keys(three, name))
    with pytest.raises(NotOwned):
        lock.extend()


def test_row_7_an_extend_that_a_quorum_acknowledges_too_late_is_a_loss(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    lock = client.lock(name, ttl=0.5)
    assert lock.acquire()
    for proxy in before:
        proxy.replies.clear()
    with pytest.raises(LockLost):
        lock.extend(LONG)
    for proxy in before:
        proxy.replies.set()
    # Its replies come after the late ones, so the client has read those.
    assert client.lock(name).locked()
    with pytest.raises(LockLost):
        lock.check()
    assert lock.remaining() == 0.0
    with pytest.raises(LockLost):
        lock.release()
    await_true(lambda: not keys(three, name))


def test_row_7_extending_after_the_validity_is_a_loss_even_while_the_keys_live(
    connect: Face, three: list[str], name: str, keys: Keys
) -> None:
    client = connect(three, drift_factor=0.9)
    # The validity is 400 ms, while the keys live for 4 s.
    lock = client.lock(name, ttl=4.0)
    assert lock.acquire()
    await_true(lambda: lock.remaining() == 0.0)
    assert len(keys(three, name)) == 3
    with pytest.raises(LockLost):
        lock.extend(LONG)


@pytest.mark.parametrize("loss", ["del", "flushall", "another's"])
def test_row_6_extending_a_lock_that_a_majority_forgot_is_a_loss_and_creates_no_key(
    loss: str, connect: Face, fleet: Callable[..., embedded.Masters], name: str, keys: Keys
) -> None:
    masters = fleet(5)
    client = connect(masters.urls)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    await_true(lambda: len(keys(masters.urls, name)) == 5)
    for url in masters.urls[:3]:
        with ask(url) as server:
            server.flushall() if loss == "flushall" else server.delete(name)
            if loss == "another's":
                server.set(name, "somebody else", px=777_000)
    # A master that was flushed is kept out.
    with pytest.raises(QuorumUnavailable if loss == "flushall" else LockLost):
        lock.extend()
    with pytest.raises(LockLost):
        lock.check()
    left = keys(masters.urls[:3], name)
    assert len(left) == (3 if loss == "another's" else 0)
    assert all(milliseconds > LONG * 1000 for milliseconds in left.values())
    assert lock.remaining() == 0.0
    assert loss == "flushall" or not lock.owned()


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_row_4_one_extension_right_after_a_flush_ends_the_doubt(
    connect: Face,
    fleet: Callable[..., embedded.Masters],
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    keys: Keys,
    many: bool,
) -> None:
    masters = fleet(3)
    before = proxies(masters.urls)
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    await_true(lambda: len(keys(masters.urls, name)) == 3)
    # The extension ends after the client has heard of the flush, not before.
    for proxy in before[1:]:
        proxy.replies.clear()
    with ask(masters.urls[0]) as server:
        server.flushall()
    call = in_thread(client.extend_many, [lock.raw]) if many else in_thread(lock.extend)
    await_true(lambda: lock.remaining() == 0.0)
    for proxy in before[1:]:
        proxy.replies.set()
    assert call.result(PATIENCE) == ([True] if many else None)
    lock.check()
    assert lock.remaining() > 0


def test_row_6_extending_a_lock_that_a_minority_forgot_succeeds(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet(5)
    client = connect(masters.urls, attempt_timeout=PATIENCE)
    lock = client.lock(name, ttl=2.0)
    assert lock.acquire()
    for url in masters.urls[:2]:
        with ask(url) as server:
            server.delete(name)
    lock.extend(LONG)
    assert lock.remaining() > 2.0
    lock.release()


def test_extending_sets_the_ttl_and_does_not_add_to_it(connect: Face, three: list[str], name: str, keys: Keys) -> None:
    lock = connect(three).lock(name, ttl=5.0)
    assert lock.acquire()
    lock.extend(10.0)
    lock.extend(10.0)
    await_true(lambda: all(5000 < left <= 10_000 for left in keys(three, name).values()))
    assert 5.0 < lock.remaining() < 10.0
    lock.release()


# --- D13, row 24: masters that answer with an error ------------------------------------------------------


@contextlib.contextmanager
def oom(url: Any) -> Iterator[Any]:
    with ask(url) as server:
        server.config_set("maxmemory", 1)
        yield "OOM"
        server.config_set("maxmemory", 0)


@contextlib.contextmanager
def readonly(url: Any) -> Iterator[Any]:
    with ask(url) as server, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        server.replicaof("127.0.0.1", nobody.getsockname()[1])
        yield "READONLY"
        server.replicaof("NO", "ONE")


@contextlib.contextmanager
def misconf(url: Any) -> Iterator[Any]:
    with ask(url) as server:
        os.mkdir(os.path.join(server.config_get("dir")["dir"], "taken"))
        # This name is a folder, so the server cannot write a dump.
        server.config_set("dbfilename", "taken")
        server.config_set("save", "3600 1")
        server.bgsave()
        await_true(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err")
        yield "MISCONF"
        server.config_set("save", "")


@contextlib.contextmanager
def busy(url: Any) -> Iterator[Any]:
    with ask(url) as server, ask(url) as other:
        other.config_set("lua-time-limit", 1)
        running = in_thread(answer, lambda: server.eval("while true do end", 0))
        await_true(lambda: answer(other.ping).startswith("BUSY"))
        yield "BUSY"
        other.script_kill()
        running.result(PATIENCE)


@contextlib.contextmanager
def loading(url: Any) -> Iterator[Any]:
    with ask(url) as server, ask(url) as other:
        with server.pipeline(transaction=False) as pipeline:
            for number in range(5000):
                pipeline.set(f"filler-{number}", "x" * 64)
            pipeline.execute()
        server.config_set("key-load-delay", 2_000)
        server.config_set("loading-process-events-interval-bytes", 1024)
        running = in_thread(server.execute_command, "DEBUG", "RELOAD")
        await_true(lambda: answer(lambda: other.get("key")).startswith(("LOADING", "Redis is loading", "Valkey is")))
        yield "loading"
        other.config_set("key-load-delay", 0)
        running.result(PATIENCE)


@contextlib.contextmanager
def noperm(url: Any) -> Iterator[Any]:
    with ask(url) as server:
        server.execute_command("ACL", "SETUSER", "default", "-set")
        yield "permission"
        server.execute_command("ACL", "SETUSER", "default", "+set")


def answer(call: Any) -> Any:
    """Return what a call returns or raises, as text."""
    try:
        return str(call())
    except redis.RedisError as error:
        return str(error)


AILMENTS = [oom, readonly, misconf, busy, loading, noperm]
AILING = {"enable-debug-command": "yes", "enable-protected-configs": "yes"}


@pytest.mark.parametrize("ailment", AILMENTS)
def test_row_24_a_minority_that_answers_with_an_error_is_harmless(
    ailment: Any, connect: Face, fleet: Callable[..., embedded.Masters], name: str, keys: Keys
) -> None:
    masters = fleet(3, config=AILING)
    client = connect(masters.urls)
    client.connect()
    lock = client.lock(name, ttl=LONG)
    with ailment(masters.urls[0]):
        assert lock.acquire()
        assert lock.owned()
        lock.extend()
        lock.release()
    await_true(lambda: not keys(masters.urls, name))


@pytest.mark.parametrize("ailment", AILMENTS)
def test_row_24_an_error_of_a_majority_is_quorum_unavailable_with_a_cause_for_each(
    ailment: Any, connect: Face, fleet: Callable[..., embedded.Masters], name: str, keys: Keys
) -> None:
    masters = fleet(3, config=AILING)
    # A master that was a replica may have the keys of another one, and would be kept out.
    client = connect(masters.urls, guard=None if ailment is readonly else Guard())
    client.connect()
    with contextlib.ExitStack() as stack:
        _, code = (stack.enter_context(ailment(url)) for url in masters.urls[:2])
        with pytest.raises(QuorumUnavailable) as caught:
            client.lock(name, ttl=LONG).acquire()
    assert set(caught.value.causes) == addresses(masters.urls[:2])
    assert all(code in str(cause) for cause in caught.value.causes.values())
    await_true(lambda: not keys(masters.urls, name))
    lock = client.lock(name, ttl=LONG)
    # A master that is dialled again is back within a second.
    await_true(lambda: wins(lock))
    lock.release()


def test_row_24_extend_and_release_work_while_every_master_is_out_of_memory(
    connect: Face, fleet: Callable[..., embedded.Masters], server: str, name: str, keys: Keys
) -> None:
    masters = fleet(3, server=server)
    client = connect(masters.urls, attempt_timeout=PATIENCE)
    lock = client.lock(name, ttl=2.0)
    assert lock.acquire()
    with contextlib.ExitStack() as stack:
        for url in masters.urls:
            stack.enter_context(oom(url))
        lock.extend(LONG)
        assert lock.remaining() > 2.0
        lock.release()
        assert not keys(masters.urls, name)


# --- D14, rows 17, 18, 19: bytes that no server sends ----------------------------------------------------

HOSTILE = {
    "an extra yes": b"$-1\r\n+OK\r\n",
    "an extra no": b"$-1\r\n$-1\r\n",
    "a number": b":1\r\n",
    "another word": b"+QUEUED\r\n",
    "an empty word": b"+\r\n",
    "a huge number": b":99999999999999999999\r\n",
    "another string": b"$3\r\nYES\r\n",
    "a boolean": b"#t\r\n",
    "a double": b",1.5\r\n",
    "a big number": b"(1\r\n",
    "an array of the right word": b"*1\r\n+OK\r\n",
    "a map": b"%1\r\n+OK\r\n+OK\r\n",
    "a set": b"~1\r\n+OK\r\n",
    "a push": b">2\r\n+invalidate\r\n+OK\r\n",
    "an attribute": b"|1\r\n+a\r\n+b\r\n+OK\r\n",
    "the header of a huge array": b"*4294967295\r\n",
    "the header of a huge map": b"%1000000000\r\n",
    "the header of a huge string": b"$1000000000\r\n",
    "a negative length": b"$-7\r\n",
    "a length that is no number": b"$abc\r\n",
    "deep nesting": b"*1\r\n" * 10_000,
    "a line without an end": b"+" + b"x" * 1_000_000,
    "a string too long": b"$1000000\r\n" + b"x" * 1_000_000,
    "no RESP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "zeros": b"\0" * 100,
}
# This reply may arrive after the next command was sent, and then it is only another "no".
HARMLESS = {"an extra no"}


@pytest.mark.parametrize("what", HOSTILE)
def test_rows_17_and_18_a_bad_reply_is_no_vote_and_the_client_recovers(
    what: Any, connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    client.connect()
    with Client(three) as rival:
        held = rival.lock(name, ttl=LONG)
        assert held.acquire()
        for proxy in before:
            proxy.spoil = once(b"SET", lambda reply: HOSTILE[what])
        lock = client.lock(name, ttl=LONG)
        with contextlib.suppress(QuorumUnavailable):
            assert not lock.acquire(blocking=False)
        assert held.owned()
        held.release()
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire(timeout=PATIENCE)
    lock.release()

    def closed() -> Any:
        # The next caller reads the bad reply of a minority.
        again = client.lock(name, ttl=LONG)
        assert again.acquire(timeout=PATIENCE)
        again.release()
        return all(proxy.accepted > 1 for proxy in before)

    if what not in HARMLESS:
        await_true(closed)
    await_true(lambda: not keys(three, name))


@pytest.mark.parametrize("what", HOSTILE)
def test_rows_17_and_18_a_bad_reply_of_a_minority_does_not_matter(
    what: Any, connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    (before,) = proxies(three[:1])
    client = connect([before.url, *three[1:]])
    client.connect()
    before.spoil = once(b"SET", lambda reply: HOSTILE[what])
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire(timeout=PATIENCE)
    lock.release()
    await_true(lambda: not keys(three, name))


@pytest.mark.parametrize("what", ["a number", "a push", "no RESP", "a line without an end"])
def test_rows_17_and_18_a_release_is_sent_again_after_a_bad_reply(
    what: str, connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    for proxy in before:
        proxy.spoil = once(lock.token, lambda reply: b":5\r\n" if what == "a number" else HOSTILE[what])
    lock.release()
    # The release waits for a quorum, so the third master may be later.
    await_true(lambda: not keys(three, name))


@pytest.mark.parametrize("bad", [b"*4294967295\r\n", b"+" + b"x" * 1_000_000, b"HTTP/1.1 400 Bad\r\n\r\n", b""])
def test_row_18_a_bad_greeting_is_only_a_cause(
    bad: Any, connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three[:2])
    for proxy in before:
        proxy.spoil = lambda command, reply: bad or None
    client = connect([*(proxy.url for proxy in before), three[2]])
    with pytest.raises((QuorumUnavailable, ConfigurationError)):
        client.lock(name).acquire()


def test_row_19_replies_and_commands_one_byte_at_a_time_change_nothing(
    connect: Face,
    three: list[str],
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A handshake has 2,000 such bytes.
    monkeypatch.setattr("redlatch.drivers.connections.DIAL_TIMEOUT", PATIENCE)
    before = proxies(three)
    for proxy in before:
        proxy.crumbs = True
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    lock, other = client.lock(name, ttl=LONG), client.lock(name, ttl=LONG)
    assert lock.acquire()
    assert not other.acquire(blocking=False)
    assert lock.locked()
    assert lock.owned()
    assert not other.owned()
    lock.extend(LONG)
    lock.release()
    assert not lock.locked()
    assert all(proxy.accepted == 1 for proxy in before)
    await_true(lambda: not keys(three, name))


# --- D15, rows 34 and 35: masters that are not independent -----------------------------------------------


def test_row_34_one_server_under_two_names_is_refused(connect: Face, farm: Farm) -> None:
    one, other, _ = farm.urls(3)
    client = connect([one, other, one.replace("127.0.0.1", "localhost")])
    # If the third server is slow, its answer comes after the first call.
    await_true(lambda: refused(client, "same server"))
    with pytest.raises(ConfigurationError, match="same server"):
        client.lock("name").acquire()


def test_row_34_one_server_behind_two_addresses_is_refused(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]]
) -> None:
    first, second, third = proxies([three[0], three[0], three[1]])
    client = connect([first.url, second.url, third.url])
    # If the third server is slow, its answer comes after the first call.
    await_true(lambda: refused(client, "same server"))


@on_one_face("asyncio")
@pytest.mark.parametrize("many", [False, True])
def test_row_34_a_release_cut_short_by_a_refused_master_can_be_repeated(
    many: bool,
    connect: Face,
    three: list[str],
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("redlatch.drivers.connections.DIAL_TIMEOUT", PATIENCE)
    first, second, twin = before = proxies(three)
    twin.lead_to(three[0])
    twin.replies.clear()
    client = connect([proxy.url for proxy in before], guard=None, attempt_timeout=PATIENCE / 10)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    token = lock.token
    first.replies.clear()
    second.replies.clear()
    release = client.start("release_many", [lock.raw]) if many else lock.start("release")
    await_true(lambda: sent_after_set(first, token) and sent_after_set(second, token))
    twin.replies.set()
    with pytest.raises(ConfigurationError, match="same server"):
        release.result(PATIENCE)
    first.replies.set()
    second.replies.set()
    twin.lead_to(three[2])

    def usable() -> Any:
        with contextlib.suppress(ConfigurationError):
            client.connect()
            return True

    await_true(usable)
    assert client.lock(name, ttl=LONG).acquire(timeout=PATIENCE / 2)
    # The caller releases it as after any interrupted release.
    lock.release()


def test_row_34_the_same_address_twice_is_refused_before_any_dial(connect: Face, three: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="already"):
        connect([three[0], three[1], three[0]])


def test_row_35_a_replica_is_refused(connect: Face, fleet: Callable[..., embedded.Masters]) -> None:
    masters = fleet(3)
    with ask(masters.urls[2]) as server:
        server.replicaof("127.0.0.1", masters.urls[0].rpartition(":")[2])
        with pytest.raises(ConfigurationError, match="not a master"):
            connect(masters.urls).connect()


# --- rows 14 and 15, 31: masters that cannot be reached --------------------------------------------------


def test_row_14_a_minority_that_refuses_connections_is_harmless(
    connect: Face, three: list[str], closed_ports: Callable[[int], list[str]], name: str, keys: Keys
) -> None:
    # Other clients have another list of these masters, so no guard is used.
    client = connect([*three, *closed_ports(2)], guard=None)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire(blocking=False)
    lock.extend()
    lock.release()
    assert not keys(three, name)


def test_row_14_a_majority_that_refuses_connections_is_named(
    connect: Face, three: list[str], closed_ports: Callable[[int], list[str]], name: str, keys: Keys
) -> None:
    refusing = closed_ports(3)
    client = connect([*three[:2], *refusing], guard=None)
    with pytest.raises(QuorumUnavailable) as caught:
        client.lock(name, ttl=LONG).acquire()
    assert set(caught.value.causes) == addresses(refusing)
    assert caught.value.name == name
    await_true(lambda: not keys(three[:2], name))


def test_row_14_a_master_that_sent_nonsense_is_used_once_it_answers_correctly(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    (before,) = proxies(three[:1])
    before.spoil = lambda command, reply: b"<html>\r\n"
    client = connect([before.url, *three[1:]], guard=None)
    await_true(lambda: refused(client, f"masters[0] (127.0.0.1:{before.port}): the answer is no RESP"))
    before.spoil = None

    def used() -> Any:
        try:
            return wins(client.lock(name))
        except ConfigurationError:
            return False

    await_true(used)


@pytest.mark.parametrize("abrupt", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize("count", [1, 3])
def test_row_14_connections_that_are_cut_between_two_calls_are_replaced(
    count: int,
    abrupt: bool,
    connect: Face,
    farm: Farm,
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    keys: Keys,
) -> None:
    urls = farm.urls(count)
    before = proxies(urls)
    client = connect([proxy.url for proxy in before])
    lock = client.lock(name, ttl=LONG)
    rounds: list[None] = []

    def cut() -> None:
        # Do not cut while a connection is being made: a cut then would be another outcome. A RST takes away replies of
        # the handshake that the client has not read yet.
        rounds.append(None)
        for proxy in before:
            await_true(partial(lambda proxy: handshakes(proxy) == proxy.accepted == len(rounds), proxy))
        await_true(lambda: all(master.voting for master in client.raw.health().masters))
        for proxy in before:
            proxy.cut(abrupt)

    for _ in range(5):
        assert lock.acquire(blocking=False)
        cut()
        lock.release()
        cut()

    await_true(lambda: not keys(urls, name))


def test_row_14_a_held_lock_survives_the_failure_of_a_minority(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    (before,) = proxies(three[:1])
    client = connect([before.url, *three[1:]])
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    before.refusing = True
    before.cut()
    lock.extend()
    lock.release()
    assert not keys(three[1:], name)
    before.refusing = False
    # The client kept the release for this master.
    await_true(lambda: not keys(three, name))


@pytest.mark.parametrize("count", [1, 2])
def test_row_15_a_stopped_minority_is_harmless(
    count: int, connect: Face, fleet: Callable[..., embedded.Masters], name: str, keys: Keys
) -> None:
    masters = fleet(5)
    client = connect(masters.urls)
    client.connect()
    for index in range(count):
        masters.pause(index)
    lock = client.lock(name, ttl=LONG)
    for _ in range(10):
        assert lock.acquire(blocking=False)
        lock.extend()
        lock.release()
    for index in range(count):
        masters.resume(index)
    await_true(lambda: not keys(masters.urls, name))


def test_row_15_a_client_connects_beside_a_stopped_minority(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet(3)
    # Let all masters report that they are new.
    connect(masters.urls).connect()
    masters.pause(1)
    lock = connect(masters.urls).lock(name)
    assert lock.acquire(timeout=PATIENCE)
    lock.release()


def test_row_31_each_master_that_takes_no_more_clients_is_a_cause(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet(3)
    # Let all masters report that they are new.
    connect(masters.urls).connect()
    with contextlib.ExitStack() as stack:
        for url in masters.urls[:2]:
            stack.enter_context(ask(url)).config_set("maxclients", 1)
        with pytest.raises(QuorumUnavailable) as caught:
            connect(masters.urls).lock(name).acquire()
    assert set(caught.value.causes) == addresses(masters.urls[:2])


FEW_DESCRIPTORS = """
import os, resource, sys, redlatch
name, *urls = sys.argv[1:]
client = redlatch.Client(urls)
lock = client.lock(name, ttl=60)
assert lock.acquire()
other = redlatch.Client(urls)
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
taken = []
while len(taken) < 64:
    try:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        break
lock.release()
assert lock.acquire()
try:
    other.lock("x").acquire(blocking=False)
except (redlatch.QuorumUnavailable, OSError) as error:
    print(type(error).__name__)
lock.release()
for descriptor in taken:
    os.close(descriptor)
assert lock.acquire()
lock.release()
client.close()
"""


def test_row_31_without_descriptors_open_connections_work_and_new_ones_fail(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    process = run_script(FEW_DESCRIPTORS, implementation.name, name, *three, wait=False)
    out, err = finish(process)
    assert (process.returncode, err) == (0, "")
    assert out in ("QuorumUnavailable\n", "OSError\n")
    assert not keys(three, name)


# --- rows 20 and 21: one-way partitions that heal --------------------------------------------------------


def test_row_20_missing_replies_are_no_votes_and_the_keys_are_deleted_meanwhile(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    before = proxies(three[:2])
    client = connect([*(proxy.url for proxy in before), three[2]], attempt_timeout=SOON)
    client.connect()
    await_true(lambda: all(proxy.greeted() for proxy in before))
    for proxy in before:
        proxy.replies.clear()
    lock = client.lock(name, ttl=LONG)
    with pytest.raises(QuorumUnavailable):
        lock.acquire()
    assert all(tokens_set(proxy, name) for proxy in before)
    # The way to the masters is open, so they got the release.
    await_true(lambda: not keys(three, name))
    for proxy in before:
        proxy.replies.set()
    assert client.lock(name, ttl=LONG).acquire(timeout=PATIENCE)


def test_row_20_late_commands_are_undone_as_soon_as_they_arrive(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=SOON)
    client.connect()
    sets = {url: calls_of(url, "set") for url in three}
    for proxy in before:
        proxy.requests.clear()
    with pytest.raises(QuorumUnavailable):
        client.lock(name, ttl=LONG).acquire()
    assert {url: calls_of(url, "set") for url in three} == sets
    for proxy in before:
        proxy.requests.set()
    await_true(lambda: all(calls_of(url, "set") > sets[url] for url in three))
    await_true(lambda: not keys(three, name))


def test_row_21_the_late_yes_of_one_attempt_is_not_counted_for_the_next(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=SOON)
    client.connect()
    await_true(lambda: all(proxy.greeted() for proxy in before))
    for proxy in before:
        proxy.replies.clear()
    lock = client.lock(name, ttl=LONG)
    with pytest.raises(QuorumUnavailable):
        lock.acquire()
    with Client(three) as rival:
        held = rival.lock(name, ttl=LONG)
        assert held.acquire(timeout=PATIENCE)
        sets = [proxy.count("SET", name) for proxy in before]
        second = lock.start("acquire", blocking=False)
        await_true(lambda: all(proxy.count("SET", name) > count for proxy, count in zip(before, sets, strict=True)))
        for proxy in before:
            # First comes the "yes" of the attempt that was given up, then the "no" of this one.
            proxy.replies.set()
        with contextlib.suppress(QuorumUnavailable):
            assert second.result(PATIENCE) is False
        assert lock.remaining() == 0.0
        assert held.owned()
        held.release()
    assert lock.acquire(timeout=PATIENCE)
    lock.release()


# --- rule 1, row 5: tokens -------------------------------------------------------------------------------


def test_rule_1_every_attempt_has_a_token_of_its_own(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], retry=Retry(0.001, 0.002), wakeups="poll")
    with Client(three) as rival:
        held = rival.lock(name, ttl=LONG)
        assert held.acquire()
        waiting = client.lock(name, ttl=LONG)
        acquiring = waiting.start("acquire")
        await_true(lambda: any(len(tokens_set(proxy, name)) > 20 for proxy in before))
        held.release()
        assert acquiring.result(PATIENCE)
    for proxy in before:
        tokens = tokens_set(proxy, name)
        assert len(set(tokens)) == len(tokens)
    waiting.release()


# --- row 22: split votes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 5])
def test_row_22_clients_that_start_together_get_the_lock_in_turn(
    count: int, connect: Face, farm: Farm, name: str, keys: Keys
) -> None:
    urls = farm.urls(count)
    clients = [connect(urls) for _ in range(6)]
    for client in clients:
        client.connect()
    inside = []

    def cycle(client: Any) -> Any:
        for _ in range(5):
            lock = client.lock(name, ttl=LONG)
            assert lock.acquire(timeout=PATIENCE)
            inside.append(client)
            assert inside == [client]
            inside.remove(client)
            lock.release()
        return True

    threads = [in_thread(cycle, client) for client in clients]
    assert all(thread.result(PATIENCE) for thread in threads)
    await_true(lambda: not keys(urls, name))


# --- row 25: scripts that are forgotten ------------------------------------------------------------------


def test_row_25_a_server_that_forgets_its_scripts_changes_nothing(
    connect: Face, fleet: Callable[..., embedded.Masters], server: str, name: str, keys: Keys
) -> None:
    masters = fleet(3, server=server)
    client = connect(masters.urls)
    over, flushed = threading.Event(), []

    def flush() -> None:
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(ask(url)) for url in masters.urls]
            while not over.is_set():
                for each in servers:
                    each.script_flush()
                flushed.append(True)

    flushing = in_thread(flush)
    cycles = 0
    while cycles < 100 or len(flushed) <= 20:
        cycles += 1
        lock = client.lock(name, ttl=LONG)
        assert lock.acquire(blocking=False)
        lock.extend()
        assert lock.owned()
        assert lock.locked()
        lock.release()
        # The release returned after a quorum; one master may be later.
        await_true(lambda: not keys(masters.urls, name))
    over.set()
    flushing.result(PATIENCE)


def test_row_25_a_release_is_sent_in_full_to_a_minority_that_answers_after_the_call(
    connect: Face,
    fleet: Callable[..., embedded.Masters],
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    keys: Keys,
) -> None:
    masters = fleet(3, server=SERVERS["redis-on-path"] or pytest.skip("there is no redis-server on PATH"))
    (before,) = proxies(masters.urls[:1])
    client = connect([before.url, *masters.urls[1:]])
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    await_true(lambda: len(keys(masters.urls, name)) == 3)
    with ask(masters.urls[0]) as server:
        server.script_flush()
    before.replies.clear()
    lock.release()
    # Only now does the client read that the script is unknown.
    before.replies.set()
    await_true(lambda: not keys(masters.urls, name))


# --- row 36: the edges of the ttl ------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [0, 0.0, -1, 0.0004, float("nan"), float("inf"), -float("inf"), 1e300, 0.002])
def test_row_36_a_ttl_that_cannot_work_is_refused_and_reaches_no_master(
    ttl: Any, connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    (before,) = proxies(three[:1])
    client = connect([before.url, *three[1:]])
    client.connect()
    with pytest.raises(ValueError, match="ttl"):
        client.lock(name, ttl=ttl)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    with pytest.raises(ValueError, match="ttl"):
        lock.extend(ttl)
    lock.release()
    assert before.count(b"PEXPIRE", name) == before.count(b"PERSIST", name) == 0
    with pytest.raises(ValueError, match="ttl"):
        connect(three, ttl=ttl)


@pytest.mark.parametrize("ttl", [True, "10", None.__class__, b"1", [1]])
def test_row_36_a_ttl_that_is_no_number_is_a_type_error(ttl: Any, connect: Face, three: list[str], name: str) -> None:
    with pytest.raises(TypeError, match="ttl"):
        connect(three).lock(name, ttl=ttl)


@pytest.mark.parametrize("ttl", [0.003, 0.0034, 0.01, 1, 1.0006])
def test_row_36_the_shortest_ttls_never_leave_a_key_without_one(
    ttl: float, connect: Face, three: list[str], name: str, keys: Keys
) -> None:
    client = connect(three)
    client.connect()
    for number in range(20):
        with contextlib.suppress(QuorumUnavailable):
            client.lock(f"{name}-{number}", ttl=ttl).acquire(blocking=False)
        assert all(0 <= left <= 1001 for left in keys(three, f"{name}-{number}").values())
    await_true(lambda: not any(keys(three, f"{name}-{number}") for number in range(20)))


# --- masters that die ------------------------------------------------------------------------------------


def test_a_master_that_is_killed_and_restarted_disturbs_no_client_and_votes_again(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str, keys: Keys
) -> None:
    masters = fleet(3, config={"appendonly": "yes", "appendfsync": "always"})
    client = connect(masters.urls, guard=Guard(trust_persistence=True))
    client.connect()
    over = threading.Event()
    inside = []

    def cycle(number: Any) -> Any:
        count = 0
        while not over.is_set():
            lock = client.lock(name, ttl=LONG)
            assert lock.acquire(timeout=PATIENCE)
            inside.append(number)
            assert inside == [number]
            inside.remove(number)
            lock.release()
            count += 1
        return count

    cycling = [in_thread(cycle, number) for number in range(3)]
    for index in (0, 1, 2):
        masters.kill(index)
        masters.start(index)
        # The guard may set its marker before the master votes again, so a few calls prove nothing.
        await_true(partial(lambda index: calls_of(masters.urls[index], "set") > 5, index))
    over.set()
    assert all(each.result(PATIENCE) > 0 for each in cycling)
    await_true(lambda: not keys(masters.urls, name))


def test_a_majority_that_is_killed_is_unavailable_until_it_is_back(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str, keys: Keys
) -> None:
    masters = fleet(3)
    client = connect(masters.urls, guard=None)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    for index in (0, 1):
        masters.kill(index)
    with pytest.raises(QuorumUnavailable) as caught:
        lock.release()
    assert set(caught.value.causes) == addresses(masters.urls[:2])
    with pytest.raises(QuorumUnavailable):
        client.lock(name).acquire(timeout=0.1)
    for index in (0, 1):
        masters.start(index)
    await_true(lambda: wins(client.lock(name, ttl=LONG)))


def test_a_master_that_dies_with_a_reply_in_flight_is_one_failed_vote(
    connect: Face,
    fleet: Callable[..., embedded.Masters],
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    keys: Keys,
) -> None:
    masters = fleet(3)
    (before,) = proxies(masters.urls[:1])
    client = connect([before.url, *masters.urls[1:]])
    client.connect()
    before.replies.clear()
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire(blocking=False)
    masters.kill(0)
    lock.release()
    assert not keys(masters.urls[1:], name)


def test_a_waiter_keeps_waiting_while_a_minority_restarts(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet(3)
    holder, waiter = connect(masters.urls), connect(masters.urls)
    held = holder.lock(name, ttl=LONG)
    assert held.acquire()
    waiting = waiter.lock(name, ttl=LONG).start("acquire")
    for index in (0, 1):
        masters.pause(index)
        time.sleep(0)
        masters.resume(index)
    assert not waiting.done()
    held.release()
    assert waiting.result(PATIENCE)
