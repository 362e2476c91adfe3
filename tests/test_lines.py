"""The lines of a client without I/O: who is called, who is passed over, and what is left to be released.

The orders in which two threads may take their steps are played one by one.
"""

from __future__ import annotations

import itertools
from types import ModuleType, SimpleNamespace
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_quorum import BEGINNING, KEY, NAME, SECOND, TTL_MS, VALIDITY, Play, clock_of

from redlatch import impl
from redlatch.errors import LockBusy, LockLost

OTHER = b"locks:sku:43"
FOR_EVER = BEGINNING + 1000 * SECOND


class World:
    """Holds of one client and its lines, moved step by step."""

    def __init__(self, build: impl.Implementation, masters: int = 3, **options: Any) -> None:
        self.play = Play(masters, build=build)
        self.lines: Any = self.play.lines
        self.waiting = build.module("protocol.waiting")
        self.holds: ModuleType = self.play.holds
        self.lease = build.module("protocol.lease").new_lease
        self.ballots: ModuleType = self.play.ballots
        self.now = BEGINNING
        self.policy = self.policy_of(build, self.play.policy.masters, **options)

    def policy_of(self, build: impl.Implementation, masters: tuple[str, ...], **options: Any) -> Any:
        policies = build.module("protocol.policy")
        if "tenure" in options or "count" in options:
            kinds = [option for option in ("tenure", "count") if option in options]
            options["handoff"] = policies.Handoff(**{option: options.pop(option) for option in kinds})
        return policies.Policy(
            masters=masters,
            drift_factor=0.01,
            attempt_ns=None,
            retry=policies.Retry(),
            clock=self.play.policy.clock,
            random=lambda: 0.5,
            tokens=self.play.policy.tokens,
            fences=self.play.policy.fences,
            **options,
        )

    def hold(self, key: bytes = KEY) -> Any:
        hold = self.holds.Hold(NAME, key, self.play.plain)
        hold.state = self.holds.WAITING
        return hold

    def holder(self, key: bytes = KEY) -> Any:
        """Return one that has come to the head and won."""
        hold = self.hold(key)
        assert self.lines.enter(hold, self.now)
        hold.ask(self.lease(b"token", self.now, self.now + VALIDITY))
        hold.keep(0)
        return hold

    def waiter(self, key: bytes = KEY, until_ns: int = FOR_EVER) -> Any:
        """Return the turn of one that stands in line."""
        hold = self.hold(key)
        assert not self.lines.enter(hold, self.now)
        turn = self.join(hold, until_ns)
        assert not self.lines.enter(hold, self.now)
        return turn

    def join(self, hold: Any, until_ns: int = FOR_EVER) -> Any:
        """Put a hold into its line and return its turn."""
        turn = self.waiting.Turn(hold, until_ns)
        self.lines.join(self.policy, turn, self.now)
        return turn

    def head(self, key: bytes = KEY) -> Any:
        return self.lines.heads.get(key)

    def called(self) -> list[Any]:
        """Return the ballots that were called since the last look."""
        called = list(self.lines.called)
        self.lines.called.clear()
        return called

    def pass_on(self, hold: Any) -> bool:
        return bool(self.lines.pass_on(self.policy, hold, self.now))

    def leave(self, hold: Any, courteous: bool = False) -> None:
        self.lines.leave(hold, self.now, courteous)


@pytest.fixture
def world(implementation: impl.Implementation) -> World:
    return World(implementation)


# --- the line ----------------------------------------------------------------------------------------


def test_the_first_to_come_is_the_head_and_all_others_stand_in_line(world: World) -> None:
    first, second = world.hold(), world.hold()
    assert world.lines.enter(first, world.now) and world.lines.enter(first, world.now)
    assert not world.lines.enter(second, world.now)
    assert world.head() is first


@pytest.mark.parametrize("state", ["WAITING", "ASKING", "RELEASING", "HELD"])
def test_who_is_at_the_head_stays_there_while_it_does_anything(world: World, state: str) -> None:
    head = world.holder()
    head.state = getattr(world.holds, state)
    assert not world.lines.enter(world.hold(), world.now)


