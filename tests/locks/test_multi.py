"""Locks on many names: their order, and what is true of all names together."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from support.faces import Face, ask, await_true
from support.proxy import Command

from redlatch import LockBusy, LockLost, LockTimeout, NotOwned, QuorumUnavailable


def test_the_name_that_ends_first_decides_about_all(client: Any, name: str) -> None:
    multi = client.multi_lock([f"{name}-1", f"{name}-2"], ttl=60)
    assert multi.remaining() == 0.0
    with pytest.raises(NotOwned):
        multi.check()
    assert multi.acquire()
    assert 0 < multi.remaining() < 60
    hold = multi._locks[1]._hold
    hold.shorten(hold.lease.token, 1)
    assert multi.remaining() == 0.0
    with pytest.raises(LockLost, match=f"{name}-2"):
        multi.check()


def test_an_acquire_that_meets_another_holder_keeps_no_name(connect: Face, url: str, name: str) -> None:
    client = connect(url)
    other = client.lock(f"{name}-2")
    assert other.acquire()
    multi = client.multi_lock([f"{name}-1", f"{name}-2"])
    assert not multi.acquire(blocking=False)
    assert [key for key in ask(url).keys(f"*{name}-*") if key != f"{name}-2".encode()] == []
    assert client.lock(f"{name}-1").acquire(blocking=False)


def test_a_release_with_one_lost_name_names_it_and_releases_the_others(connect: Face, url: str, name: str) -> None:
    client = connect(url)
    multi = client.multi_lock([f"{name}-1", f"{name}-2"])
    assert multi.acquire()
    ask(url).delete(f"{name}-1")
    with pytest.raises(LockLost, match="before they were released") as caught:
        multi.release()
    assert caught.value.name == f"{name}-1"
    assert not ask(url).keys(f"*{name}-*")


@pytest.mark.parametrize("lost", [False, True])
def test_a_release_that_is_repeated_for_one_name_reports_the_other_as_it_ended(
    connect: Face, url: str, name: str, proxies: Any, lost: bool
) -> None:
    [proxy] = proxies([url])
    client = connect([proxy.url], patience=0)
    multi = client.multi_lock([f"{name}-1", f"{name}-2"])
    assert multi.acquire()
    if lost:
        ask(url).delete(f"{name}-1")

    def cut_at_the_second(command: Command, reply: bytes) -> bytes | None:
        if f"{name}-2".encode() not in command:
            return reply
        proxy.refusing = True
        return None

    proxy.spoil = cut_at_the_second
    with pytest.raises(QuorumUnavailable):
        multi.release()
    proxy.spoil, proxy.refusing = None, False
    await_true(lambda: client.stats().masters[0].voting)
    if lost:
        with pytest.raises(LockLost, match="before they were released"):
            multi.release()
    else:
        multi.release()
    with pytest.raises(NotOwned):
        multi.release()
    assert not ask(url).keys(f"*{name}-*")


def test_a_release_of_a_free_multi_lock_is_not_owned(connect: Face, url: str, name: str) -> None:
    with pytest.raises(NotOwned):
        connect(url).multi_lock([f"{name}-1", f"{name}-2"]).release()


def test_an_extension_that_finds_a_name_lost_raises_and_extends_the_others(connect: Face, url: str, name: str) -> None:
    client = connect(url)
    multi = client.multi_lock([f"{name}-1", f"{name}-2"], ttl=10)
    assert multi.acquire()
    ask(url).delete(f"{name}-1")
    with pytest.raises(LockLost, match="before they were extended"):
        multi.extend(60)
    assert ask(url).pttl(f"{name}-2") > 10_000


def test_an_interrupt_after_the_names_were_won_leaves_none(client: Any, url: str, name: str) -> None:
    multi = client.multi_lock([f"{name}-1", f"{name}-2"])

    def struck(batch: object) -> bool:
        raise KeyboardInterrupt

    multi._won = struck
    with pytest.raises(KeyboardInterrupt):
        multi.acquire()
    del multi._won
    assert multi.acquire(timeout=30)
    multi.release()


@pytest.mark.parametrize("timeout", [0, 2.5])
def test_the_error_says_when_another_call_may_succeed(client: Any, name: str, timeout: float) -> None:
    names = [name, f"{name}-other"]
    assert client.multi_lock(names, timeout=timeout)._refusal().ask().retry_after == 0.05
    held = client.lock(name, ttl=60)
    assert held.acquire()
    error = client.multi_lock(names, timeout=timeout)._refusal().ask()
    assert held.remaining() <= error.retry_after <= 60


@pytest.mark.parametrize(("timeout", "kind"), [(0, LockBusy), (2.5, LockTimeout)])
def test_a_with_that_did_not_win_says_how_long_it_waited(client: Any, name: str, timeout: Any, kind: Any) -> None:
    error = client.multi_lock([name], timeout=timeout)._refusal().ask()
    assert type(error) is kind and error.name == name
    assert kind is LockBusy or error.elapsed == 2.5


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_multi_lock_cannot_be_copied(client: Any, name: str, clone: Any) -> None:
    with pytest.raises(TypeError, match="cannot be copied"):
        clone(client.multi_lock([name]))
