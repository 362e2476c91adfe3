"""Rate limits: at most so many acquires in any window of the period, on one master and on three."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import Any

import pytest
from support.faces import PATIENCE, Face, ask, at_once, await_true

import redlatch
from redlatch import AsyncClient, Client, ConfigurationError, Guard, LockBusy, LockTimeout, impl
from redlatch.testing import embedded

# Longer than a test.
LONG = 50.0


@pytest.fixture(params=[1, 3])
def masters(request: pytest.FixtureRequest, farm: Any) -> list[str]:
    return farm.urls(request.param)  # type: ignore[no-any-return]


def taken(url: str, name: str) -> int:
    """Return how many permits a master has given, as `redlatch status` counts them."""
    server = ask(url)
    seconds, micros = server.time()
    return int(server.zcount(f"{{{name}}}\0rate", f"({seconds * 1000 + micros // 1000}", "+inf"))


def fullest(times: list[float], period: float) -> int:
    """Return the largest number of these times in any window of the period."""
    ordered = sorted(times)
    return max([sum([first <= each < first + period for each in ordered]) for first in ordered], default=0)


def test_no_more_permits_than_the_limit_are_had(connect: Face, masters: list[str], name: str) -> None:
    limit = connect(masters).rate_limit(name, 3, LONG)
    other = connect(masters).rate_limit(name, 3, LONG)
    assert [each.acquire(blocking=False) for each in (limit, other, limit, other, limit)] == [True] * 3 + [False] * 2
    assert not limit.acquire(timeout=0.05)


def test_a_waiter_wakes_when_the_oldest_permit_ends(connect: Face, masters: list[str], name: str) -> None:
    limit = connect(masters).rate_limit(name, 2, 0.6)
    assert limit.acquire()
    first = time.monotonic()
    time.sleep(0.3)
    assert limit.acquire()
    assert not limit.acquire(timeout=0.1)
    assert limit.acquire(timeout=PATIENCE)
    # The key lives 0.3 s longer than the oldest permit.
    assert 0.6 <= time.monotonic() - first < 0.8
    assert limit.acquire(timeout=PATIENCE)
    assert time.monotonic() - first >= 0.9


def test_the_end_of_a_with_gives_nothing_back(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    with Client(masters) as client:
        limit = client.rate_limit(name, 2, LONG, timeout=0.05)
        for _ in range(2):
            with limit as entered:
                assert entered is limit
        with pytest.raises(
            LockTimeout, match=r"within 0.05 s: all 2 permits of 50 s are taken, and one is free in "
        ) as late:
            limit.__enter__()
        assert late.value.name == name and 40 < late.value.retry_after < 55
        with pytest.raises(LockBusy, match="is busy: all 2 permits"), client.rate_limit(name, 2, LONG, timeout=0):
            pass


def test_a_coroutine_waits_for_a_permit(implementation: impl.Implementation, masters: list[str], name: str) -> None:
    async def main() -> list[float]:
        times = []
        async with AsyncClient(masters) as client:
            limit = client.rate_limit(name, 2, 0.3)

            @client.rate_limited(name, 2, 0.3)
            async def call() -> None:
                times.append(time.monotonic())

            async def use() -> None:
                async with limit:
                    times.append(time.monotonic())

            await asyncio.gather(*[call() for _ in range(3)], *[use() for _ in range(3)])
        return times

    times = asyncio.run(main())
    assert len(times) == 6
    # A time is read after the acquire that it belongs to.
    assert fullest(times, 0.29) <= 2


def test_a_decorated_function_takes_the_name_from_its_arguments(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    with Client(masters) as client:

        @client.rate_limited(name + ":{customer}", 1, LONG, timeout=0)
        def mail(customer: str) -> str:
            return customer

        assert mail("a") == "a" and mail("b") == "b"
        with pytest.raises(LockBusy, match=f"'{name}:a' is busy: all 1 permits"):
            mail("a")


@pytest.mark.parametrize("period", [0.15, 0.4])
def test_no_window_has_more_acquires_than_the_limit(
    implementation: impl.Implementation, masters: list[str], name: str, period: float
) -> None:
    end = time.monotonic() + 2.5
    with contextlib.ExitStack() as stack:
        limits = [stack.enter_context(Client(masters)).rate_limit(name, 3, period) for _ in range(3)]

        def use(limit: Any) -> list[float]:
            times = []
            while time.monotonic() < end:
                if limit.acquire(timeout=0.5):
                    times.append(time.monotonic())
            return times

        found = [each for times in at_once([partial(use, limit) for limit in limits * 2]) for each in times]
    # Each time is read up to a few milliseconds after its acquire.
    assert fullest(found, period - 0.02) <= 3
    # The permits are used, and not lost to rivals.
    assert len(found) >= 3 * 2.5 / period * 0.5


def test_no_window_has_more_acquires_while_masters_restart_and_are_down(
    implementation: impl.Implementation, name: str
) -> None:
    # A master that was restarted has forgotten its permits, and is kept out for a second.
    period, guard = 0.5, Guard(max_ttl=1.0)
    fleet = embedded.masters(3)
    with fleet as urls, contextlib.ExitStack() as stack:
        limits = [stack.enter_context(Client(urls, guard=guard, ttl=1.0)).rate_limit(name, 2, period) for _ in range(3)]
        end = time.monotonic() + 6.0

        def use(limit: Any) -> list[float]:
            times = []
            while time.monotonic() < end:
                with contextlib.suppress(redlatch.QuorumUnavailable):
                    if limit.acquire(timeout=0.5):
                        times.append(time.monotonic())
            return times

        def disturb() -> list[float]:
            for index in range(2):
                time.sleep(0.7)
                fleet.kill(index)
                time.sleep(0.3)
                fleet.start(index)
                time.sleep(1.7)
            return []

        calls = [partial(use, limit) for limit in limits]
        found = [each for times in at_once([*calls, disturb]) for each in times]
    assert len(found) > 6
    assert fullest(found, period - 0.02) <= 2


def test_an_attempt_that_was_not_won_gives_its_slots_back(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    # Two masters are full, so no quorum has a free slot.
    for url in three[:2]:
        server = ask(url)
        server.zadd(f"{{{name}}}\0rate", {"0": time.time() * 1000 + 60_000})
        server.hset(f"{{{name}}}\0rate\0tokens", "0", "somebody")
        for key in (f"{{{name}}}\0rate", f"{{{name}}}\0rate\0tokens"):
            server.pexpire(key, 60_000)
    with Client(three) as client:
        assert not client.rate_limit(name, 1, LONG).acquire(timeout=0.1)
        await_true(lambda: not ask(three[2]).exists(f"{{{name}}}\0rate"))


def test_a_permit_that_came_too_late_is_given_back_and_the_next_attempt_may_take_longer(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    with Client(masters) as client:
        limit = client.rate_limit(name, 1, LONG)
        limit._slack_ns = 1
        assert limit.acquire()
        assert limit._slack_ns > 1
        assert [taken(url, name) for url in masters] == [1] * len(masters)
        assert not limit.acquire(blocking=False)


def never_in_time(limit: Any) -> Any:
    """Return a rate limit that counts no attempt, as if the masters were too slow for it."""
    limit._slack_ns = 1
    limit._longest_slack_ns = lambda: 1
    return limit


def test_masters_that_are_too_slow_for_the_period_end_an_acquire_when_its_time_is_over(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    with Client(masters) as client:
        limit = never_in_time(client.rate_limit(name, 2, LONG, timeout=0.05))
        assert not limit.acquire(blocking=False)
        assert not limit.acquire()
        with pytest.raises(LockTimeout, match=r": the masters took 0\.\d+ s, and 0\.000 s count$"):
            limit.__enter__()
        await_true(lambda: not any(taken(url, name) for url in masters))
        with pytest.raises(ConfigurationError, match=r"^period: \d+ s leaves no time .* or guard=Guard"):
            never_in_time(client.rate_limit(name, 2, 60.0)).acquire()

    async def main() -> None:
        async with AsyncClient(masters) as client:
            limit = never_in_time(client.rate_limit(name, 2, LONG, timeout=0))
            assert not await limit.acquire(timeout=0.05)
            with pytest.raises(LockBusy, match=": the masters took "):
                await limit.__aenter__()

    asyncio.run(main())


def test_slots_of_an_earlier_higher_limit_do_not_make_a_waiter_ask_all_the_time(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    for url in masters:
        server = ask(url)
        server.zadd(f"{{{name}}}\0rate", {"5": (time.time() - 1) * 1000})
        server.pexpire(f"{{{name}}}\0rate", 60_000)
    with Client(masters) as client:
        limit = client.rate_limit(name, 1, LONG, timeout=0)
        assert limit.acquire()
        with pytest.raises(LockBusy, match=r"taken, and one is free in [45]\d\."):
            limit.__enter__()


def test_a_client_that_closes_and_releases_its_locks_gives_no_permit_back(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    client = Client(masters)
    assert client.rate_limit(name, 2, LONG).acquire()
    client.close(release=True)
    assert [taken(url, name) for url in masters] == [1] * len(masters)


def test_a_permit_is_no_lock_that_is_lost(implementation: impl.Implementation, masters: list[str], name: str) -> None:
    lost: list[Any] = []
    with Client(masters, on_lost=lambda lock, reason: lost.append(reason)) as client:
        limit = client.rate_limit(name, 1, 0.2)
        assert limit.acquire() and limit.acquire(timeout=PATIENCE)
        time.sleep(0.3)
    assert not lost


def test_an_interrupted_wait_takes_no_permit(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(masters) as client:
            limit = client.rate_limit(name, 1, 0.5)
            assert await limit.acquire()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(limit.acquire(), 0.1)
            assert await limit.acquire(timeout=PATIENCE)

    asyncio.run(main())


def test_a_lock_and_a_semaphore_of_the_same_name_are_independent(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    with Client(masters) as client, client.lock(name), client.semaphore(name, 1):
        assert client.rate_limit(name, 1, LONG).acquire(blocking=False)


def test_the_winners_are_counted(implementation: impl.Implementation, masters: list[str], name: str) -> None:
    with Client(masters) as client:
        limit = client.rate_limit(name, 1, LONG, group="mail")
        assert limit.acquire() and not limit.acquire(blocking=False)
        [mail] = [figures for group, figures in client.stats().groups.items() if group == "mail"]
        assert (mail.acquired, mail.busy) == (1, 1)
