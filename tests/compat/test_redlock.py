"""The drop-in for redlock-py: behaviour that its own suite does not test, and differences for safety."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
from support.faces import PATIENCE, ask, in_thread

from redlatch import impl
from redlatch.compat.redlock import Lock, Redlock


@pytest.fixture
def manager(implementation: Any, three: list[str]) -> Redlock:
    return Redlock(three, retry_count=1, retry_delay=0.3)


def test_a_lock_is_on_every_master_with_its_own_token(manager: Redlock, three: list[str], name: str) -> None:
    lock = manager.lock(name, 5000)
    assert isinstance(lock, Lock)
    assert 4000 < lock.validity <= 4948
    assert lock.resource == name
    assert [ask(url).get(name) for url in three] == [lock.key] * 3
    assert manager.lock(name, 5000) is False
    unlock: Callable[[Lock], object] = manager.unlock
    assert unlock(lock) is None
    assert not any(ask(url).exists(name) for url in three)
    again = manager.lock(name, 5000)
    assert again.key != lock.key  # type: ignore[union-attr]
    manager.unlock(again)  # type: ignore[arg-type]


def test_a_master_that_is_down_breaks_nothing(
    implementation: impl.Implementation, three: list[str], closed_ports: Callable[[int], list[str]], name: str
) -> None:
    manager = Redlock([*three[:2], *closed_ports(1)])
    lock = manager.lock(name, 5000)
    assert lock
    manager.unlock(lock)  # type: ignore[arg-type]
    assert not any(ask(url).exists(name) for url in three)


def test_too_few_masters_grant_no_lock_and_the_log_gives_the_reason(
    implementation: impl.Implementation,
    three: list[str],
    closed_ports: Callable[[int], list[str]],
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    manager = Redlock([three[0], *closed_ports(2)], retry_count=2, retry_delay=0.05)
    with caplog.at_level(logging.WARNING):
        assert manager.lock(name, 5000) is False
    assert "2 failed" in caplog.text
    assert not ask(three[0]).exists(name)


@pytest.mark.parametrize("ttl", [0, -5, 1, 2])
def test_a_ttl_that_leaves_no_validity_grants_no_lock(manager: Redlock, three: list[str], name: str, ttl: int) -> None:
    assert manager.lock(name, ttl) is False
    assert not any(ask(url).exists(name) for url in three)


def test_a_lock_of_another_process_is_unlocked_by_its_token(manager: Redlock, three: list[str], name: str) -> None:
    for url in three:
        ask(url).set(name, "theirs", px=60_000)
    manager.unlock(Lock(0, name, b"not theirs"))
    assert all(ask(url).exists(name) for url in three)
    manager.unlock(Lock(0, name, b"theirs"))
    assert not any(ask(url).exists(name) for url in three)


def test_a_release_wakes_a_waiter(
    implementation: impl.Implementation, three: list[str], name: str, no_backstop: None
) -> None:
    manager = Redlock(three, retry_count=1000)
    lock = manager.lock(name, 60_000)
    waiting = in_thread(manager.lock, name, 60_000)
    threading.Event().wait(0.1)
    manager.unlock(lock)  # type: ignore[arg-type]
    manager.unlock(waiting.result(PATIENCE))


def test_connections_of_every_form_are_accepted(implementation: impl.Implementation, url: str, name: str) -> None:
    port = int(url.rpartition(":")[2])
    for connection in (url, {"host": "127.0.0.1", "port": port}, redis.StrictRedis.from_url(url)):
        manager = Redlock([connection])
        lock = manager.lock(name, 5000)
        assert lock
        manager.unlock(lock)  # type: ignore[arg-type]
    with pytest.raises(Warning, match="cat"):
        Redlock([{"cat": "hog"}])
    with pytest.raises(ValueError, match=r"ttl 5\.0 is not an integer"):
        manager.lock(name, 5.0)  # type: ignore[arg-type]


def test_lock_instance_and_unlock_instance_work_on_one_server(manager: Redlock, three: list[str], name: str) -> None:
    server, token = manager.servers[0], manager.get_unique_id()
    assert manager.lock_instance(server, name, token, 5000)
    assert not manager.lock_instance(server, name, token, 5000)
    manager.unlock_instance(server, name, token)
    assert not server.exists(name)


def test_unlocking_twice_does_not_unlock_the_next_holder(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    manager = Redlock(three, retry_count=1000)
    lock = manager.lock(name, 60_000)
    waiting = in_thread(manager.lock, name, 60_000)
    threading.Event().wait(0.1)
    manager.unlock(lock)  # type: ignore[arg-type]
    second = waiting.result(PATIENCE)
    manager.unlock(lock)  # type: ignore[arg-type]
    assert [ask(url).get(name) for url in three] == [second.key] * 3
    manager.unlock(second)


def test_the_same_database_twice_is_refused_at_once(implementation: impl.Implementation, three: list[str]) -> None:
    with pytest.raises(Warning, match="already"):
        Redlock([three[0], three[0], three[1]])
