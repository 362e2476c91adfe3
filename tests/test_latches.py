"""Latches on real masters: counts of several clients, waiters that they let go on, and counts that are not lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.faces import PATIENCE, Face, Faced, ask, await_true, finish, line_of, run_script
from support.interleaving import interrupt, meet
from support.masters import Farm, Keys
from support.proxy import Proxy
from support.selection import on_one_face

from redlatch import Client, ClientClosed, ConfigurationError, Guard, QuorumUnavailable, impl
from redlatch.votes import condition_scripts as scripts

pytestmark = pytest.mark.one_loop


@pytest.fixture(params=[1, 3])
def masters(request: pytest.FixtureRequest, farm: Farm) -> list[str]:
    """One master, and three."""
    return farm.urls(request.param)


@pytest.fixture
def no_polls(implementation: impl.Implementation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiters ask only when they are woken, so that a missed push hangs the test."""
    monkeypatch.setattr(implementation.module("quorum.latch"), "POLL_NS", 1 << 60)


def left(latch: Faced) -> int:
    return int(latch.start("remaining").result(PATIENCE))


def waits(client: Faced, name: str) -> bool:
    """Return whether a task of the client waits for pushes of the latch."""
    watches = client.raw._quorum.queues.watches.by_key.get(f"{{{name}}}\0latch\0open".encode(), ())
    return any(watch.reopened for watch in list(watches))


def test_the_last_count_of_any_client_lets_all_waiters_go_on(
    connect: Face, masters: list[str], name: str, keys: Keys, no_polls: None
) -> None:
    clients = [connect(masters), connect(masters)]
    latches = [client.latch(name, 3, ttl=16.0) for client in clients]
    assert [left(latch) for latch in latches] == [3, 3]
    calls = [latch.start("wait") for latch in latches]
    await_true(lambda: all(waits(client, name) for client in clients))
    latches[0].count_down()
    latches[1].count_down()
    assert [left(latch) for latch in latches] == [1, 1]
    assert not any(call.done() for call in calls)
    latches[0].count_down()
    assert [call.result(PATIENCE / 2) for call in calls] == [True, True]
    assert [left(latch) for latch in latches] == [0, 0]
    for suffix in ("\0latch", "\0latch\0open"):
        assert all(0 < ms <= 16_000 for ms in keys(masters, name + suffix).values())


def test_an_open_latch_stays_open_and_ignores_counts(connect: Face, masters: list[str], name: str) -> None:
    latch = connect(masters).latch(name, 1)
    latch.count_down()
    latch.count_down()
    assert left(latch) == 0
    assert latch.wait(0) is True
    assert connect(masters).latch(name, 1).wait() is True


def test_a_wait_whose_timeout_passes_says_so(connect: Face, masters: list[str], name: str) -> None:
    latch = connect(masters).latch(name, 2)
    latch.count_down()
    assert latch.wait(0) is False
    assert latch.wait(0.05) is False


def test_a_waiter_polls_where_masters_push_nothing(connect: Face, masters: list[str], name: str) -> None:
    latch = connect(masters, wakeups="poll").latch(name, 1)
    call = latch.start("wait")
    connect(masters).latch(name, 1).count_down()
    assert call.result(PATIENCE) is True


def test_a_latch_is_new_again_when_its_ttl_is_over(connect: Face, masters: list[str], name: str) -> None:
    latch = connect(masters).latch(name, 1, ttl=0.2)
    latch.count_down()
    await_true(lambda: left(latch) == 1)


@on_one_face("asyncio")
def test_a_wait_keeps_the_counts_for_longer_than_the_ttl(
    connect: Face, masters: list[str], name: str, keys: Keys
) -> None:
    client = connect(masters)
    latch = client.latch(name, 2, ttl=2.0)
    call = latch.start("wait")
    latch.count_down()
    asked = [commands(url) for url in masters]
    # A waiter asks four times in a ttl.
    await_true(lambda: all(commands(url) > known + 6 for url, known in zip(masters, asked, strict=True)))
    assert left(latch) == 1
    latch.count_down()
    assert call.result(PATIENCE) is True


def counts_of(master: Any, name: str) -> set[bytes]:
    return set(master.zrange(f"{{{name}}}\0latch", 0, -1))


