"""Redirects that a healthy cluster never sends, or not for as long: what a lock makes of them, and what is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support.faces import PATIENCE, Face, await_true
from support.proxied_shards import ProxiedShards
from support.proxy import Command
from support.shards import Shards

from redlatch import AsyncClient, Client, ClientForked, QuorumUnavailable, impl
from redlatch.wire.engine.redirects import MOST_HOPS

LONG = 30.0

# The commands of a connection, and of those who ask which node has which slot.
OURS = (b"SET", b"EVAL", b"EVALSHA", b"DELIFEQ")


@pytest.fixture
def proxied(shards: Shards) -> Iterator[ProxiedShards]:
    with ProxiedShards(shards) as proxied:
        yield proxied


class Answers:
    """Answers the commands about a name instead of the nodes, for so many times.

    Attributes:
        given: how many answers were given.
    """

    def __init__(self, name: str, answer: Callable[[int], bytes | None], times: int = 1 << 30) -> None:
        self._name = name.encode()
        self._answer = answer
        self._left = times
        self._guard = threading.Lock()
        self.given = 0

    def __call__(self, node: int, command: Command) -> bytes | None:
        if command[0] not in OURS or self._name not in command:
            return None
        with self._guard:
            answer = self._answer(node) if self._left else None
            if answer is not None:
                self._left -= 1
                self.given += 1
            return answer

    def has_given(self, count: int) -> bool:
        return self.given >= count


def saying(reply: bytes) -> Callable[[int], bytes]:
    return lambda node: reply


PASSING = [b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", b"-READONLY\r\n", b"-LOADING\r\n"]


@pytest.mark.parametrize("reply", PASSING)
def test_a_command_is_sent_again_after_an_answer_that_passes(
    connect: Face, shards: Shards, proxied: ProxiedShards, names: list[str], reply: bytes
) -> None:
    # The guard closes a connection on which a node says that it may have other keys.
    client = connect(proxied.url, patience=PATIENCE)
    client.connect()
    proxied.says = answers = Answers(names[0], saying(reply), 3)
    lock = client.lock(names[0], ttl=LONG)
    assert lock.acquire()
    assert answers.given == 3
    lock.release()
    shards.await_nothing_left(names[0])


@pytest.mark.parametrize("reply", PASSING)
def test_an_answer_that_does_not_pass_is_the_cause(
    connect: Face, shards: Shards, proxied: ProxiedShards, names: list[str], reply: bytes
) -> None:
    client = connect(proxied.url)
    client.connect()
    proxied.says = answers = Answers(names[0], saying(reply))
    with pytest.raises(QuorumUnavailable, match=reply[1:8].decode()):
        client.lock(names[0], ttl=LONG).acquire()
    assert answers.given <= 6 * MOST_HOPS
    proxied.says = None
    shards.await_nothing_left(names[0])


def test_a_cluster_that_is_down_is_a_failed_vote(
    connect: Face, shards: Shards, proxied: ProxiedShards, names: list[str]
) -> None:
    client, patient = connect(proxied.url), connect(proxied.url, patience=PATIENCE)
    client.connect()
    patient.connect()
    proxied.says = answers = Answers(names[0], saying(b"-CLUSTERDOWN The cluster is down\r\n"))
    with pytest.raises(QuorumUnavailable, match="CLUSTERDOWN"):
        client.lock(names[0], ttl=LONG).acquire()
    call = patient.lock(names[0], ttl=LONG).start("acquire")
    before = answers.given
    await_true(lambda: answers.given > before + 2)
    proxied.says = None
    assert call.result(PATIENCE)


def test_a_release_goes_on_until_the_cluster_is_back(
    connect: Face, shards: Shards, proxied: ProxiedShards, names: list[str]
) -> None:
    client = connect(proxied.url)
    lock = client.lock(names[0], ttl=LONG)
    assert lock.acquire()
    proxied.says = answers = Answers(names[0], saying(b"-CLUSTERDOWN The cluster is down\r\n"))
    with pytest.raises(QuorumUnavailable, match="CLUSTERDOWN"):
        lock.release()
    assert answers.given > 1
    proxied.says = None
    shards.await_nothing_left(names[0])


@pytest.mark.parametrize("rounds", [2, 3, 7])
def test_two_nodes_that_name_each_other_for_a_while(
    connect: Face, shards: Shards, proxied: ProxiedShards, names: list[str], rounds: int
) -> None:
    client = connect(proxied.url)
    client.connect()
    proxied.says = answers = Answers(names[0], lambda node: proxied.moved(names[0], 1 - node), rounds)
    lock = client.lock(names[0], ttl=LONG)
    assert lock.acquire()
    assert answers.given == rounds
    assert lock.owned()
    lock.release()
    shards.await_nothing_left(names[0])


def test_two_nodes_that_name_each_other_for_ever_are_not_asked_for_ever(
    connect: Face, shards: Shards, proxied: ProxiedShards, names: list[str]
) -> None:
    client = connect(proxied.url)
    client.connect()
    proxied.says = answers = Answers(names[0], lambda node: proxied.moved(names[0], 1 - node))
    with pytest.raises(QuorumUnavailable, match="MOVED"):
        client.lock(names[0], ttl=LONG).acquire()
    # The attempt, and its undo, which goes on.
    assert answers.given < 6 * MOST_HOPS
    proxied.says = None
    shards.await_nothing_left(names[0])


def test_a_node_that_names_itself_gets_a_new_connection(
    connect: Face, shards: Shards, proxied: ProxiedShards, names: list[str]
) -> None:
    client = connect(proxied.url)
    client.connect()
    before = proxied.proxies[0].accepted
    proxied.says = answers = Answers(names[0], lambda node: proxied.moved(names[0], node), 1)
    lock = client.lock(names[0], ttl=LONG)
    assert lock.acquire()
    assert answers.given == 1
    # One for the lock, and one for the question about the topology.
    assert 1 <= proxied.proxies[0].accepted - before <= 3
    lock.release()
    shards.await_nothing_left(names[0])


def test_a_node_that_names_itself_for_ever_gets_few_connections(
    connect: Face, shards: Shards, proxied: ProxiedShards, names: list[str]
) -> None:
    client = connect(proxied.url)
    client.connect()
    before = sum(proxy.accepted for proxy in proxied.proxies)
    proxied.says = Answers(names[0], lambda node: proxied.moved(names[0], node))
    with pytest.raises(QuorumUnavailable, match=r"MOVED|names itself"):
        client.lock(names[0], ttl=LONG).acquire(timeout=1.0)
    assert sum(proxy.accepted for proxy in proxied.proxies) - before <= 4 * MOST_HOPS
    proxied.says = None
    shards.await_nothing_left(names[0])
    lock = client.lock(names[1], ttl=LONG)
    assert lock.acquire()
    lock.release()


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no-such-host.invalid:6379", "..:6379", "%:6379", ":1", "?:6379"])
def test_a_node_that_names_an_address_where_nobody_is(
    connect: Face, shards: Shards, proxied: ProxiedShards, names: list[str], host: str
) -> None:
    client = connect(proxied.url)
    client.connect()
    slot = shards.cluster.slot_of(names[0])
    proxied.says = answers = Answers(names[0], saying(f"-MOVED {slot} {host}\r\n".encode()), 2)
    lock = client.lock(names[0], ttl=LONG)
    assert lock.acquire()
    assert answers.given == 2
    lock.release()
    shards.await_nothing_left(names[0])


@pytest.mark.parametrize(
    "text", ["MOVED", "MOVED 1", "MOVED x 127.0.0.1:1", "MOVED 99999 127.0.0.1:1", "ASK 5 h:99999"]
)
def test_a_malformed_redirect_is_a_failed_vote_or_passes(
    connect: Face, shards: Shards, proxied: ProxiedShards, names: list[str], text: str
) -> None:
    client = connect(proxied.url, patience=PATIENCE)
    client.connect()
    proxied.says = answers = Answers(names[0], saying(f"-{text}\r\n".encode()), 2)
    lock = client.lock(names[0], ttl=LONG)
    assert lock.acquire()
    assert answers.given == 2
    lock.release()
    shards.await_nothing_left(names[0])


@pytest.mark.parametrize("moves", [0, 1, 2, 3, 5])
def test_a_command_goes_behind_asking_after_any_number_of_other_redirects(
    connect: Face, shards: Shards, proxied: ProxiedShards, names: list[str], moves: int
) -> None:
    client = connect(proxied.url)
    client.connect()
    shards.cluster.begin_move(names[0], 1)
    proxied.says = answers = Answers(names[0], lambda node: proxied.moved(names[0], (node + 2) % 4 % 3), moves)
    lock = client.lock(names[0], ttl=LONG)
    assert lock.acquire()
    assert answers.given == moves
    assert shards.servers[1].keys(names[0])
    lock.release()
    shards.cluster.finish_move(names[0])
    shards.await_nothing_left(names[0])


def test_two_nodes_that_say_ask_to_each_other(
    connect: Face, shards: Shards, proxied: ProxiedShards, names: list[str]
) -> None:
    client = connect(proxied.url)
    client.connect()
    proxied.says = answers = Answers(names[0], lambda node: proxied.moved(names[0], 1 - node, "ASK"))
    with pytest.raises(QuorumUnavailable, match="ASK"):
        client.lock(names[0], ttl=LONG).acquire()
    assert answers.given < 6 * MOST_HOPS
    proxied.says = None
    shards.await_nothing_left(names[0])


# --- the end of a call whose command is on its way -------------------------------------------------------------


HELD_UP: dict[str, Callable[[ProxiedShards, str], Callable[[int], bytes]]] = {
    "TRYAGAIN": lambda proxied, name: saying(PASSING[0]),
    "MOVED": lambda proxied, name: lambda node: proxied.moved(name, (node + 1) % 3),
    "ASK": lambda proxied, name: lambda node: proxied.moved(name, (node + 1) % 3, "ASK"),
    "itself": lambda proxied, name: lambda node: proxied.moved(name, node),
    "nobody": lambda proxied, name: saying(b"-MOVED 1 127.0.0.1:1\r\n"),
}


@pytest.fixture(params=list(HELD_UP))
def held_up(request: pytest.FixtureRequest, proxied: ProxiedShards, names: list[str]) -> Answers:
    """Return answers that hold the commands of a lock up for a while."""
    return Answers(names[0], HELD_UP[request.param](proxied, names[0]), 6)


def test_an_interrupted_acquire_leaves_nothing(
    implementation: impl.Implementation,
    shards: Shards,
    proxied: ProxiedShards,
    names: list[str],
    held_up: Answers,
    strike: Any,
) -> None:
    with Client(proxied.url) as client:
        client.connect()
        for turn in range(8):
            proxied.says, held_up._left = held_up, 6
            strike(0.002 * (turn + 1))
            lock = client.lock(names[0], ttl=LONG)
            with contextlib.suppress(KeyboardInterrupt, QuorumUnavailable):
                lock.acquire()
                strike.off()
                lock.release()
            strike.off()
            proxied.says = None
            shards.await_nothing_left(names[0])
        with client.lock(names[0], ttl=LONG, timeout=PATIENCE):
            pass


def test_a_cancelled_acquire_leaves_nothing(
    implementation: impl.Implementation, shards: Shards, proxied: ProxiedShards, names: list[str], held_up: Answers
) -> None:
    async def main() -> None:
        async with AsyncClient(proxied.url) as client:
            await client.connect()
            for turn in range(8):
                proxied.says, held_up._left = held_up, 6
                lock = client.lock(names[0], ttl=LONG)
                task = asyncio.create_task(lock.acquire())
                await asyncio.sleep(0.002 * turn)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, QuorumUnavailable):
                    await task
                    await lock.release()
                proxied.says = None
                await asyncio.to_thread(shards.await_nothing_left, names[0])

    asyncio.run(main())


@pytest.mark.parametrize("release", [True, False])
def test_a_client_that_closes_leaves_nothing(
    connect: Face, shards: Shards, proxied: ProxiedShards, names: list[str], held_up: Answers, release: bool
) -> None:
    for _ in range(4):
        client = connect(proxied.url)
        client.connect()
        proxied.says, held_up._left = held_up, 6
        given = held_up.given
        call = client.lock(names[0], ttl=LONG).start("acquire")
        await_true(partial(held_up.has_given, given + 2))
        client.close(release=release)
        held = call.exception(PATIENCE) is None
        proxied.says = None
        if release or not held:
            shards.await_nothing_left(names[0])
        else:
            shards.server_of(names[0]).delete(names[0])


def test_the_child_of_a_fork_sends_nothing(
    implementation: impl.Implementation, shards: Shards, proxied: ProxiedShards, names: list[str]
) -> None:
    with Client(proxied.url) as client:
        client.connect()
        proxied.says = Answers(names[0], saying(PASSING[0]), 5)
        lock = client.lock(names[0], ttl=LONG)
        call = threading.Thread(target=lock.acquire)
        call.start()
        sent = proxied.count(names[0])
        child = os.fork()
        if child == 0:
            try:
                lock.acquire()
            except ClientForked:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        call.join(PATIENCE)
        assert lock.owned()
        assert proxied.count(names[0]) <= sent + 8
        lock.release()
    shards.await_nothing_left(names[0])
