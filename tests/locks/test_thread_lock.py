"""The calls of a lock for threads: what is left behind when one fails, and which claim the end of a `with` releases."""

from __future__ import annotations

import threading

import pytest

from redlatch import Lock, LockBusy, NotOwned
from redlatch.testing import MemoryClient


@pytest.fixture
def client() -> MemoryClient:
    return MemoryClient(1)


def test_an_acquire_that_fails_after_it_has_won_releases_the_lock(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = client.lock("job", auto_renew=True)

    def fail(self: Lock, acquired: bool) -> None:
        raise MemoryError

    monkeypatch.setattr(Lock, "_begin_upkeep", fail)
    with pytest.raises(MemoryError):
        lock.acquire()
    assert not lock.token
    with client.lock("job", timeout=0):
        pass


def test_the_ticket_of_a_claim_is_the_ident_of_its_thread(client: MemoryClient) -> None:
    lock = client.lock("job")
    lock.acquire()
    assert lock._hold.ticket == threading.get_ident()


def test_a_failed_release_is_noted_on_the_exception_of_the_body(client: MemoryClient) -> None:
    lock = client.lock("job")
    with pytest.raises(ValueError, match="mine") as raised, lock:
        client.lose(lock)
        raise ValueError("mine")
    assert "LockLost when the lock was released" in raised.value.__notes__[0]


def test_a_body_that_has_released_the_lock_may_not_release_that_of_another_thread(client: MemoryClient) -> None:
    lock = client.lock("job")
    with pytest.raises(NotOwned, match="another thread or task"), lock:
        lock.release()
        other = threading.Thread(target=lock.acquire)
        other.start()
        other.join()
    assert lock.token


def test_a_with_whose_lock_is_busy_raises_and_claims_nothing(client: MemoryClient) -> None:
    lock = client.lock("job", timeout=0)
    with client.lock("job"), pytest.raises(LockBusy), lock:
        pass
    assert lock._hold.ticket is None


def test_an_acquire_after_a_wait_goes_on_with_the_claim_of_the_with(client: MemoryClient) -> None:
    lock = client.lock("job")
    with lock:
        ticket = lock._hold.ticket
        lock.release()
        lock._acquire_again(ticket)
        assert lock._hold.entered is lock._hold.ticket
    assert not lock.token
