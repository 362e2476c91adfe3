"""Locks on masters that refuse scripts: WATCH, MULTI and EXEC instead, with the same promises."""

from __future__ import annotations

import gc
import itertools
import re
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from hiredis import Reader
from support.faces import (
    PATIENCE,
    Face,
    await_true,
    descriptors,
    finish,
    in_thread,
    run_script,
    threads_named,
    wins,
)
from support.faces import ask as ask_by_hello
from support.forked import in_child
from support.masters import Farm
from support.proxy import Proxy
from support.restricted import OPERATIONS
from support.selection import on_one_face
from support.without_scripts import CUT, KINDS, between, masters

from redlatch import (
    AsyncClient,
    Client,
    ClientForked,
    ConfigurationError,
    LockLost,
    MasterRefused,
    QuorumUnavailable,
    impl,
)
from redlatch.guard.marker import MARKER, Marker
from redlatch.masters.listed import masters_of
from redlatch.operate.markers import Markers
from redlatch.operate.mover import Mover
from redlatch.testing import embedded
from redlatch.votes import scripts
from redlatch.votes.commands import pack
from redlatch.votes.family_scripts import SIGNAL_RELEASE
from redlatch.votes.kinds import FENCED
from redlatch.votes.scripts import Script
from redlatch.wire.bridge.bridge import open_bridge
from redlatch.wire.bridge.scriptless import Transactor

LONG = 600_000


def ask(url: str) -> Any:
    """Return a client of one master, which may have no HELLO."""
    return ask_by_hello(f"{url}?protocol=2")


@pytest.fixture(scope="module")
def fleets() -> Iterator[Callable[[str], list[str]]]:
    """Return three running masters of a kind that refuses scripts; all tests share them."""
    made: dict[str, Any] = {}

    def urls(kind: str) -> list[str]:
        if kind not in made:
            manager = masters(3, kind)
            made[kind] = manager, manager.__enter__().urls
        found: list[str] = made[kind][1]
        return found

    yield urls
    for manager, _ in made.values():
        manager.__exit__(None, None, None)


@pytest.fixture(params=list(KINDS))
def without(request: pytest.FixtureRequest, fleets: Callable[[str], list[str]]) -> list[str]:
    """Return three masters of each kind that refuses scripts."""
    return fleets(request.param)


@pytest.fixture
def refusing(fleets: Callable[[str], list[str]]) -> list[str]:
    """Return three masters that refuse scripts and DELIFEQ."""
    return fleets("rights")


@pytest.fixture
def behind(refusing: list[str], proxies: Any) -> tuple[Proxy, str]:
    """Return a proxy of a master that refuses scripts, and that master's URL. A client of it has no guard."""
    [proxy] = proxies(refusing[:1])
    return proxy, refusing[0]


# --- the same as the scripts ---------------------------------------------------------------------------------


class Twins:
    """One server, asked by scripts and by transactions."""

    def __init__(self, url: str) -> None:
        self.server = ask(url)
        address = urlsplit(url)
        assert address.hostname and address.port
        sock = socket.create_connection((address.hostname, address.port))
        self._engine, _ = open_bridge(lambda: Transactor(sock, "a:1"), PATIENCE)
        self._engine.settimeout(PATIENCE)
        self._reader = Reader()

    def by_transaction(self, script: Script, *arguments: bytes) -> Any:
        self._engine.sendall(pack(b"EVALSHA", script.sha, script.keys, *arguments))
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._engine.recv(65536))
        return reply

    def by_script(self, script: Script, *arguments: bytes) -> Any:
        return self.server.execute_command("EVAL", script.text, script.keys, *arguments)

    def close(self) -> None:
        self._engine.close()
        self.server.close()


@pytest.fixture
def twins(farm: Farm, server_kind: str) -> Iterator[Twins]:
    made = Twins(farm.urls(1, server_kind)[0])
    yield made
    made.close()


