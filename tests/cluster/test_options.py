"""Users, passwords and host names: the nodes of a cluster get the options of its seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.faces import PATIENCE, Face, ask
from support.selection import on_one_face

from redlatch import ConfigurationError, QuorumUnavailable
from redlatch.testing.clusters import Cluster, cluster

LONG = 20.0
USER, PASSWORD = "locks", "s3cr3tpw"

# What locks need of a server, and of a cluster.
RIGHTS = ["~*", "+@all", "-@admin", "-@dangerous", "+info", "+cluster|slots", "+asking", "+config|get"]


@pytest.fixture
def started() -> Iterator[Callable[..., Cluster]]:
    with ExitStack() as stack:

        def start(shards: int = 2, **options: Any) -> Cluster:
            made = cluster(shards, replicas=0, **options)
            stack.enter_context(made)
            return made

        yield start


def cycle(client: Any, name: str) -> None:
    lock = client.lock(name, ttl=LONG, fence=True)
    assert lock.acquire()
    assert lock.owned()
    lock.extend(LONG)
    lock.release()


@on_one_face("threads")
def test_the_user_and_the_password_are_those_of_all_nodes(connect: Face, started: Callable[..., Cluster]) -> None:
    made = started()
    names = [made.name_in(shard) for shard in range(2)]
    for url in made.urls:
        with ask(url) as server:
            server.execute_command("ACL", "SETUSER", USER, "on", f">{PASSWORD}", *RIGHTS)
            server.execute_command("ACL", "SETUSER", "default", "off")
    client = connect(f"redis+cluster://{USER}:{PASSWORD}@{made.address(0)}")
    for shard in range(2):
        cycle(client, names[shard])
    for url, why in (
        (f"redis+cluster://{USER}:wrong@{made.address(0)}", "give the right user and password"),
        (f"redis+cluster://{made.address(0)}", "give the right user and password"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            connect(url).connect()


@on_one_face("threads")
def test_a_user_who_may_not_ask_for_the_slots_is_a_wrong_setting(
    connect: Face, started: Callable[..., Cluster]
) -> None:
    made = started(1)
    with ask(made.urls[0]) as server:
        server.execute_command("ACL", "SETUSER", USER, "on", f">{PASSWORD}", *RIGHTS, "-cluster|slots")
    with pytest.raises(ConfigurationError, match="grant the right"):
        connect(f"redis+cluster://{USER}:{PASSWORD}@{made.address(0)}").connect()


@on_one_face("asyncio")
@pytest.mark.parametrize("kind", ["hostname", "unknown-endpoint", "ip"])
def test_nodes_are_reached_as_they_want_to_be(connect: Face, started: Callable[..., Cluster], kind: str) -> None:
    config = {"cluster-announce-hostname": "localhost", "cluster-preferred-endpoint-type": kind}
    made = started(config=config)
    seed = made.address(0).replace("127.0.0.1", "localhost")
    client = connect(f"redis+cluster://{seed}")
    names = [made.name_in(shard) for shard in range(2)]
    for name in names:
        cycle(client, name)
    host = "127.0.0.1" if kind == "ip" else "localhost"
    assert {master.address.partition(":")[0] for master in client.raw.health().masters} == {host}
    # MOVED and ASK name nodes in the same way.
    made.move(names[0], 1)
    cycle(client, names[0])
    made.begin_move(names[1], 0)
    lock = client.lock(names[1], ttl=LONG)
    assert lock.acquire()
    lock.release()
    made.finish_move(names[1])
    cycle(client, names[1])
    assert len(client.raw.health().masters) == 2


@on_one_face("threads")
def test_a_node_without_a_host_name_is_waited_for(connect: Face, started: Callable[..., Cluster]) -> None:
    # Its endpoint is "?" then.
    made = started(1, config={"cluster-preferred-endpoint-type": "hostname"})
    client = connect(made.url)
    with pytest.raises((QuorumUnavailable, ConfigurationError), match="has no slots yet"):
        client.lock("name").acquire(timeout=0.1)
    with ask(made.urls[0]) as server:
        server.config_set("cluster-announce-hostname", "localhost")
    patient = connect(made.url, patience=PATIENCE)
    cycle(patient, "name")


@on_one_face("threads")
def test_a_server_that_is_no_cluster_is_a_wrong_setting(connect: Face, url: str) -> None:
    client = connect(url.replace("redis://", "redis+cluster://"))
    with pytest.raises(ConfigurationError, match=r"write redis:// instead of redis\+cluster://"):
        client.connect()
