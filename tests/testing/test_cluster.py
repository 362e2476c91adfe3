"""The embedded clusters, with real servers whose slots move and whose shards fail over."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from support.faces import await_true
from support.masters import SERVERS

from redlatch.errors import ConfigurationError
from redlatch.guard.marker import MARKER
from redlatch.testing import Cluster, cluster, embedded
from redlatch.testing.topology import View, problem_of

LONG_MS = 100_000

# A program that enters a cluster, prints its processes, and waits to be killed.
PARENT = """
import json, sys
from redlatch.testing import cluster
running = cluster(1, replicas=1)
with running:
    print(json.dumps(running.servers.pids), flush=True)
    sys.stdin.read()
"""


def start(**options: Any) -> contextlib.AbstractContextManager[Cluster]:
    """Start a cluster, and return it instead of its URLs."""

    @contextlib.contextmanager
    def running() -> Iterator[Cluster]:
        made = cluster(**options)
        with made:
            yield made

    return running()


@pytest.fixture(scope="module", params=["valkey", pytest.param("redis-on-path", marks=pytest.mark.slow("Redis 7"))])
def shared(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of three shards, each with a replica, of each kind of server in turn."""
    if SERVERS[request.param] is None:
        pytest.skip(f"there is no {request.param} server here")
    with start(server=SERVERS[request.param]) as running:
        yield running


@pytest.fixture
def whole(shared: Cluster) -> Iterator[Cluster]:
    """The shared cluster, which is repaired and emptied after the test."""
    yield shared
    shared.repair()
    shared.clear()


@pytest.fixture
def shell() -> Iterator[Callable[..., redis.Redis]]:
    """Return a function that makes a client of one node."""
    with contextlib.ExitStack() as stack:

        def connect(running: Cluster, node: int) -> redis.Redis:
            client = redis.Redis.from_url(running.urls[node], socket_timeout=10, decode_responses=True, retry=None)
            stack.enter_context(client)
            return client

        yield connect


Shell = Callable[..., redis.Redis]


def says(client: redis.Redis, *words: object) -> Any:
    """Return the reply to a command of CLUSTER, as the server sends it."""
    return client.execute_command("CLUSTER", *words)


def atomic(running: Cluster, shell: Shell) -> bool:
    """Return whether the servers can move a slot atomically."""
    version = shell(running, running.living[0]).info("server").get("valkey_version", "0")
    return int(version.partition(".")[0]) >= 9


# --- the start --------------------------------------------------------------------------------------------


def test_all_slots_are_served_by_primaries_with_a_replica_each(shared: Cluster, shell: Shell) -> None:
    for shard in range(3):
        primary, (replica,) = shared.primary(shard), shared.replicas(shard)
        assert sorted((primary, replica)) == shared.members(shard)
        assert shell(shared, primary).role()[0] == "master"
        host, port = shared.address(primary).split(":")
        assert shell(shared, replica).role()[:4] == ["slave", host, int(port), "connected"]
    host, port = shared.address(0).split(":")
    with redis.RedisCluster(host, int(port)) as client:
        assert all(client.set(name, "value") for name in map(shared.name_in, range(3)))
        # The replicas, too.
        assert len(client.get_nodes()) == 6
    shared.clear()


def test_the_url_names_all_nodes(shared: Cluster) -> None:
    assert shared.url == "redis+cluster://" + ",".join(url.removeprefix("redis://") for url in shared.urls)
    assert len(set(shared.urls)) == 6


def test_names_have_the_slots_that_the_servers_compute(shared: Cluster, shell: Shell) -> None:
    for name in ("sku:42", "{user}:1", "a{}b", "ü"):
        assert shared.slot_of(name) == says(shell(shared, 0), "KEYSLOT", name) == shared.slot_of(name.encode())
    for shard in range(3):
        name = shared.name_in(shard, "sku")
        assert name.startswith("sku-")
        assert shared.shard_of(name) == shared.shard_of(shared.slot_of(name)) == shard


