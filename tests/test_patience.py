"""How long an acquire rides out a lost quorum, on real masters that are killed, stopped and come back."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from support.faces import PATIENCE, Face, ask, await_true
from support.selection import on_one_face

from redlatch import Client, ConfigurationError, Guard, LockTimeout, QuorumUnavailable
from redlatch.testing import Masters

pytestmark = pytest.mark.one_loop

Fleet = Callable[..., Masters]

# Longer than any test waits: an acquire that waits for its end hangs, and fails.
FOR_EVER = 3600.0

KINDS: dict[str, Callable[[Any, str], Any]] = {
    "lock": lambda client, name: client.lock(name),
    "fenced": lambda client, name: client.lock(name, fence=True),
    "fair": lambda client, name: client.fair_lock(name),
    "semaphore": lambda client, name: client.semaphore(name, 2),
    "reader": lambda client, name: client.rw_lock(name).read(),
    "writer": lambda client, name: client.rw_lock(name).write(),
    "multi-lock": lambda client, name: client.multi_lock([name, f"{name}-other"]),
}


def kill(masters: Masters) -> None:
    masters.kill(0)
    masters.kill(1)


def start(masters: Masters) -> None:
    masters.start(0)
    masters.start(1)


def stop(masters: Masters) -> None:
    masters.pause(0)
    masters.pause(1)


def resume(masters: Masters) -> None:
    masters.resume(0)
    masters.resume(1)


OUTAGES = pytest.mark.parametrize(("begin", "end"), [(kill, start), (stop, resume)], ids=["killed", "stopped"])


def each_kind_or_face(parameter: str, first: Any, second: Any) -> pytest.MarkDecorator:
    """Run each kind on one face, one kind on both, and both values of another parameter on each face."""
    return pytest.mark.usual(
        "the kinds differ in their commands, and the faces in who sends them",
        {"connect": "asyncio", parameter: first},
        {"connect": "asyncio", parameter: second, "kind": "fair"},
        {"connect": "threads", "kind": "lock"},
    )


def attempts(url: str) -> int:
    """Return how many commands that may acquire a lock a server has got."""
    with ask(url) as server:
        calls = server.info("commandstats")
    return sum([calls.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("set", "eval", "evalsha")])


def attempted(url: str, before: int) -> bool:
    return attempts(url) > before


def passed(monotonic: float) -> bool:
    return time.monotonic() > monotonic


def stands(future: Future[Any], survivor: str) -> None:
    """Check that an acquire rides out an outage: it makes another attempt, and another."""
    before = attempts(survivor)
    await_true(lambda: attempts(survivor) > before + 2 or future.done())
    assert not future.done(), future.exception(0)


@each_kind_or_face("begin", kill, stop)
@OUTAGES
@pytest.mark.parametrize("kind", KINDS)
def test_an_acquire_gets_the_lock_when_the_quorum_is_back(
    connect: Face, fleet: Fleet, name: str, kind: str, begin: Callable[[Masters], None], end: Callable[[Masters], None]
) -> None:
    masters = fleet()
    # Without a guard, a master that was restarted votes at once.
    client = connect(masters.urls, guard=None, patience=FOR_EVER, attempt_timeout=0.2)
    client.connect()
    lock = KINDS[kind](client, name)
    begin(masters)
    won = lock.start("acquire", timeout=FOR_EVER)
    stands(won, masters.urls[2])
    end(masters)
    assert won.result(PATIENCE) is True
    lock.release()


@each_kind_or_face("timeout", FOR_EVER, 0.5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("patience", "timeout"), [(0.5, FOR_EVER), (FOR_EVER, 0.5)], ids=["patience is over", "timeout is over"]
)
def test_an_acquire_raises_when_its_patience_or_its_timeout_is_over(
    connect: Face, fleet: Fleet, name: str, kind: str, patience: float, timeout: float
) -> None:
    masters = fleet()
    client = connect(masters.urls, patience=patience)
    client.connect()
    kill(masters)
    with pytest.raises(QuorumUnavailable) as caught:
        KINDS[kind](client, name).acquire(timeout=timeout)
    # The timeout begins some microseconds before the first attempt.
    assert caught.value.elapsed > 0.49 and len(caught.value.causes) == 2
    assert 0 < caught.value.retry_after <= 1.0


@each_kind_or_face("begin", stop, kill)
@OUTAGES
@pytest.mark.parametrize("kind", KINDS)
def test_a_single_attempt_has_no_patience(
    connect: Face, fleet: Fleet, name: str, kind: str, begin: Callable[[Masters], None], end: Callable[[Masters], None]
) -> None:
    masters = fleet()
    client = connect(masters.urls, patience=FOR_EVER, attempt_timeout=0.2)
    client.connect()
    begin(masters)
    lock = KINDS[kind](client, name)
    with pytest.raises(QuorumUnavailable):
        lock.acquire(blocking=False)
    with pytest.raises(QuorumUnavailable):
        lock.acquire(timeout=0)
    with pytest.raises(QuorumUnavailable):
        client.acquire_many([name])
    end(masters)


@on_one_face("asyncio")
def test_an_acquire_rides_out_masters_that_are_kept_out(connect: Face, fleet: Fleet, name: str) -> None:
    masters = fleet()
    client = connect(masters.urls, guard=Guard(max_ttl=3.0), ttl=3.0, patience=FOR_EVER)
    client.connect()
    kill(masters)
    start(masters)

    def kept_out() -> bool:
        with pytest.raises(QuorumUnavailable) as caught:
            client.lock(name).acquire(blocking=False)
        return "kept out for" in str(caught.value)

    await_true(kept_out)
    assert client.lock(name).acquire(timeout=PATIENCE)


@on_one_face("threads")
def test_the_patience_begins_anew_for_each_outage(connect: Face, fleet: Fleet, name: str) -> None:
    """Between two outages, which are longer than the patience together, another holder has the lock."""
    masters = fleet()
    client = connect(masters.urls, patience=4.0, attempt_timeout=0.2)
    with Client(masters.urls) as other:
        holder = other.lock(name, ttl=60.0)
        assert holder.acquire()
        won = client.lock(name).start("acquire", timeout=FOR_EVER)
        for _ in range(2):
            stop(masters)
            began = time.monotonic()
            stands(won, masters.urls[2])
            await_true(partial(passed, began + 2.5))
            resume(masters)
            await_true(partial(attempted, masters.urls[0], attempts(masters.urls[0]) + 1))
        holder.release()
        assert won.result(PATIENCE) is True


def test_all_waiters_of_a_client_get_the_lock_in_turn_when_the_quorum_is_back(
    connect: Face, fleet: Fleet, name: str
) -> None:
    masters = fleet()
    client = connect(masters.urls, guard=None, patience=FOR_EVER)
    client.connect()
    kill(masters)
    locks = [client.lock(name) for _ in range(5)]
    waiting = {lock.start("acquire", timeout=FOR_EVER): lock for lock in locks}
    stands(next(iter(waiting)), masters.urls[2])
    start(masters)
    for _ in locks:
        await_true(lambda: any(future.done() for future in waiting))
        [won] = [future for future in waiting if future.done()]
        assert won.result(0) is True
        waiting.pop(won).release()


@pytest.mark.parametrize(("patience", "timeout"), [(0.5, FOR_EVER), (FOR_EVER, 2.0)])
def test_all_waiters_of_a_client_learn_that_the_quorum_is_lost(
    connect: Face, fleet: Fleet, name: str, patience: float, timeout: float
) -> None:
    masters = fleet()
    client = connect(masters.urls, patience=patience)
    client.connect()
    kill(masters)
    waiting = [client.lock(name).start("acquire", timeout=timeout) for _ in range(5)]
    for future in waiting:
        assert isinstance(future.exception(PATIENCE), QuorumUnavailable)


@pytest.mark.parametrize("patience", [0.0, 0.5])
def test_waiters_that_have_waited_as_long_as_the_first_ones_ask_no_silent_masters_again(
    connect: Face, fleet: Fleet, name: str, patience: float
) -> None:
    masters = fleet()
    client = connect(masters.urls, patience=patience, attempt_timeout=0.1)
    client.connect()
    with ask(masters.urls[2]) as survivor:
        survivor.config_resetstat()
        stop(masters)
        waiting = [client.lock(name).start("acquire") for _ in range(20)]
        for future in waiting:
            assert isinstance(future.exception(PATIENCE), QuorumUnavailable)
        # The first ones ask a few times, and the others have waited meanwhile.
        assert survivor.info("commandstats")["cmdstat_set"]["calls"] < len(waiting) // 2
    resume(masters)


def test_a_name_that_the_user_has_no_right_to_costs_no_other_name_its_waiters(
    connect: Face, fleet: Fleet, name: str
) -> None:
    masters = fleet()
    for url in masters.urls:
        with ask(url) as server:
            server.acl_setuser("app", enabled=True, passwords=["+pw"], keys=["mine:*", "guard*"], commands=["+@all"])
            server.execute_command("ACL", "SETUSER", "app", "~*guard*", "&*")
    client = connect([url.replace("redis://", "redis://app:pw@") for url in masters.urls], patience=FOR_EVER)
    holder = client.lock(f"mine:{name}", ttl=60.0)
    assert holder.acquire()
    waiter = client.lock(f"mine:{name}").start("acquire")
    # No patience gives a right, so this does not wait.
    with pytest.raises(QuorumUnavailable, match="NOPERM"):
        client.lock(name).acquire()
    assert client.lock(f"mine:{name}").acquire(timeout=0.1) is False
    holder.release()
    assert waiter.result(PATIENCE) is True


@on_one_face("asyncio")
def test_an_outage_that_is_over_makes_no_error(connect: Face, fleet: Fleet, name: str) -> None:
    masters = fleet()
    client = connect(masters.urls, patience=FOR_EVER, attempt_timeout=0.2)
    with Client(masters.urls) as other:
        holder = other.lock(name, ttl=60.0)
        assert holder.acquire()
        waiter = client.lock(name).start("acquire")
        stop(masters)
        with ask(masters.urls[2]) as survivor:
            survivor.delete(name)
        stands(waiter, masters.urls[2])
        resume(masters)
        await_true(lambda: not client.raw._quorum.queues.outages)
        assert client.lock(name).acquire(timeout=0.1) is False
        assert client.lock(name).acquire(blocking=False) is False
        holder.release()
        assert waiter.result(PATIENCE) is True


def test_a_waiter_behind_a_holder_of_its_own_client_is_only_late(connect: Face, fleet: Fleet, name: str) -> None:
    masters = fleet()
    client = connect(masters.urls, patience=FOR_EVER)
    holder = client.lock(name, ttl=60.0)
    assert holder.acquire()
    kill(masters)
    with pytest.raises(QuorumUnavailable):
        client.lock(f"{name}-other").acquire(timeout=0.1)
    assert client.lock(name).acquire(timeout=0.1) is False


def test_a_lost_quorum_is_not_flooded(connect: Face, fleet: Fleet, name: str) -> None:
    """The first pause is at least half of the longest one of `Retry`, 50 ms, and the next ones are longer."""
    masters = fleet()
    client = connect(masters.urls, patience=1.0)
    client.connect()
    kill(masters)
    with pytest.raises(QuorumUnavailable) as caught:
        client.lock(name).acquire()
    with ask(masters.urls[2]) as survivor:
        attempts = survivor.info("commandstats")["cmdstat_set"]["calls"]
    assert 1 < attempts <= 40 * caught.value.elapsed + 3


@pytest.mark.parametrize(
    ("patience", "error"), [("1", TypeError), (None, TypeError), (True, TypeError), (-1, ConfigurationError)]
)
def test_a_patience_that_cannot_work_is_refused(connect: Face, url: str, patience: Any, error: type) -> None:
    with pytest.raises(error, match=r"^patience: "):
        connect(url, patience=patience)


def test_a_patience_without_end_lasts_as_long_as_the_timeout(connect: Face, fleet: Fleet, name: str) -> None:
    masters = fleet()
    client = connect(masters.urls, patience=float("inf"))
    client.connect()
    kill(masters)
    with pytest.raises(QuorumUnavailable):
        client.lock(name).acquire(timeout=0.2)


def test_another_holder_is_a_timeout_and_no_outage(connect: Face, three: list[str], name: str) -> None:
    client, other = connect(three, patience=FOR_EVER, timeout=0.1), connect(three)
    assert other.lock(name).acquire()
    lock = client.lock(name)
    assert lock.acquire() is False
    assert isinstance(lock.raw._refusal()._error([]), LockTimeout)
