"""The steps of a batch call: its arguments, its results, and what remains to be sent after an interrupt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.faces import ask, await_true

from redlatch import Client, ClientClosed, LockLost, NotOwned, QuorumUnavailable
from redlatch.locks.batch import Batch, resend_release


def names(name: str, count: int = 2) -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


def keys(url: str, name: str) -> int:
    return len(ask(url).keys(f"*{name}-*"))


def heads(client: Any) -> list[Any]:
    """Return the holds behind which others of the client would wait."""
    return list(client._quorum.queues.heads.values())


def begun(client: Any, name: str) -> Batch[Any]:
    """Return a batch whose acquire has put its ballots to the vote and is then interrupted."""
    batch = Batch(client._shared, client._locks_on(type(client.lock("x")), names(name), 60))
    steps = batch.acquiring()
    effect: Any = next(steps)
    client.connect()
    client._driver.send([ballot.command for ballot in getattr(effect, "ballots", effect)])
    steps.close()
    return batch


def test_a_batch_takes_locks_of_its_client_and_none(client: Any, url: str, name: str) -> None:
    Batch(client._shared, [client.lock(name), None]).check()
    with Client(url) as other:
        cases: list[tuple[Any, str]] = [(other.lock(name), "another client's"), (name, "a str")]
        for foreign, what in cases:
            with pytest.raises(TypeError, match=rf"^locks\[1\]: .*{what}"):
                Batch(client._shared, [None, foreign]).check()


def test_none_and_a_lock_that_is_not_held_fail_alone(client: Any, name: str) -> None:
    held, free = client.lock(name), client.lock(f"{name}-2")
    assert held.acquire()
    assert Batch(client._shared, [free, held]).won() == [None, held]
    assert client.release_many([None, free, held]) == [False, False, True]


def test_an_element_that_is_no_lock_is_refused_before_anything_is_released(client: Any, name: str) -> None:
    held = client.lock(name)
    assert held.acquire()
    with pytest.raises(TypeError):
        client.release_many([held, "another"])
    assert held.owned()


def test_too_many_failures_for_one_lock_are_an_error_of_the_call(client: Any, name: str) -> None:
    batch = Batch(client._shared, [client.lock(name)])
    batch._errors[0] = NotOwned("not held")
    assert batch.verdicts() == [False]
    batch._errors[0] = QuorumUnavailable("no quorum")
    for result in (batch.verdicts, batch.won):
        with pytest.raises(QuorumUnavailable):
            result()


def test_an_interrupted_acquire_is_undone_whole_and_its_locks_are_free(client: Any, url: str, name: str) -> None:
    batch = begun(client, name)
    await_true(lambda: keys(url, name) == 2)
    batch.undo()
    batch.undo()
    await_true(lambda: keys(url, name) == 0)
    assert all(client.acquire_many(names(name)))


def test_an_undo_leaves_locks_alone_that_others_have_claimed_since(client: Any, url: str, name: str) -> None:
    batch = begun(client, name)
    first = batch._locks[0]
    batch.undo()
    assert first.acquire()
    batch.undo()
    assert first.owned()
    assert heads(client) == [first._hold]


@pytest.mark.parametrize("given", ["before the batch", "before the release", "in the release"])
def test_an_interrupted_release_is_sent_for_every_lock(client: Any, url: str, name: str, given: str) -> None:
    locks = [client.lock(each) for each in names(name)]
    assert all(lock.acquire() for lock in locks)
    assert heads(client) == [lock._hold for lock in locks]
    batch = None if given == "before the batch" else Batch(client._shared, locks)
    if batch is not None and given == "in the release":
        steps = batch.releasing(True)
        next(steps)
        steps.close()
    resend_release(client._shared, batch, locks, [], KeyboardInterrupt())
    await_true(lambda: keys(url, name) == 0)
    assert heads(client) == []


@pytest.mark.parametrize(("usable", "left"), [(False, 0), (True, 2)])
def test_a_release_that_ends_early_is_sent_again_only_if_the_client_became_unusable(
    client: Any, url: str, name: str, usable: bool, left: int
) -> None:
    locks = client.acquire_many([*names(name), f"{name}:last"])
    *first, last = locks
    batch = Batch(client._shared, first)
    steps = batch.releasing(True)
    next(steps)
    steps.close()
    driver = client._shared.driver
    status = SimpleNamespace(usable=usable)
    as_if: Any = SimpleNamespace(
        driver=SimpleNamespace(status=status, send=driver.send, wake_called=driver.wake_called)
    )
    batch._shared = as_if
    resend_release(client._shared, batch, first, [], QuorumUnavailable("no quorum"))
    # This release leaves after those.
    last.release()
    assert keys(url, name) == left


def test_an_iterator_is_not_read_again_after_an_interrupt(client: Any, url: str, name: str) -> None:
    locks = client.acquire_many(names(name))

    # An iterator may block or have side effects; the call had read one lock from it.
    rest = iter(locks[1:])
    resend_release(client._shared, None, rest, locks[:1], KeyboardInterrupt())
    assert next(rest) is locks[1]
    await_true(lambda: keys(url, name) == 1)
    assert locks[1].owned()


def test_a_release_that_was_refused_or_has_ended_is_not_sent_again(client: Any, name: str) -> None:
    locks = client.acquire_many(names(name))
    resend_release(client._shared, None, locks, [], TypeError("no list"))
    resend_release(client._shared, Batch(client._shared, locks), locks, [], LockLost("lost"))
    resend_release(client._shared, Batch(client._shared, locks), locks, [], ClientClosed("closed"))
    assert all(lock.owned() for lock in locks)


def test_a_lock_that_was_acquired_again_since_keeps_its_new_claim(client: Any, name: str) -> None:
    lock = client.lock(name)
    assert lock.acquire()
    batch = Batch(client._shared, [lock])
    steps = batch.releasing(True)
    lock.release()
    assert lock.acquire()
    batch.resend_release(KeyboardInterrupt())
    assert lock.owned()
    assert heads(client) == [lock._hold]
    steps.close()