def test_every_node_has_an_epoch_of_its_own(shared: Cluster, shell: Shell) -> None:
    views = [View(says(shell(shared, shared.primary(shard)), "NODES")) for shard in range(3)]
    assert len({view.peers[view.me].epoch for view in views}) == 3


def test_a_cluster_of_one_node_with_a_password_and_a_host_name(shell: Shell) -> None:
    config = {
        "requirepass": "p@ss/word",
        "cluster-announce-hostname": "node-{index}.example",
        "cluster-preferred-endpoint-type": "hostname",
    }
    with start(shards=1, replicas=0, config=config) as running:
        assert running.url == f"redis+cluster://:p%40ss%2Fword@{running.address(0)}"
        ((_, _, (host, port, *_)),) = says(shell(running, 0), "SLOTS")
        assert (host, f"127.0.0.1:{port}") == ("node-0.example", running.address(0))


@pytest.mark.slow("a password is needed for replicas and for each move, too")
def test_a_cluster_with_a_password_moves_slots_and_fails_over(shell: Shell) -> None:
    with start(config={"requirepass": "p@ss/word"}) as running:
        name = running.name_in(0)
        shell(running, 0).set(name, "value")
        running.move(name, 1)
        running.fail_over(1)
        assert shell(running, running.primary(1)).get(name) == "value"


# --- moves ------------------------------------------------------------------------------------------------


def fill(running: Cluster, shell: Shell, shard: int) -> tuple[int, list[str]]:
    """Set keys in one slot of a shard, all but the first of them with a ttl, and return the slot and the keys."""
    name = running.name_in(shard)
    keys = [name, *(f"{{{name}}}:{number}" for number in range(250))]
    with shell(running, running.primary(shard)).pipeline(transaction=False) as pipeline:
        pipeline.set(keys[0], "value")
        for key in keys[1:]:
            pipeline.set(key, "value", px=LONG_MS)
        pipeline.execute()
    return running.slot_of(name), keys


@pytest.mark.parametrize("way", ["keys", "atomic"])
def test_a_move_takes_the_keys_and_their_ttl_along(whole: Cluster, shell: Shell, way: str) -> None:
    if way == "atomic" and not atomic(whole, shell):
        pytest.skip("Redis cannot move a slot atomically")
    slot, keys = fill(whole, shell, 0)
    whole.move(slot, 1, atomic=way == "atomic")
    target = shell(whole, whole.primary(1))
    assert [target.get(key) for key in keys] == ["value"] * len(keys)
    assert target.pttl(keys[0]) == -1
    assert all(LONG_MS / 2 < target.pttl(key) <= LONG_MS for key in keys[1:])
    views = [View(says(shell(whole, node), "NODES")) for node in range(6)]
    assert {view.owner_of(slot) for view in views} == {whole.id_of(whole.primary(1))}
    assert says(shell(whole, whole.primary(0)), "COUNTKEYSINSLOT", slot) == 0
    whole.move(slot, 1, atomic=way == "atomic")
    whole.move(keys[0], 0, atomic=way == "atomic")
    assert says(shell(whole, whole.primary(0)), "COUNTKEYSINSLOT", slot) == len(keys)


@pytest.mark.slow("only Redis refuses it")
def test_a_server_that_cannot_move_a_slot_atomically_is_named() -> None:
    server = SERVERS["redis-on-path"]
    if server is None:
        pytest.skip("there is no redis-on-path server here")
    with start(shards=2, replicas=0, server=server) as running:
        with pytest.raises(ConfigurationError, match=r"atomic=True needs Valkey 9 or later, and node 0 says unknown"):
            running.move(5, 1, atomic=True)
        assert running.shard_of(5) == 0