@pytest.mark.parametrize("state", ["FREE", "SETTLING"])
def test_who_is_done_is_the_head_no_more_once_somebody_comes(world: World, state: str) -> None:
    head, hold = world.holder(), world.hold()
    head.state = getattr(world.holds, state)
    assert world.lines.enter(hold, world.now)
    assert world.head() is hold


def test_who_has_lost_its_lock_is_the_head_no_more_once_somebody_comes(world: World) -> None:
    head, hold = world.holder(), world.hold()
    assert not world.lines.enter(hold, head.deadline_ns - 1)
    assert world.lines.enter(hold, head.deadline_ns)
    assert world.head() is hold


def test_a_head_that_was_replaced_neither_passes_on_nor_calls_anybody(world: World) -> None:
    lost, hold = world.holder(), world.hold()
    assert world.lines.enter(hold, lost.deadline_ns)
    turn = world.waiter()
    assert not world.pass_on(lost)
    world.leave(lost)
    assert not turn.ballot.decided and world.head() is hold


def test_two_names_have_nothing_to_do_with_each_other(world: World) -> None:
    mine, theirs = world.holder(), world.holder(OTHER)
    turn, other = world.waiter(), world.waiter(OTHER)
    world.leave(mine)
    assert world.called() == [turn.ballot]
    assert world.head(OTHER) is theirs and not other.ballot.decided


def test_those_in_line_are_called_in_the_order_they_came(world: World) -> None:
    head = world.holder()
    turns = [world.waiter() for _ in range(5)]
    for turn in turns:
        world.leave(head)
        assert world.called() == [turn.ballot]
        assert (turn.lease, world.head()) == (None, turn.hold)
        head = turn.hold
    world.leave(head)
    assert (world.called(), world.lines.heads, world.lines.lines) == ([], {}, {})


@pytest.mark.parametrize("courteous", [True, False])
def test_who_is_called_is_told_whether_others_are_to_have_a_chance_first(world: World, courteous: bool) -> None:
    head, turn = world.holder(), world.waiter()
    world.leave(head, courteous)
    assert turn.courteous is courteous


def test_who_leaves_the_line_is_not_called(world: World) -> None:
    head = world.holder()
    first, second, third = (world.waiter() for _ in range(3))
    assert world.lines.step_out(second, world.now) is None
    assert world.lines.step_out(first, world.now) is None
    world.leave(head)
    assert world.called() == [third.ballot]


def test_who_leaves_when_it_was_called_has_the_next_one_called(world: World) -> None:
    head, first, second = world.holder(), world.waiter(), world.waiter()
    world.leave(head)
    assert world.lines.step_out(first, world.now) is None
    assert world.called() == [first.ballot, second.ballot]
    assert world.head() is second.hold


def test_the_last_to_leave_puts_the_light_out(world: World) -> None:
    head, turn = world.holder(), world.waiter()
    world.lines.step_out(turn, world.now)
    assert world.lines.lines == {}
    world.leave(head)
    assert world.lines.heads == {}


@pytest.mark.parametrize("most", [0, 1, 3])
def test_no_more_may_join_than_the_policy_says(implementation: impl.Implementation, most: int) -> None:
    world = World(implementation, max_waiters=most)
    world.holder()
    turns = [world.waiter() for _ in range(most)]
    for _ in range(2):
        with pytest.raises(LockBusy) as caught:
            world.join(world.hold())
        assert (caught.value.depth, caught.value.name) == (most, NAME)
    assert bool(world.lines.lines) == bool(most)
    for turn in turns:
        world.lines.step_out(turn, world.now)
    assert world.lines.lines == {}


def paced(build: impl.Implementation, **options: Any) -> World:
    """Return a world whose line has moved once a second so far, and where two wait."""
    world = World(build, tenure=1000.0, **options)
    head = world.holder()
    turns = [world.waiter() for _ in range(60)]
    for turn in turns[:-2]:
        assert world.pass_on(head)
        head = turn.hold
        turn.inherit()
        head.lease = head.lease.until(FOR_EVER)
        world.now += SECOND
    return world


