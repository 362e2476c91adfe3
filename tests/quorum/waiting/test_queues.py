"""The wait queues of a client: which waiters are called or passed over, and which leases must be released.

The tests play the possible orders of the steps of two threads one by one.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.client_queues import FOR_EVER, OTHER, World, look
from support.scripted_votes import KEY, NAME, SECOND, VALIDITY

from redlatch import impl
from redlatch.errors import LockBusy, LockLost

# --- the queue ---------------------------------------------------------------------------------------


def test_the_first_hold_is_the_head_and_all_others_queue(world: World) -> None:
    first, second = world.hold(), world.hold()
    assert world.queues.become_head(first, world.now) and world.queues.become_head(first, world.now)
    assert not world.queues.become_head(second, world.now)
    assert world.head() is first


@pytest.mark.parametrize("state", ["WAITING", "ASKING", "RELEASING", "HELD"])
def test_a_head_that_is_active_stays_the_head(world: World, state: str) -> None:
    head = world.holder()
    head.state = getattr(world.claims, state)
    assert not world.queues.become_head(world.hold(), world.now)


@pytest.mark.parametrize("state", ["FREE", "UNCONFIRMED"])
def test_the_next_hold_replaces_a_head_that_has_finished(world: World, state: str) -> None:
    head, hold = world.holder(), world.hold()
    head.state = getattr(world.claims, state)
    assert world.queues.become_head(hold, world.now)
    assert world.head() is hold


def test_the_next_hold_replaces_a_head_that_has_lost_its_lock(world: World) -> None:
    head, hold = world.holder(), world.hold()
    assert not world.queues.become_head(hold, head.deadline_ns - 1)
    assert world.queues.become_head(hold, head.deadline_ns)
    assert world.head() is hold


@pytest.mark.parametrize("state", ["HELD", "RELEASING"])
def test_the_next_hold_replaces_a_head_whose_lease_is_in_doubt_unless_it_is_released(world: World, state: str) -> None:
    head, hold = world.holder(), world.hold()
    head.state = getattr(world.claims, state)
    world.queues.doubts.add(head.lease.asked_ns)
    assert not world.queues.become_head(hold, world.now)
    world.queues.doubts.add(head.lease.asked_ns + 1)
    assert world.queues.become_head(hold, world.now) is (state == "HELD")


def test_the_next_waiter_is_called_when_the_lease_of_the_head_comes_into_doubt(world: World) -> None:
    head, entry = world.holder(), world.waiter()
    world.queues.expire(world.now)
    assert world.called() == []
    world.queues.doubts.add(head.lease.asked_ns + 1)
    world.queues.expire(world.now)
    assert world.called() == [entry]
    assert not world.hand_off(head)


def test_a_replaced_head_neither_passes_its_lease_on_nor_calls_a_waiter(world: World) -> None:
    lost, hold = world.holder(), world.hold()
    assert world.queues.become_head(hold, lost.deadline_ns)
    entry = world.waiter()
    assert not world.hand_off(lost)
    world.leave(lost)
    assert not entry.decided and world.head() is hold


def test_the_queues_of_two_names_are_independent(world: World) -> None:
    mine, theirs = world.holder(), world.holder(OTHER)
    entry, other = world.waiter(), world.waiter(OTHER)
    world.leave(mine)
    assert world.called() == [entry]
    assert world.head(OTHER) is theirs and not other.decided


def test_waiters_are_called_in_the_order_of_arrival(world: World) -> None:
    head = world.holder()
    entries = [world.waiter() for _ in range(5)]
    for entry in entries:
        world.leave(head)
        assert world.called() == [entry]
        assert (entry.lease, world.head()) == (None, entry.hold)
        head = entry.hold
    world.leave(head)
    assert (world.called(), world.queues.heads, world.queues.by_key) == ([], {}, {})


@pytest.mark.parametrize("backs_off", [True, False])
def test_a_called_waiter_learns_whether_other_clients_get_a_chance_first(world: World, backs_off: bool) -> None:
    head, entry = world.holder(), world.waiter()
    world.leave(head, backs_off)
    assert entry.backs_off is backs_off


def test_a_waiter_that_left_the_queue_is_not_called(world: World) -> None:
    head = world.holder()
    first, second, third = (world.waiter() for _ in range(3))
    assert world.queues.step_out(second, world.now) is None
    assert world.queues.step_out(first, world.now) is None
    world.leave(head)
    assert world.called() == [third]


def test_a_called_waiter_that_leaves_calls_the_next_one(world: World) -> None:
    head, first, second = world.holder(), world.waiter(), world.waiter()
    world.leave(head)
    assert world.queues.step_out(first, world.now) is None
    assert world.called() == [first, second]
    assert world.head() is second.hold


def test_the_last_one_to_leave_removes_the_queue_and_the_head(world: World) -> None:
    head, entry = world.holder(), world.waiter()
    world.queues.step_out(entry, world.now)
    assert world.queues.by_key == {}
    world.leave(head)
    assert world.queues.heads == {}


@pytest.mark.parametrize("most", [0, 1, 3])
def test_at_most_max_waiters_may_join(implementation: impl.Implementation, most: int) -> None:
    world = World(implementation, max_waiters=most)
    world.holder()
    entries = [world.waiter() for _ in range(most)]
    for _ in range(2):
        with pytest.raises(LockBusy) as caught:
            world.join(world.hold())
        assert (caught.value.depth, caught.value.name) == (most, NAME)
        # The pace of the queue is not known yet.
        assert caught.value.retry_after == world.quorum.retry.longest
    assert bool(world.queues.by_key) == bool(most)
    for entry in entries:
        world.queues.step_out(entry, world.now)
    assert world.queues.by_key == {}


def paced(build: impl.Implementation, **options: Any) -> World:
    """Return a world whose queue has moved once a second so far, and in which two wait."""
    world = World(build, tenure=1000.0, **options)
    head = world.holder()
    entries = [world.waiter() for _ in range(60)]
    for entry in entries[:-2]:
        assert world.hand_off(head)
        head = entry.hold
        entry.take_lease()
        head.lease = head.lease.until(FOR_EVER)
        world.now += SECOND
    return world


def test_a_waiter_that_would_wait_for_too_long_is_refused(implementation: impl.Implementation) -> None:
    world = paced(implementation, refuse_late=True)
    pace = world.queues.by_key[KEY].pace_ns
    assert 0.99 * SECOND < pace <= SECOND
    with pytest.raises(LockBusy) as caught:
        world.join(world.hold(), world.now + 3 * pace - 1)
    assert caught.value.depth == 2
    # The two that wait, and this one.
    assert caught.value.retry_after == 3 * pace / SECOND
    world.join(world.hold(), world.now + 3 * pace)


def test_no_waiter_is_refused_for_being_late_by_default(implementation: impl.Implementation) -> None:
    world = paced(implementation)
    world.join(world.hold(), world.now + 1)


def test_everybody_returns_all_waiters_and_watchers(world: World) -> None:
    world.holder()
    entries = [world.waiter(), world.waiter()]
    ballot = look(world, 1000, 2000, 3000)
    assert world.queues.everybody() == [entries[0], entries[1], ballot]


# --- leases that are handed off ----------------------------------------------------------------------


def test_a_lease_passes_with_all_of_its_attributes(world: World) -> None:
    head, entry = world.holder(), world.waiter()
    assert world.hand_off(head)
    assert world.called() == [entry]
    lease = entry.lease
    assert (lease.token, lease.since_ns, lease.deadline_ns, lease.hand_offs) == (
        head.token,
        head.lease.since_ns,
        head.deadline_ns,
        1,
    )
    assert lease is not head.lease and world.head() is entry.hold


def test_a_lease_with_an_exposed_token_does_not_pass_but_the_next_one_does(world: World) -> None:
    head, entry = world.holder(), world.waiter()
    head.token_exposed = True
    assert not world.hand_off(head)
    world.queues.leave(head, world.now, False)
    assert world.head() is entry.hold
    # The token was exposed in an earlier attempt.
    entry.hold.token_exposed = True
    entry.hold.ask(world.lease(b"another", world.now, world.now + VALIDITY))
    entry.hold.keep(0)
    world.waiter()
    assert world.hand_off(entry.hold)


@pytest.mark.parametrize(("mine", "theirs"), [*itertools.product(["", "once", "chosen"], repeat=2)])
def test_a_lease_passes_only_to_one_of_its_kind_without_a_token_of_its_own(
    implementation: impl.Implementation, mine: str, theirs: str
) -> None:
    world = World(implementation, tenure=1000.0)
    kind_of = implementation.module("quorum.kinds.foreign").Given
    kinds = {"": world.play.plain, "once": kind_of(b"mine", True), "chosen": kind_of(b"mine", False)}
    head, entry = world.holder(), world.waiter()
    head.kind, entry.hold.kind = kinds[mine], kinds[theirs]
    assert world.hand_off(head) is (mine == theirs != "chosen")


def test_the_holder_of_a_deleted_key_has_lost_it_and_a_later_lease_is_valid(world: World) -> None:
    head, entry = world.holder(), world.waiter()
    world.queues.note_deletion(OTHER, world.now)
    assert head.held(world.now)
    world.queues.note_deletion(KEY, world.now)
    assert not head.held(world.now)
    # The lease begins after the deletion.
    head.ask(world.lease(b"another", world.now + 1, world.now + VALIDITY))
    head.keep(0)
    assert world.hand_off(head)
    entry.take_lease()
    assert entry.hold.held(world.now + 1)


@pytest.mark.parametrize("when", ["while it is released", "while it is handed off", "when it was handed off"])
def test_a_key_that_is_deleted_during_a_hand_off_is_lost_for_the_next_holder(world: World, when: str) -> None:
    head, entry = world.holder(), world.waiter()
    head.begin_release(world.now)
    world.now += 1
    if when == "while it is released":
        world.queues.note_deletion(KEY, world.now)
    assert world.hand_off(head)
    if when == "while it is handed off":
        world.queues.note_deletion(KEY, world.now)
    entry.take_lease()
    if when == "when it was handed off":
        world.queues.note_deletion(KEY, world.now)
    assert entry.hold.state == world.claims.HELD
    assert not entry.hold.held(world.now)


@pytest.mark.parametrize("trust_local_holder", [True, False])
def test_a_grant_beside_the_head_ends_its_hold_unless_the_local_holder_is_trusted(
    implementation: impl.Implementation, trust_local_holder: bool
) -> None:
    world = World(implementation, trust_local_holder=trust_local_holder)
    head = world.holder()
    world.queues.overtake(world.quorum, head, world.now)
    assert head.held(world.now)
    world.queues.overtake(world.quorum, world.hold(), world.now)
    assert head.held(world.now) is trust_local_holder


def test_an_attempt_beside_the_head_knows_of_deletions_of_its_key(world: World) -> None:
    world.holder()
    asking = world.hold()
    asking.ask(world.lease(b"token", world.now, world.now + VALIDITY))
    world.queues.note_deletion(OTHER, world.now + 1)
    assert not world.queues.deleted(asking)
    world.queues.note_deletion(KEY, world.now + 2)
    assert world.queues.deleted(asking)
    # More deletions than are kept.
    for number in range(3, 100):
        world.queues.note_deletion(OTHER, world.now + number)
    assert world.queues.deleted(asking)
    asking.ask(world.lease(b"another", world.now + 100, world.now + VALIDITY))
    assert not world.queues.deleted(asking)


def test_a_lease_does_not_pass_without_a_waiter(world: World) -> None:
    head = world.holder()
    assert not world.hand_off(head)
    assert world.head() is head


def test_a_lease_passes_until_its_tenure_is_over(implementation: impl.Implementation) -> None:
    world = World(implementation, tenure=0.25)
    head = world.holder()
    entry = world.waiter()
    world.now = head.lease.since_ns + SECOND // 4
    assert not world.hand_off(head)
    assert not entry.decided and entry.lease is None
    world.now -= 1
    assert world.hand_off(head)


def test_the_tenure_begins_when_the_lock_was_won_not_when_it_was_passed(
    implementation: impl.Implementation,
) -> None:
    world = World(implementation, tenure=0.25)
    head = world.holder()
    first, second = world.waiter(), world.waiter()
    world.now += SECOND // 5
    assert world.hand_off(head)
    first.take_lease()
    world.now += SECOND // 5
    assert not world.hand_off(first.hold)
    assert second.lease is None


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_lease_passes_at_most_count_times(implementation: impl.Implementation, count: int) -> None:
    world = World(implementation, tenure=1000.0, count=count)
    head = world.holder()
    entries = [world.waiter() for _ in range(count + 1)]
    for entry in entries[:count]:
        assert world.hand_off(head)
        entry.take_lease()
        head = entry.hold
    assert not world.hand_off(head)
    assert entries[count].lease is None


def test_a_waiter_that_left_before_the_hand_off_is_skipped(world: World) -> None:
    head, first, second = world.holder(), world.waiter(), world.waiter()
    assert world.queues.step_out(first, world.now) is None
    assert world.hand_off(head)
    assert (first.lease, world.called()) == (None, [second])


def test_a_waiter_that_leaves_after_the_hand_off_has_to_release_the_lease(world: World) -> None:
    head, first, second = world.holder(), world.waiter(), world.waiter()
    assert world.hand_off(head)
    lease = world.queues.step_out(first, world.now)
    assert lease is not None and lease.token == head.token
    # The waiter leaves when the lease is released.
    world.leave(first.hold)
    assert world.called() == [first, second]
    assert (second.lease, world.head()) == (None, second.hold)


@pytest.fixture(params=["before the turn is called", "after it was called"])
def meeting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world in pure Python. It runs `meets` once in the middle of the step that calls the next entry."""
    monkeypatch.setattr(impl, "current", impl.load("python"))
    world: Any = World(impl.current)
    world.meets = None
    waiting = impl.current.module("quorum.waiting.queues")
    kind, name = (waiting.WaitQueue, "move") if request.param.startswith("before") else (waiting, "_discard")
    step = getattr(kind, name)

    def interposed(*args: Any) -> None:
        step(*args)
        meets, world.meets = world.meets, None
        if meets is not None:
            meets()

    monkeypatch.setattr(kind, name, interposed)
    return world  # type: ignore[no-any-return]


