"""Fail-over by real sentinels: one group as the only master, and three groups as three masters."""

from __future__ import annotations

import _thread
import contextlib
import gc
import itertools
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio.sentinel
import redis.sentinel
from support.faces import PATIENCE, Face, ask, await_true, in_thread, wins
from support.forked import in_child
from support.isolated import COMMAND
from support.played_sentinel import message, played
from support.scripted import scripted
from support.selection import on_one_face

from redlatch import Client, ClientForked, ConfigurationError, Guard, LockLost, QuorumUnavailable, impl
from redlatch.drivers import lifetime
from redlatch.guard.marker import MARKER
from redlatch.testing import Sentinels, embedded, sentinels

pytestmark = pytest.mark.one_loop

Start = Callable[..., Sentinels]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start groups that the test may break."""
    with contextlib.ExitStack() as stack:

        def begin(groups: int = 1, **options: Any) -> Sentinels:
            made = sentinels(groups, **options)
            stack.enter_context(made)
            return made

        yield begin


@pytest.fixture(scope="module")
def healthy() -> Iterator[Sentinels]:
    """Two groups that no test changes."""
    made = sentinels(2)
    with made:
        yield made


# The ways in which a group loses its master: it dies, it stands still, and the operator gives the word.
WAYS = ["kill", "pause", "failover"]

# Where the two builds run the same text, one of them is enough: the groups take seconds to start.
one_build = pytest.mark.parametrize("implementation", [impl.current.name], indirect=True)

every_way = pytest.mark.parametrize("way", WAYS)

# A group takes three seconds to start, and the sentinels, not the client, notice how it loses its master.
one_of_each = pytest.mark.usual(
    "the faces share what follows a fail-over",
    {"way": "kill", "connect": "threads"},
    {"way": "pause", "connect": "asyncio"},
)


def replica_of(groups: Sentinels, group: int) -> str:
    """Return the URL of the only replica of a group."""
    [index] = set(groups.members(group)) - {groups.master(group)}
    return groups.servers.urls[index]


def replicate(groups: Sentinels, group: int, key: str | bytes) -> None:
    """Wait until the replica of a group has a key, as it stands on the master."""
    master = ask(groups.servers.urls[groups.master(group)])
    replica = ask(replica_of(groups, group))
    await_true(lambda: master.get(key) is not None and replica.get(key) == master.get(key))


def forget(groups: Sentinels, group: int, key: str) -> None:
    """Let the replica of a group lack a key, as if it lagged behind."""
    replica = ask(replica_of(groups, group))
    replica.config_set("replica-read-only", "no")
    replica.delete(key)
    replica.config_set("replica-read-only", "yes")


def logged(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text


def connected_to(client: Any) -> bool:
    return bool(client.health().masters[0].voting)


# --- one group (R1 to R4) -------------------------------------------------------------------------------


@one_of_each
@every_way
def test_a_lock_that_the_promoted_replica_has_is_held_on_after_an_extension(
    way: str, connect: Face, start: Start, name: str
) -> None:
    groups = start()
    owner, rival = connect(groups.urls), connect(groups.urls)
    lock = owner.lock(name, ttl=60.0)
    assert lock.acquire()
    replicate(groups, 0, name)
    waiting = rival.lock(name).start("acquire")
    groups.await_other(0, getattr(groups, way)(0))
    await_true(lambda: lock.remaining() == 0)
    # While the group has no master, the extension fails and may be repeated.
    await_true(lambda: extends(lock))
    assert lock.remaining() > 0
    assert not waiting.done() or waiting.exception(0)
    assert not wins(rival.lock(name))
    lock.release()
    await_true(lambda: wins(rival.lock(name + " another")))


def extends(lock: Any) -> bool:
    try:
        lock.extend()
    except QuorumUnavailable:
        return False
    return True


@on_one_face("threads")
def test_a_release_that_a_fail_over_interrupts_is_no_loss_if_the_replica_has_the_lock(
    connect: Face, start: Start, name: str
) -> None:
    """The connection to the new master begins with a copy of the release, which that master obeys."""
    groups = start()
    client, rival = connect(groups.urls, attempt_timeout=0.2), connect(groups.urls)
    lock = client.lock(name, ttl=60.0)
    assert lock.acquire()
    replicate(groups, 0, name)
    paused = groups.pause(0)
    with pytest.raises(QuorumUnavailable):
        lock.release()
    groups.await_other(0, paused)
    # No call waits for the answer to the copy.
    await_true(lambda: wins(rival.lock(name)))
    await_true(lambda: releases(lock))
    assert not client.stats().lost


def releases(lock: Any) -> bool:
    try:
        lock.release()
    except QuorumUnavailable:
        return False
    return True


@pytest.mark.usual("the sentinels, not the client, notice how", {"way": "failover", "connect": "asyncio"})
@every_way
def test_a_lock_that_the_promoted_replica_lacks_is_given_again_and_its_holder_is_told(
    way: str, connect: Face, start: Start, name: str
) -> None:
    groups = start()
    owner, rival = connect(groups.urls), connect(groups.urls)
    told: list[str] = []
    lock = owner.lock(name, ttl=60.0, on_lost=lambda lock, why: told.append(why))
    assert lock.acquire()
    replicate(groups, 0, name)
    forget(groups, 0, name)
    assert not wins(rival.lock(name))
    groups.await_other(0, getattr(groups, way)(0))
    await_true(lambda: wins(rival.lock(name)))
    await_true(lambda: told)
    assert lock.remaining() == 0
    with pytest.raises(LockLost):
        lock.check()


@on_one_face("asyncio")
@one_build
def test_a_link_to_a_master_that_stands_still_is_left_as_soon_as_the_sentinels_announce_another_one(
    connect: Face, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "redlatch")
    groups = start()
    client = connect(groups.urls)
    client.connect()
    # Nobody uses the connection, so nothing else would notice.
    groups.pause(0)
    await_true(lambda: "broke: the sentinels announced" in caplog.text)
    await_true(lambda: connected_to(client))


@on_one_face("threads")
@one_build
def test_a_sentinel_that_announces_wrong_masters_breaks_no_connection_and_hides_no_fail_over(
    connect: Face, start: Start, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Found by an attack: one announcement closed the connection, so that four calls of ten failed."""
    caplog.set_level("INFO", "redlatch")
    groups = start()
    honest = groups.urls[0].partition("://")[2].partition("/")[0].split(",")[:2]
    with played(1, 1) as [liar]:
        client = connect(f"redis+sentinel://{','.join(honest)},{liar.url}/group0")
        assert wins(client.lock(name))
        flood = liar.flood(message("group0 127.0.0.1 1 127.0.0.1 2"), times_a_second=500)
        await_true(lambda: flood.count > 500)
        for attempt in range(20):
            assert wins(client.lock(f"{name} {attempt}"))
        assert "broke" not in caplog.text
        groups.pause(0)
        await_true(lambda: "broke: the sentinels announced" in caplog.text)
        await_true(lambda: wins(client.lock(name + " another")))


