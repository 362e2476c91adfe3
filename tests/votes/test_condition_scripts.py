"""The Lua scripts of conditions and latches on real servers of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from support.faces import await_true
from support.masters import Farm

from redlatch.votes import condition_scripts as condition
from redlatch.votes import family_scripts, scripts
from redlatch.votes.condition_scripts import DIGESTS, MOST_LEFT, OPEN, WAITS
from redlatch.votes.scripts import Script

pytestmark = pytest.mark.each_server

ALIVE, KEEP, TTL = 60_000, 240_000, 60_000
# Tickets, in the order of the waiters, and numbers of calls above them.
A, B, C = 1_800_000_000_000_001, 1_800_000_000_000_002, 1_800_000_000_000_003
CALL, NEXT = 1_800_000_000_001_000, 1_800_000_000_002_000


class Scene:
    """One condition and one latch on one server; it rings the bells that answers name, as a client does."""

    def __init__(self, master: Any, name: str) -> None:
        self.master = master
        self.name = name

    def run(self, script: Script, *arguments: Any, more: tuple[str, ...] = ()) -> Any:
        keys = [self.name, f"{{{self.name}}}\0calls", f"{{{self.name}}}\0bell", *more][: script.keys]
        return self.master.eval(script.text.decode(), len(keys), *keys, *arguments)

    def ring(self, answer: int) -> int:
        if answer > WAITS:
            self.master.set(self.bell_of(answer), "c", px=KEEP)
        return answer

    def bell_of(self, ticket: int) -> str:
        return f"{self.name}:{ticket}"

    def enter(self, ticket: int, alive: int = ALIVE) -> Any:
        return self.run(condition.CALL_WAIT, ticket, alive, KEEP, 1)

    def ask(self, ticket: int, alive: int = ALIVE) -> Any:
        return self.run(condition.CALL_WAIT, ticket, alive, KEEP, 0)

    def notify(self, number: int, count: int = 1) -> Any:
        answer: int = self.run(condition.CALL_NOTIFY, number, count, KEEP)
        return self.ring(answer) if count == 1 else answer

    def leave(self, ticket: int, used: int = 0) -> Any:
        return self.ring(self.run(condition.CALL_LEAVE, ticket, used, KEEP, more=(self.bell_of(ticket),)))

    def die(self, ticket: int) -> None:
        """Let the time of a waiter pass."""
        self.ask(ticket, 1)
        await_true(lambda: self.master.zscore(self.name, str(ticket)) < self.now_ms())

    def now_ms(self) -> int:
        seconds, micro = self.master.time()
        return int(seconds * 1000 + micro // 1000)

    def rung(self, ticket: int) -> bool:
        return bool(self.master.get(self.bell_of(ticket)) == "c")

    def rings_for_all(self, number: int, count: int) -> bool:
        """Return whether a call changes the bell of all waiters."""
        with self.master.pipeline() as watching:
            watching.watch(f"{{{self.name}}}\0bell")
            self.notify(number, count)
            watching.multi()
            watching.ping()
            try:
                watching.execute()
            except redis.WatchError:
                return True
        return False

    def add(self, *counts: int, of: int = 3) -> Any:
        return self.run(condition.LATCH_ADD, TTL, of, *counts)

    def ttls(self) -> dict[str, int]:
        return {key: self.master.pttl(key) for key in self.master.keys(f"*{self.name}*")}


@pytest.fixture
def scene(farm: Farm, server_kind: str, name: str) -> Iterator[Scene]:
    """One server of each kind in turn."""
    with redis.Redis.from_url(farm.urls(1, server_kind)[0], decode_responses=True, retry=None) as master:
        yield Scene(master, name)


def test_all_has_every_script_once() -> None:
    assert {value for value in vars(condition).values() if isinstance(value, Script)} == set(condition.ALL)
    every = (*condition.ALL, *family_scripts.ALL, *scripts.ALL)
    assert len({script.sha for script in every}) == len(every)


def test_the_sha_of_a_script_is_the_servers(scene: Scene) -> None:
    for script in condition.ALL:
        assert scene.master.script_load(script.text.decode()) == script.sha.decode()


# --- conditions ------------------------------------------------------------------------------------------


def test_a_call_goes_to_the_waiter_that_entered_first_and_each_key_has_a_ttl(scene: Scene) -> None:
    assert (scene.enter(A), scene.enter(B)) == (WAITS, WAITS)
    assert scene.notify(CALL) == A
    assert (scene.rung(A), scene.rung(B)) == (True, False)
    assert (scene.ask(A), scene.ask(B)) == (CALL, WAITS)
    assert len(scene.ttls()) == 3
    assert all(0 < ttl <= ALIVE + 3 * KEEP for ttl in scene.ttls().values())


def test_a_second_call_goes_to_the_next_waiter(scene: Scene) -> None:
    scene.enter(A)
    scene.enter(B)
    assert (scene.notify(CALL), scene.notify(NEXT)) == (A, B)
    assert (scene.ask(A), scene.ask(B)) == (CALL, NEXT)


def test_a_call_of_all_reaches_every_waiter_before_it_and_none_after_it(scene: Scene) -> None:
    scene.enter(A)
    scene.enter(B)
    assert scene.notify(CALL, 0) == A
    late = CALL + 1
    assert scene.enter(late) == WAITS
    assert (scene.ask(A), scene.ask(B), scene.ask(late)) == (CALL, CALL, WAITS)
    # A waiter that was called with all others takes no call of another one.
    assert scene.notify(NEXT) == late


def test_a_call_of_all_rings_their_bell_which_does_not_wake_later_waiters_when_its_ttl_ends(scene: Scene) -> None:
    scene.enter(A)
    assert scene.rings_for_all(CALL, 0)
    assert not scene.rings_for_all(NEXT, 1)
    assert not scene.master.exists(f"{{{scene.name}}}\0bell")


@pytest.mark.parametrize("count", [0, 1])
def test_a_master_that_learns_of_a_waiter_late_gives_it_the_call(scene: Scene, count: int) -> None:
    assert scene.notify(CALL, count) == WAITS
    # It needs no bell, because it asks itself.
    assert scene.ask(A) == CALL


def test_a_waiter_that_came_after_a_call_does_not_get_it(scene: Scene) -> None:
    scene.enter(A)
    scene.notify(CALL)
    late = CALL + 1
    assert scene.enter(late) == WAITS
    # Not even when the first waiter leaves without having used it.
    scene.leave(A)
    assert scene.ask(late) == WAITS


def test_the_call_of_a_dead_waiter_goes_to_the_next_one_that_asks(scene: Scene) -> None:
    scene.enter(A)
    scene.enter(B)
    scene.notify(CALL)
    scene.die(A)
    assert scene.enter(NEXT) == WAITS
    assert scene.ask(B) == CALL


def test_a_dead_waiter_is_not_called(scene: Scene) -> None:
    scene.enter(A)
    scene.enter(B)
    scene.die(A)
    assert scene.notify(CALL) == B


def test_a_waiter_that_leaves_passes_its_call_on_at_once(scene: Scene) -> None:
    scene.enter(A)
    scene.enter(B)
    scene.notify(CALL)
    assert scene.leave(A) == B
    assert (scene.rung(A), scene.rung(B)) == (False, True)
    assert scene.ask(B) == CALL


def test_a_waiter_that_has_used_its_call_ends_it(scene: Scene) -> None:
    scene.enter(A)
    scene.enter(B)
    scene.notify(CALL)
    scene.leave(A, CALL)
    assert scene.ask(B) == WAITS
    scene.leave(B)
    assert scene.ttls() == {}


def test_a_waiter_that_used_a_call_of_another_master_passes_the_one_that_it_has_here_on(scene: Scene) -> None:
    scene.enter(A)
    scene.enter(B)
    scene.notify(NEXT)
    # On another master the first call has woken this waiter, and this master has not seen that call.
    scene.leave(A, CALL)
    assert scene.ask(B) == NEXT


def test_a_call_that_was_used_elsewhere_ends_here_although_no_waiter_has_it(scene: Scene) -> None:
    scene.notify(CALL)
    scene.leave(A, CALL)
    assert scene.ask(B) == WAITS


def test_a_number_that_is_not_above_all_others_is_refused_and_changes_nothing(scene: Scene) -> None:
    scene.enter(B)
    assert scene.enter(A) == -B
    assert scene.notify(A) == -B
    assert scene.notify(B) == -B
    scene.notify(CALL)
    assert scene.notify(CALL) == -CALL
    assert scene.enter(C) == -CALL
    assert scene.master.zcard(scene.name) == 1
    # A waiter that is known already may ask, and enter again.
    assert scene.enter(B) == scene.ask(B) == CALL


def test_the_number_of_a_waiter_that_counts_as_dead_is_not_forgotten_at_once(scene: Scene) -> None:
    scene.enter(B)
    scene.die(B)
    assert scene.notify(A) == -B


def test_very_many_calls_without_a_waiter_become_one_call_of_all(scene: Scene) -> None:
    for number in range(MOST_LEFT + 1):
        assert scene.notify(CALL + number) == WAITS
    assert scene.master.zrange(f"{{{scene.name}}}\0calls", 0, -1) == [f"{CALL + MOST_LEFT}:*"]
    assert scene.ask(A) == CALL + MOST_LEFT
    assert scene.enter(NEXT) == WAITS


# --- latches ---------------------------------------------------------------------------------------------


def answer(*counts: int) -> int:
    return 2 + len(counts) * DIGESTS + sum(counts) % DIGESTS


def test_an_answer_has_the_number_of_counts_and_their_digest(scene: Scene) -> None:
    assert scene.add() == scene.run(condition.LATCH_LOOK) == 2
    assert scene.ttls() == {}
    assert scene.add(2**51 + 7) == answer(2**51 + 7)
    assert scene.add(8, 2**51 + 7) == scene.run(condition.LATCH_LOOK) == answer(2**51 + 7, 8)
    assert all(0 < ttl <= TTL for ttl in scene.ttls().values())


def test_the_last_count_opens_the_latch_for_good(scene: Scene) -> None:
    scene.add(4, 5)
    assert scene.add(6) == OPEN
    assert scene.master.get(f"{{{scene.name}}}\0calls") == "o"
    assert scene.add(7) == scene.add() == scene.run(condition.LATCH_LOOK) == OPEN
    assert all(0 < ttl <= TTL for ttl in scene.ttls().values())


def test_counts_are_read_by_their_places_in_the_order_in_which_they_came(scene: Scene) -> None:
    scene.add(9)
    scene.add(8, 7, of=9)
    assert [scene.run(condition.LATCH_AT, place) for place in (1, 2, 3, 4)] == [9, 8, 7, 2]


def test_a_count_that_is_taken_back_does_not_count(scene: Scene) -> None:
    scene.add(4, 5)
    assert scene.run(condition.LATCH_UNDO, 4) == 1
    assert scene.run(condition.LATCH_UNDO, 4) == 1
    assert scene.run(condition.LATCH_LOOK) == answer(5)


def test_a_latch_that_is_open_elsewhere_is_opened_here(scene: Scene) -> None:
    assert scene.run(condition.LATCH_OPEN, TTL) == OPEN
    assert scene.run(condition.LATCH_LOOK) == OPEN
    assert all(0 < ttl <= TTL for ttl in scene.ttls().values())


def test_a_use_lets_the_latch_live_longer_and_never_shorter(scene: Scene) -> None:
    scene.add(4)
    scene.run(condition.LATCH_ADD, 10 * TTL, 3)
    scene.add(5)
    assert all(5 * TTL < ttl <= 10 * TTL for ttl in scene.ttls().values())
