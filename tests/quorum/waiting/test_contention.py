"""Waiting for a lock that another holder has: behind another hold of this client, or for a change of its key."""

from __future__ import annotations

from typing import Any

import pytest
from support.client_queues import FOR_EVER, World
from support.scripted_votes import BEGINNING, KEY, LATENCY, NAME, SECOND, TTL_MS, Play, clock_of

from redlatch import impl
from redlatch.errors import QuorumUnavailable
from redlatch.options import ClientOptions

# --- behind another hold of this client -------------------------------------------------------------------


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_an_acquire_that_meets_a_head_that_leaves_asks_the_masters(
    implementation: impl.Implementation, moment: int
) -> None:
    # Another thread leaves while this one reads the clock for the first, second or third time.
    world = World(implementation)
    quorums, looked = implementation.module("quorum.quorum"), iter(range(1, 1000))

    def now() -> int:
        if next(looked) == moment:
            world.leave(head)
            head.free()
        return BEGINNING

    quorum = world.quorum = quorums.Quorum(
        masters=world.quorum.masters,
        options=ClientOptions("", guard=None),
        clock=clock_of(implementation, now),
        random=lambda: 0.5,
        tokens=world.quorum.tokens,
        fences=world.quorum.fences,
    )
    head, hold = world.holder(), world.holds.Hold(NAME, KEY, world.play.plain)
    hold.claim(object())
    effect = next(world.play.acquire_module.acquire(quorum, hold, TTL_MS, FOR_EVER))
    assert isinstance(effect, world.ballots.Ballot)
    assert type(effect.command).__name__ == "Acquire"
    assert world.head() is hold and world.queues.by_key == {}


def second_of_two(world: World, give_up_ns: int) -> Any:
    """Return the steps of an acquire behind a head that asks the masters, which waits in the queue."""
    head, hold = world.hold(), world.holds.Hold(NAME, KEY, world.play.plain)
    assert world.queues.become_head(head, world.play.now)
    hold.claim(object())
    steps = world.play.acquire_module.acquire(world.quorum, hold, TTL_MS, give_up_ns)
    assert type(next(steps)).__name__ == "QueueEntry"
    return steps


def find(world: World, hold: Any, since_ns: int = BEGINNING) -> Any:
    """Have a hold find that two masters have failed; return the outage."""
    error = QuorumUnavailable("of 3 masters 2 failed", name=NAME, causes={"a:1": OSError("broken")}, retry_after=0.5)
    return world.queues.note_outage(hold, world.play.build.module("quorum.policy").Outage(since_ns, error))


def test_a_waiter_whose_time_ends_while_the_head_rides_out_a_lost_quorum_raises(
    implementation: impl.Implementation,
) -> None:
    world = World(implementation, patience=60)
    steps = second_of_two(world, BEGINNING + SECOND)
    outage = find(world, world.head())
    world.play.now = BEGINNING + SECOND
    with pytest.raises(QuorumUnavailable, match="of 3 masters 2 failed") as caught:
        next(steps)
    assert caught.value is not outage.error
    assert (caught.value.elapsed, caught.value.name, caught.value.retry_after) == (1.0, NAME, 0.5)
    assert caught.value.causes == outage.error.causes
    assert world.queues.by_key == {}


@pytest.mark.parametrize("patience", [0, 60])
def test_a_waiter_whose_time_ends_is_only_late_without_an_outage(
    implementation: impl.Implementation, patience: int
) -> None:
    world = World(implementation, patience=patience)
    steps = second_of_two(world, BEGINNING + SECOND)
    find(world, world.head())
    if patience:
        world.queues.end_outage(KEY)
    world.play.now = BEGINNING + SECOND
    assert list(steps) == []


def test_a_waiter_behind_a_holder_is_only_late_although_another_hold_finds_no_quorum(
    implementation: impl.Implementation,
) -> None:
    world = World(implementation, patience=60)
    steps = second_of_two(world, BEGINNING + SECOND)
    head = world.head()
    head.ask(world.lease(b"token", BEGINNING, FOR_EVER))
    head.keep(0)
    # It stands beside the queue, as a single attempt may.
    find(world, world.hold())
    world.play.now = BEGINNING + SECOND
    assert list(steps) == []


def test_a_waiter_does_not_know_of_an_outage_of_another_name(implementation: impl.Implementation) -> None:
    world = World(implementation, patience=2)
    steps = second_of_two(world, FOR_EVER)
    other = world.hold(b"another key")
    assert world.queues.become_head(other, world.play.now)
    find(world, other)
    give_up(world, world.head(), 2 * SECOND)
    assert type(next(steps).command).__name__ == "Acquire"


def give_up(world: World, head: Any, after_ns: int) -> None:
    """Have the head give up after this time."""
    world.play.now = BEGINNING + after_ns
    world.leave(head)
    head.free()