@on_one_face("asyncio")
@one_build
def test_without_a_majority_of_the_sentinels_no_master_is_found(connect: Face, start: Start, name: str) -> None:
    groups = start()
    client = connect(groups.urls)
    client.connect()
    groups.sentinels.kill(0)
    groups.sentinels.kill(1)
    # A connection that stands goes on, whatever the sentinels do.
    assert wins(client.lock(name))
    late = connect(groups.urls)
    with pytest.raises(QuorumUnavailable) as caught:
        late.lock(name + " another").acquire()
    [cause] = caught.value.causes.values()
    assert isinstance(cause, redis.sentinel.MasterNotFoundError)
    host = groups.servers.urls[0].removeprefix("redis://")
    assert f"says {host} (epoch 0)" in str(cause) and "Connection refused" in str(cause)
    groups.sentinels.start(0)
    await_true(lambda: wins(late.lock(name + " another")))


@pytest.mark.usual(
    "each module has one face of redis-py",
    {"module": redis.sentinel, "connect": "threads"},
    {"module": redis.asyncio.sentinel, "connect": "asyncio"},
)
@one_build
@pytest.mark.parametrize("module", [redis.sentinel, redis.asyncio.sentinel])
def test_a_client_of_master_for_follows_a_fail_over(module: Any, connect: Face, start: Start, name: str) -> None:
    groups = start()
    hosts = [("127.0.0.1", int(url.rpartition(":")[2])) for url in groups.sentinels.urls]
    client = connect(module.Sentinel(hosts).master_for("group0"))
    assert wins(client.lock(name))
    groups.await_other(0, groups.failover(0))
    names = (f"{name} {number}" for number in itertools.count())

    def locks_on_the_new_master() -> bool:
        # The former one takes writes for a moment longer.
        another = next(names)
        return wins(client.lock(another)) and bool(ask(groups.servers.urls[groups.master(0)]).exists(another))

    await_true(locks_on_the_new_master)