def test_a_slot_can_be_held_between_two_shards(whole: Cluster, shell: Shell) -> None:
    slot, (first, second, *_) = fill(whole, shell, 0)
    source, target = shell(whole, whole.primary(0)), shell(whole, whole.primary(2))
    whole.begin_move(first, 2)
    assert source.get(first) == "value"
    whole.move_keys(slot, first)
    with pytest.raises(redis.exceptions.AskError, match=f"{slot} {whole.address(whole.primary(2))}"):
        source.get(first)
    with pytest.raises(redis.exceptions.MovedError):
        target.get(first)
    with target.pipeline(transaction=False) as pipeline:
        asked = pipeline.execute_command("ASKING").get(first).execute_command("ASKING").mget(first, second)
        asking, one, _, both = asked.execute(raise_on_error=False)
    assert (asking, one) == (True, "value")
    assert isinstance(both, redis.exceptions.TryAgainError)
    with pytest.raises(RuntimeError, match=rf"has 1 keys of slot {slot} already: finish the move"):
        whole.cancel_move(slot)
    assert whole.shard_of(slot) == 0
    whole.finish_move(slot)
    assert target.mget(first, second) == ["value"] * 2
    assert whole.shard_of(slot) == 2


def test_a_move_can_be_cancelled(whole: Cluster, shell: Shell) -> None:
    name = whole.name_in(0)
    whole.begin_move(name, 1)
    whole.cancel_move(name)
    assert shell(whole, whole.primary(0)).get(name) is None
    whole.begin_move(name, 2)
    whole.repair()
    assert whole.shard_of(name) == 2


def test_a_move_that_a_fail_over_interrupts_can_be_finished(whole: Cluster, shell: Shell) -> None:
    slot, keys = fill(whole, shell, 1)
    whole.begin_move(slot, 0)
    whole.move_keys(slot, *keys[:10])
    whole.fail_over(0)
    whole.fail_over(1)
    whole.finish_move(slot)
    assert says(shell(whole, whole.primary(0)), "COUNTKEYSINSLOT", slot) == len(keys)


def test_the_shard_that_owns_a_slot_is_no_target(whole: Cluster) -> None:
    slot = whole.slot_of(whole.name_in(1))
    whole.move(slot, 1)
    with pytest.raises(RuntimeError, match=f"shard 1 owns slot {slot} already"):
        whole.begin_move(slot, 1)


def test_a_slot_moves_to_one_shard_at_a_time(whole: Cluster) -> None:
    slot = whole.slot_of(whole.name_in(0))
    whole.begin_move(slot, 1)
    for move in (whole.move, whole.begin_move):
        with pytest.raises(RuntimeError, match=f"a move of slot {slot} to shard 1 has begun: finish or cancel it"):
            move(slot, 2)
    whole.move(slot, 1)
    for call in (whole.move_keys, whole.finish_move, whole.cancel_move):
        with pytest.raises(RuntimeError, match=f"no move of slot {slot} has begun"):
            call(slot)