def test_waiters_that_become_the_head_later_ride_out_the_same_outage(implementation: impl.Implementation) -> None:
    """Otherwise each of them would ride it out anew, one after the other."""
    world = World(implementation, patience=2)
    steps = second_of_two(world, FOR_EVER)
    find(world, world.head())
    give_up(world, world.head(), 2 * SECOND)
    with pytest.raises(QuorumUnavailable) as caught:
        next(steps)
    # It has waited for as long itself, and asks nobody.
    assert caught.value.elapsed == 2.0


def test_an_outage_is_forgotten_with_the_last_waiter(implementation: impl.Implementation) -> None:
    world = World(implementation, patience=2)
    steps = second_of_two(world, FOR_EVER)
    find(world, world.head())
    give_up(world, world.head(), 2 * SECOND)
    assert list(world.queues.outages) == [KEY]
    with pytest.raises(QuorumUnavailable):
        next(steps)
    world.leave(world.head())
    assert world.queues.outages == {}


@pytest.mark.parametrize(("gave_up", "asks"), [(1, True), (2, False)])
def test_without_patience_a_waiter_asks_unless_two_heads_found_no_quorum(
    implementation: impl.Implementation, gave_up: int, asks: bool
) -> None:
    """Otherwise the waiters of a name would find the same silent masters one after the other."""
    world = World(implementation)
    steps = second_of_two(world, FOR_EVER)
    outage = find(world, world.head())
    for number in range(gave_up):
        outage.give_up(BEGINNING + number)
    give_up(world, world.head(), 2 * SECOND)
    if asks:
        assert type(next(steps).command).__name__ == "Acquire"
    else:
        with pytest.raises(QuorumUnavailable):
            next(steps)


# --- for a change of the key ------------------------------------------------------------------------------


def look_at(play: Play) -> tuple[Any, Any]:
    """Begin to wait for a change of a key that three masters are asked about; return the steps and the look."""
    until = play.now + SECOND
    steps = play.contention_module.wait_for_change(play.quorum, KEY, LATENCY, SECOND, 0, until)
    look = next(steps)
    # This master keeps the key for 300 ms, and pushes.
    look.count_answer(0, 300, True)
    # The key is gone on this master.
    look.yes += 1
    assert look.settled()
    assert next(steps) == [look]
    assert not look.settled()
    return steps, look


def ended(steps: Any) -> Any:
    with pytest.raises(StopIteration) as end:
        next(steps)
    return end.value.value


def test_a_key_that_only_one_master_has_is_not_waited_for(build: impl.Implementation) -> None:
    steps, look = look_at(Play(3, build=build))
    # This is the third answer, which is late.
    look.yes += 1
    assert ended(steps) is False


def test_a_change_that_was_pushed_was_waited_for(build: impl.Implementation) -> None:
    steps, look = look_at(Play(3, build=build))
    assert look.change(0)
    assert ended(steps) is True


def test_a_time_that_is_over_was_waited_for(build: impl.Implementation) -> None:
    steps, _ = look_at(Play(3, build=build))
    assert ended(steps) is True


def rest(play: Play, pauses: int, sure: bool) -> int:
    """Return how long a waiter rests whose masters push, after so many rests without a push."""
    play.chance = 0.5
    look = play.build.module("quorum.waiting.watches").new_watch(
        play.quorum, play.commands.Look(KEY, True), play.now + SECOND
    )
    for index in range(3):
        look.count_answer(index, 60_000, True)
    steps = play.contention_module.wait_for_pushes(play.quorum, look, 60 * SECOND, pauses, 1 << 60, sure)
    assert next(steps) == [look]
    return int(look.until_ns - play.now)


def test_a_waiter_that_may_miss_a_push_asks_soon_at_first_and_then_ever_less(build: impl.Implementation) -> None:
    play = Play(3, build=build)
    rests = [rest(play, pauses, False) for pauses in range(16)]
    assert rests == sorted(rests)
    # At last, as often as one that misses none.
    assert rests[0] < SECOND // 100 < rests[4] < rests[-1] == SECOND // 2
    assert rest(play, 0, True) > SECOND * 9 // 10


@pytest.mark.parametrize("told", [[0], [0, 1], [0, 1, 2]])
def test_pushes_that_another_thread_reads_while_a_watch_begins_end_it(
    implementation: impl.Implementation, told: list[int]
) -> None:
    # Another thread of the client drives the sockets meanwhile; here its part runs when the random number is drawn.
    play = Play(3, build=implementation)
    quorums = implementation.module("quorum.quorum")

    def chance() -> float:
        for index in told:
            play.queues.watches.changed(index, KEY)
        return 0.5

    quorum = play.quorum = quorums.Quorum(
        masters=play.quorum.masters,
        options=ClientOptions("", guard=None),
        clock=play.quorum.clock,
        random=chance,
        tokens=play.quorum.tokens,
        fences=play.quorum.fences,
    )
    play.hold.claim(object())
    steps = play.acquire_module.acquire(quorum, play.hold, TTL_MS, None)
    play.vote(next(steps), "nnn")
    # This effect is the undo.
    next(steps)
    ballot = next(steps)
    for index in range(3):
        ballot.no += 1
        ballot.count_answer(index, 1000, True)
    ballot.decided = True
    [watched] = next(steps)
    assert watched.decided == (len(told) >= 2)
