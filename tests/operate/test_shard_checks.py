"""`redlatch doctor` on clusters that are set up wrongly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from support.faces import ask, await_true
from support.shards import Shards, running

from redlatch import Client
from redlatch.cli import build
from redlatch.guard.shards import marker_key
from redlatch.operate import doctor
from redlatch.testing.clusters import cluster

Found = dict[str, list[str]]


@pytest.fixture(scope="module")
def shards() -> Iterator[Shards]:
    with running(replicas=1) as shards:
        yield shards


@pytest.fixture(autouse=True)
def a_short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    # Over a short time the rates of clocks are compared badly: there may be a finding about them as well.
    monkeypatch.setattr(doctor, "WATCHED", 0.1)


def examined(url: str, *words: str) -> tuple[int, Found]:
    """Run the command; return its exit status and its findings by their level."""
    done = CliRunner().invoke(build(), ["doctor", "--json", *words, url])
    found: Found = {"fine": [], "warning": [], "unsafe": []}
    for finding in json.loads(done.stdout)["findings"]:
        found[finding["level"]].append(f"{finding['master']} {finding['text']}")
        assert finding["cure"] or finding["level"] == "fine"
    return done.exit_code, found


def told(found: Found, level: str, part: str, times: int = 1) -> None:
    assert sum(part in text for text in found[level]) == times, found


def primary(shards: Shards, shard: int = 0) -> Any:
    return shards.servers[shards.cluster.primary(shard)]


def test_what_is_right_is_told_for_each_primary(shards: Shards) -> None:
    with Client(shards.url) as client:
        client.connect(require="all")
        status, found = examined(shards.url)
    assert status == 0 and found["unsafe"] == []
    told(found, "fine", "primaries of the cluster: 3; replicas: 3")
    told(found, "fine", "all names are refused (cluster-require-full-coverage yes)")
    for part in (
        "answers in",
        "releases with one native command",
        "locks of all kinds can be taken",
        "its locks are in doubt",
        "clients have marked it; the longest ttl in use is 10000 ms",
    ):
        told(found, "fine", part, 3)
    told(found, "warning", "3 of 3 primaries are on 127.0.0.1")
    told(found, "warning", "while it is cut off, it still grants locks (min-replicas-to-write is 0)", 3)
    assert not [key for server in shards.servers for key in server.keys("*redlatch-doctor*") if b"fence" not in key]


def test_settings_of_replicas(shards: Shards) -> None:
    server = primary(shards)
    try:
        server.config_set("min-replicas-to-write", 1)
        server.config_set("cluster-require-full-coverage", "no")
        _, found = examined(shards.url)
        told(found, "warning", "min-replicas-max-lag is 10 s, no shorter than cluster-node-timeout (1000 ms)")
        told(found, "warning", "writes need 1 replicas, and it has 1: a promoted one has fewer")
        told(found, "warning", "min-replicas-to-write is 0", 2)
        told(found, "warning", "cluster-require-full-coverage is not the same on all nodes")
    finally:
        server.config_set("min-replicas-to-write", 0)
        server.config_set("cluster-require-full-coverage", "yes")


def test_a_shard_without_its_replica(shards: Shards) -> None:
    [replica] = shards.cluster.replicas(1)
    shards.cluster.kill(replica)
    try:
        await_true(lambda: primary(shards, 1).info("replication")["connected_slaves"] == 0)
        _, found = examined(shards.url)
        lacking = [text for text in found["warning"] if "has no replica" in text or "only 0 of its 1 replicas" in text]
        assert len(lacking) == 1 and f":{shards.urls[shards.cluster.primary(1)].rpartition(':')[2]} " in lacking[0]
    finally:
        shards.cluster.repair()


def test_a_node_that_evicts(shards: Shards) -> None:
    server = primary(shards)
    server.config_set("maxmemory-policy", "allkeys-lru")
    server.config_set("maxmemory", "100mb")
    try:
        status, found = examined(shards.url)
        assert status == 2
        told(found, "unsafe", "it may evict locks before their time (maxmemory-policy allkeys-lru)")
    finally:
        server.config_set("maxmemory", 0)
        server.config_set("maxmemory-policy", "noeviction")


def test_a_slot_that_is_being_moved(shards: Shards) -> None:
    [name, *_] = shards.names()
    slot = shards.cluster.slot_of(name)
    shards.cluster.begin_move(name, 1)
    try:
        _, found = examined(shards.url)
        other = shards.urls[shards.cluster.primary(1)].rpartition("@")[2].removeprefix("redis://").partition("/")[0]
        told(found, "warning", f"slots are being moved to {other}: {slot}.")
        assert sum("are being moved" in text for text in found["warning"]) == 1
        primary(shards).cluster("SETSLOT", slot, "STABLE")
        told(examined(shards.url)[1], "warning", "slots are being moved from ")
    finally:
        primary(shards, 1).cluster("SETSLOT", slot, "STABLE")
        shards.cluster.cancel_move(name)


def test_persistence_that_is_trusted_for_nothing(shards: Shards) -> None:
    status, found = examined(shards.url, "--trust-persistence")
    assert status == 2
    told(found, "unsafe", "a restart may lose locks, but the guard trusts its persistence", 3)


def test_a_user_without_rights(shards: Shards) -> None:
    limited = shards.url.replace("://", "://limited:pw@")

    def allow(*without: str) -> None:
        for server in shards.servers:
            server.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "&*", "+@all", *without)

    try:
        allow("-cluster|slots")
        status, found = examined(limited)
        assert status == 2
        told(found, "unsafe", "no node says which slots it has: ")
        allow("-cluster|nodes", "-hset", "-asking")
        status, found = examined(limited)
        told(found, "fine", "it was not asked whether slots are being moved", 3)
        told(found, "warning", "a semaphore cannot be taken", 3)
        told(found, "warning", "names whose slot is being moved cannot be locked: ASKING is answered by User", 3)
    finally:
        for server in shards.servers:
            server.execute_command("ACL", "DELUSER", "limited")


def test_markers_of_nodes(shards: Shards) -> None:
    place = shards.cluster.primary(0)
    address = shards.urls[place].rpartition("@")[2].removeprefix("redis://").partition("/")[0]
    slots = {shards.cluster.slot_of(name) for name in shards.names()[:1]}
    with Client(shards.url) as client:
        client.connect(require="all")
        told(examined(shards.url, "--trust-persistence")[1], "unsafe", "uses it with trust_persistence=False", 3)
    keys = shards.servers[place].keys("*guard")
    [key] = [key for key in keys if address.encode() in key]
    assert marker_key(b"", address, slots).endswith(key.partition(b"}")[2])
    kept = shards.servers[place].get(key)
    try:
        shards.servers[place].set(key, "something else")
        told(examined(shards.url)[1], "unsafe", f"{address} it has a marker that is not ours")
    finally:
        shards.servers[place].set(key, kept, px=60_000)


def test_a_primary_that_is_down_and_has_no_heir() -> None:
    made = cluster(3, replicas=0)
    with made as urls:
        made.kill(0)
        status, found = examined(made.url)
        assert status == 2
        told(found, "unsafe", f"{urls[0].removeprefix('redis://').partition('/')[0]} it cannot be used: ")


def test_slots_that_nobody_has() -> None:
    made = cluster(1, replicas=0)
    with made as urls, ask(urls[0]) as server:
        server.cluster("DELSLOTS", 0, 7, 8, 9)
        status, found = examined(made.url)
    assert status == 2
    told(found, "unsafe", "4 slots belong to no node: 0, 7-9")
    told(found, "warning", "that needs 3 primaries, and there are only 1")