@pytest.mark.slow("a race of many moves and fail-overs, which takes its time")
def test_changes_of_several_threads_do_not_undo_each_other(whole: Cluster, shell: Shell) -> None:
    problems: list[Exception] = []
    deadline = time.monotonic() + 10

    def run(change: Callable[[int], object]) -> None:
        try:
            for number in itertools.takewhile(lambda _: time.monotonic() < deadline, itertools.count()):
                change(number)
        except Exception as problem:
            problems.append(problem)

    hows: Iterator[Any] = itertools.cycle(["graceful", "takeover"])
    can = atomic(whole, shell)
    threads = [
        threading.Thread(target=run, args=(change,))
        for change in (
            lambda number: whole.move(100 + number % 40, number % 3),
            lambda number: whole.move(8000 + number % 40, number % 3, atomic=can),
            lambda number: whole.fail_over(number % 3, how=next(hows)),
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


# --- fail-over --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["graceful", "force", "takeover"])
def test_a_replica_takes_over_and_the_former_primary_follows_it(whole: Cluster, shell: Shell, how: Any) -> None:
    name, (heir,) = whole.name_in(1), whole.replicas(1)
    client = shell(whole, whole.primary(1))
    client.set(name, "value")
    assert client.wait(1, 10_000) == 1
    former = whole.fail_over(1, how=how)
    assert (whole.primary(1), whole.replicas(1)) == (heir, [former])
    assert shell(whole, heir).get(name) == "value"
    whole.wait_until_ok()
    assert shell(whole, former).role()[0] == "slave"
    assert whole.shard_of(name) == 1


def test_the_others_promote_the_replica_of_a_primary_that_was_killed(whole: Cluster, shell: Shell) -> None:
    name, (heir,) = whole.name_in(2), whole.replicas(2)
    former = whole.kill_primary(2)
    with pytest.raises(RuntimeError, match=f"node {former}, the primary of shard 2, is not running"):
        whole.fail_over(2)
    assert whole.wait_for_promotion(2, former) == heir
    whole.wait_until_ok()
    assert shell(whole, heir).set(name, "value")
    assert former not in whole.living
    whole.start(former)
    await_true(lambda: shell(whole, former).role()[0] == "slave")
    whole.wait_until_ok()
    assert shell(whole, former).role()[3] == "connected"


def test_a_primary_that_stands_still_is_replaced(whole: Cluster) -> None:
    (heir,) = whole.replicas(0)
    former = whole.primary(0)
    whole.pause(former)
    assert former not in whole.living
    assert whole.wait_for_promotion(0, former) == heir
    whole.resume(former)
    whole.wait_until_ok()
    assert (whole.primary(0), whole.replicas(0)) == (heir, [former])


def test_without_a_majority_of_the_primaries_only_a_takeover_helps(whole: Cluster) -> None:
    former = whole.kill_primary(0)
    whole.kill_primary(1)
    whole.wait_until_down()
    whole.fail_over(0, how="takeover")
    whole.fail_over(1, how="takeover")
    whole.wait_until_ok()
    assert former not in whole.living


def test_without_replicas_a_shard_is_down_until_its_primary_starts_again(shell: Shell) -> None:
    with start(shards=2, replicas=0, node_timeout=0.5) as running:
        assert [running.members(shard) for shard in range(2)] == [[0], [1]]
        assert running.replicas(0) == []
        name = running.name_in(0)
        hows: list[Any] = ["graceful", "takeover"]
        for how in hows:
            with pytest.raises(RuntimeError, match="no replica of shard 0 is running"):
                running.fail_over(0, how=how)
        running.stop(1)
        running.wait_until_down()
        with pytest.raises(redis.exceptions.ClusterDownError):
            shell(running, 0).get(name)
        running.repair()
        running.move(name, 1)
        assert shell(running, 1).set(name, "value")


# --- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [3, -1])
def test_a_shard_that_does_not_exist_is_refused(shared: Cluster, index: int) -> None:
    calls: list[Callable[[], object]] = [
        lambda: shared.primary(index),
        lambda: shared.members(index),
        lambda: shared.fail_over(index),
        lambda: shared.kill_primary(index),
        lambda: shared.move(5, index),
        lambda: shared.begin_move(5, index),
        lambda: shared.name_in(index),
    ]
    for call in calls:
        with pytest.raises(IndexError, match=f"no shard {index}: this cluster has shards 0 to 2"):
            call()


@pytest.mark.parametrize("method", ["kill", "stop", "start", "pause", "resume", "address", "id_of"])
def test_a_node_that_does_not_exist_is_refused(shared: Cluster, method: str) -> None:
    for index in (6, -1):
        with pytest.raises(IndexError, match=f"no node {index}: this cluster has nodes 0 to 5"):
            getattr(shared, method)(index)


@pytest.mark.parametrize("slot", [16384, -1])
def test_a_slot_that_does_not_exist_is_refused(shared: Cluster, slot: int) -> None:
    for call in (shared.shard_of, shared.finish_move, lambda slot: shared.move(slot, 0)):
        with pytest.raises(ConfigurationError, match=f"slot {slot}: a number from 0 to 16383 is needed"):
            call(slot)


def test_a_fail_over_of_an_unknown_kind_is_refused(shared: Cluster) -> None:
    with pytest.raises(ConfigurationError, match="how='soon': expected one of 'graceful', 'force', 'takeover'"):
        shared.fail_over(0, how="soon")  # type: ignore[arg-type]


def test_a_wait_that_ends_says_what_each_node_saw(shared: Cluster) -> None:
    primary = shared.primary(0)
    with pytest.raises(TimeoutError, match=rf"than node {primary} after 0\.1 s: node 0 sees node {primary} as primary"):
        shared.wait_for_promotion(0, primary, 0.1)
    with pytest.raises(
        TimeoutError, match=r"the cluster is not down after 0\.1 s: node 0 is in state ok; node 1 is in"
    ):
        shared.wait_until_down(0.1)


@pytest.mark.parametrize("options", [{"shards": 0}, {"replicas": -1}, {"node_timeout": 0}, {"shards": 20000}])
def test_a_cluster_without_nodes_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="at least 1 shard, 0 replicas and a time above 0 are needed"):
        cluster(**options)


@pytest.mark.parametrize("name", ["Cluster-Enabled", "cluster-port", "cluster-config-file", "daemonize"])
def test_directives_that_a_cluster_sets_itself_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"config: {name} cannot be set"):
        cluster(config={name: "yes"})