DAY = b"%d" % scripts.FENCE_IDLE_MS
IDENTITY = b"identity"
# For each case: what the key and its counter hold with which ttl, the script, and its arguments.
CASES: dict[str, tuple[bytes | None, int, bytes | None, Script, list[bytes]]] = {
    "release": (b"t", LONG, None, scripts.RELEASE, [b"t"]),
    "release, another holder": (b"x", LONG, None, scripts.RELEASE, [b"t"]),
    "release, free": (None, 0, None, scripts.RELEASE, [b"t"]),
    "signal": (b"t", LONG, None, SIGNAL_RELEASE, [b"t", b"900000"]),
    "signal, another holder": (b"x", LONG, None, SIGNAL_RELEASE, [b"t", b"900000"]),
    "extend": (b"t", LONG, None, scripts.EXTEND, [b"t", b"900000"]),
    "extend, not shortened": (b"t", LONG, None, scripts.EXTEND, [b"t", b"1000"]),
    "extend, without a ttl": (b"t", 0, None, scripts.EXTEND, [b"t", b"900000"]),
    "extend, another holder": (b"x", LONG, None, scripts.EXTEND, [b"t", b"900000"]),
    "extend, free": (None, 0, None, scripts.EXTEND, [b"t", b"900000"]),
    "owned": (b"t", LONG, None, scripts.OWNED, [b"t"]),
    "owned, another holder": (b"x", LONG, None, scripts.OWNED, [b"t"]),
    "locked": (b"", LONG, None, scripts.LOCKED, []),
    "locked, free": (None, 0, None, scripts.LOCKED, []),
    "fenced": (None, 0, b"6", scripts.ACQUIRE_FENCED, [b"t", b"600000", b"7", b"9"]),
    "fenced, low": (None, 0, b"9007199254740", scripts.ACQUIRE_FENCED, [b"t", b"600000", b"7", b"9"]),
    "fenced, taken": (b"x", LONG, b"6", scripts.ACQUIRE_FENCED, [b"t", b"600000", b"7", b"9"]),
    "fenced, taken by this token": (b"t", LONG, b"6", scripts.ACQUIRE_FENCED, [b"t", b"600000", b"7", b"9"]),
    "fenced, new": (None, 0, None, scripts.ACQUIRE_FENCED, [b"t", b"600000", b"%d" % (1 << 52), b"%d" % (1 << 52)]),
    "confirm": (b"t", LONG, b"6", scripts.CONFIRM, [b"t", b"7", b"9"]),
    "confirm, low": (b"t", LONG, b"7", scripts.CONFIRM, [b"t", b"7", b"9"]),
    "confirm, another holder": (b"x", LONG, b"6", scripts.CONFIRM, [b"t", b"7", b"9"]),
    "confirm, free": (None, 0, b"6", scripts.CONFIRM, [b"t", b"7", b"9"]),
    "confirm, no counter": (b"t", LONG, None, scripts.CONFIRM, [b"t", b"7", b"9"]),
    "pulse": (b"identity\n500", LONG, None, scripts.PULSE, [IDENTITY, b"400"]),
    "pulse, raised": (b"identity\n500", LONG, None, scripts.PULSE, [IDENTITY, b"9000000"]),
    "pulse, another marker": (b"identity2\n500", LONG, None, scripts.PULSE, [IDENTITY, b"400"]),
    "pulse, no marker": (None, 0, None, scripts.PULSE, [IDENTITY, b"400"]),
    "mark": (None, 0, None, scripts.MARK, [b"", b"new", b"600000", b"9" * 16]),
    "mark, replaced": (b"old", LONG, None, scripts.MARK, [b"old", b"new", b"600000", b"9" * 16]),
    "mark, another one": (b"x", LONG, None, scripts.MARK, [b"old", b"new", b"600000", b"9" * 16]),
    "mark, too late": (b"old", LONG, None, scripts.MARK, [b"old", b"new", b"600000", b"1"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_transaction_answers_and_leaves_what_the_script_does(twins: Twins, name: str, case: str) -> None:
    value, ttl_ms, counter, script, arguments = CASES[case]
    key, other = FENCED.keys_of(name.encode())
    found = []
    for call in (twins.by_script, twins.by_transaction):
        twins.server.delete(key, other)
        if value is not None:
            twins.server.set(key, value, px=ttl_ms or None)
        if counter is not None:
            twins.server.set(other, counter, px=LONG)
        reply = call(script, *[key, other][: script.keys], *arguments)
        if isinstance(reply, bytes):
            reply = reply.partition(b" ")[2]  # the clock differs
        there = key, other
        values = [twins.server.get(each) if twins.server.type(each) == b"string" else None for each in there]
        state = [(value, round(twins.server.pttl(each) / 10_000)) for value, each in zip(values, there, strict=True)]
        found.append((reply, state))
        twins.server.delete(*there)
    assert found[0] == found[1]


def await_free(urls: list[str], *names: str) -> None:
    """Wait until no master has the keys: a call waits for a quorum only."""
    await_true(lambda: not any(ask(url).exists(*names) for url in urls))


# --- locks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"fence": True}], ids=["plain", "fenced"])
@pytest.mark.parametrize("mode", ["auto", "watch"])
def test_a_lock_is_acquired_extended_and_released(
    connect: Face, without: list[str], name: str, options: dict[str, Any], mode: str
) -> None:
    client = connect(without, scripts=mode)
    lock = client.lock(name, ttl=5.0, **options)
    assert lock.acquire()
    assert lock.owned()
    assert lock.locked()
    assert not client.lock(name, **options).acquire(timeout=0.02)
    lock.extend(30.0)
    assert lock.remaining() > 25
    await_true(lambda: all(ask(url).pttl(name) > 25_000 for url in without))
    lock.release()
    assert not client.lock(name).locked()
    await_free(without, name)


def test_fences_grow_from_one_client_to_another(connect: Face, without: list[str], name: str) -> None:
    seen = []
    for client in [connect(without), connect(without)] * 2:
        lock = client.lock(name, fence=True)
        assert lock.acquire()
        seen.append(lock.fence)
        lock.release()
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("kind", ["native", "rights", "renamed"])
def test_a_waiter_of_another_client_is_woken_by_a_push(
    connect: Face,
    fleets: Callable[[str], list[str]],
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    no_backstop: None,
    kind: str,
) -> None:
    without = fleets(kind)
    made = proxies(without)
    held = connect(without, guard=None).lock(name, ttl=60.0)
    wanted = connect([proxy.url for proxy in made], guard=None).lock(name, ttl=60.0)
    assert held.acquire()
    waiting = wanted.start("acquire")
    # Each handshake asks once, and then each waiter.
    await_true(lambda: sum(proxy.count("CACHING") >= 2 and proxy.quiet() for proxy in made) >= 2)
    held.release()
    assert waiting.result(PATIENCE)
    wanted.release()


def test_a_lock_is_renewed(connect: Face, without: list[str], name: str) -> None:
    lock = connect(without, attempt_timeout=PATIENCE).lock(name, ttl=3.0, auto_renew=True)
    assert lock.acquire()
    await_true(lambda: all(ask(url).exists(name) for url in without))
    tokens = {ask(url).get(name) for url in without}
    await_true(lambda: lock.raw.remaining() < 2.2)
    await_true(lambda: lock.raw.remaining() > 2.5)
    assert {ask(url).get(name) for url in without} == tokens
    lock.release()


def test_scripts_are_used_where_they_are_allowed(
    connect: Face, three: list[str], refusing: list[str], name: str
) -> None:
    """Masters with and without scripts are one quorum."""
    urls = [*three[:1], *refusing[:2]]
    client = connect(urls, guard=None)
    for options in ({}, {"fence": True}):
        lock = client.lock(name, **options)
        assert lock.acquire()
        lock.extend(20.0)
        await_true(lambda: all(ask(url).pttl(name) > 15_000 for url in urls))
        lock.release()
        await_free(urls, name)


def test_batches_and_multi_locks_work(connect: Face, without: list[str], name: str) -> None:
    client = connect(without, attempt_timeout=PATIENCE)
    names = [f"{name}-{number}" for number in range(300)]
    locks = client.acquire_many(names)
    assert all(locks)
    assert all(client.extend_many(locks, ttl=20.0))
    assert all(client.release_many(locks))
    multi = client.multi_lock(names[:3])
    assert multi.acquire()
    multi.release()
    await_free(without, *names)


# --- between WATCH and EXEC ----------------------------------------------------------------------------------


def held_behind(connect: Face, proxy: Proxy, name: str, ttl: float = 60.0) -> Any:
    lock = connect(proxy.url, guard=None).lock(name, ttl=ttl)
    assert lock.acquire()
    return lock


def taken_over(url: str, name: str) -> None:
    """Let the key expire, and another holder take it."""
    ask(url).delete(name)
    ask(url).set(name, "theirs", nx=True, px=LONG)


@pytest.mark.parametrize("happens", ["gone", "taken"])
def test_a_key_that_changes_hands_is_a_lost_lock_and_stays_as_it_is(
    connect: Face, behind: tuple[Proxy, str], name: str, happens: str
) -> None:
    proxy, url = behind
    change = partial(taken_over, url, name) if happens == "taken" else partial(ask(url).delete, name)
    expected = (b"theirs", True) if happens == "taken" else (None, False)
    for call in ("extend", "release"):
        ask(url).delete(name)
        lock = held_behind(connect, proxy, name)
        between(proxy, name.encode(), change)
        with pytest.raises(LockLost):
            getattr(lock, call)()
        assert (ask(url).get(name), LONG - 60_000 < ask(url).pttl(name) <= LONG) == expected


def test_a_key_that_expires_between_watch_and_exec_is_a_lost_lock(
    connect: Face, behind: tuple[Proxy, str], name: str
) -> None:
    proxy, url = behind
    lock = held_behind(connect, proxy, name)

    def expire() -> None:
        ask(url).pexpire(name, 1)
        await_true(lambda: not ask(url).exists(name))

    between(proxy, name.encode(), expire)
    with pytest.raises(LockLost):
        lock.extend(90.0)
    assert not ask(url).exists(name)


@pytest.mark.parametrize("call", ["extend", "release"])
def test_a_key_that_was_touched_and_has_the_token_is_no_loss(
    connect: Face, behind: tuple[Proxy, str], name: str, call: str
) -> None:
    """A late extension of the same holder touches it, for example."""
    proxy, url = behind
    lock = held_behind(connect, proxy, name)
    between(proxy, name.encode(), partial(ask(url).pexpire, name, 50_000), times=3)
    getattr(lock, call)()
    assert proxy.count("MULTI") >= 4
    assert ask(url).exists(name) == (call == "extend")
    if call == "extend":
        assert ask(url).pttl(name) > 55_000
        lock.release()


def test_a_late_extension_does_not_bring_a_released_key_back(
    connect: Face, behind: tuple[Proxy, str], name: str
) -> None:
    proxy, url = behind
    lock = held_behind(connect, proxy, name)
    between(proxy, name.encode(), partial(ask(url).delete, name))
    with pytest.raises(LockLost):
        lock.extend(90.0)
    assert not ask(url).exists(name)


def test_a_fenced_lock_whose_key_is_taken_between_watch_and_exec_is_not_won(
    connect: Face, behind: tuple[Proxy, str], name: str
) -> None:
    proxy, url = behind
    lock = connect(proxy.url, guard=None).lock(name, fence=True)
    between(proxy, name.encode(), partial(ask(url).set, name, "theirs", px=LONG))
    assert not lock.acquire(blocking=False)
    assert ask(url).get(name) == b"theirs"
    assert not ask(url).exists(FENCED.keys_of(name.encode())[1])


def test_fences_stay_in_order_when_another_client_raises_the_counter_between_watch_and_exec(
    connect: Face, behind: tuple[Proxy, str], name: str
) -> None:
    proxy, url = behind
    other = connect(url, guard=None).lock(name, fence=True)
    lock = connect(proxy.url, guard=None).lock(name, fence=True)
    fences: list[int] = []

    def use() -> None:
        assert other.acquire()
        fences.append(other.fence)
        other.release()

    between(proxy, FENCED.keys_of(name.encode())[1], use)
    assert lock.acquire()
    assert lock.fence > fences[0]
    lock.release()


@pytest.mark.parametrize("at", ["before the change", "in the change", "after the change"])
def test_a_connection_that_breaks_amid_a_release_releases_in_the_end(
    connect: Face, behind: tuple[Proxy, str], name: str, at: str
) -> None:
    proxy, url = behind
    lock = held_behind(connect, proxy, name)
    word = {"before the change": b"MULTI", "in the change": b"DEL", "after the change": b"EXEC"}[at]
    cuts = [CUT]

    def spoil(command: tuple[bytes, ...], reply: bytes) -> bytes | None:
        return None if command[0] == word and cuts and cuts.pop() is CUT else reply

    proxy.spoil = spoil
    lock.release()
    assert proxy.accepted == 2
    assert not ask(url).exists(name)


def test_a_connection_that_breaks_amid_an_extension_loses_nothing(
    connect: Face, behind: tuple[Proxy, str], name: str
) -> None:
    proxy, url = behind
    lock = held_behind(connect, proxy, name, 5.0)
    between(proxy, name.encode(), lambda: CUT)
    lock.extend(60.0)
    assert proxy.accepted == 2
    assert ask(url).pttl(name) > 50_000
    lock.release()


def test_a_master_that_revokes_the_right_to_multi_changes_no_key_of_another(connect: Face, name: str) -> None:
    """A change outside MULTI would strike the key at once, whoever has it by then."""
    with masters(1) as fleet:
        [url] = fleet.urls
        admin = ask(url)
        admin.execute_command("ACL", "SETUSER", "lk", "on", ">pw", "~*", "+@all", "-@scripting", "-delifeq")
        lock = connect(url.replace("//", "//lk:pw@"), guard=None).lock(name, ttl=60.0)
        assert lock.acquire()
        admin.execute_command("ACL", "SETUSER", "lk", "-multi")
        with pytest.raises(QuorumUnavailable, match="'multi'"):
            lock.extend()
        with pytest.raises(QuorumUnavailable, match="'multi'"):
            lock.release()
        assert admin.exists(name)


# --- processes and ends ----------------------------------------------------------------------------------------


def test_a_release_without_waiting_is_sent_before_the_client_is_closed(
    connect: Face, without: list[str], name: str
) -> None:
    client = connect(without)
    locks = [client.lock(f"{name}-{number}") for number in range(50)]
    for lock in locks:
        assert lock.acquire()
    for lock in locks:
        lock.release(False)
    client.close()
    await_free(without, *[f"{name}-{number}" for number in range(50)])


@on_one_face("threads")
def test_a_client_that_closes_while_a_master_stands_still_does_not_wait_for_its_bridge(
    connect: Face, name: str
) -> None:
    with masters(3) as fleet:
        client = connect(fleet.urls)
        lock = client.lock(name)
        assert lock.acquire()
        fleet.pause(0)
        lock.release()
        client.close()
        fleet.resume(0)
        await_free(fleet.urls, name)


def test_a_forked_child_owns_nothing_and_its_parent_goes_on(
    implementation: impl.Implementation, refusing: list[str], name: str
) -> None:
    with Client(refusing) as client, client.lock(name) as lock:

        def use() -> None:
            with pytest.raises(ClientForked):
                lock.release()
            with pytest.raises(ClientForked):
                client.lock("other").acquire()

        in_child(use)
        lock.extend(20.0)
        assert lock.owned()


def bridges() -> list[int]:
    return threads_named("redlatch-bridge")


def test_a_closed_client_leaves_neither_threads_nor_sockets(
    implementation: impl.Implementation, refusing: list[str], name: str
) -> None:
    await_true(lambda: not bridges())
    before = descriptors()
    with Client(refusing) as client, client.lock(name):
        assert len(bridges()) == 3
    await_true(lambda: not bridges())
    await_true(lambda: descriptors() <= before)


def test_a_forgotten_client_leaves_no_threads(
    implementation: impl.Implementation, refusing: list[str], name: str
) -> None:
    await_true(lambda: not bridges())
    client: Any = Client(refusing)
    client.connect()
    del client
    gc.collect()
    await_true(lambda: not bridges())


AT_EXIT = """
import sys
from redlatch import Client
client = Client(sys.argv[2:])
locks = [client.lock(f"{sys.argv[1]}-{number}", ttl=60) for number in range(20)]
for lock in locks:
    assert lock.acquire()
for lock in locks:
    lock.release(wait=False)
"""


def test_a_process_that_ends_at_once_has_released(
    implementation: impl.Implementation, refusing: list[str], name: str
) -> None:
    process = run_script(AT_EXIT, implementation.name, name, *refusing)
    assert process.returncode == 0
    await_free(refusing, *[f"{name}-{number}" for number in range(20)])


IN_TURN = """
import sys
from redlatch import Client
with Client(sys.argv[3:]) as client:
    lock = client.lock(sys.argv[1])
    for _ in range(25):
        with lock:
            with open(sys.argv[2]) as file:
                count = int(file.read())
            lock.extend()
            with open(sys.argv[2], "w") as file:
                file.write(str(count + 1))
"""


def test_processes_exclude_each_other(
    implementation: impl.Implementation, refusing: list[str], name: str, tmp_path: Path
) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    started = [run_script(IN_TURN, implementation.name, name, str(counter), *refusing, wait=False) for _ in range(3)]
    for process in started:
        assert finish(process)[1] == ""
    assert counter.read_text() == "75"


def test_clients_exclude_each_other(connect: Face, refusing: list[str], name: str) -> None:
    """Two clients count with a read and a write that are not atomic."""
    clients = [connect(refusing), connect(refusing)]
    count = [0]

    def work(client: Any) -> None:
        lock = client.lock(name)
        for _ in range(10):
            assert lock.acquire()
            seen = count[0]
            assert lock.owned()
            count[0] = seen + 1
            lock.release()

    for future in [in_thread(work, client) for client in clients for _ in range(2)]:
        future.result(PATIENCE)
    assert count == [40]


# --- the guard -------------------------------------------------------------------------------------------------


@on_one_face("asyncio")
def test_a_flushed_master_is_kept_out_and_the_others_decide(connect: Face, name: str) -> None:
    with masters(3) as fleet:
        client = connect(fleet.urls, ttl=2.0, attempt_timeout=PATIENCE)
        lock = client.lock(name)
        assert lock.acquire()
        ask(fleet.urls[0]).flushall()

        def is_out() -> bool:
            lock.owned()  # a client for threads hears of it in calls
            return not client.health().masters[0].voting

        await_true(is_out)
        lock.extend()
        assert lock.owned()
        lock.release()

        def votes_again() -> bool:
            lock.locked()
            return bool(client.health().masters[0].voting)

        await_true(votes_again)


def test_a_restarted_master_votes_again_after_the_longest_ttl(connect: Face, name: str) -> None:
    with masters(3) as fleet:
        client = connect(fleet.urls, ttl=1.0, attempt_timeout=PATIENCE)
        lock = client.lock(name)
        assert lock.acquire()
        lock.release()
        fleet.kill(1)
        fleet.start(1)

        def votes() -> bool:
            wins(client.lock("poke"))  # a client for threads hears of it in calls
            return bool(client.health().masters[1].voting)

        await_true(votes)
        # It was marked again, by a transaction.
        marker = Marker.read(ask(fleet.urls[1]).get(MARKER))
        assert marker is not None and marker.sure and marker.out > 0


def test_a_marker_that_is_replaced_between_watch_and_exec_is_noticed(
    connect: Face, proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    with masters(3) as fleet:
        [proxy] = proxies(fleet.urls[:1])
        client = connect([proxy.url, *fleet.urls[1:]], ttl=2.0, attempt_timeout=PATIENCE)
        lock = client.lock(name)
        assert lock.acquire()
        lock.release()
        theirs = b"not ours"
        between(proxy, MARKER, partial(ask(fleet.urls[0]).set, MARKER, theirs, px=LONG))

        def refused() -> bool:
            if lock.acquire(blocking=False):
                lock.release()
            return "a marker that is not ours" in client.health().masters[0].why

        await_true(refused)
        assert ask(fleet.urls[0]).get(MARKER) == theirs


def test_two_clients_found_new_masters_at_the_same_time(connect: Face, name: str) -> None:
    with masters(3) as fleet:
        clients = [connect(fleet.urls, owner=f"client-{number}") for number in range(4)]
        for future in [client.start("connect") for client in clients]:
            future.result(PATIENCE)
        for client in clients:
            lock = client.lock(name)
            assert lock.acquire()
            lock.release()
        marks = [Marker.read(ask(url).get(MARKER)) for url in fleet.urls]
        assert len({(mark.attempt, mark.owner) for mark in marks if mark is not None}) == 1


def test_a_right_that_is_taken_away_makes_the_client_use_transactions(connect: Face, name: str) -> None:
    with embedded.masters(3) as urls:
        for url in urls:
            ask(url).execute_command("ACL", "SETUSER", "lk", "on", ">pw", "~*", "&*", "+@all")
        client = connect([url.replace("//", "//lk:pw@") for url in urls])
        with_scripts, numbers = client.lock(name), itertools.count()
        assert with_scripts.acquire()
        with_scripts.release()
        for url in urls:
            ask(url).execute_command("ACL", "SETUSER", "lk", "-@scripting")

        def works() -> bool:
            other = client.lock(f"{name}-{next(numbers)}")
            try:
                assert other.acquire()
                other.extend()
                other.release()
            except (QuorumUnavailable, LockLost):
                return False
            return True

        await_true(works)


@pytest.mark.parametrize("right", ["watch", "multi", "exec", "discard"])
def test_a_user_with_neither_way_still_has_what_needs_neither(connect: Face, name: str, right: str) -> None:
    """Without a guard, SET and DELIFEQ are enough for a lock that is not extended."""
    with embedded.masters(1) as [url]:
        try:
            ask(url).execute_command("DELIFEQ", name, "nothing")
        except redis.ResponseError:
            pytest.skip("this server has no DELIFEQ")
        ask(url).execute_command("ACL", "SETUSER", "lk", "on", ">pw", "~*", "&*", "+@all", "-@scripting", f"-{right}")
        client = connect(url.replace("//", "//lk:pw@"), guard=None)
        lock = client.lock(name)
        assert lock.acquire()
        lock.release()
        assert not ask(url).exists(name)
        assert lock.acquire()
        with pytest.raises(QuorumUnavailable, match="'eval'"):
            lock.extend()


@pytest.mark.parametrize("right", ["watch", "multi", "exec", "discard"])
def test_watch_without_a_right_is_refused_and_names_it(connect: Face, right: str) -> None:
    with embedded.masters(1) as [url]:
        ask(url).execute_command("ACL", "SETUSER", "lk", "on", ">pw", "~*", "&*", "+@all", f"-{right}")
        with pytest.raises(ConfigurationError, match=rf"'{right}'.*\+watch \+multi \+exec \+discard"):
            connect(url.replace("//", "//lk:pw@"), scripts="watch").connect()


@on_one_face("threads")
def test_masters_without_scripts_hand_over_to_others(connect: Face, name: str) -> None:
    with masters(4) as fleet:
        old, new = fleet.urls[:3], fleet.urls[1:]
        client = connect(old, next=new, ttl=1.0)
        lock = client.lock(name)
        assert lock.acquire()
        lock.release()
        Mover(masters_of(old), masters_of(new), Markers(MARKER), say=lambda text: None).run()
        await_true(lambda: wins(lock))
        there = {each.address for each in client.health().masters}
        assert there == {urlsplit(url).netloc for url in new}
        lock.release()


# --- what needs scripts, and the modes ---------------------------------------------------------------------------

FAMILY: dict[str, Callable[[Any, str], Any]] = {
    "fair": lambda client, name: client.fair_lock(name),
    "fair lock": lambda client, name: client.lock(name, fair=True),
    "semaphore": lambda client, name: client.semaphore(name, 2),
    "read-write": lambda client, name: client.rw_lock(name),
    "condition": lambda client, name: client.lock(name).condition(),
    "latch": lambda client, name: client.latch(name, 2),
}


@pytest.mark.parametrize("face", [Client, AsyncClient])
@pytest.mark.parametrize("kind", FAMILY)
def test_a_lock_that_needs_scripts_says_so_when_it_is_made(face: Any, kind: str) -> None:
    client = face("redis://127.0.0.1:6379", scripts="watch")
    with pytest.raises(ConfigurationError, match="need scripts"):
        FAMILY[kind](client, "n")


@pytest.mark.parametrize("kind", ["fair", "semaphore"])
def test_a_lock_that_needs_scripts_says_so_at_its_first_use_on_masters_without_them(
    connect: Face, refusing: list[str], name: str, kind: str
) -> None:
    lock = FAMILY[kind](connect(refusing), name)
    with pytest.raises(QuorumUnavailable, match=re.escape("+eval +evalsha +script|load")) as caught:
        lock.acquire()
    assert MasterRefused in {type(cause) for cause in caught.value.causes.values()}


def test_a_lock_that_needs_scripts_works_where_a_majority_has_them(
    connect: Face, three: list[str], refusing: list[str], name: str
) -> None:
    client = connect([*three[:2], refusing[0]], guard=None)
    for make in (FAMILY["fair"], FAMILY["semaphore"], lambda client, name: client.rw_lock(name).write()):
        lock = make(client, name)
        assert lock.acquire()
        lock.extend()
        lock.release()


def test_lua_refuses_a_master_without_scripts_and_names_right_and_cure(connect: Face, refusing: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)'eval'.*\+eval \+evalsha \+script\|load"):
        connect(refusing, scripts="lua").connect()


def test_watch_works_beside_clients_with_scripts(connect: Face, three: list[str], name: str) -> None:
    with_scripts, without_scripts = connect(three, scripts="lua"), connect(three, scripts="watch")
    for first, second in ((with_scripts, without_scripts), (without_scripts, with_scripts)):
        lock = first.lock(name, fence=True)
        assert lock.acquire()
        assert not second.lock(name).acquire(timeout=0.02)
        fence = lock.fence
        lock.release()
        other = second.lock(name, fence=True)
        assert other.acquire()
        assert other.fence > fence
        other.release()


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'auto', 'watch' or 'lua'"):
        Client("redis://127.0.0.1:6379", scripts="eval")  # type: ignore[arg-type]


def test_the_documented_rights_without_scripts_are_enough(connect: Face, name: str) -> None:
    lines = [line for line in OPERATIONS.read_text().splitlines() if line.startswith("ACL SETUSER locks ")]
    [line] = [line for line in lines if "+watch" in line]
    assert "eval" not in line
    with embedded.masters(3) as urls:
        for url in urls:
            try:
                ask(url).execute_command(*line.split())
            except redis.ResponseError as error:
                pytest.skip(str(error))  # the server does not know a subcommand
        client = connect([url.replace("//", "//locks:password@") for url in urls], prefix="lock:")
        for options in ({}, {"fence": True}):
            lock = client.lock(name, **options)
            assert lock.acquire()
            lock.extend()
            assert lock.owned()
            assert not client.lock(name).acquire(timeout=0.05)
            lock.release()
        # The handshake tries scripts, and WATCH with an empty key.
        allowed = {"eval", "evalsha", "script|load", "", "delifeq", "delex", "config|get"}
        for url in urls:
            assert {refused["object"] for refused in ask(url).acl_log()} <= allowed
