"""Reading the topology of a cluster from played nodes: which answers count, and when it is read."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis.connection as redis_connection
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError
from support.faces import await_true, threads_named
from support.scripted import scripted

from redlatch.errors import MasterRefused
from redlatch.masters.cluster import Cluster
from redlatch.masters.master import Address
from redlatch.votes.key import SLOTS
from redlatch.wire.dial import topology as module
from redlatch.wire.dial.topology import MOST_BYTES, MOST_ELEMENTS, TOPOLOGY, Topology, TopologyReader, read_slots

PATIENCE = 10.0
ASKED = ("10.0.0.9", 7000)

Answer = Callable[[list[bytes]], bytes]


def encoded(value: Any) -> bytes:
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join([encoded(each) for each in value])
    return b"$%d\r\n%b\r\n" % (len(value), value.encode())


def whole(host: str | None, port: int) -> list[Any]:
    return [[0, SLOTS - 1, [host, port, "id", []]]]


def address_of(url: str) -> Address:
    host, _, port = url.removeprefix("redis://").rpartition(":")
    return host, int(port)


def cluster_of(*seeds: Address, **options: Any) -> Cluster:
    return Cluster(redis_connection.Connection, options, seeds)


@contextlib.contextmanager
def nodes(*answers: Answer | bytes) -> Iterator[list[Address]]:
    with contextlib.ExitStack() as stack:
        yield [
            address_of(stack.enter_context(scripted(answer if callable(answer) else saying(answer))))
            for answer in answers
        ]


def saying(reply: bytes) -> Answer:
    return lambda command: reply


def read(*seeds: Address, **options: Any) -> Topology:
    return TopologyReader(cluster_of(*seeds, **options), lambda index, outcome: None).read()


# --- the answer ----------------------------------------------------------------------------------------


def slots(answer: Any) -> Topology:
    return read_slots(answer, ASKED, 5)


def test_each_range_names_its_primary_and_its_replicas() -> None:
    replica = [b"10.0.0.3", 6379, b"id", []]
    answer = [
        [0, 5, [b"10.0.0.1", 6379, b"id", []], replica],
        [6, 9, [b"10.0.0.2", 6380, b"id", []]],
        [10, SLOTS - 1, [b"10.0.0.1", 6379, b"id", []]],
    ]
    nodes = ("10.0.0.1", 6379), ("10.0.0.2", 6380)
    members: tuple[frozenset[Address], ...] = (frozenset([("10.0.0.3", 6379)]), frozenset())
    assert slots(answer) == Topology(nodes, ((0, 5, 0), (6, 9, 1), (10, SLOTS - 1, 0)), members, 5)


@pytest.mark.parametrize("host", [None, b""])
def test_an_empty_host_is_the_one_that_was_asked(host: bytes | None) -> None:
    assert slots([[0, 1, [host, 7001, b"id"]]]).nodes == (("10.0.0.9", 7001),)


def test_a_range_whose_node_knows_no_endpoint_is_left_out() -> None:
    answer = [[0, 1, [b"?", 7001, b"id"]], [2, 3, [b"host", 7001, b"id"]]]
    assert slots(answer).ranges == ((2, 3, 0),)


@pytest.mark.parametrize("host", ["node_1.example.com", "fe80::1%eth0", "10.0.0.1", "a-b", "n" * 255])
def test_a_host_may_be_a_name_or_an_address(host: str) -> None:
    assert slots([[0, 1, [host.encode(), 6379]]]).nodes == ((host, 6379),)


def test_a_replica_that_knows_no_endpoint_is_left_out() -> None:
    assert slots([[0, 1, [b"host", 1], [b"?", 2]]]).members == (frozenset(),)


def test_the_old_form_without_ids_is_read() -> None:
    assert slots([[0, 1, [b"host", 6379]]]).nodes == (("host", 6379),)


@pytest.mark.parametrize("answer", [[], None, b"OK", {}, 5, [[0, 1, [b"?", 1, b"id"]]]])
def test_an_answer_without_ranges_is_refused(answer: Any) -> None:
    with pytest.raises(MasterRefused, match="has no slots yet"):
        slots(answer)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        5,
        [],
        [0, 1],
        [b"0", 1, [b"host", 1]],
        [0, None, [b"host", 1]],
        [-1, 1, [b"host", 1]],
        [2, 1, [b"host", 1]],
        [0, SLOTS, [b"host", 1]],
        [0, 1, None],
        [0, 1, b"host"],
        [0, 1, []],
        [0, 1, [b"host"]],
        [0, 1, [b"host", b"1"]],
        [0, 1, [b"host", 0]],
        [0, 1, [b"host", 65536]],
        [0, 1, [b"host", None]],
        [0, 1, [b"a host", 1]],
        [0, 1, [b"host\n", 1]],
        [0, 1, [b"user@host", 1]],
        [0, 1, ["hôst".encode(), 1]],
        [0, 1, [b"\xff", 1]],
        [0, 1, [b"n" * 256, 1]],
        [0, 1, [b"a:z", 1]],
        [0, 1, [b"%", 1]],
        [0, 1, [b"host", 1], None],
    ],
)
def test_a_malformed_answer_is_refused(entry: Any) -> None:
    with pytest.raises(MasterRefused, match="the answer to CLUSTER SLOTS is malformed"):
        slots([[10, 11, [b"host", 1]], entry])


# --- one reading ---------------------------------------------------------------------------------------


def test_a_seed_is_asked() -> None:
    asked: list[list[bytes]] = []

    def answer(command: list[bytes]) -> bytes:
        asked.append(command)
        return encoded(whole("10.0.0.1", 6379))

    with nodes(answer) as [seed]:
        assert read(seed).nodes == (("10.0.0.1", 6379),)
    assert asked == [[b"CLUSTER", b"SLOTS"]]


def test_a_node_without_a_host_of_its_own_is_the_seed() -> None:
    with nodes(encoded(whole("", 7001))) as [seed]:
        assert read(seed).nodes == ((seed[0], 7001),)


def test_the_user_and_the_password_go_ahead() -> None:
    asked: list[list[bytes]] = []

    def answer(command: list[bytes]) -> bytes:
        asked.append(command)
        return b"+OK\r\n" if command[0] == b"AUTH" else encoded(whole("10.0.0.1", 6379))

    with nodes(answer) as [seed]:
        read(seed, username="me", password="s3cr3tpw")
        read(seed, password="s3cr3tpw")
    slots_asked = [b"CLUSTER", b"SLOTS"]
    assert asked == [[b"AUTH", b"me", b"s3cr3tpw"], slots_asked, [b"AUTH", b"s3cr3tpw"], slots_asked]


def test_a_wrong_password_is_the_cause_and_is_not_shown() -> None:
    def answer(command: list[bytes]) -> bytes:
        if command[0] == b"AUTH":
            return b"-WRONGPASS invalid username-password pair: s3cr3tpw\r\n"
        return b"-NOAUTH Authentication required.\r\n"

    with nodes(answer) as [seed], pytest.raises(AuthenticationError) as caught:
        read(seed, password="s3cr3tpw")
    assert "s3cr3tpw" not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "kind", "text"),
    [
        (b"-ERR This instance has cluster support disabled\r\n", ResponseError, "cluster support disabled"),
        (b"-NOPERM this user has no permissions to run the 'cluster|slots' command\r\n", NoPermissionError, "NOPERM"),
        (b"*0\r\n", MasterRefused, "the cluster has no slots yet"),
        (b"+OK\r\n", MasterRefused, "the cluster has no slots yet"),
        (b"hello\r\n", MasterRefused, "no RESP"),
        (b"*%d\r\n" % (MOST_ELEMENTS + 1), MasterRefused, "more than 1048576 elements"),
        (b"$%d\r\n" % (MOST_BYTES + 1), MasterRefused, "a string of 16777217 bytes"),
        (encoded(whole("h", 1)) + b"+more\r\n", OSError, "more than it was asked"),
        (b"", OSError, "closed the connection"),
    ],
)
def test_what_a_node_answers_is_the_cause(reply: bytes, kind: type[Exception], text: str) -> None:
    with nodes(reply) as [seed], pytest.raises(kind, match=text):
        read(seed)


def test_a_topology_with_a_range_for_each_slot_is_read() -> None:
    entries = [[slot, slot, [f"10.0.{slot % 2}.1", 6379, "i" * 40, []]] for slot in range(SLOTS)]
    with nodes(encoded(entries)) as [seed]:
        topology = read(seed)
    assert len(topology.ranges) == SLOTS
    assert topology.nodes == (("10.0.0.1", 6379), ("10.0.1.1", 6379))


def test_the_next_node_is_asked_after_one_that_fails() -> None:
    with nodes(b"", b"-CLUSTERDOWN\r\n", encoded(whole("10.0.0.1", 6379))) as seeds:
        assert read(*seeds).nodes == (("10.0.0.1", 6379),)


def test_a_node_that_hangs_costs_its_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as hanging, nodes(encoded(whole("10.0.0.1", 6379))) as [seed]:
        assert read(hanging.getsockname(), seed).nodes == (("10.0.0.1", 6379),)
        with pytest.raises(TimeoutError):
            read(hanging.getsockname())


def test_nodes_of_the_last_topology_are_asked_before_the_seeds() -> None:
    asked: list[str] = []

    def noting(who: str) -> Answer:
        def answer(command: list[bytes]) -> bytes:
            asked.append(who)
            return encoded(whole(*node))

        return answer

    with nodes(noting("seed"), noting("node")) as [seed, node]:
        reader = TopologyReader(cluster_of(seed), lambda index, outcome: None)
        for _ in range(3):
            reader.read()
    assert asked == ["seed", "node", "node"]


def test_the_seeds_are_asked_again_if_all_nodes_are_gone(closed_ports: Callable[[int], list[str]]) -> None:
    [gone] = map(address_of, closed_ports(1))
    with nodes(encoded(whole(*gone))) as [seed]:
        reader = TopologyReader(cluster_of(seed), lambda index, outcome: None)
        assert reader.read().nodes == reader.read().nodes == (gone,)


def test_a_hint_is_asked_first_and_once() -> None:
    with nodes(encoded(whole("10.0.0.1", 1)), encoded(whole("10.0.0.2", 2))) as [seed, hint]:
        reader = TopologyReader(cluster_of(seed), lambda index, outcome: None)
        reader._closed = True
        reader.refresh(hint)
        assert reader.read().nodes == (("10.0.0.2", 2),)
    with nodes(encoded(whole("10.0.0.3", 3))) as [seed]:
        reader = TopologyReader(cluster_of(seed), lambda index, outcome: None)
        assert reader.read().nodes == (("10.0.0.3", 3),)


@pytest.mark.parametrize("host", ["closed", "-", "..", ":", "%", "$", "no such host"])
def test_a_hint_that_leads_nowhere_is_passed_over(host: str, closed_ports: Callable[[int], list[str]]) -> None:
    [closed] = map(address_of, closed_ports(1))
    with nodes(encoded(whole("10.0.0.1", 6379))) as [seed]:
        reader = TopologyReader(cluster_of(seed), lambda index, outcome: None)
        reader._closed = True
        reader.refresh(closed if host == "closed" else (host, 6379))
        assert reader.read().nodes == (("10.0.0.1", 6379),)


# --- the thread ----------------------------------------------------------------------------------------


class Held:
    """A node that answers when the test lets it."""

    def __init__(self) -> None:
        self.questions = 0
        self.may_answer = threading.Semaphore(0)

    def __call__(self, command: list[bytes]) -> bytes:
        self.questions += 1
        assert self.may_answer.acquire(timeout=PATIENCE)
        return encoded(whole("127.0.0.1", 1))


@pytest.fixture
def delivered() -> queue.Queue[tuple[int, Any]]:
    return queue.Queue()


@pytest.fixture
def held(delivered: queue.Queue[tuple[int, Any]]) -> Iterator[tuple[Held, TopologyReader]]:
    node = Held()
    with nodes(node) as [seed]:
        reader = TopologyReader(cluster_of(seed), lambda index, outcome: delivered.put((index, outcome)))
        yield node, reader
        reader.close()
        node.may_answer.release(100)
        await_true(lambda: not threads_named("redlatch-slots"))


def test_a_refresh_delivers_a_topology(
    held: tuple[Held, TopologyReader], delivered: queue.Queue[tuple[int, Any]]
) -> None:
    node, reader = held
    node.may_answer.release()
    reader.refresh()
    index, topology = delivered.get(timeout=PATIENCE)
    assert index == TOPOLOGY
    assert topology.nodes == (("127.0.0.1", 1),)
    await_true(lambda: not threads_named("redlatch-slots"))
    assert node.questions == 1


def test_one_question_is_under_way_for_all_and_one_follows(
    held: tuple[Held, TopologyReader], delivered: queue.Queue[tuple[int, Any]]
) -> None:
    node, reader = held
    reader.refresh()
    await_true(lambda: node.questions == 1)
    # The answer that is under way may be older than what these callers have seen.
    for _ in range(1000):
        reader.refresh()
    assert (node.questions, len(threads_named("redlatch-slots"))) == (1, 1)
    node.may_answer.release(100)
    await_true(lambda: not threads_named("redlatch-slots"))
    assert node.questions == delivered.qsize() == 2


def test_a_refresh_after_the_end_starts_another_thread(
    held: tuple[Held, TopologyReader], delivered: queue.Queue[tuple[int, Any]]
) -> None:
    node, reader = held
    node.may_answer.release(100)
    for _ in range(3):
        reader.refresh()
        delivered.get(timeout=PATIENCE)
        await_true(lambda: not threads_named("redlatch-slots"))
    assert node.questions == 3


def test_a_failure_is_delivered_and_the_question_asked_again(delivered: queue.Queue[tuple[int, Any]]) -> None:
    answers = [b"", b"-ERR not now\r\n", encoded(whole("10.0.0.1", 6379))]
    with nodes(lambda command: answers.pop(0)) as [seed]:
        reader = TopologyReader(cluster_of(seed), lambda index, outcome: delivered.put((index, outcome)))
        reader.refresh()
        outcomes = [delivered.get(timeout=PATIENCE)[1] for _ in range(3)]
    assert [type(outcome) for outcome in outcomes] == [ConnectionResetError, ResponseError, Topology]
    await_true(lambda: not threads_named("redlatch-slots"))


def test_the_thread_ends_after_a_close_during_a_question(
    held: tuple[Held, TopologyReader], delivered: queue.Queue[tuple[int, Any]]
) -> None:
    node, reader = held
    reader.refresh()
    await_true(lambda: node.questions == 1)
    reader.close()
    reader.refresh()
    node.may_answer.release(100)
    await_true(lambda: not threads_named("redlatch-slots"))
    assert node.questions == 1


def test_a_closed_reader_asks_nothing(held: tuple[Held, TopologyReader]) -> None:
    node, reader = held
    reader.close()
    reader.refresh()
    assert not threads_named("redlatch-slots")
    assert node.questions == 0


def test_a_thread_that_cannot_start_is_started_by_the_next_refresh(
    held: tuple[Held, TopologyReader], delivered: queue.Queue[tuple[int, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, reader = held
    node.may_answer.release(100)

    def exhausted(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(module, "start_thread", exhausted)
        reader.refresh()
    assert delivered.empty()
    reader.refresh()
    assert isinstance(delivered.get(timeout=PATIENCE)[1], Topology)


def test_a_credential_provider_that_exits_is_a_failure(delivered: queue.Queue[tuple[int, Any]]) -> None:
    class Provider:
        calls = 0

        def get_credentials(self) -> tuple[str, ...]:
            self.calls += 1
            if self.calls == 1:
                raise SystemExit
            return ()

    with nodes(encoded(whole("10.0.0.1", 6379))) as [seed]:
        cluster = cluster_of(seed, credential_provider=Provider())
        reader = TopologyReader(cluster, lambda index, outcome: delivered.put((index, outcome)))
        reader.refresh()
        assert str(delivered.get(timeout=PATIENCE)[1]) == "it ended by SystemExit"
        assert isinstance(delivered.get(timeout=PATIENCE)[1], Topology)
    await_true(lambda: not threads_named("redlatch-slots"))


def test_an_error_of_the_receiver_ends_no_later_question(
    held: tuple[Held, TopologyReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, reader = held
    node.may_answer.release(100)
    delivered: list[Any] = []

    def failing(index: int, outcome: Any) -> None:
        delivered.append(outcome)
        if len(delivered) == 1:
            raise SystemExit

    monkeypatch.setattr(reader, "_deliver", failing)
    reader.refresh()
    await_true(lambda: delivered and not threads_named("redlatch-slots"))
    reader.refresh()
    await_true(lambda: len(delivered) == 2)