def test_who_would_wait_for_too_long_is_refused(implementation: impl.Implementation) -> None:
    world = paced(implementation, refuse_late=True)
    pace = world.lines.lines[KEY].pace_ns
    assert 0.99 * SECOND < pace <= SECOND
    with pytest.raises(LockBusy) as caught:
        world.join(world.hold(), world.now + 3 * pace - 1)
    assert caught.value.depth == 2
    world.join(world.hold(), world.now + 3 * pace)


def test_without_being_asked_to_nobody_is_refused_for_being_late(implementation: impl.Implementation) -> None:
    world = paced(implementation)
    world.join(world.hold(), world.now + 1)


# --- leases that pass --------------------------------------------------------------------------------


def test_a_lease_passes_with_all_that_belongs_to_it(world: World) -> None:
    head, turn = world.holder(), world.waiter()
    assert world.pass_on(head)
    assert world.called() == [turn.ballot]
    lease = turn.lease
    assert (lease.token, lease.since_ns, lease.deadline_ns, lease.passed) == (
        head.token,
        head.lease.since_ns,
        head.deadline_ns,
        1,
    )
    assert world.head() is turn.hold


def test_a_lease_whose_token_was_shown_does_not_pass_but_the_next_one_does(world: World) -> None:
    head, turn = world.holder(), world.waiter()
    head.shown = True
    assert not world.pass_on(head)
    world.lines.leave(head, world.now, False)
    assert world.head() is turn.hold
    turn.hold.shown = True  # of an attempt before this one
    turn.hold.ask(world.lease(b"another", world.now, world.now + VALIDITY))
    turn.hold.keep(0)
    world.waiter()
    assert world.pass_on(turn.hold)


@pytest.mark.parametrize(("mine", "theirs"), [*itertools.product(["", "once", "chosen"], repeat=2)])
def test_a_lease_passes_only_to_one_of_its_kind_without_a_token_of_its_own(
    implementation: impl.Implementation, mine: str, theirs: str
) -> None:
    world = World(implementation, tenure=1000.0)
    kind_of = implementation.module("protocol.foreign").Given
    kinds = {"": world.play.plain, "once": kind_of(b"mine", True), "chosen": kind_of(b"mine", False)}
    head, turn = world.holder(), world.waiter()
    head.kind, turn.hold.kind = kinds[mine], kinds[theirs]
    assert world.pass_on(head) is (mine == theirs != "chosen")


def test_who_holds_a_key_that_was_deleted_has_lost_it_and_so_has_who_gets_it_then(world: World) -> None:
    head, turn = world.holder(), world.waiter()
    world.lines.lose(OTHER, world.now)
    assert head.held(world.now)
    world.lines.lose(KEY, world.now)
    assert not head.held(world.now)
    head.ask(world.lease(b"another", world.now + 1, world.now + VALIDITY))  # after that
    head.keep(0)
    assert world.pass_on(head)
    turn.inherit()
    assert turn.hold.held(world.now + 1)


@pytest.mark.parametrize("when", ["while it is released", "while it is passed on", "when it was passed on"])
def test_a_key_that_is_deleted_while_its_lease_is_on_its_way_is_lost_to_who_gets_it(world: World, when: str) -> None:
    head, turn = world.holder(), world.waiter()
    head.begin_release(world.now)
    world.now += 1
    if when == "while it is released":
        world.lines.lose(KEY, world.now)
    assert world.pass_on(head)
    if when == "while it is passed on":
        world.lines.lose(KEY, world.now)
    turn.inherit()
    if when == "when it was passed on":
        world.lines.lose(KEY, world.now)
    assert turn.hold.state == world.holds.HELD
    assert not turn.hold.held(world.now)


@pytest.mark.parametrize("hearsay", [True, False])
def test_who_wins_beside_the_head_shows_that_its_key_was_deleted_where_it_was_not_believed(
    implementation: impl.Implementation, hearsay: bool
) -> None:
    world = World(implementation, hearsay=hearsay)
    head = world.holder()
    world.lines.overtake(world.policy, head, world.now)
    assert head.held(world.now)
    world.lines.overtake(world.policy, world.hold(), world.now)
    assert head.held(world.now) is hearsay


