"""What a shard forgets: the leases of its slots come into doubt, and no others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.faces import ask, await_true

from redlatch import Client, LockLost
from redlatch.guard.marker import MARKER
from redlatch.testing.clusters import Cluster, How, cluster

TTL = 60.0


@pytest.fixture(scope="module")
def made() -> Iterator[Cluster]:
    made = cluster(2, replicas=1)
    with made:
        yield made


@pytest.fixture
def client(made: Cluster) -> Iterator[Client]:
    with Client(made.url, ttl=TTL, patience=20.0) as client:
        yield client


def markers(made: Cluster, shard: int) -> list[bytes]:
    server = ask(f"redis://{made.address(made.primary(shard))}")
    try:
        return [key for key in server.keys("*") if key.endswith(MARKER)]
    finally:
        server.close()


def test_a_shard_that_was_flushed_loses_its_locks_and_the_others_keep_theirs(made: Cluster, client: Client) -> None:
    first, second = (client.lock(made.name_in(shard, "flushed")) for shard in (0, 1))
    first.acquire()
    second.acquire()
    server = ask(f"redis://{made.address(made.primary(0))}")
    server.flushall()
    server.close()
    # A call of this client reads the push.
    await_true(lambda: client.lock("any").locked() is False and not first.remaining(), 5.0)
    assert second.remaining() > 0
    with pytest.raises(LockLost):
        first.extend()
    second.release()


@pytest.mark.parametrize("how", ["graceful", "force", "takeover"])
def test_after_a_fail_over_the_leases_of_that_shard_are_in_doubt_until_they_are_extended(
    made: Cluster, client: Client, how: How
) -> None:
    first, second = (client.lock(made.name_in(shard, how)) for shard in (0, 1))
    first.acquire()
    second.acquire()
    made.fail_over(0, how=how)
    other = client.lock(made.name_in(0, f"after-{how}"))
    other.acquire()
    other.release()
    assert not first.remaining() and second.remaining() > 0
    first.extend()
    assert first.remaining() > 0
    first.release()
    second.release()


def test_a_marker_whose_slot_leaves_is_written_again_and_no_lease_is_in_doubt(made: Cluster, client: Client) -> None:
    lock = client.lock(made.name_in(0, "marked"))
    lock.acquire()
    for marker in markers(made, 0):
        made.move(marker, 1)

    def marked_again() -> bool:
        # A pulse leaves with an extension, once a second.
        lock.extend()
        assert lock.remaining() > 0
        return bool(markers(made, 0))

    await_true(marked_again, 5.0)
    lock.release()


def test_a_lock_in_a_slot_that_moves_is_not_in_doubt(made: Cluster, client: Client) -> None:
    name = made.name_in(0, "moving")
    lock = client.lock(name)
    lock.acquire()
    made.move(name, 1)
    lock.extend()
    assert lock.remaining() > 0
    lock.release()
    assert not client.lock(name).locked()


def test_fences_go_up_across_moves_and_fail_overs(made: Cluster, client: Client) -> None:
    name = made.name_in(0, "fenced")
    numbers: list[int] = []
    for change in (
        lambda: made.move(name, 1),
        lambda: made.move(name, 0),
        lambda: made.fail_over(0),
        lambda: made.fail_over(0, how="takeover"),
        lambda: None,
    ):
        with client.lock(name, fence=True) as lock:
            assert lock.fence is not None
            numbers.append(lock.fence)
        change()
    assert numbers == sorted(set(numbers))
