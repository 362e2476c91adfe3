"""The end of a client for threads: what is still sent, and the sockets when another thread has the role."""

from __future__ import annotations

from typing import Any

import pytest
from support.crew import Crew
from support.faces import ask, await_true

from redlatch.drivers import closing
from redlatch.errors import ClientClosed


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `close` wait only for 10 ms for the role."""
    monkeypatch.setattr(closing, "DRAIN_NS", 10_000_000)


def test_a_client_that_never_connected_is_closed_at_once(unconnected: Crew) -> None:
    unconnected.closing.close()
    assert unconnected.hung_up()
    with pytest.raises(ClientClosed):
        unconnected.connections.check()


def test_a_release_in_the_inbox_arrives_before_the_sockets_are_closed(crew: Crew, url: str, name: str) -> None:
    ask(url).set(name, "token", px=60_000)
    crew.leader.inbox.append(crew.releasing(name))
    crew.closing.close()
    assert not ask(url).exists(name)
    assert crew.hung_up() and not crew.leader.role


def test_closing_wakes_every_thread_that_waits(crew: Crew) -> None:
    entry = crew.queue_module.QueueEntry(crew.play.hold, 1 << 62)
    owner, follower, entry.waiter = (crew.sleepers.Sleeper() for _ in range(3))
    crew.chain.ready.append(owner)
    crew.leader.sleepers.append(follower)
    crew.queues.watches.add(crew.play.hold.key, watch := watch_of(crew))
    crew.closing._wake_everybody()
    assert not (owner.asleep or follower.asleep or watch.waiter.asleep)


def watch_of(crew: Crew) -> Any:
    watch = crew.play.watches.new_watch(crew.quorum, crew.commands.Look(crew.play.hold.key), 0)
    watch.waiter = crew.sleepers.Sleeper()
    return watch


def test_closing_again_changes_nothing(crew: Crew) -> None:
    crew.closing.close()
    assert crew.leader.take_role()
    crew.closing.close()
    assert crew.leader.has_role()
    crew.leader.leave()


def test_the_sockets_of_another_leader_stay_open_until_it_has_left(crew: Crew, short: None) -> None:
    with crew.led_by_another():
        crew.closing.close()
        assert crew.closing.overdue
        assert not crew.hung_up()
        # New calls are refused all the same.
        with pytest.raises(ClientClosed):
            crew.connections.check()
        crew.closing.close_late()
        assert not crew.leader.has_role()
    crew.closing.close_late()
    assert crew.hung_up() and not crew.leader.role
    crew.closing.close_late()


def test_a_close_that_is_interrupted_leaves_the_sockets_to_the_background_thread(crew: Crew) -> None:
    crew.strike_once()
    with pytest.raises(KeyboardInterrupt):
        crew.closing.close()
    assert crew.connections.lifecycle.closing and crew.closing.overdue
    crew.closing.close_late()
    assert crew.hung_up()


def test_an_interrupt_while_the_client_closes_as_the_leader_closes_the_sockets(crew: Crew) -> None:
    # By the second reading the thread has the role.
    crew.strike_once(after=1)
    with pytest.raises(KeyboardInterrupt):
        crew.closing.close()
    assert crew.hung_up()
    assert not crew.leader.role


def test_at_exit_a_client_waits_for_its_releases_unless_it_never_connected(
    unconnected: Crew, url: str, name: str
) -> None:
    unconnected.closing.await_answers(1 << 62)
    unconnected.connect()
    ask(url).set(name, "token", px=60_000)
    release = unconnected.releasing(name)
    unconnected.leader.inbox.append(release)
    unconnected.closing.await_answers(unconnected.boot.now() + 10**10)
    assert release.yes == 1
    assert not unconnected.leader.role and not unconnected.hung_up()


def test_at_exit_a_thread_that_leads_is_left_alone(crew: Crew) -> None:
    with crew.led_by_another():
        crew.closing.await_answers(crew.boot.now() + 10**10)
        assert crew.leader.role


def held(crew: Crew, url: str, name: str) -> Any:
    """Return a hold of the crew with a key on the master."""
    hold = crew.play.holds.Hold(name, name.encode(), crew.play.plain)
    hold.claim(object())
    assert crew.queues.become_head(hold, crew.boot.now())
    now = crew.boot.now()
    hold.ask(crew.play.build.module("quorum.lease").new_lease(b"token", now, now + 60 * 10**9))
    hold.keep(0)
    ask(url).set(name, "token", px=60_000)
    return hold


def test_held_locks_are_released_only_if_that_is_wanted(crew: Crew, url: str, name: str) -> None:
    held(crew, url, name)
    crew.closing.close()
    assert ask(url).exists(name)


def test_held_locks_are_released(crew: Crew, url: str, name: str) -> None:
    hold = held(crew, url, name)
    crew.closing.close(True)
    assert not ask(url).exists(name)
    assert not hold.held(crew.boot.now())


def test_held_locks_are_released_although_another_thread_leads(crew: Crew, short: None, url: str, name: str) -> None:
    held(crew, url, name)
    with crew.led_by_another():
        crew.closing.close(True)
        assert crew.closing.overdue
        assert ask(url).exists(name)
    # The leader sends what is in the inbox when it leaves.
    await_true(lambda: not ask(url).exists(name))


@pytest.mark.parametrize("readings", range(4))
def test_held_locks_are_released_although_the_close_is_interrupted(
    crew: Crew, url: str, name: str, readings: int
) -> None:
    hold = held(crew, url, name)
    crew.strike_once(after=readings)
    with pytest.raises(KeyboardInterrupt):
        crew.closing.close(True)
    crew.closing.close_late()
    assert crew.hung_up()
    assert not hold.held(crew.boot.now())
    await_true(lambda: not ask(url).exists(name))


def test_a_lock_that_is_kept_while_the_client_closes_is_released(
    crew: Crew, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_later: list[Any] = []
    asking = crew.closing._asking

    def keep_meanwhile() -> bool:
        if not held_later:
            held_later.append(held(crew, url, name))
        return asking()

    monkeypatch.setattr(crew.closing, "_asking", keep_meanwhile)
    crew.closing.close(True)
    assert held_later and not ask(url).exists(name)
