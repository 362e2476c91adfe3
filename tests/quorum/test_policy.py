"""Pauses, hand-offs, the first master, the numbers of fenced locks, doubts, and outages."""

from __future__ import annotations

import pickle
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.client_queues import World
from support.scripted_votes import KEY, Play

from redlatch import QuorumUnavailable, Retry, impl
from redlatch.errors import ConfigurationError
from redlatch.votes.key import slot_of

pytestmark = pytest.mark.each_build

MS = 1_000_000
SECOND = 1000 * MS


@pytest.fixture
def policies(implementation: impl.Implementation) -> ModuleType:
    return implementation.module("quorum.policy")


@pytest.fixture(scope="module")
def build(build: impl.Implementation) -> ModuleType:
    """The module, for tests that hypothesis calls many times."""
    return build.module("quorum.policy")


@given(attempt=st.integers(0, 10**6), chance=st.floats(0, 1, exclude_max=True))
def test_a_pause_lies_between_nothing_and_its_bound(build: ModuleType, attempt: int, chance: float) -> None:
    pause = build.Retry(first=0.001, longest=0.2).pause_ns(attempt, chance)
    bound = min(200 * MS, MS * 2 ** min(attempt, 64))
    assert 0 <= pause <= bound
    assert pause == pytest.approx(bound * chance, abs=1)


def test_the_pauses_double_until_the_longest(policies: ModuleType) -> None:
    retry = policies.Retry(first=0.004, longest=0.050)
    assert [round(2 * retry.pause_ns(attempt, 0.5) / MS) for attempt in range(6)] == [4, 8, 16, 32, 50, 50]


class Clocks:
    """The clocks of clients and masters, each ahead of the true time by its own error, in microseconds."""

    def __init__(self, policies: ModuleType) -> None:
        self._policies = policies
        self.now = 1_800_000_000_000_000

    def client(self, ahead: int) -> Any:
        return self._policies.Fences(lambda: self.now + ahead)


HOUR = 3_600_000_000


