"""The role of the leader: who has it, what is sent first, and how it is handed over."""

from __future__ import annotations

import time

import pytest
from support.crew import Crew
from support.faces import PATIENCE, ask, in_thread


def test_one_thread_has_the_role_and_may_take_it_again(crew: Crew) -> None:
    assert not crew.leader.has_role()
    assert crew.leader.take_role() and crew.leader.take_role()
    assert crew.leader.has_role()
    assert not in_thread(crew.leader.take_role).result(PATIENCE)
    assert not in_thread(crew.leader.has_role).result(PATIENCE)
    crew.leader.leave()
    assert in_thread(lambda: (crew.leader.take_role(), crew.leader.leave())[0]).result(PATIENCE)


def test_a_leader_drives_its_ballot_and_gives_the_role_up(crew: Crew, name: str) -> None:
    ballot = crew.acquiring(name)
    assert crew.leader.lead(ballot, ballot)
    assert ballot.decided and ballot.yes == 1
    assert not crew.leader.role


def test_a_thread_does_not_lead_while_another_does(crew: Crew, name: str) -> None:
    ballot = crew.acquiring(name)
    with crew.led_by_another():
        assert not crew.leader.lead(ballot, ballot)
        assert crew.leader.role
    assert not ballot.decided


def test_what_is_in_the_inbox_leaves_before_the_ballot_of_the_leader(crew: Crew, url: str, name: str) -> None:
    ask(url).set(name, "old", px=60_000)
    crew.leader.inbox.append(crew.releasing(name, b"old"))
    ballot = crew.acquiring(name, b"new")
    assert crew.leader.lead(ballot, ballot)
    assert ballot.yes == 1
    assert ask(url).get(name) == b"new"


def test_a_leader_that_is_interrupted_gives_the_role_up_and_promotes_a_sleeper(crew: Crew, name: str) -> None:
    awake, decided, sleeper, later = (crew.sleepers.Sleeper() for _ in range(4))
    awake.wake()
    decided.decided = True
    crew.leader.sleepers.extend([awake, decided, sleeper, later])
    ballot = crew.acquiring(name)
    crew.strike_once()
    with pytest.raises(KeyboardInterrupt):
        crew.leader.lead(ballot, ballot)
    assert not crew.leader.role
    assert (sleeper.asleep, later.asleep) == (False, True)
    assert list(crew.leader.sleepers) == [later]


def test_a_leader_leaves_at_once_however_many_sleepers_woke_meanwhile(crew: Crew) -> None:
    """A leader may wait for a second, and each call of another thread meanwhile leaves its sleeper behind."""
    awake, sleeper = crew.sleepers.Sleeper(), crew.sleepers.Sleeper()
    awake.wake()
    crew.leader.sleepers.extend([awake] * 400_000)
    crew.leader.sleepers.append(sleeper)
    began = time.process_time()
    crew.leader.promote()
    # If each took time that grows with their number, this would last 10 s.
    assert time.process_time() - began < 2
    assert not sleeper.asleep and not crew.leader.sleepers


def test_the_role_that_an_interrupted_call_has_kept_is_given_up_at_the_next_call(crew: Crew) -> None:
    assert crew.leader.take_role()
    # No call of a client is on the stack.
    crew.leader.enter()
    assert not crew.leader.role


def test_while_the_client_closes_releases_are_sent_and_acquires_are_not(crew: Crew, url: str, name: str) -> None:
    ask(url).set(name, "old", px=60_000)
    crew.connections.retire()
    release = crew.releasing(name, b"old")
    acquire = crew.acquiring(f"{name}-2")
    crew.leader.inbox.extend([acquire, release])
    assert crew.leader.take_role()
    crew.leader.take_all()
    while not release.decided:
        crew.leader.await_replies(10**9)
    crew.leader.leave()
    assert not ask(url).exists(name) and not ask(url).exists(f"{name}-2")


def test_a_thread_that_waits_for_its_turn_is_woken_once(crew: Crew) -> None:
    sleeper = crew.sleepers.Sleeper()
    entry = crew.queue_module.QueueEntry(crew.play.hold, 1 << 62)
    entry.waiter = sleeper
    crew.queues.called.append(entry)
    crew.leader.wake_called()
    assert not sleeper.asleep
    assert not crew.queues.called
