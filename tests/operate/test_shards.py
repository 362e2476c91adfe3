"""`redlatch status`, `top`, `unlock`, `masters` and `run` on a cluster: each name is asked for where its slot is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.shards import Shards, running

from redlatch import Client
from redlatch.cli import build
from redlatch.masters.listed import masters_of
from redlatch.operate import shards as operate_shards

LONG = 60.0

Call = Callable[..., Result]


@pytest.fixture(scope="module")
def shards() -> Iterator[Shards]:
    with running() as shards:
        yield shards


@pytest.fixture
def cli(shards: Shards) -> Call:
    """Run a command on the cluster, and return its result."""

    def call(*words: str) -> Result:
        return CliRunner(env={"REDLATCH_MASTERS": shards.url}).invoke(build(), words)

    return call


@pytest.fixture
def holder(shards: Shards) -> Iterator[Client]:
    with Client(shards.url, owner="web-1:orders") as client:
        yield client


def locks_of(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.output
    found: list[Any] = json.loads(result.stdout)["locks"]
    return found


def nodes_of(shards: Shards) -> list[str]:
    """Return the addresses of all nodes."""
    return [url.rpartition("@")[2].removeprefix("redis://").partition("/")[0] for url in shards.urls]


def address_of(shards: Shards, name: str) -> str:
    """Return the address of the node that has a name."""
    return nodes_of(shards)[shards.cluster.primary(shards.cluster.shard_of(name))]


def locks_on(client: Client, name: str) -> list[Any]:
    """Return a lock of each kind."""
    return [
        client.lock(f"{{{name}}}a", ttl=LONG),
        client.lock(f"{{{name}}}b", ttl=LONG, fence=True),
        client.fair_lock(f"{{{name}}}c", ttl=LONG),
        client.semaphore(f"{{{name}}}d", 2, ttl=LONG),
        client.rw_lock(f"{{{name}}}e", ttl=LONG).read(),
        client.rw_lock(f"{{{name}}}f", ttl=LONG).write(),
    ]


def test_holders_are_told_with_the_node_that_has_the_name(cli: Call, shards: Shards, holder: Client) -> None:
    names = shards.names()
    held = [lock for name in names for lock in locks_on(holder, name)]
    for lock in held:
        assert lock.acquire()
    found = locks_of(cli("status", "--json", *[lock.name for lock in held]))
    assert [state["name"] for state in found] == [lock.name for lock in held]
    for state, lock in zip(found, held, strict=True):
        assert [told["owner"] for told in state["holders"]] == ["web-1:orders"]
        assert (state["node"], state["fence"]) == (address_of(shards, lock.name), lock.fence)
    table = cli("status", names[0], held[0].name).stdout
    assert "3 of 3 nodes of the cluster vote" in table
    assert address_of(shards, names[0]) in table and "nobody" in table
    for lock in held:
        lock.release()


def test_locks_of_all_nodes_are_listed(cli: Call, shards: Shards, holder: Client) -> None:
    names = shards.names("listed")
    for name in names:
        assert holder.lock(name, ttl=LONG).acquire()
    prefix = names[0].rpartition("-")[0]
    assert {lock["name"] for lock in locks_of(cli("status", "--json", "--prefix", prefix))} == set(names)
    top = cli("top", "--looks", "1", "--prefix", prefix).stdout
    assert "3 locks are held" in top
    assert all(name in top and address_of(shards, name) in top for name in names)
    for name in names:
        assert cli("unlock", "-y", name).exit_code == 0
    assert "no lock is held" in cli("status", "--prefix", prefix).stdout


def test_unlock_takes_each_kind_from_its_holder(cli: Call, shards: Shards, holder: Client) -> None:
    for lock in locks_on(holder, shards.names()[1]):
        assert lock.acquire()
        spared = cli("unlock", "-y", "--if-owner", "web-2", lock.name)
        assert spared.exit_code == 1 and "held by 'web-1:orders'" in spared.stderr
        done = cli("unlock", "-y", lock.name)
        assert done.exit_code == 0, done.output
        assert f"deleted on {address_of(shards, lock.name)}" in done.stdout
        again = cli("unlock", "-y", lock.name)
        assert again.exit_code == 1 and "nobody holds" in again.stderr


def test_a_name_is_found_and_ended_while_its_slot_moves(cli: Call, shards: Shards, holder: Client) -> None:
    name = shards.names()[0]
    held = locks_on(holder, name)
    for lock in held:
        assert lock.acquire()
    shards.cluster.begin_move(held[0].name, 1)
    try:
        # The keys of the plain lock and of the semaphore are at the target.
        shards.cluster.move_keys(held[0].name, held[0].name, *shards.keys(held[3].name))
        listed = [lock.name for lock in held]
        found = locks_of(cli("status", "--json", *listed)) + locks_of(cli("status", "--json", "--locks"))
        told = [state["name"] for state in found if state["holders"]]
        assert sorted(told) == sorted(2 * listed)
        for lock in held:
            assert cli("unlock", "-y", lock.name).exit_code == 0, lock
            assert shards.keys(lock.name).keys() <= {b"{%b}\0queue" % lock.name.encode()}
    finally:
        shards.cluster.finish_move(held[0].name)
        shards.cluster.move(held[0].name, 0)


def test_keys_of_other_programs_are_no_locks_while_their_slot_moves(cli: Call, shards: Shards) -> None:
    [name, *_] = shards.names("other")
    shards.server_of(name).set(name, "some text")
    shards.cluster.begin_move(name, 1)
    try:
        assert locks_of(cli("status", "--json", "--prefix", name)) == []
        shards.cluster.move_keys(name)
        assert locks_of(cli("status", "--json", "--prefix", name)) == []
    finally:
        shards.cluster.finish_move(name)
        shards.cluster.move(name, 0)


@pytest.mark.parametrize("moved", ["permits", "holders"])
def test_a_semaphore_whose_keys_are_on_two_nodes_is_told_and_not_ended_halfway(
    cli: Call, shards: Shards, holder: Client, moved: str
) -> None:
    [name, *_] = shards.names()
    lock = holder.semaphore(name, 2, ttl=LONG)
    assert lock.acquire()
    shards.cluster.begin_move(name, 1)
    try:
        keys = sorted(shards.keys(name))
        assert len(keys) == 2
        shards.cluster.move_keys(name, keys[moved == "holders"])
        [state] = locks_of(cli("status", "--json", name))
        assert [told["owner"] for told in state["holders"]] == ["web-1:orders"]
        done = cli("unlock", "-y", name)
        assert done.exit_code == 69 and "its slot is being moved" in done.stderr
    finally:
        shards.cluster.finish_move(name)
    lock.extend()
    assert cli("unlock", "-y", name).exit_code == 0
    shards.cluster.move(name, 0)


def test_a_redirect_is_followed_once(shards: Shards, holder: Client) -> None:
    [name, *_] = shards.names()
    lock = holder.lock(name, ttl=LONG)
    assert lock.acquire()
    listed: Any = masters_of(shards.url)[0]
    seen = operate_shards.Shards(listed)
    shards.cluster.move(name, 2)
    [(node, state)] = seen.read([name.encode()])
    assert node == address_of(shards, name) and len(state.grants) == 1
    assert seen.end(name.encode(), frozenset([state.grants[0].token]), None) == (node, 1)
    shards.cluster.move(name, 0)


def test_no_server_but_the_nodes_is_asked(shards: Shards, cli: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[tuple[str, int]] = set()
    look_up = socket.getaddrinfo

    def noted(host: str, port: int, *more: Any, **options: Any) -> Any:
        asked.add((host, int(port)))
        return look_up(host, port, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", noted)
    [name, *_] = shards.names()
    commands = [
        *(["status", name], ["status", "--locks"], ["masters"], ["top", "--looks", "1"]),
        *(["unlock", "-y", name], ["doctor"]),
    ]
    for words in commands:
        cli(*words)
    assert asked == {("127.0.0.1", int(node.rpartition(":")[2])) for node in nodes_of(shards)}
    asked.clear()
    nobody = "redis+cluster://127.0.0.1:1"
    for words in commands:
        done = CliRunner().invoke(build(), [*words, "-m", nobody])
        assert done.exit_code in (2, 69), done.output
    for words in (["status", name], ["top", "--looks", "1"], ["unlock", "-y", name]):
        done = CliRunner().invoke(build(), [*words, "-m", nobody])
        assert done.exit_code == 69 and "a node that is needed" in done.stderr
    assert asked == {("127.0.0.1", 1)}


def test_masters_are_the_nodes_and_cannot_be_moved(cli: Call, shards: Shards, urls: list[str]) -> None:
    nodes = nodes_of(shards)
    told = json.loads(cli("masters", "--json").stdout)
    assert sorted(node["address"] for node in told["masters"]) == sorted(nodes)
    assert all(node in cli("masters").stdout for node in nodes)
    done = CliRunner().invoke(build(), ["masters", "move", "--from", shards.url, "--to", urls[0]])
    assert done.exit_code == 2 and "no handover from or to a cluster" in done.stderr


def test_a_program_runs_under_a_lock_of_a_cluster(shards: Shards) -> None:
    program = "import sys; sys.exit(3)"
    command = [sys.executable, "-m", "redlatch.cli", "run", "-n", *shards.names()[2:], "--", sys.executable, "-c"]
    environment = os.environ | {"REDLATCH_MASTERS": shards.url}
    done = subprocess.run([*command, program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr


def test_a_server_that_is_no_cluster_has_its_cure(url: str) -> None:
    done = CliRunner().invoke(build(), ["status", "name", "-m", url.replace("redis://", "redis+cluster://")])
    assert done.exit_code == 69 and "write redis:// instead of redis+cluster://" in done.output
