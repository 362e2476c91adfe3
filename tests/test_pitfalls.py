"""The ten pitfalls of docs/pitfalls.md: each bites with the code that articles show, and not with redlatch.

The first half of each test shows the bite, on real servers and always. The second half plays the same scenario with
redlatch.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
import sqlalchemy as sa
from faults.clocks import Clock, compile_library
from sqlalchemy.orm import Session
from support import databases as databases_of_tests
from support.faces import PATIENCE, ask, await_true, in_thread, line_of, run_script, wins
from support.lagging import Line
from support.proxy import Command, Proxy

from redlatch import Client, Lock, LockLost, impl
from redlatch.sqlalchemy import hold
from redlatch.testing import embedded

Proxies = Callable[[list[str]], list[Proxy]]


@contextlib.contextmanager
def running(text: str, implementation: impl.Implementation, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program beside the test, and kill it at the end if it has not ended."""
    process = run_script(text, implementation.name, *args, wait=False)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def kill(process: subprocess.Popen[str]) -> None:
    """End a process at once, as a crash does."""
    process.kill()
    process.wait(PATIENCE)


def tell(process: subprocess.Popen[str]) -> None:
    """Let a program go on that waits for a line."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


# A program that holds a lock of redlatch until it gets a line, and then acts only if the lock is still valid.
HOLDER = """
import sys, redlatch
url, name, ttl = sys.argv[1:]
client = redlatch.Client(url)
client.connect()
print("connected", flush=True)
sys.stdin.readline()
lock = client.lock(name, ttl=float(ttl))
lock.acquire()
print("held", flush=True)
sys.stdin.readline()
try:
    lock.check()
    print("writes", flush=True)
except redlatch.LockLost:
    print("lost", flush=True)
"""


# --- 1. set and expire apart ---------------------------------------------------------------------------

SET_THEN_EXPIRE = """
import sys, redis
url, name = sys.argv[1:]
server = redis.Redis.from_url(url)
if server.setnx(name, "held"):
    print("set", flush=True)
    sys.stdin.readline()
    server.expire(name, 10)
"""


def test_1_set_and_expire_apart(implementation: impl.Implementation, url: str, name: str, proxies: Proxies) -> None:
    server = ask(url)
    with running(SET_THEN_EXPIRE, implementation, url, name) as process:
        assert line_of(process) == "set\n"
        kill(process)
    assert server.ttl(name) == -1, "the lock lasts for ever"
    assert not server.setnx(name, "held")
    server.delete(name)

    [proxy] = proxies([url])
    with running(HOLDER, implementation, proxy.url, name, "1.0") as process:
        assert line_of(process) == "connected\n"
        await_true(proxy.quiet)
        proxy.replies.clear()
        tell(process)
        await_true(lambda: server.exists(name))
        kill(process)
    assert server.pttl(name) > 0
    with Client(url) as client:
        assert client.lock(name).acquire(timeout=PATIENCE)


# --- 2. the value as expiry ----------------------------------------------------------------------------

VALUE_AS_EXPIRY = """
import sys, time, redis
url, name = sys.argv[1:]
server = redis.Redis.from_url(url)

def acquire(ttl):
    now = time.time()
    if server.setnx(name, now + ttl):
        return True
    expires = float(server.get(name))
    return expires < now and float(server.getset(name, now + ttl)) == expires

print(acquire(10), flush=True)
"""

ONE_ATTEMPT = """
import sys, redlatch
url, name = sys.argv[1:]
with redlatch.Client(url) as client:
    print(client.lock(name).acquire(blocking=False), flush=True)
"""


@pytest.fixture
def hurried_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the wall clocks of the processes that the test starts ahead by a minute."""
    clock = Clock(compile_library(tmp_path), tmp_path, "ahead")
    clock.set_ahead(60)
    with monkeypatch.context() as patched:
        for variable, value in clock.environment.items():
            patched.setenv(variable, value)
        yield


def test_2_the_value_as_expiry(implementation: impl.Implementation, url: str, name: str, hurried_clock: None) -> None:
    server = ask(url)
    assert server.setnx(name, time.time() + 10), "the holder works for up to 10 s"
    with running(VALUE_AS_EXPIRY, implementation, url, name) as process:
        assert line_of(process) == "True\n", "a second holder, whose clock is a minute ahead"
    server.delete(name)

    with Client(url) as client, client.lock(name, ttl=10.0) as lock:
        with running(ONE_ATTEMPT, implementation, url, name) as process:
            assert line_of(process) == "False\n"
        lock.check()