def test_a_lease_that_meets_a_leaving_waiter_is_released_by_exactly_one_of_both(meeting: Any) -> None:
    head, first, second = meeting.holder(), meeting.waiter(), meeting.waiter()
    left: list[Any] = []
    meeting.meets = lambda: left.append(meeting.queues.step_out(first, meeting.now))
    passed = meeting.hand_off(head)
    assert passed == (left[0] is not None)
    if passed:
        # The waiter leaves when the lease is released.
        meeting.leave(first.hold)
    assert (second.lease, meeting.head()) == (None, second.hold)
    assert meeting.called().count(second) == 1


def test_a_waiter_that_leaves_while_it_is_called_causes_one_call_of_the_next(meeting: Any) -> None:
    head, first, second, third = meeting.holder(), meeting.waiter(), meeting.waiter(), meeting.waiter()
    meeting.meets = lambda: meeting.queues.step_out(first, meeting.now)
    meeting.leave(head)
    assert meeting.head() is second.hold
    assert second.decided and not third.decided


def test_a_release_that_meets_a_leaving_waiter_is_no_loss(meeting: Any) -> None:
    play, head = meeting.play, meeting.holder()
    entry = meeting.waiter()
    released: list[bytes] = []

    # Leave, and release a lease that came too late, as `_wait_in_queue` does.
    def leave() -> None:
        lease = meeting.queues.step_out(entry, meeting.now)
        if lease is not None:
            released.append(lease.token)
            meeting.leave(entry.hold)

    meeting.meets = leave
    try:
        for effect in play.releasing(play.quorum, head, SECOND):
            for ballot in effect if isinstance(effect, list) else [effect]:
                # The masters got the other release first.
                if isinstance(ballot, play.ballots.Ballot):
                    play.vote(ballot, "nnn" if released else "yyy")
    except LockLost:
        pytest.fail("it was held to its end")
    assert head.state == play.claims.FREE


