"""The drop-in for python-redis-lock: behaviour that its own suite does not test, and differences for safety."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
from support.faces import PATIENCE, await_true, in_thread

from redlatch import impl
from redlatch.compat import redis_lock
from redlatch.compat.redis_lock import Lock


@pytest.fixture
def server(implementation: Any, url: str) -> Any:
    with redis.Redis.from_url(url) as client:
        yield client


def test_a_lock_without_expire_is_renewed_and_cannot_be_extended(
    server: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redlatch.compat.clients.RENEWED_MS", 1500)
    lock = Lock(server, name)
    assert lock.acquire()
    threading.Event().wait(2.0)
    assert 0 < server.pttl(lock._name) <= 1500
    assert lock.get_owner_id() == lock.id
    with pytest.raises(redis_lock.NotExpirable):
        lock.extend(5)
    with pytest.raises(TypeError, match="expire"):
        lock.extend()
    lock.release()
    assert not lock.locked()


def test_renewal_stops_when_the_lock_object_is_gone(server: Any, name: str) -> None:
    lock = Lock(server, name, expire=1, auto_renewal=True)
    assert lock.acquire()
    threading.Event().wait(1.5)
    assert lock.locked()
    del lock
    gc.collect()
    await_true(lambda: not server.exists(f"lock:{name}"))


def test_each_acquire_has_a_new_id_unless_the_caller_chose_one(server: Any, name: str) -> None:
    lock, chosen = Lock(server, name, expire=5), Lock(server, name + "-2", expire=5, id="me")
    seen = []
    for _ in range(3):
        seen.append(lock.id)
        assert lock.acquire()
        assert lock.get_owner_id() == lock.id
        seen[-1] = lock.id
        lock.release()
        assert chosen.acquire()
        assert chosen.get_owner_id() == chosen.id == "me"
        chosen.release()
    assert len(set(seen)) == 3


def test_each_contending_thread_has_an_id_of_its_own(server: Any, name: str) -> None:
    locks = [Lock(server, name, expire=60) for _ in range(8)]

    def work(lock: Lock) -> bool:
        right = True
        for _ in range(50):
            with lock:
                right = right and lock.get_owner_id() == lock.id
        return right

    assert all(call.result(PATIENCE) for call in [in_thread(work, lock) for lock in locks])
    assert not locks[0].locked()
    assert server.llen(f"lock-signal:{name}") == 1


def test_a_second_release_does_not_release_the_next_holder(server: Any, name: str) -> None:
    one, other = Lock(server, name, expire=60), Lock(server, name, expire=60)
    assert one.acquire()
    waiting = in_thread(other.acquire)
    threading.Event().wait(0.1)
    one.release()
    assert waiting.result(PATIENCE)
    with pytest.raises(redis_lock.NotAcquired):
        one.release()
    assert other.get_owner_id() == other.id
    other.release()


def test_a_refused_try_with_the_same_id_leaves_the_lock_to_its_holder(server: Any, name: str) -> None:
    server.set(f"lock:{name}", "worker", ex=60)
    lock = Lock(server, name, expire=60, id="worker")
    with pytest.raises(redis_lock.AlreadyAcquired):
        lock.acquire(blocking=False)
    assert lock.get_owner_id() == "worker"


def test_a_waiter_with_a_chosen_id_gets_a_lease_with_that_id(server: Any, name: str) -> None:
    holder, waiter = Lock(server, name, expire=60), Lock(server, name, expire=60, id="mine")
    assert holder.acquire()
    waiting = in_thread(waiter.acquire)
    threading.Event().wait(0.1)
    holder.release()
    assert waiting.result(PATIENCE)
    assert waiter.get_owner_id() == "mine"
    waiter.release()


def test_reset_lets_local_waiters_ask_the_server(server: Any, name: str) -> None:
    holder, waiter = Lock(server, name, expire=60), Lock(server, name, expire=60)
    assert holder.acquire()
    waiting = in_thread(waiter.acquire)
    threading.Event().wait(0.1)
    # A reset frees the lock, whatever its holder.
    waiter.reset()
    assert waiting.result(PATIENCE)
    with pytest.raises(redis_lock.NotAcquired):
        holder.release()
    assert waiter.get_owner_id() == waiter.id
    redis_lock.reset_all(server)
    with pytest.raises(redis_lock.NotAcquired):
        waiter.release()
    with Lock(server, name, expire=5):
        pass


@pytest.mark.parametrize("right", ["del", "pexpire", "expire", "lpush"])
def test_row_58_a_reset_by_a_user_who_lacks_a_right_leaves_no_signal_without_a_ttl(
    server: Any, url: str, name: str, right: str
) -> None:
    user = f"no-{right}"
    server.execute_command("ACL", "SETUSER", user, "reset", "on", ">pw", "~*", "+@all", f"-{right}")
    try:
        with Lock(server, name, expire=60), redis.Redis.from_url(url, username=user, password="pw") as few:
            if right != "expire":
                with pytest.raises(redis.ResponseError, match="permission"):
                    Lock(few, name).reset()
            if right != "pexpire":
                with pytest.raises(redis.ResponseError, match="permission"):
                    redis_lock.reset_all(few)
            assert not server.exists(f"lock-signal:{name}")
            assert server.exists(f"lock:{name}")
    finally:
        server.execute_command("ACL", "DELUSER", user)


def test_a_lock_of_another_process_is_extended_and_released_by_its_id(server: Any, name: str) -> None:
    server.set(f"lock:{name}", "theirs", ex=60)
    lock = Lock(server, name, id="theirs")
    with pytest.raises(redis_lock.AlreadyAcquired):
        lock.acquire()
    lock.extend(600)
    assert 60 < server.ttl(f"lock:{name}") <= 600
    lock.release()
    assert not lock.locked()
    assert server.llen(f"lock-signal:{name}") == 1
    with pytest.raises(redis_lock.NotAcquired):
        lock.release()
    # The original sets such a key without `expire`.
    server.set(f"lock:{name}", "theirs")
    with pytest.raises(redis_lock.NotExpirable):
        lock.extend(600)
    lock.reset()


def test_bad_arguments_are_refused_as_the_original_does(server: Any, name: str) -> None:
    lock = Lock(server, name, expire=5)
    with pytest.raises(redis_lock.TimeoutNotUsable):
        lock.acquire(blocking=False, timeout=1)
    with pytest.raises(redis_lock.InvalidTimeout):
        lock.acquire(timeout=-1)
    with pytest.raises(redis_lock.TimeoutTooLarge):
        lock.acquire(timeout=6)
    with pytest.raises(TypeError, match="Incorrect type for `id`"):
        Lock(server, name, id=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="StrictRedis"):
        Lock(object(), name)
    with pytest.raises(ValueError, match="negative"):
        Lock(server, name, expire=-1)
    with pytest.raises(redis_lock.NotAcquired), Lock(server, name, expire=5), Lock(server, name, blocking=False):
        pass


def test_a_server_that_is_down_raises_a_connection_error(
    implementation: impl.Implementation, closed_ports: Callable[[int], list[str]], name: str
) -> None:
    [nobody] = closed_ports(1)
    with redis.Redis.from_url(nobody, retry=None) as client, pytest.raises(redis.ConnectionError):
        Lock(client, name, expire=1).acquire()
