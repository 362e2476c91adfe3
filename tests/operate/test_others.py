"""Row 66: locks of other lock clients under a handover, with real servers and the real clients."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
import redis.lock
from click.testing import CliRunner, Result
from support.faces import PATIENCE, ask, await_true

from redlatch import Client
from redlatch.cli import build
from redlatch.compat import pottery, redis_lock, redis_py, redlock
from redlatch.guard.marker import FINAL, LEFT, MARKER, Marker
from redlatch.masters.listed import masters_of
from redlatch.operate.others import MOST_NAMED, OtherLock, find_others, named
from redlatch.testing import Masters

TTL = 0.3


def stage_of(url: str) -> str:
    marker = Marker.read(ask(url).get(MARKER))
    return "" if marker is None else marker.stage


def move(urls: list[str], *options: str) -> Result:
    """Hand the locks of the first master over to the others."""
    lists = [word for place, url in enumerate(urls) for word in ("--to" if place else "--from", url)]
    return CliRunner().invoke(build(), ["masters", "move", *lists, *options])


def keys_of(url: str, *ignored: str) -> list[str]:
    locks, failed = find_others(masters_of(url), ignored)
    assert not failed
    return [lock.key for lock in locks]


@pytest.fixture
def four(fleet: Callable[..., Masters]) -> list[str]:
    """One master that is in use, and three new ones."""
    urls = fleet(4).urls
    with Client(urls[0], ttl=TTL) as client, client.lock("used"):
        pass
    return urls


def test_row_66_the_handover_waits_for_a_lock_of_redis_py(four: list[str]) -> None:
    with redis.Redis.from_url(four[0]) as other:
        begun = time.monotonic()
        assert other.lock("report", timeout=2.5).acquire()
        result = move(four)
    assert time.monotonic() - begun > 2.5
    assert "locks of other clients, which know nothing of the handover: 'report' on" in result.output
    assert [stage_of(url) for url in four] == [LEFT, FINAL, FINAL, FINAL], result.output


@pytest.mark.parametrize(("timeout", "left"), [(None, "no ttl"), (3600, " s left")])
def test_row_66_the_handover_refuses_a_lock_that_stays_and_changes_nothing(
    four: list[str], timeout: float | None, left: str
) -> None:
    with redis.Redis.from_url(four[0]) as other:
        lock = other.lock("report", timeout=timeout)
        assert lock.acquire()
        result = move(four)
        assert result.exit_code == 1
        assert "'report' on" in result.output and left in result.output
        assert "Nothing was changed so far" in result.output
        assert [stage_of(url) for url in four] == [FINAL, "", "", ""]
        assert move(four, "--ignore", "rep*").exit_code == 0
        lock.release()


def test_row_66_a_lock_that_comes_while_the_handover_waits_is_named_and_the_next_run_goes_on(four: list[str]) -> None:
    results: list[Result] = []
    with redis.Redis.from_url(four[0]) as other:
        mover = threading.Thread(target=lambda: results.append(move(four)))
        mover.start()
        await_true(lambda: stage_of(four[0]) == LEFT)
        lock = other.lock("report", timeout=3600)
        assert lock.acquire()
        mover.join(PATIENCE)
        assert results[0].exit_code == 1
        assert "Nobody gets a lock until the handover has ended" in results[0].output
        assert FINAL not in [stage_of(url) for url in four]
        lock.release()
    assert move(four).exit_code == 0
    assert [stage_of(url) for url in four] == [LEFT, FINAL, FINAL, FINAL]


def test_row_66_a_master_that_forbids_scan_is_named_and_the_handover_goes_on(fleet: Callable[..., Masters]) -> None:
    urls = fleet(4, config={"rename-command": 'SCAN ""'}).urls
    with Client(urls[0], ttl=TTL) as client, client.lock("used"):
        pass
    result = move(urls)
    assert "was not searched for locks of other clients (" in result.output
    assert result.exit_code == 0


def test_row_66_a_dry_run_names_the_locks_of_other_clients(four: list[str]) -> None:
    with redis.Redis.from_url(four[0]) as other, other.lock("report", timeout=60):
        result = move(four, "--dry-run")
    assert "'report' on" in result.output
    assert result.exit_code == 0


@pytest.mark.parametrize(
    "client", ["redis-py", "the drop-in for redis-py", "pottery", "python-redis-lock", "redlock-py", "aioredlock"]
)
def test_row_66_the_locks_of_each_client_are_found(client: str, four: list[str]) -> None:
    with redis.Redis.from_url(four[0]) as server:
        acquire: dict[str, Callable[[], Any]] = {
            "redis-py": server.lock("name", timeout=9).acquire,
            "the drop-in for redis-py": server.lock("name", timeout=9, lock_class=redis_py.Lock).acquire,
            "pottery": pottery.Redlock(key="name", masters={server}).acquire,
            "python-redis-lock": redis_lock.Lock(server, "name", expire=9).acquire,
            "redlock-py": partial(redlock.Redlock([server]).lock, "name", 9000),
            # asyncio only; its tokens are UUIDs.
            "aioredlock": partial(server.set, "name", str(uuid.uuid4()), ex=9),
        }
        assert acquire[client]()
        assert [key for key in keys_of(four[0]) if "name" in key]


def test_row_66_our_own_locks_and_other_keys_are_not_named(four: list[str]) -> None:
    with Client(four[0]) as client, ask(four[0]) as server, client.lock("mine"), client.fair_lock("fair"):
        server.set("text", "value")
        server.set("long", "x" * 1000)
        server.lpush("list", "0" * 32)
        with client.lock("fenced", fence=True), client.semaphore("some", permits=2), client.rw_lock("both").read():
            assert keys_of(four[0]) == []
        server.set("session", uuid.uuid4().hex)
        assert keys_of(four[0]) == ["session"]
        assert keys_of(four[0], "sess*") == []


def test_row_66_a_message_names_at_most_ten_keys() -> None:
    locks = [OtherLock(f"lock-{number}", "a:1", 1.0) for number in range(MOST_NAMED + 5)]
    assert named(locks).count("lock-") == MOST_NAMED
    assert named(locks).endswith(" and 5 more")