def test_a_hold_that_joins_while_the_head_leaves_becomes_the_head(world: World) -> None:
    head, hold = world.holder(), world.hold()
    # The hold has to join, but no waiter is in the queue yet when the head leaves.
    assert not world.queues.become_head(hold, world.now)
    world.leave(head)
    entry = world.join(hold)
    assert world.queues.become_head(hold, world.now)
    assert world.head() is hold
    world.queues.drop(entry)
    assert world.queues.by_key == {}


def test_a_hold_that_joined_before_the_head_leaves_is_called_before_it_looks(world: World) -> None:
    head, hold = world.holder(), world.hold()
    assert not world.queues.become_head(hold, world.now)
    entry = world.join(hold)
    world.leave(head)
    assert world.called() == [entry]
    assert world.queues.become_head(hold, world.now)


def test_a_waiter_finds_a_lease_that_it_got_before_it_looked(world: World) -> None:
    head, hold = world.holder(), world.hold()
    entry = world.join(hold)
    assert world.hand_off(head)
    assert world.queues.become_head(hold, world.now)
    assert entry.lease is not None


def test_two_holds_that_join_without_a_head_do_not_both_become_the_head(world: World) -> None:
    head, first, second = world.holder(), world.hold(), world.hold()
    assert not world.queues.become_head(first, world.now) and not world.queues.become_head(second, world.now)
    world.leave(head)
    entries = [world.join(hold) for hold in (first, second)]
    assert [world.queues.become_head(hold, world.now) for hold in (first, second)] == [True, False]
    world.queues.drop(entries[0])
    world.leave(first)
    assert world.called() == [entries[1]]


