"""`client.stats()` on real masters, with both faces: what callers experience is what is counted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.faces import PATIENCE, Face, ask, await_true
from support.forked import in_child

from redlatch import (
    AlreadyHeld,
    ClientClosed,
    ConfigurationError,
    Histogram,
    LockLost,
    Loss,
    LossKind,
    QuorumUnavailable,
)
from redlatch.stats import BUCKETS
from redlatch.testing import embedded

# A ttl that no test outlives, and one that passes soon.
LONG, SHORT = 60.0, 0.3


def test_every_end_of_an_acquire_is_counted(connect: Face, three: list[str], name: str) -> None:
    client, other = connect(three), connect(three)
    lock = other.lock(name, ttl=LONG)
    assert lock.acquire()
    assert not client.lock(name).acquire(blocking=False)
    assert not client.lock(name).acquire(timeout=0.01)
    waiting = client.lock(name).start("acquire")
    await_true(lambda: client.stats().waiting)
    lock.release()
    assert waiting.result(PATIENCE)
    stats = client.stats()
    assert (stats.acquired, stats.busy, stats.timed_out) == (1, 1, 1)
    assert (stats.held, stats.waiting, stats.unavailable, stats.cancelled) == (1, 0, 0, 0)
    assert 0 < stats.acquire_time.sum < PATIENCE
    assert other.stats().hold_time.count == 1


@pytest.mark.parametrize("call", ["acquire", "acquire_many"])
def test_an_acquire_of_a_closed_client_counts_as_cancelled(
    connect: Face, three: list[str], name: str, call: str
) -> None:
    client = connect(three)
    lock = client.lock(name)
    client.connect()
    client.close()
    with pytest.raises(ClientClosed):
        client.acquire_many([name]) if call == "acquire_many" else lock.acquire()
    assert client.stats().cancelled == 1


def test_an_acquire_whose_lock_object_is_in_use_counts_as_cancelled(connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    with pytest.raises(AlreadyHeld):
        lock.acquire()
    stats = client.stats()
    assert (stats.acquired, stats.cancelled) == (1, 1)


def test_a_loss_that_a_release_has_counted_is_not_counted_with_its_report(
    connect: Face, three: list[str], name: str
) -> None:
    client = connect(three)
    lock = client.lock(name, ttl=0.05)
    assert lock.acquire()
    await_true(lambda: not lock.remaining())
    with pytest.raises(LockLost) as caught:
        lock.release(wait=False)
    # As the rate limiter of dramatiq does.
    lock._report_loss(caught.value.reason)
    assert dict(client.stats().lost) == {"expired": 1}


def test_a_lock_that_is_left_to_run_out_counts_as_lost_once(connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    lock = client.lock(name, ttl=0.2)
    assert lock.acquire()
    # As the lock of a transaction whose commit is in doubt.
    lock._report_loss(Loss(LossKind.OTHER, "the commit is in doubt"))
    await_true(lambda: not lock.remaining())
    with pytest.raises(LockLost):
        lock.release()
    assert dict(client.stats().lost) == {"other": 1}


def test_a_forked_child_holds_no_locks(connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    assert client.lock(name, ttl=LONG, group="orders").acquire()

    def look() -> None:
        stats = client.stats()
        assert (stats.held, stats.groups["orders"].held, stats.acquired) == (0, 0, 1)

    in_child(look)
    assert client.stats().held == 1


def test_groups_have_their_own_figures_and_their_sum_is_that_of_the_client(
    connect: Face, three: list[str], name: str
) -> None:
    client = connect(three)
    for lock in (
        client.lock(f"{name}1", group="orders"),
        client.fair_lock(f"{name}2", group="orders"),
        client.semaphore(f"{name}3", 2, group="stock"),
        client.rw_lock(f"{name}4", group="stock").read(),
        client.multi_lock([f"{name}5", f"{name}6"], group="stock"),
        client.lock(f"{name}7"),
    ):
        assert lock.acquire()
        lock.release()
    client.release_many(client.acquire_many([f"{name}8", f"{name}9"], group="batch"))
    stats = client.stats()
    found = {group: figures.acquired for group, figures in stats.groups.items()}
    assert found == {"": 1, "orders": 2, "stock": 4, "batch": 2}
    assert stats.acquired == stats.hold_time.count == 9


def test_a_group_has_the_name_of_a_str(connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    for make in (client.lock, client.fair_lock):
        with pytest.raises(TypeError, match="group: a str or None is needed, not int"):
            make(name, group=1)


def test_a_group_has_a_name_that_can_be_exported(connect: Face, three: list[str], name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"group: .* UTF-8"):
        connect(three).lock(name, group="orders\udcff")


def test_an_acquire_without_a_quorum_is_counted(connect: Face, closed_ports: Callable[[int], list[str]]) -> None:
    client = connect(closed_ports(1), guard=None)
    with pytest.raises(QuorumUnavailable):
        client.lock("x").acquire(timeout=0.1)
    stats = client.stats()
    assert (stats.unavailable, stats.acquired) == (1, 0)
    assert [master.voting for master in stats.masters] == [False]


def test_losses_are_counted_by_reason_and_once(connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    expired = client.lock(f"{name}1", ttl=SHORT)
    assert expired.acquire()
    deleted = client.lock(f"{name}2", ttl=LONG)
    assert deleted.acquire()
    for url in three:
        ask(url).delete(f"{name}2")
    with pytest.raises(LockLost):
        deleted.extend()
    with pytest.raises(LockLost):
        deleted.release()
    await_true(lambda: expired.remaining() == 0)
    with pytest.raises(LockLost):
        expired.release()
    assert client.stats().lost == {"expired": 1, "forgotten": 1}
    assert client.stats().hold_time.count == 2


def test_the_loss_of_a_lock_that_is_cared_for_is_counted_when_it_is_reported(
    connect: Face, three: list[str], name: str
) -> None:
    reports: list[str] = []
    client = connect(three, on_lost=lambda lock, reason: reports.append(reason))
    capped = client.lock(f"{name}1", ttl=1.0, auto_renew=True, max_hold=1.2)
    assert capped.acquire()
    plain = client.lock(f"{name}2", ttl=SHORT)
    assert plain.acquire()
    await_true(lambda: len(reports) == 2)
    assert client.stats().lost == {"expired": 1, "max_hold": 1}
    for lock in (capped, plain):
        with pytest.raises(LockLost):
            lock.release()
    assert client.stats().lost == {"expired": 1, "max_hold": 1}


@pytest.mark.parametrize("wait", [True, False])
def test_a_lock_that_others_have_deleted_is_lost_however_it_is_released(
    connect: Face, three: list[str], name: str, wait: bool
) -> None:
    client = connect(three)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    for url in three:
        ask(url).delete(name)
    try:
        lock.release(wait=wait)
    except LockLost:
        assert wait
    await_true(lambda: client.stats().lost == {"forgotten": 1})


def test_a_renewal_says_how_much_was_left(connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    lock = client.lock(name, ttl=2 * SHORT, auto_renew=True)
    assert lock.acquire()
    await_true(lambda: client.stats().renewals >= 2)
    lock.release()
    slack = client.stats().renewal_slack
    assert slack.count >= 2
    assert 0 < slack.mean < 2 * SHORT


def test_a_hand_off_counts_for_both_holders(connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    first, second = client.lock(name, ttl=LONG), client.lock(name, ttl=LONG)
    assert first.acquire()
    waiting = second.start("acquire", timeout=PATIENCE)
    await_true(lambda: client.stats().waiting == 1)
    # The hand-off happens within the tenure, or else the waiter asks the masters.
    first.release()
    assert waiting.result(PATIENCE)
    stats = client.stats()
    assert (stats.acquired, stats.held, stats.hold_time.count) == (2, 1, 1)
    assert stats.hand_offs <= 1
    second.release()
    assert client.stats().hold_time.count == 2


def test_a_master_has_reply_times_and_quarantines(connect: Face) -> None:
    with embedded.masters(3) as urls:
        client = connect(urls)
        lock = client.lock("x", ttl=LONG)
        assert lock.acquire()
        # A pulse is sent ahead of a command once a second.
        await_true(lambda: lock.extend() or all([master.reply_time.count for master in client.stats().masters]))
        assert all([0 < master.reply_time.quantile(0.5) < PATIENCE for master in client.stats().masters])
        ask(urls[0]).flushall()
        # It becomes known for how long it is kept out when the others were asked.
        await_true(lambda: lock.extend() or client.stats().masters[0].kept_out)
        assert [master.quarantines for master in client.stats().masters] == [1, 0, 0]


def test_all_figures_are_json(connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    lock = client.lock(name, group="orders")
    assert lock.acquire()
    lock.release()
    told = json.loads(json.dumps(client.stats().as_dict()))
    assert told["acquired"] == told["groups"]["orders"]["acquired"] == 1
    assert told["acquire_time"]["count"] == sum(told["acquire_time"]["buckets"].values()) == 1
    assert {master["voting"] for master in told["masters"]} == {True}


def test_a_closed_client_keeps_its_figures(connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    assert client.lock(name).acquire()
    client.close()
    assert client.stats().acquired == 1


# --- histograms ------------------------------------------------------------------------------------------


def test_an_empty_histogram_has_only_zeros() -> None:
    empty = Histogram()
    assert (empty.count, empty.mean, empty.quantile(0.99)) == (0, 0.0, 0.0)
    assert empty.as_dict() == {"count": 0, "sum": 0.0, "buckets": {}}


@given(counts=st.lists(st.integers(0, 9), min_size=BUCKETS, max_size=BUCKETS), share=st.floats(0, 1))
def test_a_quantile_has_its_share_below_it(counts: list[int], share: float) -> None:
    histogram = Histogram(tuple(counts))
    bound = histogram.quantile(share)
    below = sum([count for count, upper in zip(counts, Histogram.BOUNDS, strict=True) if upper <= bound])
    assert below >= share * sum(counts)
    if sum(counts):
        assert counts[Histogram.BOUNDS.index(bound)]


def test_the_sum_of_two_histograms_has_the_durations_of_both() -> None:
    one, two = (Histogram((count,) * BUCKETS, float(count)) for count in (1, 2))
    assert one + two == Histogram((3,) * BUCKETS, 3.0)
    assert Histogram.BOUNDS[-1] == math.inf
