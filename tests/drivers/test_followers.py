"""How a thread waits for its ballot while another thread leads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.crew import Crew
from support.faces import PATIENCE, await_true, in_thread
from support.proxy import Proxy

from redlatch import impl
from redlatch.errors import ClientClosed


def test_a_thread_that_finds_no_leader_leads_itself(crew: Crew, name: str) -> None:
    ballot = crew.acquiring(name)
    crew.followers.ask(ballot)
    assert ballot.yes == 1
    assert not crew.leader.role and not crew.leader.sleepers


def test_a_sleeping_thread_takes_the_role_over_from_a_leader_that_leaves(crew: Crew, name: str) -> None:
    ballot = crew.acquiring(name)
    with crew.led_by_another() as leave:
        call = in_thread(crew.followers.ask, ballot)
        await_true(lambda: crew.leader.sleepers)
        assert not ballot.decided
        leave.set()
        call.result(PATIENCE)
    assert ballot.yes == 1
    assert not crew.leader.role


def test_a_leader_drives_the_ballots_of_the_others_too(crew: Crew, name: str) -> None:
    ballot = crew.acquiring(name)
    assert crew.leader.take_role()
    call = in_thread(crew.followers.ask, ballot)
    await_true(lambda: crew.leader.inbox)
    while not ballot.decided:
        crew.leader.take_all()
        crew.leader.await_replies(10**9)
    call.result(PATIENCE)
    crew.leader.leave()
    assert ballot.yes == 1


def test_a_ballot_whose_time_is_over_names_the_silent_masters(
    implementation: impl.Implementation, url: str, proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    [proxy] = proxies([url])
    crew = Crew(implementation, proxy.url)
    crew.connect()
    proxy.replies.clear()
    command = crew.commands.Acquire(name.encode(), b"token", crew.boot.now(), 60_000)
    ballots = [crew.ballot(command, seconds) for seconds in (0.02, 0.01)]
    crew.followers.ask(ballots[0])
    assert ballots[0].silent == (0,)
    crew.leader.send(ballots[1:])
    crew.followers.await_all(ballots)
    assert [(ballot.decided, ballot.silent) for ballot in ballots] == [(False, (0,))] * 2
    crew.connections.close()


def test_a_wait_for_many_ballots_ends_when_all_are_decided(crew: Crew, name: str) -> None:
    ballots = [crew.acquiring(f"{name}-{number}") for number in range(20)]
    crew.leader.send(ballots)
    crew.followers.await_all(ballots)
    assert all(ballot.yes == 1 for ballot in ballots)


def test_an_interrupted_follower_is_not_promoted_and_passes_its_task_on(crew: Crew, name: str) -> None:
    next_one = crew.sleepers.Sleeper()
    ballot = crew.acquiring(name)
    with crew.led_by_another() as leave:
        crew.chain.ready.append(next_one)
        crew.strike_once()
        with pytest.raises(KeyboardInterrupt):
            crew.followers.ask(ballot)
        # It would have woken the next thread before it went to sleep.
        assert not next_one.asleep
        [interrupted] = crew.leader.sleepers
        assert not interrupted.asleep
        later = crew.sleepers.Sleeper()
        crew.leader.sleepers.append(later)
        leave.set()
        await_true(lambda: not later.asleep)


def test_a_thread_in_a_queue_sleeps_until_it_is_called(crew: Crew) -> None:
    entry = crew.queue_module.QueueEntry(crew.play.hold, 1 << 62)
    call = in_thread(crew.followers.await_entry, entry)
    await_true(lambda: entry.waiter)
    # A wake-up without a call only makes it look.
    entry.waiter.wake()
    await_true(lambda: entry.waiter.asleep)
    assert not call.done()
    entry.decided = True
    entry.waiter.wake()
    call.result(PATIENCE)


def test_a_wait_in_a_queue_ends_at_its_time(crew: Crew) -> None:
    entry = crew.queue_module.QueueEntry(crew.play.hold, crew.boot.now())
    crew.followers.await_entry(entry)
    assert not entry.decided


def test_a_wait_in_a_queue_ends_with_an_error_when_the_client_closes(crew: Crew) -> None:
    entry = crew.queue_module.QueueEntry(crew.play.hold, 1 << 62)
    call = in_thread(crew.followers.await_entry, entry)
    await_true(lambda: entry.waiter)
    crew.connections.retire()
    entry.waiter.wake()
    with pytest.raises(ClientClosed):
        call.result(PATIENCE)