@pytest.mark.parametrize("state", ["HELD", "FREE"])
def test_expire_calls_the_next_waiter_after_a_head_that_is_lost_or_gone(world: World, state: str) -> None:
    head, entry = world.holder(), world.waiter()
    world.queues.expire(world.now)
    assert not entry.decided
    head.state = getattr(world.claims, state)
    world.queues.expire(head.deadline_ns)
    assert world.called() == [entry]
    assert world.head() is entry.hold


# --- any order ---------------------------------------------------------------------------------------

KEYS = (KEY, OTHER)
STEPS = st.tuples(st.sampled_from(["come", "come", "pass", "leave", "wake", "wake", "step out"]), st.integers(0, 11))


class Crowd(World):
    """Twelve holds of two names. Each does its next step on demand, and the rules are checked after each step."""

    def __init__(self, build: impl.Implementation) -> None:
        super().__init__(build, tenure=1000.0)
        self.all = [self.hold(KEYS[number % 2]) for number in range(12)]
        # The entries of the holds that wait in a queue, or were called and are not awake yet.
        self.entries: dict[int, Any] = {}
        # The holds that ask the masters, or hold the lock.
        self.busy: set[int] = set()
        self.came: dict[bytes, list[int]] = {key: [] for key in KEYS}
        self.released = 0

    def step(self, what: str, number: int) -> None:
        hold = self.all[number]
        entry = self.entries.get(number)
        if what == "come" and number not in self.busy and entry is None:
            hold.state = self.claims.WAITING
            if self.queues.become_head(hold, self.now):
                self.win(number)
            else:
                self.entries[number] = self.join(hold)
                self.came[hold.key].append(number)
                assert not self.queues.become_head(hold, self.now)
        elif what == "pass" and number in self.busy and self.hand_off(hold):
            self.rest(number)
        elif what in ("pass", "leave") and number in self.busy:
            hold.state = self.claims.RELEASING
            self.leave(hold)
            self.rest(number)
        elif what == "wake" and entry is not None and entry.decided:
            self.line_up_to(number)
            if entry.lease is None:
                assert self.head(hold.key) is hold
                self.queues.drop(entry)
            self.win(number)
        elif what == "step out" and entry is not None:
            given = entry.lease
            assert self.queues.step_out(entry, self.now) is given
            assert given is None or entry.decided
            if given is not None:
                self.leave(hold)
            del self.entries[number]
            self.came[hold.key].remove(number)
            hold.free()

    def line_up_to(self, number: int) -> None:
        """Check that no hold that came earlier is still in the queue."""
        came = self.came[self.all[number].key]
        assert came.pop(0) == number
        del self.entries[number]

    def win(self, number: int) -> None:
        self.busy.add(number)
        self.all[number].ask(self.lease(b"token-%d" % number, self.now, FOR_EVER))
        self.all[number].keep(0)

    def rest(self, number: int) -> None:
        self.busy.discard(number)
        self.all[number].free()

    def check(self) -> None:
        for key in KEYS:
            mine = [number for number in range(12) if self.all[number].key == key]
            called = [n for n in mine if n in self.entries and self.entries[n].decided]
            busy = [n for n in mine if n in self.busy]
            standing = [n for n in mine if n in self.entries]
            assert len(called) + len(busy) <= 1, "two at once"
            assert called or busy or not standing, "forgotten"
            assert not called or called[0] == self.came[key][0], "out of turn"
            assert self.head(key) is (self.all[(called or busy)[0]] if called or busy else None)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, max_size=120))
