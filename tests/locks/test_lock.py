"""The state of one lock object: what it shows while it is free, held, doubted, lost or inherited by a fork."""

from __future__ import annotations

import copy
import inspect
import logging
import pickle
import threading
from typing import Any

import pytest
from support.faces import PATIENCE, at_once
from support.forked import in_child

from redlatch import AsyncClient, Client, ClientForked, LockError, LockLost, NotOwned, impl
from redlatch.locks.lock import TaskDriver, ThreadDriver, held_for, note_failure


def test_a_free_lock_shows_no_token_no_deadline_and_no_time(client: Any, name: str) -> None:
    lock = client.lock(name, fence=True)
    assert (lock.token, lock.fence, lock.deadline_ns, lock.remaining()) == (None, None, 0, 0.0)
    with pytest.raises(NotOwned):
        lock.check()


def test_a_held_lock_shows_them_until_it_is_released(held: Any) -> None:
    assert held.token and held.deadline_ns
    assert 0 < held.remaining() < held.ttl == 60.0
    assert 0 < held.elapsed < PATIENCE
    held.check()
    held.release()
    assert (held.token, held.deadline_ns, held.remaining()) == (None, 0, 0.0)
    with pytest.raises(NotOwned):
        held.check()


def test_only_a_fenced_lock_has_a_fence(client: Any, held: Any, name: str) -> None:
    assert held.fence is None
    with client.lock(f"{name}-2", fence=True) as fenced:
        assert fenced.fence > 0


def test_a_doubt_about_a_vote_ends_the_validity_until_an_extension_has_verified_it(client: Any, held: Any) -> None:
    client._quorum.doubts.add(held._hold.lease.asked_ns + 1)
    assert held.remaining() == 0.0
    with pytest.raises(LockLost, match="may have forgotten it; extend"):
        held.check()
    held.extend()
    assert held.remaining() > 0
    held.check()


def test_a_lock_whose_validity_is_over_is_lost_but_keeps_its_token_for_the_release(client: Any, held: Any) -> None:
    hold = held._hold
    hold.shorten(hold.lease.token, 1)
    assert held.remaining() == 0.0
    assert held.token
    with pytest.raises(LockLost):
        held.check()


def test_in_a_forked_child_the_lock_is_the_parents(held: Any) -> None:
    def look() -> None:
        assert held.remaining() == 0.0
        with pytest.raises(ClientForked):
            held.check()

    in_child(look)
    held.check()


def test_the_event_of_a_loss_is_one_for_all_threads_and_is_set_at_once_after_a_loss(client: Any, name: str) -> None:
    lock = client.lock(name, on_lost=lambda lock, reason: None)
    assert lock.acquire()
    first, *others = at_once([lambda: lock.lost] * 8)
    assert all(event is first for event in others)
    assert not first.is_set()
    lock._mark_lost(lock._upkeep.term)
    assert first.is_set()


def test_the_loss_of_an_earlier_hold_marks_nothing(client: Any, name: str) -> None:
    lock = client.lock(name, on_lost=lambda lock, reason: None)
    assert lock.acquire()
    term = lock._upkeep.term
    lock.release()
    assert lock.acquire()
    event = lock.lost
    lock._mark_lost(term)
    assert not event.is_set()


def test_an_on_lost_that_fails_is_logged_and_only_a_system_exit_is_raised(
    client: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(lock: Any, reason: str) -> None:
        raise failure

    lock = client.lock(name, on_lost=fail)
    failure: BaseException = ValueError("mine")
    lock._report_loss("it ran out")
    failure = SystemExit()
    with pytest.raises(SystemExit):
        lock._report_loss("it ran out")
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.exc_info is not None and "it ran out" in record.getMessage() for record in errors] == [True, True]


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_lock_cannot_be_copied(client: Any, name: str, clone: Any) -> None:
    with pytest.raises(TypeError, match="belongs to one holder"):
        clone(client.lock(name))


def test_a_failed_release_becomes_a_note_of_the_error_of_the_body() -> None:
    body = ValueError("mine")
    note_failure(body, LockError("no quorum"))
    assert body.__notes__ == ["redlatch: LockError when the lock was released: no quorum"]


def test_a_repr_says_for_how_long_the_lock_is_held() -> None:
    assert (held_for(1.5), held_for(0.0)) == ("held for 1.500 s more", "not held")


def test_a_signal_handler_that_asks_for_the_event_meanwhile_gets_the_same_one(client: Any, name: str) -> None:
    lock = client.lock(name)
    handled: list[Any] = []

    def interrupted() -> threading.Event:
        if not handled:
            handled.append(None)
            handled[0] = lock._loss_event(interrupted)
        return threading.Event()

    event = lock._loss_event(interrupted)
    assert event is handled[0] is lock.lost


def test_an_event_that_is_set_is_not_set_again(client: Any, name: str) -> None:
    # In a signal handler that could wait for its own thread.
    lock = client.lock(name, on_lost=lambda lock, reason: None)
    assert lock.acquire()
    event = lock.lost
    lock._upkeep.term.reason = "it ran out"
    lock._mark_lost(lock._upkeep.term)
    event.set = None
    assert lock.lost is event


# --- the seam between locks and drivers -----------------------------------------------------------------


def calls_of(protocol: type) -> dict[str, Any]:
    """Return the members of a protocol, with those of its bases."""
    return {
        name: member
        for base in reversed(protocol.__mro__)
        if base.__module__ == ThreadDriver.__module__
        for name, member in [*vars(base).items(), *base.__annotations__.items()]
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("client", "protocol"), [(Client, ThreadDriver), (AsyncClient, TaskDriver)])
def test_a_driver_has_the_calls_of_its_protocol_with_the_same_arguments(
    implementation: impl.Implementation, client: Any, protocol: type
) -> None:
    made = client("redis://localhost:6379")._driver
    calls = calls_of(protocol)
    assert {"run", "send", "status"} <= set(calls) and len(calls) <= 10
    for name, member in calls.items():
        found = getattr(made, name)
        if inspect.isfunction(member):
            _, *wanted = inspect.signature(member).parameters.values()
            given = inspect.signature(found).parameters.values()
            assert [(each.name, each.default) for each in wanted] == [(each.name, each.default) for each in given], name
