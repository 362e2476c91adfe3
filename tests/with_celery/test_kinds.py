"""The locks of tasks on real masters: a lock that replaces a former token, and the end of a lock by its label."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import redis
from support.faces import ask, in_thread
from support.proxy import Proxy

from redlatch import ConfigurationError, LockLost, NotOwned, QuorumUnavailable, impl
from redlatch.celery.client import TaskClient


@pytest.fixture
def client(implementation: impl.Implementation, three: list[str]) -> Iterator[TaskClient]:
    with TaskClient(three) as client:
        yield client


@pytest.fixture
def another(implementation: impl.Implementation, three: list[str]) -> Iterator[TaskClient]:
    with TaskClient(three) as client:
        yield client


def test_a_lock_is_held_with_its_label(client: TaskClient, another: TaskClient, name: str) -> None:
    with client.labelled(name, 10.0, "queued:7") as lock:
        assert another.holder(name) == "queued:7"
        assert lock.token is not None and lock.token.endswith(b":queued:7")
    assert another.holder(name) is None


def test_a_lock_that_was_handed_over_is_held_until_another_process_takes_it(
    client: TaskClient, another: TaskClient, name: str
) -> None:
    lock = client.labelled(name, 10.0, "queued:7")
    assert lock.acquire()
    token = client.hand_over(lock)
    assert lock.token is None
    # This client asks the masters like any other.
    assert not client.labelled(name, 10.0, "queued:8").acquire(blocking=False)
    assert not another.labelled(name, 10.0, "queued:8").acquire(blocking=False)
    taken = another.labelled(name, 5.0, "run:7", token)
    assert taken.acquire(blocking=False)
    assert client.holder(name) == "run:7"
    assert 4.0 < taken.remaining() <= 5.0
    taken.release()
    assert client.labelled(name, 10.0, "queued:8").acquire(blocking=False)


def test_a_token_can_be_taken_over_once(client: TaskClient, another: TaskClient, name: str) -> None:
    lock = client.labelled(name, 10.0, "queued:7")
    assert lock.acquire()
    token = client.hand_over(lock)
    first, copy = client.labelled(name, 10.0, "a:7", token), another.labelled(name, 10.0, "b:7", token)
    assert first.acquire(blocking=False)
    assert not copy.acquire(blocking=False)
    first.check()
    waits = in_thread(partial(copy.acquire, timeout=30.0))
    first.release()
    assert waits.result(30)
    assert client.holder(name) == "b:7"


def test_of_many_copies_at_once_one_takes_over(
    three: list[str], implementation: impl.Implementation, name: str
) -> None:
    clients = [TaskClient(three) for _ in range(4)]
    for number in range(20):
        each = f"{name}-{number}"
        lock = clients[0].labelled(each, 10.0, "queued:7")
        assert lock.acquire()
        token = clients[0].hand_over(lock)
        start = threading.Barrier(4)

        def take(client: TaskClient, each: str = each, token: str = token, start: threading.Barrier = start) -> bool:
            copy = client.labelled(each, 10.0, "run:7", token)
            start.wait()
            return copy.acquire(blocking=False)

        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(take, clients))
        # If none has a quorum at first, all of them undo what they have.
        assert sum(won) <= 1
    for client in clients:
        client.close()


def test_a_lock_that_ran_out_is_acquired_anew(client: TaskClient, name: str) -> None:
    lock = client.labelled(name, 10.0, "queued:7")
    assert lock.acquire()
    token = client.hand_over(lock)
    client.free(name, token)
    assert client.labelled(name, 10.0, "run:7", token).acquire(blocking=False)


def test_a_lock_of_another_holder_is_not_taken_over(client: TaskClient, another: TaskClient, name: str) -> None:
    lock = client.labelled(name, 10.0, "queued:7")
    assert lock.acquire()
    token = client.hand_over(lock)
    client.free(name, token)
    with another.labelled(name, 10.0, "queued:8") as other:
        assert not client.labelled(name, 10.0, "run:7", token).acquire(blocking=False)
        other.check()
        assert other.owned()


def test_a_minority_without_the_former_token_does_not_matter(client: TaskClient, three: list[str], name: str) -> None:
    lock = client.labelled(name, 10.0, "queued:7")
    assert lock.acquire()
    token = client.hand_over(lock)
    ask(three[0]).delete(name)
    taken = client.labelled(name, 10.0, "run:7", token)
    assert taken.acquire(blocking=False)
    assert taken.owned()


def test_a_take_over_without_a_quorum_leaves_nothing(
    implementation: impl.Implementation, three: list[str], name: str, proxies: object
) -> None:
    made: list[Proxy] = proxies(three)  # type: ignore[operator]
    with TaskClient(three) as client, TaskClient([proxy.url for proxy in made], attempt_timeout=0.3, guard=None) as far:
        far.connect()
        lock = client.labelled(name, 10.0, "queued:7")
        assert lock.acquire()
        token = client.hand_over(lock)
        for proxy in made[:2]:
            proxy.refusing = True
            proxy.cut()
        with pytest.raises(QuorumUnavailable):
            far.labelled(name, 10.0, "run:7", token).acquire(blocking=False)
        # One master had replaced the token, and the attempt was undone there. The others have the former one.
        assert client.labelled(name, 10.0, "run:7", token).acquire(blocking=False)


def test_the_end_by_a_label_reaches_only_that_label(client: TaskClient, another: TaskClient, name: str) -> None:
    lock = client.labelled(name, 10.0, "delivery:7")
    assert lock.acquire()
    for other in ("delivery:8", "elivery:7", "7", "x:delivery:7"):
        another.end(name, other)
        assert lock.owned()
    another.end(name, "delivery:7")
    assert not lock.owned()
    with pytest.raises(LockLost):
        lock.release()
    another.end(name, "delivery:7")


def test_to_free_a_token_that_is_gone_is_no_error(client: TaskClient, name: str) -> None:
    client.free(name, "f" * 32 + ":queued:7")
    with client.labelled(name, 10.0, "queued:8") as lock:
        client.free(name, "f" * 32 + ":queued:7")
        assert lock.owned()


def test_only_a_held_lock_can_be_handed_over(client: TaskClient, name: str) -> None:
    with pytest.raises(NotOwned, match="cannot hand over"):
        client.hand_over(client.labelled(name, 10.0, "queued:7"))


def test_a_label_has_a_limit(client: TaskClient, name: str) -> None:
    with pytest.raises(ConfigurationError, match="label: must have at most 512 bytes"):
        client.labelled(name, 10.0, "x" * 500)


def test_a_renewal_ends_when_the_lock_is_handed_over(client: TaskClient, three: list[str], name: str) -> None:
    lock = client.labelled(name, 0.3, "run:7", auto_renew=True)
    assert lock.acquire()
    lost = lock.lost
    client.hand_over(lock)
    # The lock runs out, and nobody is told of a loss.
    assert client.labelled(name, 10.0, "queued:8").acquire(timeout=30.0)
    assert not lost.is_set()


def test_the_holder_needs_a_quorum(client: TaskClient, three: list[str], name: str) -> None:
    ask(three[0]).set(name, b"a:queued:7", px=10_000)
    assert client.holder(name) is None
    ask(three[1]).set(name, b"a:queued:7", px=10_000)
    assert client.holder(name) == "queued:7"
    ask(three[0]).set(name, b"\xff\xff", px=10_000)
    ask(three[1]).set(name, b"\xff\xff", px=10_000)
    assert client.holder(name) == ""


def test_without_a_quorum_the_holder_cannot_be_told(
    implementation: impl.Implementation, three: list[str], closed_ports: object
) -> None:
    ports: list[str] = closed_ports(2)  # type: ignore[operator]
    with TaskClient([three[0], *ports], attempt_timeout=0.2) as client:
        with pytest.raises(QuorumUnavailable) as raised:
            client.holder("x")
    assert len(raised.value.causes) == 2


def test_the_scripts_work_on_each_kind_of_server(
    implementation: impl.Implementation, farm: object, server_kind: str, name: str
) -> None:
    [url] = farm.urls(1, server_kind)  # type: ignore[attr-defined]
    with TaskClient(url) as client:
        lock = client.labelled(name, 10.0, "queued:7")
        assert lock.acquire()
        taken = client.labelled(name, 10.0, "run:7", client.hand_over(lock))
        assert taken.acquire(blocking=False)
        client.end(name, "run:7")
        assert isinstance(ask(url), redis.Redis)
        assert ask(url).get(name) is None