def test_in_any_order_one_hold_at_a_time_is_the_head_and_none_is_forgotten(
    build: impl.Implementation, steps: list[tuple[str, int]]
) -> None:
    crowd = Crowd(build)
    for what, number in steps:
        crowd.step(what, number)
        crowd.check()
    for _ in range(12):
        for number in range(12):
            crowd.step("wake", number)
            crowd.step("pass", number)
            crowd.check()
    assert not crowd.entries and not crowd.busy
    assert (crowd.queues.heads, crowd.queues.by_key) == ({}, {})


# --- waiters that watch the key of a local holder ------------------------------------------------------


@pytest.mark.parametrize("how", ["hand_off", "leave"])
def test_row_57_a_call_also_decides_the_watch_of_a_waiter(world: World, how: str) -> None:
    head = world.holder()
    entry = world.waiter()
    entry.watch = look = world.watches.Watch(head.releasing(), 3, 2)
    head.begin_release(world.now)
    if how == "hand_off":
        assert world.hand_off(head)
    else:
        world.leave(head)
    assert entry.decided and look.decided
    assert look in world.called()


def test_row_57_the_first_waiter_in_the_queue_is_next(world: World) -> None:
    head = world.holder()
    first, second = world.waiter(), world.waiter()
    assert world.queues.is_next(first.hold) and not world.queues.is_next(second.hold)
    world.queues.drop(first)
    assert world.queues.is_next(second.hold)
    world.queues.drop(second)
    assert not world.queues.is_next(head)