def test_an_old_server_is_refused_with_what_it_says() -> None:
    server = SERVERS["redis-6.2"]
    if server is None:
        pytest.skip("there is no redis-6.2 server here")
    running = cluster(server=server)
    with pytest.raises(ConfigurationError, match=r"(?s)ended at start.*cluster-port"), running:
        pass
    assert running.urls == []


# --- what is left -----------------------------------------------------------------------------------------


def is_running(pid: int) -> bool:
    """Return whether a process runs; a dead process that is not reaped yet does not run."""
    given = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False, env=given).stdout
    return bool(listed.strip()) and not listed.startswith(b"Z")


def test_nothing_is_left_after_the_end_even_of_paused_and_dead_nodes() -> None:
    running = cluster(1, replicas=1)
    assert_unusable(running)
    with pytest.raises(ZeroDivisionError), running as urls:
        pids = [pid for pid in running.servers.pids if pid]
        with redis.Redis.from_url(urls[0], decode_responses=True) as client:
            folder = Path(client.config_get("dir")["dir"]).parent
        running.pause(0)
        running.kill(1)
        raise ZeroDivisionError
    assert len(pids) == 2
    assert not any(is_running(pid) for pid in pids)
    assert not folder.exists()
    assert_unusable(running)
    with pytest.raises(RuntimeError, match="only once"):
        running.__enter__()


def assert_unusable(running: Cluster) -> None:
    """Assert that a cluster refuses all calls outside its ``with``."""
    assert (running.urls, running.living) == ([], [])
    calls: list[Callable[[], object]] = [
        lambda: running.url,
        lambda: running.primary(0),
        lambda: running.shard_of("name"),
        lambda: running.move(5, 0),
        lambda: running.kill(0),
        running.wait_until_ok,
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="this cluster is not running: use it inside its `with`"):
            call()


def test_nothing_is_left_after_a_start_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    running = cluster(1, replicas=0, startup_timeout=1)
    # It takes two seconds.
    with pytest.raises(TimeoutError, match=r"the cluster is not ready after 1 s: node 0 is in state fail"), running:
        pass
    assert (running.urls, list(tmp_path.iterdir())) == ([], [])


def test_nothing_is_left_after_the_parent_was_killed() -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().strip("[]\n").split(",")]
        assert all(map(is_running, pids))
        parent.kill()
    await_true(lambda: not any(map(is_running, pids)))


def test_a_bus_port_that_another_process_takes_is_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = embedded._reserve_port
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        # The port for clients is the first of two.
        offers = [foreign.dup(), reserve()]
        monkeypatch.setattr(embedded, "_reserve_port", lambda: offers.pop() if offers else reserve())
        with embedded.masters(1, config={"cluster-enabled": "yes", "cluster-port": "{bus_port}"}) as (url,):
            assert not offers
            with redis.Redis.from_url(url) as client:
                assert client.ping()