def test_2_the_loser_of_a_getset_moves_the_expiry_of_the_winner(url: str, name: str) -> None:
    server = ask(url)
    server.set(name, 100.0)
    # At 150 two clients see that the lock has expired. Both replace the value; the first has won.
    seen = [float(server.get(name)), float(server.get(name))]
    won = [float(server.getset(name, 160.0)) == seen[0], float(server.getset(name, 170.0)) == seen[1]]
    assert won == [True, False]
    assert float(server.get(name)) == 170.0, "the winner's lock ends at 170, though it said 160"


# --- 3. no expiry --------------------------------------------------------------------------------------

SET_WITHOUT_EXPIRY = """
import sys, redis
url, name = sys.argv[1:]
server = redis.Redis.from_url(url)
if server.setnx(name, "held"):
    print("held", flush=True)
    sys.stdin.readline()
    server.delete(name)
"""


def test_3_no_expiry(implementation: impl.Implementation, url: str, name: str) -> None:
    server = ask(url)
    with running(SET_WITHOUT_EXPIRY, implementation, url, name) as process:
        assert line_of(process) == "held\n"
        kill(process)
    assert server.ttl(name) == -1, "the lock lasts for ever"
    assert not server.setnx(name, "held")
    server.delete(name)

    with running(HOLDER, implementation, url, name, "1.0") as process:
        assert line_of(process) == "connected\n"
        tell(process)
        assert line_of(process) == "held\n"
        kill(process)
    with Client(url) as client:
        assert client.lock(name).acquire(timeout=PATIENCE)


# --- 4. not released -----------------------------------------------------------------------------------


class SoldOut(Exception):
    """The body of the critical section fails."""


def sell() -> None:
    raise SoldOut


def sell_under_a_naive_lock(server: redis.Redis, name: str) -> None:
    if server.set(name, "held", nx=True, ex=60):
        sell()
        server.delete(name)


def test_4_not_released(implementation: impl.Implementation, url: str, name: str) -> None:
    server = ask(url)
    with pytest.raises(SoldOut):
        sell_under_a_naive_lock(server, name)
    assert server.exists(name), "nobody can sell for 60 s"
    server.delete(name)

    with Client(url) as client:
        with pytest.raises(SoldOut), client.lock(name, ttl=60.0):
            sell()
        assert not server.exists(name)


# --- 5. released by another ----------------------------------------------------------------------------


def test_5_released_by_another(implementation: impl.Implementation, url: str, name: str) -> None:
    server = ask(url)
    assert server.set(name, "held", nx=True, px=20), "A holds the lock, and works for too long"
    await_true(lambda: server.set(name, "held", nx=True, px=60_000))
    server.delete(name)
    assert server.set(name, "held", nx=True, px=60_000), "C holds the lock while B does: A has released it"
    server.delete(name)

    with Client(url) as client, Client(url) as other:
        first, second = client.lock(name, ttl=0.05), other.lock(name, ttl=60.0)
        assert first.acquire()
        assert second.acquire(timeout=PATIENCE)
        with pytest.raises(LockLost):
            first.release()
        assert second.owned()
        assert not client.lock(name).acquire(blocking=False)


# --- 6. the release is not atomic ----------------------------------------------------------------------


def release_by_two_commands(server: redis.Redis, name: str, token: bytes) -> None:
    if server.get(name) == token:
        server.delete(name)


def test_6_the_release_is_not_atomic(
    implementation: impl.Implementation, url: str, name: str, proxies: Proxies
) -> None:
    server = ask(url)
    [proxy] = proxies([url])

    def hold_what_follows(command: Command, reply: bytes) -> bytes:
        if command[0] == b"GET":
            proxy.requests.clear()
        return reply

    proxy.spoil = hold_what_follows
    server.set(name, "A", nx=True, px=60_000)
    releasing = in_thread(release_by_two_commands, ask(proxy.url), name, b"A")
    await_true(lambda: proxy.count(b"DEL"))
    # Before A's DEL arrives, A's lock expires, and B acquires it.
    server.pexpire(name, 1)
    await_true(lambda: server.set(name, "B", nx=True, px=60_000))
    proxy.requests.set()
    releasing.result(PATIENCE)
    assert not server.exists(name), "A has released the lock of B"

    proxy.spoil = None
    with Client(proxy.url, attempt_timeout=PATIENCE) as client, Client(url) as other:
        first, second = client.lock(name, ttl=0.5), other.lock(name, ttl=60.0)
        other.connect()
        assert first.acquire()
        await_true(proxy.quiet)
        proxy.requests.clear()
        releasing = in_thread(first.release)
        assert second.acquire(timeout=PATIENCE)
        proxy.requests.set()
        with pytest.raises(LockLost):
            releasing.result(PATIENCE)
        assert second.owned()


# --- 7. expired while working --------------------------------------------------------------------------

