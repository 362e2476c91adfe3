"""The order in which sleeping threads wake, on a clock that a test moves."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from support.faces import PATIENCE, in_thread
from support.scripted_votes import BEGINNING, KEY, SECOND, clock_of

from redlatch import impl


class Chain:
    """A wake chain, and sleepers of this thread; none of them sleeps."""

    def __init__(self, build: impl.Implementation) -> None:
        self.module: ModuleType = build.module("drivers.wake_chain")
        self.sleepers: ModuleType = build.module("drivers.sleeper")
        self.ballots: ModuleType = build.module("votes.ballot")
        self.look = build.module("votes.commands").Look(KEY)
        self.now = BEGINNING
        self.step = 0
        self.clock = clock_of(build, self.read)
        self.chain = self.module.WakeChain(self.clock)

    def read(self) -> int:
        self.now += self.step
        return self.now

    def decided(self, count: int) -> list[Any]:
        """Return the sleepers of ballots that are decided at one moment."""
        ballots = []
        for _ in range(count):
            ballot = self.ballots.Ballot(self.look, 1, 1)
            ballot.waiter = self.sleepers.Sleeper()
            ballots.append(ballot)
        # The chain wakes the owner of the last ballot first.
        waiters = [ballot.waiter for ballot in reversed(ballots)]
        self.chain.wake_owners(ballots)
        assert not ballots
        return waiters


def asleep(sleepers: list[Any]) -> list[bool]:
    return [sleeper.asleep for sleeper in sleepers]


@pytest.fixture
def chain(implementation: impl.Implementation) -> Chain:
    return Chain(implementation)


def test_a_few_threads_are_woken_at_once(chain: Chain) -> None:
    sleepers = chain.decided(3)
    assert asleep(sleepers) == [False] * 3
    assert all(sleeper.decided for sleeper in sleepers)
    assert chain.chain.next_asleep() is None


def test_of_many_threads_one_is_woken_and_each_wakes_the_next(chain: Chain) -> None:
    sleepers = chain.decided(5)
    assert asleep(sleepers) == [False, True, True, True, True]
    # All of them may see already that their ballots are decided.
    assert all(sleeper.decided for sleeper in sleepers)
    assert chain.chain.next_if_mine() is sleepers[1]
    assert chain.chain.next_asleep() is sleepers[1]


def test_only_the_thread_that_was_woken_last_may_wake_the_next(chain: Chain) -> None:
    sleepers = chain.decided(5)
    assert in_thread(chain.chain.next_if_mine).result(PATIENCE) is None
    assert chain.chain.next_if_mine() is sleepers[1]


def test_a_thread_that_is_awake_is_passed_over(chain: Chain) -> None:
    sleepers = chain.decided(5)
    sleepers[1].wake()
    chain.chain.wake_next()
    assert asleep(sleepers) == [False, False, False, True, True]


def test_more_decided_ballots_do_not_begin_a_second_chain(chain: Chain) -> None:
    first = chain.decided(5)
    later = chain.decided(1)
    assert asleep([*first, *later]) == [False, True, True, True, True, True]
    chain.chain.wake_all()
    assert asleep([*first, *later]) == [False] * 6


def test_a_chain_that_is_stuck_is_woken_whole_and_so_are_the_next_ones_for_a_while(chain: Chain) -> None:
    sleepers = chain.decided(5)
    # The thread that was woken first never comes back, and the clock runs on.
    chain.step = chain.module.STUCK_NS
    chain.chain.rest()
    chain.step = 0
    assert asleep(sleepers) == [False] * 5
    assert chain.chain.resting is None
    assert asleep(chain.decided(5)) == [False] * 5
    chain.now += chain.module.APART_NS + SECOND
    assert asleep(chain.decided(5)) == [False, True, True, True, True]


def test_a_leader_that_is_interrupted_while_it_rests_rests_no_longer(chain: Chain) -> None:
    chain.decided(5)

    def strike() -> int:
        raise KeyboardInterrupt

    struck = chain.module.WakeChain(clock_of(impl.current, strike))
    struck.ready.extend(chain.chain.ready)
    with pytest.raises(KeyboardInterrupt):
        struck.rest()
    assert struck.resting is None


def test_a_watcher_looks_again_after_each_notice(chain: Chain) -> None:
    watchers = chain.module.Watchers(chain.clock)
    seen: list[None] = []

    def done() -> bool:
        seen.append(None)
        watchers.notify()
        return len(seen) == 3

    watchers.wait(done, chain.now + 3600 * SECOND)
    assert len(seen) == 3


@pytest.mark.parametrize("ends", ["time", "error"])
def test_a_watcher_whose_wait_has_ended_is_forgotten(ends: str) -> None:
    # The compiled class hides its list.
    chain = Chain(impl.load("python"))
    watchers = chain.module.Watchers(chain.clock)

    def done() -> bool:
        assert len(watchers._sleepers) == 1
        if ends == "error":
            raise ValueError
        chain.now += SECOND
        return False

    if ends == "error":
        with pytest.raises(ValueError):
            watchers.wait(done, chain.now + SECOND)
    else:
        watchers.wait(done, chain.now + SECOND)
    assert not watchers._sleepers
