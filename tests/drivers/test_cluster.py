"""The connections of a client to the nodes of a cluster: a topology says which are dialled, and which are left."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.faces import PATIENCE, await_true, threads_named
from support.far_ends import FarEnds

from redlatch import Client, Guard, QuorumUnavailable, impl
from redlatch.drivers.cluster import ClusterConnections
from redlatch.guard.admission import Admissions
from redlatch.guard.shards import ShardAdmissions
from redlatch.masters.cluster import Cluster
from redlatch.masters.listed import masters_of
from redlatch.masters.master import Address
from redlatch.quorum.policy import Doubts
from redlatch.testing.clusters import cluster
from redlatch.votes.commands import BY_SHA
from redlatch.votes.key import SLOTS, slot_of
from redlatch.wire.dial import topology as dialling
from redlatch.wire.dial.connect import Connection
from redlatch.wire.dial.topology import TOPOLOGY, Topology, TopologyReader
from redlatch.wire.engine.net import now_ns
from redlatch.wire.server_traits import Traits

A, B, C = ("10.0.0.1", 1), ("10.0.0.2", 2), ("10.0.0.3", 3)
HALF = SLOTS // 2


class PlayedDialler:
    """Records which nodes are dialled, and which are forgotten."""

    def __init__(self, nodes: list[Any], *_: object) -> None:
        self._nodes = nodes
        self.dialled: list[str] = []
        self.forgotten: list[str] = []
        self.closed = False

    def start(self, index: int, pause: float = 0.0, extension: object = None) -> None:
        if not self.closed:
            self.dialled.append(self._nodes[index].address)

    def forget(self, index: int) -> None:
        self.forgotten.append(self._nodes[index].address)

    def hurry(self, index: int) -> None:
        pass

    def reader_of(self, cluster: Cluster, deliver: Any) -> TopologyReader:
        return TopologyReader(cluster, deliver)

    def close(self) -> None:
        self.closed = True


class Rig(FarEnds):
    """The connections of a client without a guard. No thread reads the topology: the test delivers it."""

    def __init__(self, build: impl.Implementation, monkeypatch: pytest.MonkeyPatch) -> None:
        [master] = masters_of("redis+cluster://seed:7000")
        assert isinstance(master, Cluster)
        clock = build.module("wire.engine.net").BootClock()
        quorum: Any = SimpleNamespace(clock=clock, doubts=Doubts())
        engine = build.module("wire.engine.fleet").Fleet
        self.connections = connections = ClusterConnections(
            master, quorum, engine, lambda index, outcome: None, True, PlayedDialler, None
        )
        self.dialler: PlayedDialler = connections._dialler
        monkeypatch.setattr(connections._reader, "refresh", self._refresh)
        self.refreshed = 0
        super().__init__(connections.make_fleet())
        self.commands = build.module("votes.commands")

    def _refresh(self, address: Address | None = None) -> None:
        self.refreshed += 1

    def take(self, *nodes: Address, members: dict[Address, list[Address]] | None = None) -> None:
        """Deliver a topology in which the nodes share the slots; two have a half each."""
        size = SLOTS // len(nodes)
        ranges = [(place * size, (place + 1) * size - 1, place) for place in range(len(nodes) - 1)]
        ranges.append(((len(nodes) - 1) * size, SLOTS - 1, len(nodes) - 1))
        replicas = tuple(frozenset((members or {}).get(node, ())) for node in nodes)
        self.connections.arrive(TOPOLOGY, Topology(nodes, tuple(ranges), replicas, now_ns()))
        self.fallen()
        self.fleet.flush()

    def connection(self, index: int) -> Connection:
        traits = Traits({"run_id": f"run-{index}", "role": "master", "redis_version": "7.0.0"}, 3, False)
        traits.dialect = BY_SHA
        return Connection(self.connect(index), traits, None)

    def reach(self, *indexes: int) -> None:
        for index in indexes:
            self.connections.arrive(index, self.connection(index))
        self.fleet.flush()

    def release(self, key: bytes) -> Any:
        command = self.commands.Release(key, b"token", 0)
        ballot = self.fleet.ballot_of(command)
        ballot.waiter = object()
        self.fleet.submit(ballot)
        self.fleet.flush()
        return ballot

    def names(self) -> list[str]:
        return [master.address for master in self.connections.health().masters]


@pytest.fixture
def rig(build: impl.Implementation, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    rig = Rig(build, monkeypatch)
    yield rig
    rig.connections.close()
    rig.close()


def key_in(first: int, last: int) -> bytes:
    return next(key for key in (b"key-%d" % number for number in range(1000)) if first <= slot_of(key) <= last)


LOW, HIGH = key_in(0, HALF - 1), key_in(HALF, SLOTS - 1)


def test_the_nodes_of_a_topology_are_dialled_once(rig: Rig) -> None:
    assert not rig.connections.is_quorate()
    rig.take(A, B)
    rig.take(A, B)
    assert rig.dialler.dialled == ["10.0.0.1:1", "10.0.0.2:2"]
    assert not rig.connections.is_quorate()
    rig.reach(0, 1)
    assert rig.connections.is_quorate()
    assert rig.names() == ["10.0.0.1:1", "10.0.0.2:2"]


def test_a_node_that_cannot_be_reached_makes_nobody_wait(rig: Rig) -> None:
    rig.take(A, B)
    rig.reach(0)
    before = rig.refreshed
    rig.connections.arrive(1, ConnectionRefusedError("nobody"))
    assert rig.connections.is_quorate()
    assert [type(cause) for cause in rig.connections.causes().values()] == [ConnectionRefusedError]
    # Another node may have its slots soon.
    assert rig.refreshed > before


def test_a_node_without_slots_is_left(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.take(A, B)
    rig.reach(0, 1)
    with caplog.at_level(logging.INFO):
        rig.take(A)
    assert rig.dialler.forgotten == ["10.0.0.2:2"]
    assert rig.names() == ["10.0.0.1:1"]
    assert "node 10.0.0.2:2 has no slot of the cluster any more" in caplog.text
    assert not rig.fleet.links[1].up


def test_a_connection_to_a_node_that_was_left_is_closed(rig: Rig) -> None:
    rig.take(A, B)
    rig.take(A)
    late = rig.connection(1)
    rig.connections.arrive(1, late)
    assert late.sock.fileno() < 0
    rig.connections.arrive(1, ConnectionRefusedError("nobody"))
    assert rig.names() == ["10.0.0.1:1"]


def test_a_node_that_was_left_is_not_dialled_again(rig: Rig) -> None:
    rig.take(A, B)
    rig.reach(0, 1)
    link = rig.fleet.links[1]
    rig.take(A)
    assert not rig.connections.redial(link)
    assert rig.dialler.dialled == ["10.0.0.1:1", "10.0.0.2:2"]


def test_a_node_that_comes_back_is_dialled_again(rig: Rig) -> None:
    rig.take(A, B)
    rig.reach(0, 1)
    rig.take(A)
    rig.take(A, B)
    assert rig.dialler.dialled == ["10.0.0.1:1", "10.0.0.2:2", "10.0.0.2:2"]
    rig.reach(2)
    rig.release(HIGH)
    assert [command[0] for command in rig.commands_of(2)] == [b"EVALSHA"]
    assert sorted(rig.names()) == ["10.0.0.1:1", "10.0.0.2:2"]


def test_commands_go_to_the_node_of_their_slot(rig: Rig) -> None:
    rig.take(A, B)
    rig.reach(0, 1)
    rig.release(LOW)
    assert (len(rig.commands_of(0)), len(rig.commands_of(1))) == (1, 0)
    rig.release(HIGH)
    assert (len(rig.commands_of(0)), len(rig.commands_of(1))) == (0, 1)


def test_a_release_that_a_node_has_not_answered_goes_to_the_next_one(rig: Rig) -> None:
    # The node hangs; so the cluster has promoted another one.
    rig.take(A, B)
    rig.reach(0, 1)
    rig.release(HIGH)
    rig.take(A, C)
    assert not rig.commands_of(0)
    rig.reach(2)
    assert [HIGH in command for command in rig.commands_of(2)] == [True]


def test_a_release_that_waits_for_a_connection_goes_to_the_next_node(rig: Rig) -> None:
    rig.take(A, B)
    rig.reach(0)
    rig.release(HIGH)
    rig.take(A)
    assert [HIGH in command for command in rig.commands_of(0)] == [True]


def test_a_broken_connection_has_the_topology_read(rig: Rig) -> None:
    rig.take(A, B)
    rig.reach(0, 1)
    before = rig.refreshed
    rig.connections.redial(rig.fleet.links[1])
    assert rig.refreshed == before + 1
    assert rig.dialler.dialled == ["10.0.0.1:1", "10.0.0.2:2", "10.0.0.2:2"]


def test_a_silent_node_has_the_topology_read(rig: Rig) -> None:
    rig.take(A, B)
    rig.reach(0, 1)
    ballot = rig.release(HIGH)
    before = rig.refreshed
    rig.connections.record_silent(ballot)
    assert ballot.silent == (0,)
    assert rig.refreshed == before + 1


def test_a_topology_that_cannot_be_read_is_logged_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    why = ConnectionRefusedError("nobody")
    for _ in range(3):
        rig.connections.arrive(TOPOLOGY, why)
    assert caplog.text.count("the topology of cluster:seed:7000 cannot be read: nobody") == 1
    assert rig.connections.causes() == {"cluster:seed:7000": why}
    assert rig.connections.is_quorate()
    ballot = rig.release(LOW)
    assert ballot.causes == {0: why}
    rig.take(A)
    rig.connections.arrive(TOPOLOGY, why)
    assert caplog.text.count("cannot be read") == 2


def test_a_topology_that_comes_after_the_close_is_not_used(rig: Rig) -> None:
    rig.take(A)
    rig.connections.close()
    rig.take(A, B)
    assert rig.dialler.dialled == ["10.0.0.1:1"]


def test_a_thread_that_cannot_start_is_a_cause(
    implementation: impl.Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cluster(1, replicas=0)
    with made:
        client = Client(made.url, patience=PATIENCE)
        with monkeypatch.context() as patch:
            patch.setattr(dialling, "start_thread", exhausted)
            with pytest.raises(QuorumUnavailable, match="can't start new thread"):
                client.lock("name").acquire(timeout=0.1)
        with client, client.lock("name"):
            pass


def test_a_client_that_is_forgotten_asks_no_longer(
    implementation: impl.Implementation, closed_ports: Callable[[int], list[str]]
) -> None:
    client = Client(f"redis+cluster://{closed_ports(1)[0].removeprefix('redis://')}")
    with pytest.raises(QuorumUnavailable):
        client.lock("name").acquire(timeout=0.01)
    # It asks until it is answered.
    await_true(lambda: threads_named("redlatch-slots"))
    del client
    gc.collect()
    await_true(lambda: not threads_named("redlatch-slots"))


def exhausted(*args: object) -> None:
    raise RuntimeError("can't start new thread")


def test_a_node_that_forgot_puts_slots_in_doubt_that_only_a_redirect_gave_to_it(rig: Rig) -> None:
    rig.take(A, B)
    rig.reach(0, 1)
    rig.release(LOW)
    rig.reply(0, b"-MOVED %d 10.0.0.2:2\r\n" % slot_of(LOW))
    doubts = rig.connections._doubts
    doubts.add(now_ns(), 1)
    assert doubts.cover(1, HIGH) and not doubts.cover(1, LOW)
    rig.take(A, B)
    assert doubts.cover(1, LOW)


def test_the_figures_of_a_node_are_its_own_and_stay_when_it_comes_back(rig: Rig) -> None:
    settings = Guard()

    def make(name: str, key: bytes, set_back: Any) -> Admissions:
        return Admissions((name,), settings, key, 10_000, 0.01, lambda: 0, lambda: 0.5, lambda since: None, set_back)

    rig.connections._guard = guards = ShardAdmissions(settings, b"", make, lambda index, by_ns: None)

    def replies() -> dict[str, int]:
        return {master.address: master.reply_time.count for master in rig.connections.stats()}

    rig.take(A, B)
    for index, count in ((0, 3), (1, 5)):
        for _ in range(count):
            guards.monitor(index).reply_time.count(1000)
    assert replies() == {"10.0.0.1:1": 3, "10.0.0.2:2": 5}
    rig.take(B, C)
    assert replies() == {"10.0.0.2:2": 5, "10.0.0.3:3": 0}
    rig.take(A, B, C)
    guards.monitor(3).reply_time.count(1000)
    assert replies() == {"10.0.0.1:1": 4, "10.0.0.2:2": 5, "10.0.0.3:3": 0}
    rig.connections.lifecycle.closing = True
    assert replies() == {}