@given(data=st.data(), passed=st.integers(1_000_000, 4 * HOUR))
def test_fences_go_up_over_a_forgetting(build: ModuleType, data: st.DataObject, passed: int) -> None:
    """FE1: while clocks differ by less than an hour, and than half of the time since the marker before."""
    clocks = Clocks(build)
    error = st.integers(0, min(HOUR, passed // 2) - 1)
    before, after = clocks.client(data.draw(error)), clocks.client(data.draw(error))
    before.mark(clocks.now + data.draw(error))
    acquired = data.draw(st.integers(0, passed))
    clocks.now += acquired
    highest = before.propose()
    clocks.now += passed - acquired
    after.mark(clocks.now + data.draw(error))
    assert after.propose() > highest


@given(data=st.data(), age=st.integers(0, 4 * HOUR), passed=st.integers(10, HOUR))
def test_fences_go_up_over_a_loss_of_the_counter(build: ModuleType, data: st.DataObject, age: int, passed: int) -> None:
    """While clocks of clients differ by less than the time between two holders, whatever the master's clock says."""
    clocks = Clocks(build)
    error = st.integers(0, passed - 3)
    one, other = clocks.client(data.draw(error)), clocks.client(data.draw(error))
    since = clocks.now - data.draw(st.integers(-HOUR, HOUR)) - age
    for client in (one, other):
        client.mark(since)
    highest = one.propose()
    clocks.now += passed
    assert other.propose() > highest


@given(data=st.data(), passed=st.integers(1_000_000, 4 * HOUR))
def test_fences_that_were_proposed_before_a_forgetting_go_up(
    build: ModuleType, data: st.DataObject, passed: int
) -> None:
    """The same if the number was proposed first, and then checked as a second round does."""
    clocks = Clocks(build)
    error = st.integers(0, min(HOUR, passed // 2) - 1)
    before, after = clocks.client(data.draw(error)), clocks.client(data.draw(error))
    since = clocks.now + data.draw(error)
    before.mark(since)
    if data.draw(st.booleans()):
        after.mark(since)
    proposed, acquired = sorted(data.draw(st.lists(st.integers(0, passed), min_size=2, max_size=2)))
    clocks.now += proposed
    number = after.propose()
    clocks.now += acquired - proposed
    highest = before.propose()
    clocks.now += passed - acquired
    after.mark(clocks.now + data.draw(error))
    if number < after.marked_floor:
        number = max(number, after.floor())
    assert number > highest


def test_fences_of_one_client_go_up_whatever_its_clock_does(policies: ModuleType) -> None:
    clocks = Clocks(policies)
    fences, last = clocks.client(0), 0
    for step in (1, 0, -HOUR, 5, -24 * HOUR):
        clocks.now += step
        number = fences.propose()
        assert number > last
        fences.note(number)
        last = number


@pytest.mark.parametrize("marked", [False, True])
def test_blocks_of_fences_do_not_run_ahead_of_the_clock(policies: ModuleType, marked: bool) -> None:
    """Found by an attack: with hand-offs, or many names, the lead over a forgetful master was soon lost."""
    clocks = Clocks(policies)
    fences = clocks.client(0)
    if marked:
        fences.mark(clocks.now - HOUR)
    beginning = fences.propose()
    for _ in range(100):
        fences.note(fences.last_of_block(fences.propose(), 1000))
    assert fences.propose() == beginning + 1000 + 100
    clocks.now += 5000
    first = fences.propose()
    assert fences.last_of_block(first, 1000) == first + 1000


@pytest.mark.parametrize(
    ("first", "longest"),
    [(0, 1), (-1, 1), (2, 1), (1, float("inf")), (float("nan"), 1), (0.1, float("nan")), ("1", 1), (None, 1)],
)
def test_a_retry_that_cannot_work_is_refused_by_name(first: Any, longest: Any) -> None:
    with pytest.raises((ConfigurationError, TypeError), match="retry: "):
        Retry(first=first, longest=longest)


def test_a_retry_cannot_be_changed_and_can_be_copied_by_pickling() -> None:
    retry = Retry(first=0.1, longest=0.2)
    with pytest.raises(AttributeError):
        retry.first = 1.0  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(retry)) == retry


def test_a_doubt_that_had_no_reason_ends_and_earlier_ones_stay(policies: ModuleType) -> None:
    """A single master was flushed, and left by a handover afterwards: its first lease is still in doubt."""
    doubts = policies.Doubts()
    doubts.add(10, 0)
    doubts.add(20, 0)
    doubts.add(15, 1)
    doubts.clear(0)
    assert doubts.until_ns == 15
    doubts.clear(1)
    assert doubts.until_ns == 10
    doubts.clear(0)
    assert doubts.until_ns == 10
    doubts.add(30)
    doubts.clear(0)
    assert doubts.until_ns == 30


def test_a_doubt_about_a_node_is_about_all_slots_that_it_has_ever_had(policies: ModuleType) -> None:
    """A slot may come to the node, or leave it, before this client hears that the node has forgotten its keys."""
    doubts = policies.Doubts()
    before, after, never = ({slot_of(name)} for name in (b"before", b"after", b"never"))
    assert not doubts.concern(0, before)
    assert not doubts.concern(1, never)
    doubts.add(20, 0)
    assert doubts.cover(19, b"before") and not doubts.cover(19, b"after")
    assert doubts.concern(0, after)
    assert not doubts.concern(0, after)
    assert doubts.cover(19, b"before") and doubts.cover(19, b"after") and not doubts.cover(19, b"never")
    assert not doubts.cover(20, b"after")


# --- the first master -------------------------------------------------------------------------------------


def test_names_are_spread_over_the_masters(world: World) -> None:
    firsts = {
        world.queues.first_master.first_of(world.quorum.order, b"name-%d" % number, world.now) for number in range(100)
    }
    assert firsts == {0, 1, 2}


def test_a_master_that_was_silent_is_not_asked_first_for_a_second(world: World) -> None:
    first = world.queues.first_master.first_of(world.quorum.order, KEY, world.now)
    world.queues.first_master.deprioritise(first, world.now)
    others = {
        world.queues.first_master.first_of(world.quorum.order, KEY, world.now + since) for since in (0, SECOND - 1)
    }
    assert len(others) == 1 and first not in others
    assert world.queues.first_master.first_of(world.quorum.order, KEY, world.now + SECOND) == first


@pytest.mark.parametrize("votes", ["...", "!!!"])
def test_an_acquire_asks_another_master_first_after_one_was_silent_or_failed(
    implementation: impl.Implementation, votes: str
) -> None:
    play = Play(3, build=implementation)
    assert play.acquire("nnn", votes, "nnn", "yyy", give_up_ns=None)
    asked = [ballot.asked for ballot in play.of("Ballot") if type(ballot.command).__name__ == "Acquire"]
    every, silent, again, first, others = asked
    assert (every, again) == (-1, -1)
    assert silent != first and others == ~first
    assert {silent, first} < {1, 2, 4}


def test_no_master_is_asked_first_if_all_were_silent(world: World) -> None:
    for index in range(3):
        world.queues.first_master.deprioritise(index, world.now)
    assert world.queues.first_master.first_of(world.quorum.order, KEY, world.now) == -1


def test_a_single_master_is_not_asked_before_the_others(implementation: impl.Implementation) -> None:
    world = World(implementation, 1)
    assert world.queues.first_master.first_of(world.quorum.order, KEY, world.now) == -1


# --- outages ----------------------------------------------------------------------------------------------

PATIENCE = 100


@pytest.fixture
def outage(policies: ModuleType) -> Any:
    return policies.Outage(1000, QuorumUnavailable("of 3 masters 2 failed"))


def test_an_outage_has_its_beginning_and_its_last_error(outage: Any) -> None:
    assert outage.since_ns == 1000
    outage.error = QuorumUnavailable("of 3 masters 3 failed")
    assert str(outage.error) == "of 3 masters 3 failed"


@pytest.mark.parametrize(
    ("began", "until", "rides_until"),
    [
        # An acquire counts from the beginning of the outage, or from its own beginning if that is later.
        (900, 10_000, 1000 + PATIENCE),
        (1060, 10_000, 1060 + PATIENCE),
        # Its timeout limits it.
        (900, 1050, 1050),
        # A single attempt.
        (900, 0, 0),
    ],
)
def test_an_acquire_rides_it_out_within_its_timeout(outage: Any, began: int, until: int, rides_until: int) -> None:
    assert outage.rides_until_ns(PATIENCE, began, until) == rides_until


def test_without_patience_an_acquire_gives_up_at_once(outage: Any) -> None:
    assert outage.rides_until_ns(0, 900, 10_000) == 0


@pytest.mark.parametrize(
    ("began", "until", "now", "known"),
    [
        (900, 9999, 1000 + PATIENCE - 1, False),
        (900, 9999, 1000 + PATIENCE, True),
        # Time before the acquire began does not count.
        (1050, 9999, 1000 + PATIENCE, False),
        # The timeout ends first.
        (900, 1040, 1040, True),
    ],
)
def test_a_waiter_knows_an_outage_that_it_has_ridden_out(
    outage: Any, began: int, until: int, now: int, known: bool
) -> None:
    assert outage.known(PATIENCE, began, until, now) is known


def test_without_patience_a_waiter_knows_it_from_two_others_that_gave_up(outage: Any) -> None:
    assert not outage.known(0, 900, 9999, 1010)
    outage.give_up(1000)
    assert not outage.known(0, 900, 9999, 1010)
    outage.give_up(1020)
    assert outage.known(0, 1000, 9999, 1030)
    # This waiter began after the first one had asked.
    assert not outage.known(0, 1001, 9999, 1030)
