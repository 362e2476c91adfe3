"""Masters that are emptied between two tests: clients that live longer go on at once."""

from __future__ import annotations

import pytest
import redis
from support.faces import await_true

from redlatch import Client, LockLost, impl
from redlatch.guard.marker import MARKER
from redlatch.testing import clear, embedded, masters


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("prefix", ["", "app:"])
def test_a_client_goes_on_at_once_and_nothing_is_left(
    count: int, prefix: str, implementation: impl.Implementation
) -> None:
    with masters(count) as urls, Client(urls, prefix=prefix) as client, Client(urls, prefix=prefix) as other:
        for number in range(3):
            left = client.lock(f"left behind {number}", ttl=50.0)
            assert left.acquire(blocking=False)
            assert client.fair_lock(f"fair {number}", ttl=50.0).acquire(blocking=False)
            assert client.semaphore("some", 2, ttl=50.0).acquire(blocking=False)
            clear(urls)
            for url in urls:
                with redis.Redis.from_url(url) as server:
                    assert server.keys() == [prefix.encode() + MARKER]
            with pytest.raises(LockLost):
                left.extend()
            assert other.lock(left.name, ttl=0.5).acquire(blocking=False)
        assert client.health().ready


def test_more_keys_than_one_command_removes() -> None:
    with masters(1) as [url], redis.Redis.from_url(url) as server:
        server.mset({f"key-{number}": number for number in range(3 * embedded.TOGETHER // 2)})
        clear([url])
        await_true(lambda: server.dbsize() == 0)