@on_one_face("threads")
@one_build
def test_a_group_with_passwords(connect: Face, start: Start, name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "redlatch")
    groups = start(config={"requirepass": "s3cr3tpw"}, sentinel_config={"requirepass": "s3cr3t-of-them"})
    client = connect(groups.urls)
    assert wins(client.lock(name))
    groups.await_other(0, groups.failover(0))
    await_true(lambda: wins(client.lock(name + " another")))
    wrong = connect(groups.urls[0].replace("s3cr3t-of-them", "wr0ngpw"))
    with pytest.raises(QuorumUnavailable, match="WRONGPASS") as caught:
        wrong.connect()
        wrong.lock(name).acquire()
    assert "wr0ng" not in f"{caught.value} {caplog.text}"


def isolate(*lines: str) -> dict[str, bool]:
    """Cut the master of a group off together with a client; return which clients have got one lock."""
    program = embedded.find_server()
    if shutil.which("unshare") is None or shutil.which("ip") is None or shutil.which("nsenter") is None:
        pytest.skip("unshare, ip or nsenter is not installed")
    if subprocess.run([*COMMAND, "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode:
        pytest.skip("this process may not make network namespaces")
    command = [*COMMAND, sys.executable, "-m", "support.isolated", program, *lines]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, bool] = json.loads(done.stdout)
    return found


def test_a_master_that_is_cut_off_goes_on_serving_the_clients_with_it() -> None:
    """The limit that docs/safety.md states for one group (R4)."""
    assert isolate() == {"isolated": True, "both": True}


def test_a_master_that_is_cut_off_serves_nobody_if_it_needs_a_replica() -> None:
    assert isolate("min-replicas-to-write 1", "min-replicas-max-lag 1") == {"isolated": False, "both": False}


@one_build
def test_a_client_follows_a_fail_over_of_every_kind_of_server(
    implementation: impl.Implementation, server: str, start: Start, name: str
) -> None:
    groups = start(server=server)
    with Client(groups.urls) as client:
        assert wins(client.lock(name))
        groups.await_other(0, groups.kill(0))
        await_true(lambda: wins(client.lock(name + " another")))


@one_build
def test_the_rights_in_the_documentation_are_enough_for_the_sentinels(
    implementation: impl.Implementation, start: Start, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "redlatch")
    section = (Path(__file__).parents[1] / "docs/operations.md").read_text().partition("\n## Sentinel\n")[2]
    rights = section.partition("ACL SETUSER locks ")[2].partition("\n")[0].replace(">password", ">s3cr3tpw")
    groups = start(sentinel_config={"user": f"locks {rights}"})
    with Client(groups.urls[0] + "?sentinel_username=locks&sentinel_password=s3cr3tpw") as client:
        assert wins(client.lock(name))
        groups.pause(0)
        await_true(lambda: "broke: the sentinels announced" in caplog.text)
        await_true(lambda: wins(client.lock(name + " another")))
    assert "announces nothing" not in caplog.text


# --- synced ------------------------------------------------------------------------------------------------


@on_one_face("asyncio")
@one_build
def test_a_synced_lock_is_on_the_promoted_replica_and_no_lease_is_in_doubt(
    connect: Face, start: Start, name: str
) -> None:
    groups = start()
    owner, rival = connect(groups.urls, synced=True), connect(groups.urls, synced=True)
    lock = owner.lock(name, ttl=60.0)
    assert lock.acquire()
    replicate(groups, 0, MARKER)
    groups.await_other(0, groups.kill(0))
    # The new master has no replica, so nobody can acquire a lock, but its answers count.
    await_true(lambda: knows(rival, name))
    await_true(lambda: knows(owner, name))
    assert lock.remaining() > 0
    with pytest.raises(QuorumUnavailable, match="no replica that could take over"):
        rival.lock(name + " another").acquire(timeout=1.0)
    lock.release()


def knows(client: Any, name: str) -> bool:
    try:
        return bool(client.lock(name).locked())
    except QuorumUnavailable:
        return False


@on_one_face("threads")
@one_build
def test_a_promoted_replica_of_three_synced_groups_votes_at_once(
    connect: Face, start: Start, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    groups = start(3, replicas=2)
    client = connect(groups.urls, synced=True)
    with_it = client.lock(name, ttl=60.0)
    assert with_it.acquire()
    await_true(lambda: all(master.voting for master in client.health().masters))
    for group in range(3):
        for index in groups.members(group):
            await_true(partial(ask(groups.servers.urls[index]).get, MARKER))
    former = groups.kill(0)
    groups.await_other(0, former)

    def is_back() -> bool:
        client.lock(name).locked()
        return all(master.voting for master in client.health().masters)

    await_true(is_back)
    assert "kept out" not in caplog.text
    assert with_it.remaining() > 0
    with_it.release()


# --- three groups as three masters ------------------------------------------------------------------------


@pytest.mark.slow("processes under load while three groups fail over")
@one_build
def test_no_two_clients_hold_a_lock_while_the_groups_fail_over_one_after_another(
    implementation: impl.Implementation, start: Start, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "redlatch")
    groups = start(3)
    # No acquire fails because the machine stood still for a moment.
    clients = [Client(groups.urls, ttl=3.0, attempt_timeout=1.0) for _ in range(4)]
    over = threading.Event()
    inside: list[Client] = []
    overlaps: list[Client] = []

    def are_ready() -> bool:
        return all(client.health().ready for client in clients)

    def work(client: Client) -> int:
        """Hold the lock again and again; return how often."""
        held = 0
        while not over.is_set():
            with client.lock(name, timeout=PATIENCE) as lock:
                inside.append(client)
                overlaps.extend(inside[:-1])
                held += 1
                inside.remove(client)
                lock.check()
        return held

    with contextlib.ExitStack() as stack:
        for client in clients:
            stack.enter_context(client)
            await_true(client.lock(f"{name} {id(client)}").acquire)
        working = [in_thread(work, client) for client in clients]
        for group, way in enumerate(WAYS):
            await_true(are_ready)
            replicate(groups, group, MARKER)
            groups.await_other(group, getattr(groups, way)(group))
            kept_out = f"master sentinel:group{group} cannot be used: kept out for"
            await_true(partial(logged, caplog, kept_out))
        await_true(are_ready)
        over.set()
        assert all(each.result(PATIENCE) for each in working)
    assert overlaps == []


@one_of_each
@one_build
@every_way
def test_two_of_three_groups_go_on_and_the_promoted_one_is_kept_out_and_returns(
    way: str, connect: Face, start: Start, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "redlatch")
    groups = start(3)
    ttl = 3.0
    owner, rival = [connect(groups.urls, ttl=ttl, guard=Guard(max_ttl=60.0)) for _ in range(2)]
    # All masters have voted once, and each replica knows the marker of its master.
    assert owner.lock(name + " first").acquire()
    await_true(lambda: all(master.voting for master in owner.health().masters))
    for group in range(3):
        replicate(groups, group, MARKER)
    lock = owner.lock(name, auto_renew=True)
    assert lock.acquire()
    forget(groups, 0, name)
    former = getattr(groups, way)(0)
    kept_out = "master sentinel:group0 cannot be used: kept out for"
    while groups.master(0) == former or kept_out not in caplog.text:
        # The lock is held all the time, and others can be had.
        lock.check()
        assert not rival.lock(name).acquire(blocking=False)
        assert rival.lock(name + " another").acquire(timeout=PATIENCE)
    await_true(lambda: all(master.voting for master in owner.health().masters))
    lock.check()
    assert not wins(rival.lock(name))
    lock.release()
    assert wins(rival.lock(name))


def test_two_groups_of_the_same_sentinels_are_two_masters(
    implementation: impl.Implementation, healthy: Sentinels, name: str
) -> None:
    with Client(healthy.urls) as client:
        assert client.lock(name).acquire()
        assert [master.address for master in client.health().masters] == ["sentinel:group0", "sentinel:group1"]


# --- the groups for tests ---------------------------------------------------------------------------------


def is_replica(url: str) -> bool:
    """Return whether a server is a replica. A server that becomes one closes the connections of its clients."""
    try:
        return bool(ask(url).info("replication")["role"] == "slave")
    except redis.ConnectionError:
        return False


def test_servers_of_a_group_are_stopped_and_started_again(start: Start) -> None:
    groups = start(2, replicas=2, sentinels=1)
    assert [groups.members(group) for group in range(2)] == [[0, 1, 2], [3, 4, 5]]
    assert [groups.master(group) for group in range(2)] == [0, 3]
    assert groups.pause(1) == 3
    groups.resume(1)
    assert groups.kill(0) == 0
    assert groups.await_other(0, 0) in (1, 2)
    assert groups.servers.pids[0] is None
    groups.start(0)
    # A former master becomes a replica again.
    await_true(lambda: is_replica(groups.servers.urls[0]))


@pytest.mark.parametrize("wrong", ["groups", "replicas", "sentinels"])
def test_a_group_without_one_of_its_parts_is_refused(wrong: str) -> None:
    given: dict[str, Any] = {wrong: 0}
    with pytest.raises(ConfigurationError, match="at least one of each"):
        sentinels(**given)


# --- a wrong role, and the end of clients -----------------------------------------------------------------


@on_one_face("asyncio")
@one_build
def test_a_replica_that_the_sentinels_name_is_tried_again(connect: Face, name: str) -> None:
    with embedded.masters(2) as urls:
        ask(urls[1]).replicaof("127.0.0.1", urls[0].rpartition(":")[2])
        await_true(lambda: ask(urls[1]).info("replication").get("master_link_status") == "up")
        named = [urls[1]]

        def answer(command: list[bytes]) -> bytes:
            port = named[0].rpartition(":")[2].encode()
            if command[0] == b"SUBSCRIBE":
                # It serves one connection at a time, so it hangs up.
                return b""
            if command[1] == b"MASTER":
                return b"*4\r\n$12\r\nconfig-epoch\r\n$1\r\n0\r\n$19\r\nnum-other-sentinels\r\n$1\r\n0\r\n"
            return b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%b\r\n" % (len(port), port)

        with scripted(answer) as url:
            client = connect(url.replace("redis://", "redis+sentinel://") + "/group")
            with pytest.raises(QuorumUnavailable, match="the sentinels of sentinel:group name, is a slave"):
                client.lock(name).acquire()
            named[0] = urls[0]
            await_true(lambda: wins(client.lock(name)))
            client.close()


def test_closing_ends_the_threads_of_a_client(
    implementation: impl.Implementation, healthy: Sentinels, name: str
) -> None:
    before = _thread._count()
    with Client(healthy.urls) as client:
        assert client.lock(name).acquire()
    await_true(lambda: _thread._count() <= before)


def test_a_client_that_is_forgotten_leaves_no_thread(
    implementation: impl.Implementation, healthy: Sentinels, name: str
) -> None:
    before = _thread._count()
    client = Client(healthy.urls)
    assert client.lock(name).acquire()
    del client
    await_true(lambda: gc.collect() >= 0 and _thread._count() <= before)


def test_a_forked_child_has_no_connection_to_a_sentinel(
    implementation: impl.Implementation, healthy: Sentinels, name: str
) -> None:
    with Client(healthy.urls) as client:
        assert client.lock(name).acquire()
        there = [each for each in lifetime._all_connections if not each.lifecycle.closed]
        [connections] = [each for each in there if each._switches._listeners]
        listeners = connections._switches._listeners.values()

        def listening() -> list[bool]:
            return [each.sock is not None for listener in listeners for each in listener._subscriptions]

        await_true(lambda: all(listening()))

        def use() -> None:
            assert not any(listening())
            with pytest.raises(ClientForked):
                client.lock(name).acquire()
            with Client(healthy.urls) as own:
                assert own.lock(name + " of the child").acquire()

        in_child(use)
        assert wins(client.lock(name + " another"))