WRITES_AFTER_A_PAUSE = """
import sys, redis
url, name = sys.argv[1:]
server = redis.Redis.from_url(url)
if server.set(name, "held", nx=True, px=50):
    print("held", flush=True)
    sys.stdin.readline()
    print("writes", flush=True)
"""


@contextlib.contextmanager
def paused(process: subprocess.Popen[str]) -> Iterator[None]:
    """Stop a process, as a hypervisor does."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def test_7_expired_during_a_pause(implementation: impl.Implementation, url: str, name: str) -> None:
    server = ask(url)
    with running(WRITES_AFTER_A_PAUSE, implementation, url, name) as process:
        assert line_of(process) == "held\n"
        with paused(process):
            await_true(lambda: server.set(name, "held", nx=True, px=60_000))
            tell(process)
        assert line_of(process) == "writes\n", "both write"
    server.delete(name)

    with running(HOLDER, implementation, url, name, "0.5") as process, Client(url) as client:
        assert line_of(process) == "connected\n"
        tell(process)
        assert line_of(process) == "held\n"
        with paused(process):
            assert client.lock(name).acquire(timeout=PATIENCE)
            tell(process)
        assert line_of(process) == "lost\n"


def test_7_the_work_takes_longer_than_the_ttl(implementation: impl.Implementation, url: str, name: str) -> None:
    server = ask(url)
    assert server.set(name, "held", nx=True, px=20), "A works until B does"
    await_true(lambda: server.set(name, "held", nx=True, px=60_000))
    server.delete(name)

    with Client(url) as client, Client(url) as other, client.lock(name, ttl=0.5, auto_renew=True) as lock:
        # A works for three times the ttl.
        assert not other.lock(name).acquire(timeout=1.5)
        lock.check()


# --- 8. inside the transaction -------------------------------------------------------------------------


def left(connection: psycopg.Connection[Any]) -> int:
    """Read how many are left to sell."""
    row = connection.execute("SELECT left_over FROM stock").fetchone()
    assert row is not None
    return int(row[0])


def write(connection: psycopg.Connection[Any], count: int) -> None:
    connection.execute("UPDATE stock SET left_over = %s", (count,))


@pytest.fixture
def two_connections(
    databases: Callable[[str], databases_of_tests.Server],
) -> Iterator[list[psycopg.Connection[Any]]]:
    """Two connections to a table with a stock of 10, at the default isolation level of PostgreSQL."""
    url = databases("postgresql").url()
    with psycopg.connect(url, autocommit=True) as first, psycopg.connect(url, autocommit=True) as second:
        first.execute("CREATE TABLE stock (left_over integer)")
        first.execute("INSERT INTO stock VALUES (10)")
        yield [first, second]
        first.execute("DROP TABLE stock")


def sell_in_a_session(session: Session, lock: Lock) -> None:
    """Hold a lock until the transaction has ended, and sell one."""
    with session.begin():
        hold(session, lock)
        count = session.execute(sa.text("SELECT left_over FROM stock")).scalar_one()
        session.execute(sa.text("UPDATE stock SET left_over = :count"), {"count": count - 1})


def test_8_inside_the_transaction(
    implementation: impl.Implementation,
    url: str,
    name: str,
    databases: Callable[[str], databases_of_tests.Server],
    two_connections: list[psycopg.Connection[Any]],
) -> None:
    server, (one, two) = ask(url), two_connections
    naive = [server.lock(name, timeout=60) for _ in range(2)]
    with contextlib.ExitStack() as second:
        with one.transaction():
            with naive[0]:
                write(one, left(one) - 1)
            # The first transaction has released its lock, and has not committed.
            second.enter_context(two.transaction())
            second.enter_context(naive[1])
            seen = left(two)
        write(two, seen - 1)
    assert left(one) == 9, "two were sold, and one is missing"

    write(one, 10)
    engine = sa.create_engine(databases("postgresql").url("psycopg"))
    with Client(url) as client, Client(url) as other, Session(engine) as first, Session(engine) as last:
        released_early = []
        # The last moment before COMMIT.
        sa.event.listen(first, "before_commit", lambda _: released_early.append(other.lock(name).acquire(False)))
        sell_in_a_session(first, client.lock(name, ttl=60.0))
        assert released_early == [False]
        sell_in_a_session(last, other.lock(name, ttl=60.0, timeout=PATIENCE))
    engine.dispose()
    assert left(one) == 8


# --- 9. not re-entrant ---------------------------------------------------------------------------------


def test_9_not_reentrant(implementation: impl.Implementation, url: str, name: str, proxies: Proxies) -> None:
    server = ask(url)
    [proxy] = proxies([url])
    outer, inner = server.lock(name, timeout=60), ask(proxy.url).lock(name, timeout=60, sleep=0.01)
    assert outer.acquire()
    waiting = in_thread(inner.acquire)
    await_true(lambda: proxy.count("SET", name) >= 3)
    assert not waiting.done(), "the inner call waits for the outer one, which waits for the inner one"
    outer.release()
    assert waiting.result(PATIENCE)
    server.delete(name)

    with Client(url) as client, Client(url) as other:
        lock = client.rlock(name, ttl=60.0)
        with lock, lock:
            assert lock.count == 2
            assert not in_thread(lock.acquire, False).result(PATIENCE), "another thread"
            assert not other.rlock(name).acquire(blocking=False), "another process"
        assert other.rlock(name).acquire(blocking=False)


class CountingLock:
    """A re-entrant lock as articles show it: the value is the name of the thread, and a hash has the count."""

    SCRIPT = """
    if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
        redis.call('hincrby', KEYS[1], ARGV[1], 1)
        redis.call('expire', KEYS[1], ARGV[2])
        return 1
    end
    return 0
    """

    def __init__(self, server: redis.Redis, name: str) -> None:
        self._acquire = server.register_script(self.SCRIPT)
        self._name = name

    def acquire(self) -> bool:
        return bool(self._acquire(keys=[self._name], args=[threading.current_thread().name, 60]))


def test_9_reentrant_by_the_name_of_the_thread(implementation: impl.Implementation, url: str, name: str) -> None:
    def in_main_thread_of_a_process(call: Callable[[], bool]) -> bool:
        """Each process has a thread of this name."""
        thread = threading.current_thread()
        before, thread.name = thread.name, "MainThread"
        try:
            return call()
        finally:
            thread.name = before

    locks = [CountingLock(ask(url), name) for _ in range(2)]
    assert in_main_thread_of_a_process(locks[0].acquire)
    assert in_thread(in_main_thread_of_a_process, locks[1].acquire).result(PATIENCE), "two processes hold the lock"
    ask(url).delete(name)

    with Client(url) as client, Client(url) as other:
        first, second = client.rlock(name, ttl=60.0), other.rlock(name, ttl=60.0)
        assert in_main_thread_of_a_process(first.acquire)
        assert not in_thread(in_main_thread_of_a_process, lambda: second.acquire(False)).result(PATIENCE)


# --- 10. master and replica ----------------------------------------------------------------------------


@pytest.fixture
def replicated() -> Iterator[tuple[embedded.Masters, Line]]:
    """Three masters, and at index 3 a replica of the first one, which lags while the line is shut."""
    fleet = embedded.masters(4, config={"repl-diskless-sync-delay": "0"})
    with fleet as urls, contextlib.closing(Line(urls[0])) as line:
        replica = ask(urls[3])
        replica.replicaof("127.0.0.1", line.port)
        await_true(lambda: replica.info("replication")["master_link_status"] == "up")
        yield fleet, line


def fail_over(fleet: embedded.Masters) -> None:
    """Let the replica take the place of the first master, which ends."""
    fleet.kill(0)
    ask(fleet.urls[3]).replicaof("NO", "ONE")


def test_10_master_and_replica(
    implementation: impl.Implementation, name: str, replicated: tuple[embedded.Masters, Line]
) -> None:
    fleet, line = replicated
    holder = ask(fleet.urls[0]).lock(name, timeout=60)
    line.open.clear()
    assert holder.acquire()
    fail_over(fleet)
    assert ask(fleet.urls[3]).lock(name, timeout=60).acquire(blocking=False), "a second holder"


def test_10_three_masters(
    implementation: impl.Implementation, name: str, replicated: tuple[embedded.Masters, Line], proxies: Proxies
) -> None:
    fleet, line = replicated
    [moving] = proxies(fleet.urls[:1])
    urls = [moving.url, *fleet.urls[1:3]]
    with Client(urls) as client, Client(urls) as other:
        other.connect()
        # The replica has all keys but that of the lock.
        await_true(lambda: ask(fleet.urls[3]).exists(b"\0guard"))
        line.open.clear()
        lock = client.lock(name, ttl=60.0)
        assert lock.acquire()
        await_true(lambda: all(ask(url).exists(name) for url in fleet.urls[:3]))
        # The worst case: the third master never got the lock, as if it had been down.
        ask(fleet.urls[2]).delete(name)
        moving.lead_to(fleet.urls[3])
        fail_over(fleet)
        assert not ask(fleet.urls[3]).exists(name)

        def is_kept_out() -> bool:
            """Return whether the new master has no vote. The lock has one holder at any time."""
            assert not wins(other.lock(name))
            return other.health().masters[0].kept_out > 0

        await_true(is_kept_out)
        assert not wins(other.lock(name))
        lock.check()
