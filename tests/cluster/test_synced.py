"""`synced`: a fail-over that gives two holders without it gives none with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.faces import ask

from redlatch import Client, LockLost, QuorumUnavailable
from redlatch.errors import NotReplicated
from redlatch.testing.clusters import Cluster, cluster

TTL = 60.0


@pytest.fixture
def made() -> Iterator[Cluster]:
    made = cluster(1, replicas=1)
    with made:
        yield made


def cut_off_the_replica(made: Cluster) -> None:
    """Have the replica get no more writes: it stands still, and its primary has closed the connection."""
    made.pause(made.replicas(0)[0])
    server = ask(f"redis://{made.address(made.primary(0))}")
    assert server.client_kill_filter(_type="replica") == 1
    server.close()


def promote_without_the_last_writes(made: Cluster) -> None:
    """Kill the primary, and promote the replica that was cut off."""
    (replica,) = made.replicas(0)
    made.kill(made.primary(0))
    made.resume(replica)
    made.fail_over(0, how="takeover")


def test_without_it_a_promoted_replica_that_lags_gives_the_lock_to_a_second_holder(made: Cluster) -> None:
    with Client(made.url, ttl=TTL, patience=20.0) as one, Client(made.url, ttl=TTL, patience=20.0) as other:
        one.connect()
        other.connect()
        cut_off_the_replica(made)
        lock = one.lock("stock:7")
        assert lock.acquire(blocking=False)
        promote_without_the_last_writes(made)
        second = other.lock("stock:7")
        assert second.acquire(timeout=20.0)
        # Two holders: the first one learns only from its next call that the shard may have forgotten.
        assert lock.remaining() > 0
        with one.lock("another"):
            pass
        assert not lock.remaining()
        with pytest.raises(LockLost):
            lock.extend()


def test_with_it_a_lock_that_the_replica_lacks_was_never_acquired(made: Cluster) -> None:
    with Client(made.url, ttl=TTL, synced=True) as one, Client(made.url, ttl=TTL, patience=20.0, synced=True) as other:
        one.connect()
        other.connect()
        cut_off_the_replica(made)
        lock = one.lock("stock:7")
        with pytest.raises(QuorumUnavailable) as caught:
            lock.acquire(blocking=False)
        assert [type(cause) for cause in caught.value.causes.values()] == [NotReplicated]
        promote_without_the_last_writes(made)
        # The only node has no replica now.
        with pytest.raises(QuorumUnavailable, match="no replica that could take over"):
            other.lock("stock:7").acquire(timeout=3.0)


def test_with_it_a_promoted_replica_has_the_lock_and_no_lease_is_in_doubt(made: Cluster) -> None:
    with Client(made.url, ttl=TTL, synced=True) as one, Client(made.url, ttl=TTL, patience=20.0) as other:
        lock = one.lock("stock:7")
        assert lock.acquire()
        made.fail_over(0, how="takeover")
        assert not other.lock("stock:7").acquire(timeout=0.5)
        assert one.lock("stock:7").locked()
        assert lock.remaining() > 0
        lock.release()


def test_a_number_of_replicas_that_there_never_are_fails_with_the_reason(made: Cluster) -> None:
    with (
        Client(made.url, ttl=TTL, synced=2, attempt_timeout=0.2) as client,
        pytest.raises(QuorumUnavailable, match="2 replicas must have a lock before it counts"),
    ):
        client.lock("stock:7").acquire(blocking=False)