# --- keys -------------------------------------------------------------------------------------------------


def test_clear_removes_the_keys_of_all_shards_but_no_marker(shared: Cluster, shell: Shell) -> None:
    marker = MARKER.decode()
    kept = {shared.name_in(shard) + marker for shard in range(3)}
    for number in range(50):
        key = f"{number}"
        shell(shared, shared.primary(shared.shard_of(key))).set(key, "value")
    for key in kept:
        shell(shared, shared.primary(shared.shard_of(key))).set(key, "value")
    shared.clear()
    primaries = [shell(shared, shared.primary(shard)) for shard in range(3)]
    assert {key for primary in primaries for key in primary.keys()} == kept
    for primary in primaries:
        primary.flushdb()


# --- what the nodes say -----------------------------------------------------------------------------------

NODES = """\
a1 10.0.0.1:7000@17000,one.example,shard-id=5 myself,master - 0 0 7 connected 0-99 105 [93->-b2] [7-<-b2]
b2 :0@17001 master,fail - 1 2 8 disconnected 100-104
c3 10.0.0.3:7000@17002 slave a1 0 0 7 connected
"""


def test_the_reply_to_cluster_nodes_is_understood() -> None:
    view = View(NODES)
    assert (view.me, view.assigned) == ("a1", 106)
    assert [view.owner_of(slot) for slot in (0, 99, 102, 105, 106)] == ["a1", "a1", "b2", "a1", None]
    assert [(peer.bus_port, peer.primary, peer.linked, peer.fails) for peer in view.peers.values()] == [
        (17000, None, True, False),
        (17001, None, False, True),
        (17002, "a1", True, False),
    ]
    assert view.primary_of(["c3"]) is None
    # The later epoch counts less than an answer.
    assert view.primary_of(["a1", "b2", "c3"]) == "a1"
    assert view.slots_of(["a1"]) == "0-99 105-105"


WHOLE = """\
a1 :7000@17000 myself,master - 0 0 1 connected 0-16383
b2 :7001@17001 slave a1 0 0 1 connected
"""
ONLINE = {"cluster_state": "ok", "slave0": "ip=127.0.0.1,port=7001,state=online,offset=14,lag=0"}
LINKED = {"cluster_state": "ok", "master_link_status": "up"}


@pytest.mark.parametrize(
    ("reply", "info", "problem"),
    [
        (WHOLE, ONLINE, ""),
        (WHOLE, {}, "is in state None, with 16384 of 16384 slots assigned"),
        (WHOLE, ONLINE | {"cluster_state": "fail"}, "is in state fail, with 16384 of 16384 slots assigned"),
        (WHOLE.replace("0-16383", "0-9999"), ONLINE, "is in state ok, with 10000 of 16384 slots assigned"),
        (WHOLE.replace("slave ", "slave,fail? "), ONLINE, "is not connected with node 1"),
        (WHOLE.replace("connected\n", "disconnected\n"), ONLINE, "is not connected with node 1"),
        (WHOLE.replace("b2", "c3"), ONLINE, "is not connected with node 1"),
        (WHOLE, ONLINE | {"slave0": "state=wait_bgsave"}, "sends its writes to 0 of 1 replicas"),
        (WHOLE.replace("myself,", "").replace("slave", "myself,slave"), LINKED, ""),
        (WHOLE.replace("myself,", "").replace("slave", "myself,slave"), ONLINE, "does not follow its primary yet"),
    ],
)
def test_what_a_node_lacks_is_named(reply: str, info: dict[str, str], problem: str) -> None:
    assert problem_of(View(reply), info, {"a1": 0, "b2": 1}, ["a1", "b2"]) == problem


def test_a_replica_that_a_node_does_not_tell_to_clients_is_named() -> None:
    problem = problem_of(View(WHOLE), ONLINE, {"a1": 0, "b2": 1}, ["a1"])
    assert problem == "does not list node 1 in CLUSTER SLOTS"