def test_an_attempt_beside_the_head_knows_of_deletions_of_its_key(world: World) -> None:
    world.holder()
    asking = world.hold()
    asking.ask(world.lease(b"token", world.now, world.now + VALIDITY))
    world.lines.lose(OTHER, world.now + 1)
    assert not world.lines.deleted(asking)
    world.lines.lose(KEY, world.now + 2)
    assert world.lines.deleted(asking)
    for number in range(3, 100):  # more than are kept
        world.lines.lose(OTHER, world.now + number)
    assert world.lines.deleted(asking)
    asking.ask(world.lease(b"another", world.now + 100, world.now + VALIDITY))
    assert not world.lines.deleted(asking)


def test_without_anybody_in_line_nothing_passes(world: World) -> None:
    head = world.holder()
    assert not world.pass_on(head)
    assert world.head() is head


def test_a_lease_passes_until_its_tenure_is_over(implementation: impl.Implementation) -> None:
    world = World(implementation, tenure=0.25)
    head = world.holder()
    turn = world.waiter()
    world.now = head.lease.since_ns + SECOND // 4
    assert not world.pass_on(head)
    assert not turn.ballot.decided and turn.lease is None
    world.now -= 1
    assert world.pass_on(head)


def test_the_tenure_begins_when_the_lock_was_won_not_when_it_was_passed(
    implementation: impl.Implementation,
) -> None:
    world = World(implementation, tenure=0.25)
    head = world.holder()
    first, second = world.waiter(), world.waiter()
    world.now += SECOND // 5
    assert world.pass_on(head)
    first.inherit()
    world.now += SECOND // 5
    assert not world.pass_on(first.hold)
    assert second.lease is None


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_lease_passes_so_often_and_not_once_more(implementation: impl.Implementation, count: int) -> None:
    world = World(implementation, tenure=1000.0, count=count)
    head = world.holder()
    turns = [world.waiter() for _ in range(count + 1)]
    for turn in turns[:count]:
        assert world.pass_on(head)
        turn.inherit()
        head = turn.hold
    assert not world.pass_on(head)
    assert turns[count].lease is None


def test_who_stepped_out_before_the_lease_was_given_is_passed_over(world: World) -> None:
    head, first, second = world.holder(), world.waiter(), world.waiter()
    assert world.lines.step_out(first, world.now) is None
    assert world.pass_on(head)
    assert (first.lease, world.called()) == (None, [second.ballot])


def test_who_steps_out_after_the_lease_was_given_has_to_release_it_and_it_passes_to_nobody(world: World) -> None:
    head, first, second = world.holder(), world.waiter(), world.waiter()
    assert world.pass_on(head)
    lease = world.lines.step_out(first, world.now)
    assert lease is not None and lease.token == head.token
    world.leave(first.hold)  # when it is released
    assert world.called() == [first.ballot, second.ballot]
    assert (second.lease, world.head()) == (None, second.hold)


