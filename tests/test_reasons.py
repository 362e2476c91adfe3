"""Every error for one loss has the same reason: what `extend` and `release` raise is what `on_lost` was told.

The reason says what to do. "Its validity ran out" asks for a longer ttl, which does not help if keys are deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.faces import Face, ask, await_true

from redlatch import LockLost, LossKind
from redlatch.loss import FORGOTTEN, KEY_GONE, RAN_OUT

pytestmark = pytest.mark.one_loop

CALLS: dict[str, Callable[[Any], Any]] = {
    "release": lambda lock: lock.release(),
    "release without waiting": lambda lock: lock.release(wait=False),
    "extend": lambda lock: lock.extend(),
    "check": lambda lock: lock.check(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_lock_whose_key_is_gone_did_not_run_out(
    connect: Face, url: str, name: str, call: Callable[[Any], Any]
) -> None:
    told: list[str] = []
    lock = connect(url).lock(name, ttl=60.0, on_lost=lambda _, reason: told.append(reason))
    assert lock.acquire()
    with ask(url) as master:
        master.delete(name)
    await_true(lambda: told)
    with pytest.raises(LockLost) as caught:
        call(lock)
    assert [caught.value.reason] == told == [KEY_GONE]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_lock_that_an_extension_found_lost_did_not_run_out(
    connect: Face, url: str, name: str, call: Callable[[Any], Any]
) -> None:
    lock = connect(url).lock(name, ttl=60.0)
    assert lock.acquire()
    with ask(url) as master:
        master.delete(name)
    with pytest.raises(LockLost, match=FORGOTTEN):
        lock.extend()
    with pytest.raises(LockLost) as caught:
        call(lock)
    assert caught.value.reason == FORGOTTEN


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_end_of_max_hold_is_named(connect: Face, url: str, name: str, call: Callable[[Any], Any]) -> None:
    lock = connect(url).lock(name, ttl=0.2, auto_renew=True, max_hold=0.1)
    assert lock.acquire()
    await_true(lock.lost.is_set)
    with pytest.raises(LockLost) as caught:
        call(lock)
    assert caught.value.reason.kind is LossKind.MAX_HOLD


def test_a_later_lease_of_the_same_object_has_its_own_reason(connect: Face, url: str, name: str) -> None:
    lock = connect(url).lock(name, ttl=0.2)
    assert lock.acquire()
    with ask(url) as master:
        master.delete(name)
    with pytest.raises(LockLost, match=FORGOTTEN):
        lock.extend()
    with pytest.raises(LockLost, match=FORGOTTEN):
        lock.release()
    assert lock.acquire()
    await_true(lambda: not lock.remaining())
    with pytest.raises(LockLost) as caught:
        lock.release()
    assert caught.value.reason == RAN_OUT
