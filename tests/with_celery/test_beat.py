"""Beats as processes: one sends at a time, a loss stops it, and nothing ends it but its user.

RedBeat's own scheduler ends its process when the lock is lost (its issues 230 and 218). It fails with AttributeError if
the lock could not be acquired at the start (285). It has two senders after a fail-over of its one server (163).
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.signals import beat_init
from redbeat import schedulers
from support.faces import await_true, wins

from redlatch import Client
from redlatch.celery import RedBeatScheduler
from redlatch.celery.client import client_of
from redlatch.testing import embedded

from .conftest import Site

KEY = "redlatch:celery:redbeat::lock"


@pytest.fixture
def beats(tmp_path: Path) -> Iterator[tuple[Site, embedded.Masters]]:
    """Servers of its own for each test, because all beats have one lock."""
    fleet = embedded.masters(4)
    with fleet as urls:
        site = Site(fleet, urls, tmp_path)
        yield site, fleet


def sent(site: Site) -> int:
    """Return how many tasks beats have sent. No worker takes them."""
    with redis.Redis.from_url(site.broker) as broker:
        return int(broker.llen("celery"))


def await_sent(site: Site, more: int = 2) -> None:
    """Wait until beats have sent more tasks."""
    before = sent(site)
    await_true(lambda: sent(site) >= before + more)


def waits(site: Site, number: int) -> bool:
    return "waiting for the lock" in site.log(number)


def acquisitions(site: Site, number: int) -> int:
    return site.log(number).count("beat: acquired the lock")


def forget(site: Site) -> None:
    """Delete the lock on all masters."""
    for url in site.masters:
        with redis.Redis.from_url(url) as master:
            master.delete(KEY)


def moments(site: Site) -> list[str]:
    """Return when each task was sent, by the logs of all beats."""
    found = []
    for number in range(1, site.number + 1):
        found += re.findall(r"\[(.*?): INFO.*Sending due task", site.log(number))
    return sorted(found)


def test_one_of_two_beats_sends_and_the_other_takes_over(beats: tuple[Site, embedded.Masters]) -> None:
    site, _ = beats
    with site.beat() as first:
        await_sent(site)
        with site.beat() as second:
            await_true(lambda: waits(site, 2))
            await_sent(site)
            assert acquisitions(site, 2) == 0
            # A beat that is told to stop releases its lock, and the other goes on at once.
            first.send_signal(signal.SIGTERM)
            assert first.wait(30) == 0
            await_true(lambda: acquisitions(site, 2) == 1)
            await_sent(site)
            assert second.poll() is None


def test_a_beat_that_is_killed_is_replaced_when_its_lock_has_run_out(beats: tuple[Site, embedded.Masters]) -> None:
    site, _ = beats
    with site.beat() as first, site.beat() as second:
        await_true(lambda: acquisitions(site, 1) + acquisitions(site, 2) == 1)
        await_sent(site)
        leader, other = (first, 2) if acquisitions(site, 1) else (second, 1)
        leader.kill()
        await_true(lambda: acquisitions(site, other) == 1)
        await_sent(site)


def test_a_lost_lock_stops_beat_and_does_not_end_it(beats: tuple[Site, embedded.Masters]) -> None:
    site, _ = beats
    with Client(site.masters, prefix="redlatch:celery:") as client, site.beat() as beat:
        await_sent(site)
        forget(site)
        rival = client.lock("redbeat::lock", auto_renew=True)
        # The lock may be acquired by beat again first.
        while not wins(rival):
            forget(site)
        await_true(lambda: "nothing is sent until the lock is acquired again" in site.log())
        await_true(lambda: waits(site, 1))
        stopped = sent(site)
        assert beat.poll() is None
        # In this time beat would send two tasks.
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            assert sent(site) == stopped
        rival.release()
        await_true(lambda: acquisitions(site, 1) >= 2)
        await_sent(site)
        assert beat.poll() is None


def test_a_beat_that_stood_still_sends_nothing_with_its_old_lock(beats: tuple[Site, embedded.Masters]) -> None:
    site, _ = beats
    with site.beat() as first:
        await_sent(site)
        first.send_signal(signal.SIGSTOP)
        with site.beat() as second:
            await_true(lambda: acquisitions(site, 2) == 1)
            await_sent(site)
            before = len(re.findall("Sending due task", site.log(1)))
            first.send_signal(signal.SIGCONT)
            await_true(lambda: waits(site, 1))
            assert len(re.findall("Sending due task", site.log(1))) == before
            assert first.poll() is second.poll() is None


def test_a_beat_without_a_quorum_waits_for_one_at_the_start(beats: tuple[Site, embedded.Masters]) -> None:
    site, fleet = beats
    for index in (1, 2):
        fleet.kill(index)
    with site.beat() as beat:
        await_true(lambda: "nothing is sent until a quorum answers" in site.log())
        assert sent(site) == 0
        assert beat.poll() is None
        for index in (1, 2):
            fleet.start(index)
        await_sent(site)


def test_a_beat_that_loses_its_quorum_stops_and_goes_on(beats: tuple[Site, embedded.Masters]) -> None:
    site, fleet = beats
    with site.beat() as beat:
        await_sent(site)
        for index in (1, 2):
            fleet.pause(index)
        await_true(lambda: "nothing is sent until a quorum answers" in site.log())
        stopped = sent(site)
        # By now the validity of the lock is over.
        await_true(lambda: "was lost" in site.log() or "acquired again" in site.log())
        assert sent(site) == stopped
        assert beat.poll() is None
        for index in (1, 2):
            fleet.resume(index)
        await_sent(site)


def test_one_master_of_three_may_be_lost(beats: tuple[Site, embedded.Masters]) -> None:
    site, fleet = beats
    with site.beat(), site.beat():
        await_sent(site)
        fleet.kill(1)
        await_sent(site, 4)
        assert acquisitions(site, 1) + acquisitions(site, 2) == 1


def test_a_task_is_sent_once_for_each_time(beats: tuple[Site, embedded.Masters]) -> None:
    site, _ = beats
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(site.beat()) for _ in range(3)]
        await_sent(site)
        running[0].send_signal(signal.SIGTERM)
        await_sent(site, 3)
        for beat in running:
            beat.send_signal(signal.SIGTERM)
            assert beat.wait(30) == 0
    seconds = [moment.partition(",")[0] for moment in moments(site)]
    assert len(seconds) == sent(site)
    # One task each second: two in one second are possible, since beat sends a little late.
    assert all(seconds.count(second) <= 2 for second in seconds)


def test_a_beat_ends_although_the_signal_came_while_an_object_was_deleted(beats: tuple[Site, embedded.Masters]) -> None:
    site, _ = beats
    with site.beat(CELERY_TEST_STOPS="1") as beat:
        assert beat.wait(30) == 0
        assert "Exception ignored in: <function Stops.__del__" in re.sub(r"\n\[[^]]*\] *", "", site.log())
    # The task was about to be sent when the signal came.
    assert sent(site) == 1
    assert acquisitions(site, 1) == 1


# --- in this process -----------------------------------------------------------------------------------


@pytest.fixture
def app(three: list[str], url: str, name: str) -> Iterator[Celery]:
    app = Celery("beat", broker=url)
    app.conf.update(
        redlatch_masters=three, redbeat_redis_url=url, redbeat_key_prefix=f"{name}:", beat_max_loop_interval=0.01
    )
    yield app
    with contextlib.closing(client_of(app)):
        pass


def test_a_scheduler_without_a_lock_key_has_no_lock(app: Celery) -> None:
    scheduler = RedBeatScheduler(app)
    scheduler.lock_key = None
    assert scheduler.tick() == 0.01
    assert scheduler.lock is None
    assert "lock" not in scheduler.info


def test_the_banner_names_the_lock(app: Celery, name: str) -> None:
    assert f"lock -> `{name}::lock` (redlatch)" in RedBeatScheduler(app, lazy=True).info


@pytest.mark.parametrize(("options", "setting", "ttl"), [({}, None, 10), ({"lock_timeout": 7}, 5, 7), ({}, 5, 5)])
def test_the_lock_lives_as_long_as_redbeats_setting_says(
    app: Celery, name: str, three: list[str], options: dict[str, Any], setting: int | None, ttl: int
) -> None:
    app.conf.redbeat_lock_timeout = setting
    scheduler = RedBeatScheduler(app, **options)
    scheduler.tick()
    with redis.Redis.from_url(three[0]) as master:
        assert ttl - 1 < master.pttl(f"redlatch:celery:{name}::lock") / 1000 <= ttl
    scheduler.close()
    assert scheduler.lock is None
    assert not client_of(app).lock(f"{name}::lock").locked()
    # Celery closes it twice.
    scheduler.close()
    with pytest.raises(SystemExit):
        scheduler.tick()
    assert not client_of(app).lock(f"{name}::lock").locked()


def test_a_lock_timeout_beyond_what_the_guard_allows_is_logged_once(
    app: Celery, name: str, three: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = RedBeatScheduler(app, lock_timeout=7200)
    scheduler.tick()
    with redis.Redis.from_url(three[0]) as master:
        assert 3590 < master.pttl(f"redlatch:celery:{name}::lock") / 1000 <= 3600
    scheduler.tick()
    assert caplog.text.count("beat: the lock lives for 3600.0 s instead of 7200 s") == 1
    scheduler.close()


def test_redbeats_own_scheduler_keeps_its_own_lock(app: Celery) -> None:
    scheduler = schedulers.RedBeatScheduler(app)
    service = type("Service", (), {"scheduler": scheduler})()
    beat_init.send(sender=service)
    assert scheduler.lock.owned()
    scheduler.close()


def test_a_scheduler_is_closed_without_a_quorum(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = embedded.masters(1)
    with fleet as urls:
        app.conf.update(redlatch_masters=urls, redlatch_options={"ttl": 1.0, "attempt_timeout": 0.1})
        scheduler = RedBeatScheduler(app)
        scheduler.tick()
        fleet.kill(0)
        scheduler.close()
        assert scheduler.lock is None
        # The client is closed before its server is gone for good.
        client_of(app).close()


def test_a_signal_inside_a_call_of_the_client_leaves_the_lock_for_the_second_close(app: Celery) -> None:
    fleet = embedded.masters(1)
    with fleet as urls:
        app.conf.update(redlatch_masters=urls, redlatch_options={"ttl": 20.0, "attempt_timeout": 10.0})
        scheduler = RedBeatScheduler(app)
        scheduler.tick()
        closed = []

        def close(*_: object) -> None:
            scheduler.close()
            closed.append(scheduler.lock)
            raise SystemExit

        before = signal.signal(signal.SIGALRM, close)
        try:
            fleet.pause(0)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(SystemExit):
                scheduler.tick()
        finally:
            signal.signal(signal.SIGALRM, before)
            fleet.resume(0)
        assert closed != [None]
        scheduler.close()
        assert scheduler.lock is None
        assert not client_of(app).lock(scheduler.lock_key).locked()
        client_of(app).close()