@pytest.fixture(params=["before the turn is called", "after it was called"])
def meeting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world in pure Python, where `meets` is run once in the middle of the step that calls the next turn."""
    monkeypatch.setattr(impl, "current", impl.load("python"))
    world: Any = World(impl.current)
    world.meets = None
    waiting = impl.current.module("protocol.waiting")
    kind, name = (waiting.Line, "move") if request.param.startswith("before") else (waiting, "_discard")
    step = getattr(kind, name)

    def interposed(*args: Any) -> None:
        step(*args)
        meets, world.meets = world.meets, None
        if meets is not None:
            meets()

    monkeypatch.setattr(kind, name, interposed)
    return world  # type: ignore[no-any-return]


def test_of_a_lease_that_is_given_while_its_turn_is_left_one_of_both_has_it_released(meeting: Any) -> None:
    head, first, second = meeting.holder(), meeting.waiter(), meeting.waiter()
    left: list[Any] = []
    meeting.meets = lambda: left.append(meeting.lines.step_out(first, meeting.now))
    passed = meeting.pass_on(head)
    assert passed == (left[0] is not None)
    if passed:
        meeting.leave(first.hold)  # when it is released
    assert (second.lease, meeting.head()) == (None, second.hold)
    assert meeting.called().count(second.ballot) == 1


def test_where_a_turn_is_left_while_it_is_called_one_other_is_called_and_in_its_turn(meeting: Any) -> None:
    head, first, second, third = meeting.holder(), meeting.waiter(), meeting.waiter(), meeting.waiter()
    meeting.meets = lambda: meeting.lines.step_out(first, meeting.now)
    meeting.leave(head)
    assert meeting.head() is second.hold
    assert second.ballot.decided and not third.ballot.decided


def test_a_release_that_meets_a_waiter_who_leaves_is_not_taken_for_a_loss(meeting: Any) -> None:
    play, head = meeting.play, meeting.holder()
    turn = meeting.waiter()
    released: list[bytes] = []

    def leave() -> None:  # and release what came too late, as `_wait_in_line` does
        lease = meeting.lines.step_out(turn, meeting.now)
        if lease is not None:
            released.append(lease.token)
            meeting.leave(turn.hold)

    meeting.meets = leave
    try:
        for effect in play.quorum_module.release(play.policy, meeting.lines, head, SECOND):
            for ballot in effect if isinstance(effect, list) else [effect]:
                if isinstance(ballot, play.ballots.Ballot):  # the masters had the other one's release before
                    play.vote(ballot, "nnn" if released else "yyy")
    except LockLost:
        pytest.fail("it was held to its end")
    assert head.state == play.holds.FREE


def test_who_joins_while_the_head_leaves_becomes_the_head(world: World) -> None:
    head, hold = world.holder(), world.hold()
    assert not world.lines.enter(hold, world.now)  # it is to join,
    world.leave(head)  # and nobody is in line yet
    turn = world.join(hold)
    assert world.lines.enter(hold, world.now)
    assert world.head() is hold
    world.lines.drop(turn)
    assert world.lines.lines == {}


def test_who_has_joined_when_the_head_leaves_is_called_before_it_looks(world: World) -> None:
    head, hold = world.holder(), world.hold()
    assert not world.lines.enter(hold, world.now)
    turn = world.join(hold)
    world.leave(head)
    assert world.called() == [turn.ballot]
    assert world.lines.enter(hold, world.now)


def test_who_was_given_a_lease_before_it_looked_finds_it(world: World) -> None:
    head, hold = world.holder(), world.hold()
    turn = world.join(hold)
    assert world.pass_on(head)
    assert world.lines.enter(hold, world.now)
    assert turn.lease is not None


def test_two_that_join_when_the_head_is_gone_are_not_both_the_head(world: World) -> None:
    head, first, second = world.holder(), world.hold(), world.hold()
    assert not world.lines.enter(first, world.now) and not world.lines.enter(second, world.now)
    world.leave(head)
    turns = [world.join(hold) for hold in (first, second)]
    assert [world.lines.enter(hold, world.now) for hold in (first, second)] == [True, False]
    world.lines.drop(turns[0])
    world.leave(first)
    assert world.called() == [turns[1].ballot]


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_an_acquire_that_meets_a_head_that_leaves_asks_the_masters(
    implementation: impl.Implementation, moment: int
) -> None:
    # Another thread leaves while this one reads the clock for the first, second or third time.
    world = World(implementation)
    head, hold = world.holder(), world.holds.Hold(NAME, KEY, world.play.plain)
    hold.claim(object())
    policies, looked = implementation.module("protocol.policy"), iter(range(1, 1000))

    def now() -> int:
        if next(looked) == moment:
            world.leave(head)
            head.free()
        return BEGINNING

    policy = policies.Policy(
        masters=world.policy.masters,
        drift_factor=0.01,
        attempt_ns=None,
        retry=policies.Retry(),
        clock=clock_of(policies, now),
        random=lambda: 0.5,
        tokens=world.policy.tokens,
        fences=world.policy.fences,
    )
    effect = next(world.play.acquire_module.acquire(policy, world.lines, hold, TTL_MS, FOR_EVER))
    assert isinstance(effect, world.ballots.Ballot)
    assert type(effect.command).__name__ == "Acquire"
    assert world.head() is hold and world.lines.lines == {}


@pytest.mark.parametrize("state", ["HELD", "FREE"])
def test_behind_a_head_that_is_lost_or_gone_the_next_is_called_when_it_is_looked_for(world: World, state: str) -> None:
    head, turn = world.holder(), world.waiter()
    world.lines.expire(world.now)
    assert not turn.ballot.decided
    head.state = getattr(world.holds, state)
    world.lines.expire(head.deadline_ns)
    assert world.called() == [turn.ballot]
    assert world.head() is turn.hold


# --- any order ---------------------------------------------------------------------------------------

KEYS = (KEY, OTHER)
STEPS = st.tuples(st.sampled_from(["come", "come", "pass", "leave", "wake", "wake", "step out"]), st.integers(0, 11))


class Crowd(World):
    """Twelve holds of two names, each doing its next step when it is told to; the rules are checked after each."""

    def __init__(self, build: impl.Implementation) -> None:
        super().__init__(build, tenure=1000.0)
        self.all = [self.hold(KEYS[number % 2]) for number in range(12)]
        self.turns: dict[int, Any] = {}  # of who stands in line, or was called and is not awake yet
        self.busy: set[int] = set()  # who asks, or holds
        self.came: dict[bytes, list[int]] = {key: [] for key in KEYS}
        self.released = 0

    def step(self, what: str, number: int) -> None:
        hold = self.all[number]
        turn = self.turns.get(number)
        if what == "come" and number not in self.busy and turn is None:
            hold.state = self.holds.WAITING
            if self.lines.enter(hold, self.now):
                self.win(number)
            else:
                self.turns[number] = self.join(hold)
                self.came[hold.key].append(number)
                assert not self.lines.enter(hold, self.now)
        elif what == "pass" and number in self.busy and self.pass_on(hold):
            self.rest(number)
        elif what in ("pass", "leave") and number in self.busy:
            hold.state = self.holds.RELEASING
            self.leave(hold)
            self.rest(number)
        elif what == "wake" and turn is not None and turn.ballot.decided:
            self.line_up_to(number)
            if turn.lease is None:
                assert self.head(hold.key) is hold
                self.lines.drop(turn)
            self.win(number)
        elif what == "step out" and turn is not None:
            given = turn.lease
            assert self.lines.step_out(turn, self.now) is given
            assert given is None or turn.ballot.decided
            if given is not None:
                self.leave(hold)
            del self.turns[number]
            self.came[hold.key].remove(number)
            hold.free()

    def line_up_to(self, number: int) -> None:
        """Check that nobody who came earlier is still in line."""
        came = self.came[self.all[number].key]
        assert came.pop(0) == number
        del self.turns[number]

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
            called = [n for n in mine if n in self.turns and self.turns[n].ballot.decided]
            busy = [n for n in mine if n in self.busy]
            standing = [n for n in mine if n in self.turns]
            assert len(called) + len(busy) <= 1, "two at once"
            assert called or busy or not standing, "forgotten"
            assert not called or called[0] == self.came[key][0], "out of turn"
            assert self.head(key) is (self.all[(called or busy)[0]] if called or busy else None)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, max_size=120))
def test_in_any_order_one_at_a_time_has_its_turn_and_nobody_is_forgotten(
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
    assert not crowd.turns and not crowd.busy
    assert (crowd.lines.heads, crowd.lines.lines) == ({}, {})


# --- which master is asked first ---------------------------------------------------------------------


@given(masters=st.permutations([f"10.0.0.{number}:6379" for number in range(5)]), name=st.binary(min_size=1))
def test_everybody_agrees_on_a_master_whatever_the_order_of_its_list(
    build: impl.Implementation, masters: list[str], name: bytes
) -> None:
    world = World(build, 5)
    policy = world.policy_of(build, tuple(masters))
    agreed = masters[world.lines.first_of(policy, name, world.now)]
    assert agreed == sorted(masters)[crc32(name) % 5]


def test_names_are_spread_over_the_masters(world: World) -> None:
    firsts = {world.lines.first_of(world.policy, b"name-%d" % number, world.now) for number in range(100)}
    assert firsts == {0, 1, 2}


def test_a_master_that_was_silent_is_not_asked_first_for_a_second(world: World) -> None:
    first = world.lines.first_of(world.policy, KEY, world.now)
    world.lines.shun(first, world.now)
    others = {world.lines.first_of(world.policy, KEY, world.now + since) for since in (0, SECOND - 1)}
    assert len(others) == 1 and first not in others
    assert world.lines.first_of(world.policy, KEY, world.now + SECOND) == first


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


def test_where_every_master_was_silent_none_is_asked_first(world: World) -> None:
    for index in range(3):
        world.lines.shun(index, world.now)
    assert world.lines.first_of(world.policy, KEY, world.now) == -1


def test_a_single_master_is_not_asked_before_the_others(implementation: impl.Implementation) -> None:
    world = World(implementation, 1)
    assert world.lines.first_of(world.policy, KEY, world.now) == -1


# --- keys that are watched ---------------------------------------------------------------------------


def look(world: World, *answers: int) -> Any:
    """Return a look that is decided: -2 where the key is gone, else for how many milliseconds it stays."""
    ballot = world.ballots.Ballot(world.play.commands.Look(KEY), world.policy.size, world.policy.quorum)
    world.lines.watch(ballot.command.key, ballot)
    for index, answer in enumerate(answers):
        if answer == -2:
            ballot.yes += 1
        else:
            ballot.no += 1
            ballot.tell(index, answer, True)
    ballot.decided = ballot.settled()
    return ballot


def test_a_watch_ends_when_a_quorum_has_said_that_the_key_is_gone(world: World) -> None:
    ballot = look(world, 1000, 2000, 3000)
    ballot.watch(FOR_EVER)
    world.lines.changed(0, KEY)
    assert not ballot.decided
    world.lines.changed(2, KEY)
    assert ballot.decided and world.called() == [ballot]


def test_a_master_that_tells_twice_counts_once(world: World) -> None:
    ballot = look(world, 1000, 2000, 3000)
    ballot.watch(FOR_EVER)
    world.lines.changed(0, KEY)
    world.lines.changed(0, KEY)
    assert not ballot.decided


def test_another_key_ends_no_watch_and_all_keys_end_each(world: World) -> None:
    ballot = look(world, 1000, 2000, 3000)
    ballot.watch(FOR_EVER)
    for index in range(3):
        world.lines.changed(index, OTHER)
    assert not ballot.decided
    world.lines.changed(0, None)
    world.lines.changed(1, None)
    assert ballot.decided


def test_what_is_told_before_the_watch_begins_is_not_lost(world: World) -> None:
    ballot = look(world, 1000, 2000, 3000)
    world.lines.changed(0, KEY)
    world.lines.changed(1, KEY)
    ballot.watch(FOR_EVER)
    assert ballot.decided


def test_a_quorum_of_keys_is_gone_by_itself_when_so_many_have_ended(world: World) -> None:
    assert look(world, 1000, 3000, 2000).left_ns() == 2 * SECOND
    assert look(world, -2, 3000, 2000).left_ns() == 2 * SECOND
    assert look(world, -1, 3000, -1).left_ns() > 1000 * SECOND


def test_where_too_few_masters_tell_there_is_nothing_to_watch(world: World) -> None:
    assert look(world, 1000, 1000).watchable()
    assert look(world, -2, 1000).watchable()
    assert not look(world, 1000).watchable()


def test_what_this_client_changes_itself_is_told_to_its_own(world: World) -> None:
    ballot = look(world, 1000, 2000, 3000)
    ballot.watch(FOR_EVER)
    world.leave(world.hold())  # whoever it was: it has just sent a release
    assert ballot.decided and world.called() == [ballot]


def test_a_broken_connection_calls_everybody_who_watches(world: World) -> None:
    ballots = [look(world, 1000, 2000, 3000) for _ in range(2)]
    for ballot in ballots:
        ballot.watch(FOR_EVER)
    world.lines.stir_all()
    assert world.called() == ballots


def test_who_does_not_watch_any_more_is_not_called(world: World) -> None:
    ballot = look(world, 1000, 2000, 3000)
    ballot.watch(FOR_EVER)
    world.lines.unwatch(ballot.command.key, ballot)
    world.lines.changed(0, None)
    world.lines.stir_all()
    assert world.called() == [] and world.lines.watches == {}


@pytest.mark.parametrize("told", [[0], [0, 1], [0, 1, 2]])
def test_what_another_thread_is_told_while_a_watch_begins_ends_it(
    implementation: impl.Implementation, told: list[int]
) -> None:
    # Another thread of the client drives the sockets meanwhile; here it is run where chance is drawn.
    play = Play(3, build=implementation)
    policies = implementation.module("protocol.policy")

    def chance() -> float:
        for index in told:
            play.lines.changed(index, KEY)
        return 0.5

    policy = policies.Policy(
        masters=play.policy.masters,
        drift_factor=0.01,
        attempt_ns=None,
        retry=policies.Retry(),
        clock=play.policy.clock,
        random=chance,
        tokens=play.policy.tokens,
        fences=play.policy.fences,
    )
    play.hold.claim(object())
    steps = play.acquire_module.acquire(policy, play.lines, play.hold, TTL_MS, None)
    play.vote(next(steps), "nnn")
    next(steps)  # the undo
    ballot = next(steps)
    for index in range(3):
        ballot.no += 1
        ballot.tell(index, 1000, True)
    ballot.decided = True
    [watched] = next(steps)
    assert watched.decided == (len(told) >= 2)


def test_who_waits_for_all_is_everybody(world: World) -> None:
    world.holder()
    turns = [world.waiter(), world.waiter()]
    ballot = look(world, 1000, 2000, 3000)
    assert world.lines.everybody() == [turns[0].ballot, turns[1].ballot, ballot]


def test_a_watch_does_not_keep_the_deadlines_of_others_from_being_seen(implementation: impl.Implementation) -> None:
    world = World(implementation)
    deadlines = implementation.module("drivers.deadlines").Deadlines()
    ballot = look(world, 1000, 2000, 3000)
    ballot.until_ns = BEGINNING + SECOND // 10
    deadlines.add(ballot, BEGINNING)  # the question
    ballot.watch(BEGINNING + 1000 * SECOND)
    deadlines.add(ballot, BEGINNING)  # the answer's change
    later = world.ballots.Ballot(world.play.commands.Look(OTHER), 3, 2, BEGINNING + SECOND // 10 + 1)
    deadlines.add(later, BEGINNING + 1)
    assert deadlines.earliest() == later.until_ns
    assert deadlines.due(later.until_ns) == [later]


# --- waiters that watch the key of a local holder ------------------------------------------------------


@pytest.mark.parametrize("how", ["pass_on", "leave"])
def test_row_57_a_call_also_decides_the_watch_of_a_waiter(world: World, how: str) -> None:
    head = world.holder()
    turn = world.waiter()
    turn.watch = look = world.ballots.Ballot(head.releasing(), 3, 2)
    head.begin_release(world.now)
    if how == "pass_on":
        assert world.pass_on(head)
    else:
        world.leave(head)
    assert turn.ballot.decided and look.decided
    assert look in world.called()


def test_row_57_only_the_lease_that_was_looked_at_is_lost(world: World) -> None:
    head = world.holder()
    since = head.lease.since_ns
    assert head.holds_since(since) and not head.holds_since(since + 1)
    head.lose_what_it_holds_since(since + 1, world.now)
    assert head.held(world.now)
    head.lose_what_it_holds_since(since, world.now)
    assert not head.held(world.now) and head.lost_ns == world.now
    head.begin_release(world.now)
    assert not head.holds_since(since)


def test_row_57_the_first_in_line_is_next(world: World) -> None:
    head = world.holder()
    first, second = world.waiter(), world.waiter()
    assert world.lines.is_next(first.hold) and not world.lines.is_next(second.hold)
    world.lines.drop(first)
    assert world.lines.is_next(second.hold)
    world.lines.drop(second)
    assert not world.lines.is_next(head)


@pytest.mark.parametrize("over", ["decided", "cancelled"])
def test_what_nobody_waits_for_is_forgotten_behind_one_that_waits_for_long(
    implementation: impl.Implementation, over: str
) -> None:
    world = World(implementation)
    deadlines = implementation.module("drivers.deadlines").Deadlines()
    for number in range(10_000):
        ballot = world.ballots.Ballot(world.play.commands.Look(OTHER), 3, 2, BEGINNING + 1000 * SECOND + number)
        ballot.waiter = SimpleNamespace(done=bool(number) and over == "cancelled")
        ballot.decided = bool(number) and over == "decided"
        deadlines.add(ballot, BEGINNING + number)
    assert deadlines.earliest() == BEGINNING + 1000 * SECOND
    assert len(deadlines.clear()) < 1000