def commands(url: str) -> int:
    with ask(url) as master:
        return int(master.info("commandstats")["cmdstat_evalsha"]["calls"])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((0,), ConfigurationError), ((10_001,), ConfigurationError), ((True,), TypeError), (("3",), TypeError)],
)
def test_a_count_that_cannot_work_is_refused(connect: Face, url: str, arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^count: "):
        connect(url).latch("n", *arguments)


def test_the_ttl_is_at_most_the_longest_of_the_guard(connect: Face, url: str) -> None:
    client = connect(url, ttl=1.0, guard=Guard(max_ttl=5.0))
    assert client.raw.latch("n", 1)._ttl_ms == 5000
    assert connect(url).raw.latch("n", 1)._ttl_ms == 60_000
    with pytest.raises(ConfigurationError, match="ttl"):
        client.latch("n", 1, ttl=6.0)


def test_counts_on_different_majorities_open_the_latch(
    connect: Face, proxies: Callable[[list[str]], list[Proxy]], farm: Farm, name: str
) -> None:
    """Each master misses one of three counts, so no master has all of them."""
    urls = farm.urls(3)
    for missing in range(3):
        before = proxies(urls)
        before[missing].refusing = True
        connect([proxy.url for proxy in before], guard=None).latch(name, 4).count_down()
    latch = connect(urls, guard=None).latch(name, 4)
    assert left(latch) == 1
    connect(urls, guard=None).latch(name, 4).count_down()
    assert latch.wait(PATIENCE) is True
    # A quorum has all counts now, so the loss of one master changes nothing.
    assert sum(is_open(url, name) for url in urls) >= 2


def is_open(url: str, name: str) -> bool:
    with ask(url) as master:
        return bool(master.get(f"{{{name}}}\0latch\0open") == b"o")


@on_one_face("threads")
def test_a_master_that_forgot_its_counts_gets_them_back_while_a_waiter_waits(
    connect: Face, farm: Farm, name: str
) -> None:
    urls = farm.urls(3)
    client = connect(urls, guard=None)
    latch = client.latch(name, 3)
    latch.count_down()
    latch.count_down()
    call = latch.start("wait")
    for url in urls:
        with ask(url) as master:
            known = counts_of(master, name)
            assert len(known) == 3
            master.delete(f"{{{name}}}\0latch")
            await_true(partial(lambda master, known: counts_of(master, name) == known, master, known))
    latch.count_down()
    assert call.result(PATIENCE) is True


def test_an_open_master_that_dies_keeps_no_waiter_waiting(
    connect: Face, proxies: Callable[[list[str]], list[Proxy]], farm: Farm, name: str
) -> None:
    """A waiter that sees one open master tells a quorum before it goes on."""
    urls = farm.urls(3)
    with ask(urls[0]) as master:
        master.set(f"{{{name}}}\0latch\0open", "o", px=60_000)
    assert connect(urls).latch(name, 5).wait(PATIENCE) is True
    before = proxies(urls)
    before[0].refusing = True
    assert connect([proxy.url for proxy in before]).latch(name, 5).wait(PATIENCE) is True


def test_a_count_that_fails_is_taken_back(
    connect: Face, proxies: Callable[[list[str]], list[Proxy]], farm: Farm, name: str
) -> None:
    urls = farm.urls(3)
    before = proxies(urls)
    client = connect([proxy.url for proxy in before])
    client.connect()
    await_true(lambda: all(proxy.greeted() for proxy in before))
    latch = client.latch(name, 3)
    # All masters know the ttl of the latch then.
    latch.count_down()
    with ask(urls[2]) as master:
        await_true(lambda: len(counts_of(master, name)) == 2)
        known = counts_of(master, name)
    for proxy in before[:2]:
        proxy.refusing = True
        proxy.cut()
    with pytest.raises(QuorumUnavailable, match="count_down"):
        latch.count_down()
    await_true(lambda: before[2].count(scripts.LATCH_UNDO.sha) == 1)
    await_true(lambda: any(scripts.LATCH_UNDO.sha in command for command in list(before[2].answered)))
    with ask(urls[2]) as master:
        assert counts_of(master, name) == known


def test_a_wait_that_is_interrupted_while_its_watch_ends_leaves_no_watch(
    farm: Farm, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In the pure build, because nothing can be put into compiled methods.
    monkeypatch.setattr(impl, "current", impl.load("python"))
    with Client(farm.urls(3)) as client:
        meet(monkeypatch, impl.current.module("quorum.waiting.watches").Watches, "remove", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.latch(name, 1).wait(0)
        # `close` waits for the end of every watch.
        assert not client._quorum.queues.watches.by_key


@pytest.mark.parametrize("call", ["wait", "remaining"])
def test_without_a_quorum_a_question_raises(
    connect: Face, closed_ports: Callable[[int], list[str]], farm: Farm, name: str, call: str
) -> None:
    latch = connect([*closed_ports(2), farm.urls(1)[0]], guard=None).latch(name, 2)
    with pytest.raises(QuorumUnavailable, match=call):
        latch.start(call).result(PATIENCE)


def test_a_client_that_closes_ends_its_waits(connect: Face, masters: list[str], name: str) -> None:
    client = connect(masters)
    call = client.latch(name, 2).start("wait")
    await_true(lambda: waits(client, name))
    client.close()
    with pytest.raises(ClientClosed):
        call.result(PATIENCE)


COUNTING = """
import sys
from redlatch import Client
client = Client(sys.argv[2:])
latch = client.latch(sys.argv[1], 4)
print("in", flush=True)
latch.count_down()
assert latch.wait()
"""


def test_processes_meet_at_a_latch(implementation: impl.Implementation, farm: Farm, name: str) -> None:
    processes = [run_script(COUNTING, implementation.name, name, *farm.urls(3), wait=False) for _ in range(4)]
    assert [line_of(process) for process in processes] == ["in\n"] * 4
    assert [finish(process)[1] for process in processes] == [""] * 4
    assert [process.returncode for process in processes] == [0] * 4


def test_a_process_that_dies_after_its_count_has_counted(
    implementation: impl.Implementation, farm: Farm, name: str
) -> None:
    urls = farm.urls(3)
    process = run_script(COUNTING, implementation.name, name, *urls, wait=False)
    assert line_of(process) == "in\n"
    connect = Face("threads")
    latch = connect(urls).latch(name, 4)
    await_true(lambda: left(latch) == 3)
    process.kill()
    for _ in range(3):
        latch.count_down()
    assert latch.wait(PATIENCE) is True
    finish(process)
    connect.close()
