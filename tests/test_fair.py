"""The fair lock: the queue that its scripts keep on each master, and its waiters on real masters."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
import redis.exceptions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.faces import PATIENCE, Face, ask, await_true
from support.masters import Farm
from support.proxy import Proxy

from redlatch.quorum.kinds.watching import ALIVE_MS as ALIVE_OF_A_CLIENT
from redlatch.testing import embedded
from redlatch.votes import family_scripts as scripts
from redlatch.votes.kinds import FAIR

TTL_MS, ALIVE_MS = 60_000, 20_000
LONG = 60.0
# A ticket.
NOW = 1_800_000_000_000_000


class Queue:
    """Some clients of one fair lock on one server, which only run the scripts, and ring the bells that answers name."""

    def __init__(self, master: Any, name: Any) -> None:
        self.master = master
        self.name = name
        self.tokens = 0
        self.lock, self.queue, self.alive = [key.decode() for key in FAIR.keys_of(name.encode())]

    def run(self, script: Any, client: Any, *arguments: Any, after: Any = ()) -> Any:
        keys = [self.lock, self.queue, self.alive, *map(self.bell_of, [client, *after])]
        answer = self.master.eval(script.text.decode(), len(keys), *keys, *arguments, *after)
        if abs(answer) >= scripts.BELLS and not (answer > 0 and script is scripts.FAIR_ACQUIRE):
            self.master.set(self.bell_of(abs(answer)), "c", px=scripts.RINGS_MS)
        return answer

    def bell_of(self, client: Any) -> Any:
        return f"{self.queue}{scripts.BELL.decode()}{client}"

    def ask(self, client: Any, ticket: Any, place: Any = 1) -> Any:
        """Ask for the lock; return the token and the answer."""
        self.tokens += 1
        token = f"token-{self.tokens}"
        return token, self.run(scripts.FAIR_ACQUIRE, client, token, TTL_MS, client, ticket, ALIVE_MS, place)

    def release(self, client: Any, token: Any, ticket: Any, *after: Any) -> Any:
        return self.run(scripts.FAIR_RELEASE, client, token, client, ticket, after=after)

    def undo(self, client: Any, token: Any, ticket: Any) -> Any:
        return self.run(scripts.FAIR_UNDO, client, token, client, ticket, ALIVE_MS)

    def rung(self, client: Any) -> Any:
        return self.master.get(self.bell_of(client)) == "c"

    def called(self, client: Any) -> Any:
        """Return whether the client knows of a release: its bell rings, or it was told that it is the first."""
        return self.rung(client) or (self.master.zscore(self.alive, client) or 0) % 1 > 0

    def lives(self, client: Any) -> bool:
        return (self.master.zscore(self.alive, client) or 0) > time.time() * 1000

    def die(self, client: Any) -> None:
        """Let the client's time pass."""
        self.master.zadd(self.alive, {client: 1}, xx=True)

    def first(self) -> Any:
        return next(map(int, self.master.zrange(self.queue, 0, 0)), None)

    def keys(self) -> Any:
        return self.master.keys(f"*{self.name}*")


@pytest.fixture
def master(farm: Farm, server_kind: str) -> Iterator[Any]:
    with redis.Redis.from_url(farm.urls(1, server_kind)[0], decode_responses=True, retry=None) as master:
        yield master


@pytest.fixture
def queue(master: Any, name: str) -> Any:
    return Queue(master, name)


A, B, C = range(scripts.BELLS + 1, scripts.BELLS + 4)


# --- the scripts -----------------------------------------------------------------------------------------


def test_a_client_that_asks_for_a_free_lock_gets_it_and_leaves_no_key(queue: Any, master: Any, name: str) -> None:
    token, answer = queue.ask(A, NOW)
    assert (answer, master.get(name)) == (1, token)
    assert 0 < master.pttl(name) <= TTL_MS
    assert queue.release(A, token, NOW) == 1
    assert not queue.keys()


def test_the_next_client_learns_how_long_the_key_stays(queue: Any) -> None:
    queue.ask(A, NOW)
    assert -TTL_MS - 1 <= queue.ask(B, NOW + 1)[1] < -TTL_MS + 30_000
    assert queue.ask(C, NOW + 2)[1] == 0
    assert (queue.called(B), queue.called(C)) == (True, False)


def test_a_release_calls_nobody_if_the_first_client_watches_the_lock(queue: Any) -> None:
    token, _ = queue.ask(A, NOW)
    queue.ask(B, NOW + 1)
    queue.ask(C, NOW + 2)
    assert queue.release(A, token, NOW) == 1
    assert not queue.rung(B) and not queue.called(C)
    assert queue.ask(C, NOW + 2, place=0)[1] == 0
    assert queue.ask(B, NOW + 1, place=0)[1] == C


def test_the_winner_learns_who_is_next_and_calls_only_that_one(queue: Any) -> None:
    token, answer = queue.ask(A, NOW)
    assert answer == 1, "nobody waits yet"
    queue.ask(B, NOW + 1)
    queue.ask(C, NOW + 2)
    queue.release(A, token, NOW)
    token, answer = queue.ask(B, NOW + 1, place=0)
    assert answer == C
    queue.ask(A, NOW + 3)
    assert not queue.called(C)
    assert queue.release(B, token, NOW + 1, C) == 1
    assert (queue.rung(C), queue.called(A)) == (True, False)
    assert queue.ask(C, NOW + 2, place=0)[1] == A
    assert not queue.rung(C)


def test_a_release_names_the_first_client_if_it_is_another_one_than_expected(queue: Any) -> None:
    token, _ = queue.ask(A, NOW)
    other, _ = queue.ask(B, NOW + 1)
    queue.ask(C, NOW + 2)
    # B had been told that it is the first, and leaves while the lock is held.
    assert queue.release(B, other, NOW + 1) == 0
    assert not queue.called(C)
    assert queue.release(A, token, NOW, B) == C
    assert (queue.rung(B), queue.rung(C)) == (False, True)


def test_a_client_that_is_no_longer_told_that_it_is_the_first_does_not_watch_the_lock(queue: Any) -> None:
    token, _ = queue.ask(A, NOW)
    queue.ask(B, NOW + 2)
    queue.ask(C, NOW + 1)
    assert queue.first() == C
    assert queue.ask(B, NOW + 2, place=0)[1] == 0
    assert (queue.called(B), queue.called(C)) == (False, True)
    queue.release(A, token, NOW)
    assert queue.ask(C, NOW + 1, place=0)[1] == B


def test_a_release_skips_a_client_that_has_not_asked_for_long(queue: Any) -> None:
    token, _ = queue.ask(A, NOW)
    queue.ask(B, NOW + 1)
    queue.ask(C, NOW + 2)
    queue.die(B)
    assert queue.release(A, token, NOW) == C
    assert queue.called(C)
    assert queue.first() == C


def test_a_client_that_asks_overtakes_a_called_client_that_died(queue: Any) -> None:
    token, _ = queue.ask(A, NOW)
    queue.ask(B, NOW + 1)
    queue.ask(C, NOW + 2)
    queue.release(A, token, NOW)
    queue.die(B)
    assert queue.ask(C, NOW + 2, place=0)[1] == 1


def test_a_client_that_finds_the_first_one_dead_calls_the_next(queue: Any) -> None:
    token, _ = queue.ask(A, NOW)
    queue.ask(B, NOW + 1)
    queue.ask(C, NOW + 2)
    queue.release(A, token, NOW)
    queue.die(B)
    assert queue.ask(A, NOW + 3)[1] == -C
    assert queue.called(C)


def test_a_bell_rings_no_longer_than_a_waiter_lives(queue: Any, master: Any) -> None:
    token, _ = queue.ask(A, NOW)
    queue.ask(B, NOW + 1)
    queue.release(A, token, NOW)
    token, _ = queue.ask(B, NOW + 1, place=0)
    queue.ask(C, NOW + 2)
    queue.ask(A, NOW + 3)
    queue.release(C, "none", NOW + 2)
    queue.release(B, token, NOW + 1, A)
    assert 0 < master.pttl(queue.bell_of(A)) <= scripts.RINGS_MS
    assert scripts.RINGS_MS == int(ALIVE_OF_A_CLIENT)


def test_an_attempt_that_is_undone_keeps_its_place_and_is_called(queue: Any, master: Any, name: str) -> None:
    token, _ = queue.ask(A, NOW)
    queue.ask(B, NOW + 1)
    assert queue.undo(A, token, NOW) == 1
    assert not master.exists(name)
    assert (queue.first(), queue.rung(A), queue.rung(B)) == (A, True, False)
    assert queue.ask(B, NOW + 1, place=0)[1] == 0
    assert queue.ask(A, NOW, place=0)[1] == B


def test_an_undo_names_another_client_that_is_first(queue: Any) -> None:
    token, _ = queue.ask(A, NOW + 1)
    queue.ask(B, NOW)
    assert queue.undo(A, token, NOW + 1) == B
    assert (queue.first(), queue.rung(B), queue.rung(A)) == (B, True, False)


def test_undoing_an_attempt_that_failed_changes_nothing(queue: Any, master: Any, name: str) -> None:
    token, _ = queue.ask(A, NOW)
    other, _ = queue.ask(B, NOW + 1)
    assert queue.undo(B, other, NOW + 1) == 0
    assert master.get(name) == token
    assert not queue.rung(B)


def test_the_next_client_is_called_when_the_first_one_leaves_a_free_lock(queue: Any) -> None:
    token, _ = queue.ask(A, NOW)
    other, _ = queue.ask(B, NOW + 1)
    queue.ask(C, NOW + 2)
    queue.release(A, token, NOW)
    assert queue.release(B, other, NOW + 1) == -C
    assert queue.called(C)


def test_a_late_release_keeps_the_entry_of_a_later_hold_of_the_same_client(queue: Any) -> None:
    token, _ = queue.ask(A, NOW)
    other, _ = queue.ask(B, NOW + 1)
    queue.ask(B, NOW + 2, place=2)
    queue.release(B, other, NOW + 1)
    queue.release(A, token, NOW)
    assert queue.called(B)


def test_a_ticket_far_below_the_highest_is_refused_and_a_near_one_is_accepted(queue: Any) -> None:
    token, _ = queue.ask(A, NOW)
    queue.ask(B, NOW + 1_000_000)
    assert queue.ask(C, NOW + 2)[1] == -NOW - 1_000_000
    assert -TTL_MS - 1 <= queue.ask(C, NOW + 1_000_000 - scripts.SKEW_US)[1] < 0
    queue.release(A, token, NOW)
    assert queue.called(C)


def test_the_next_client_is_called_when_the_first_one_changes_its_ticket(queue: Any) -> None:
    token, _ = queue.ask(A, NOW)
    queue.ask(B, NOW + 1)
    queue.ask(C, NOW + 2)
    queue.release(A, token, NOW)
    assert queue.ask(B, NOW + 3, place=2)[1] == -C
    assert queue.called(C)


def test_a_key_without_a_ttl_or_with_a_huge_one_is_no_ticket(queue: Any, master: Any, name: str) -> None:
    for ttl in ({}, {"px": 1 << 60}):
        master.set(name, "somebody", **ttl)
        assert -NOW < queue.ask(A, NOW)[1] < -TTL_MS


def test_at_maxmemory_a_release_works_and_an_attempt_is_an_error(server: str) -> None:
    with embedded.masters(1, server=server) as [url], redis.Redis.from_url(url, decode_responses=True) as master:
        queue = Queue(master, "f")
        token, _ = queue.ask(A, NOW)
        other, _ = queue.ask(B, NOW + 1)
        master.config_set("maxmemory", "1")
        with pytest.raises(redis.exceptions.ResponseError, match=r"OOM|maxmemory"):
            queue.ask(C, NOW + 2)
        assert queue.release(A, token, NOW, B) == 1
        assert queue.release(B, other, NOW + 1) == 0
        assert not queue.keys()


STEPS = st.lists(st.tuples(st.sampled_from(["ask", "leave", "undo", "die"]), st.integers(0, 2)), max_size=40)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, skew=st.lists(st.integers(-scripts.SKEW_US, scripts.SKEW_US), min_size=40, max_size=40))
def test_the_first_living_client_has_been_called_if_the_lock_is_free(
    queue: Any, name: str, steps: Any, skew: Any
) -> None:
    """A few clients act one at a time, and no other client changes the lock."""
    clients = [A, B, C]
    tickets, tokens, holder, after = {}, {}, None, 1
    for number, (what, who) in enumerate(steps):
        client = clients[who]
        if what == "ask" and client != holder:
            new = client not in tickets
            if new:
                tickets[client] = NOW + number * 10_000 + skew[number]
            token, answer = queue.ask(client, tickets[client], int(new))
            # The script asks the client to come with a later ticket.
            if -scripts.BELLS < answer < -NOW // 2:
                tickets[client] = 1 - answer
                token, answer = queue.ask(client, tickets[client], 2)
            tokens[client] = token
            if answer > 0:
                assert holder is None, "two hold it"
                holder, after = client, answer
        elif what in ("leave", "undo") and client in tickets:
            if what == "leave":
                known = [after] if client == holder and after > 1 else []
                answer = queue.release(client, tokens[client], tickets.pop(client), *known)
            else:
                answer = queue.undo(client, tokens[client], tickets[client])
            assert (answer > 0) == (client == holder)
            holder = None if client == holder else holder
        elif what == "die" and client != holder:
            queue.die(client)
            # A death causes no push.
            continue
        assert bool(queue.master.exists(name)) == (holder is not None)
        assert all(queue.master.pttl(key) > 0 for key in queue.keys())
        first = queue.first()
        if holder is None and first is not None and queue.lives(first):
            assert queue.called(first)
    for client, ticket in tickets.items():
        queue.release(client, tokens[client], ticket)
    assert not queue.keys()


# --- waiters on real masters -----------------------------------------------------------------------------


@pytest.fixture(params=[1, 3])
def masters(request: pytest.FixtureRequest, farm: Farm) -> Any:
    return farm.urls(request.param)


def queue_length(url: Any, name: Any) -> Any:
    with ask(url) as master:
        return master.zcard(f"{{{name}}}\0queue")


def left_behind(urls: Any, name: Any) -> Any:
    found = []
    for url in urls:
        with ask(url) as master:
            found += master.keys(f"*{name}*")
    return found


def watches(client: Any, name: Any) -> Any:
    queues = client.raw._quorum.queues
    return any(ballot.reopened for ballot in list(queues.watches.by_key.get(name.encode(), ())))


def wait_for(client: Any, name: Any, **options: Any) -> Any:
    """Let one more client wait; return its lock and its call."""
    lock = client.fair_lock(name, ttl=LONG, **options)
    call = lock.start("acquire")
    await_true(lambda: watches(client, name))
    return lock, call


def on_turn(order: list[int], number: int, lock: Any, _: object) -> None:
    """Note that a waiter has the lock, and release it."""
    order.append(number)
    lock.start("release")


def held_by(client: Any, name: Any, ttl: Any = LONG) -> Any:
    lock = client.fair_lock(name, ttl=ttl)
    assert lock.acquire(timeout=PATIENCE)
    return lock


def test_waiters_of_several_clients_get_the_lock_in_the_order_of_arrival(
    connect: Face, masters: Any, name: str, no_backstop: None
) -> None:
    holder = held_by(connect(masters), name)
    order: list[int] = []
    calls: list[Any] = []
    for number in range(4):
        lock, call = wait_for(connect(masters), name)

        call.add_done_callback(partial(on_turn, order, number, lock))
        calls.append(call)
    holder.release()
    assert all(call.result(PATIENCE) for call in calls)
    await_true(lambda: len(order) == 4)
    assert order == [0, 1, 2, 3]
    await_true(lambda: not left_behind(masters, name))


def test_a_change_of_the_owner_wakes_one_waiter_however_many_there_are(
    connect: Face, name: str, no_backstop: None
) -> None:
    with embedded.masters(1) as urls:
        # No guard, because its pulses are scripts, too; and a long attempt_timeout, so that no late answer causes a new
        # attempt.
        clients = [connect(urls, guard=None, attempt_timeout=PATIENCE) for _ in range(7)]
        holder = held_by(clients[0], name)
        waiting = [wait_for(client, name) for client in clients[1:]]
        asked = scripts_run(urls[0])
        holder.release()
        for lock, call in waiting:
            assert call.result(PATIENCE)
            lock.release()
        assert scripts_run(urls[0]) - asked == 1 + 2 * len(waiting), "each asked once more than it was refused"


def scripts_run(url: Any) -> Any:
    with ask(url) as master:
        return master.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]


def test_a_client_that_acquires_again_at_once_queues_behind_the_waiters(
    connect: Face, masters: Any, name: str, no_backstop: None
) -> None:
    first, second = connect(masters), connect(masters)
    owners = []
    lock, other = held_by(first, name), second.fair_lock(name)
    for _ in range(10):
        call = other.start("acquire")
        await_true(lambda: watches(second, name))
        again = first.fair_lock(name)
        lock.release()
        calling = again.start("acquire")
        assert call.result(PATIENCE)
        owners.append(second)
        await_true(lambda: watches(first, name))
        assert not calling.done()
        other.release()
        assert calling.result(PATIENCE)
        lock = again
    lock.release()


def test_a_waiter_that_gives_up_leaves_the_queue(connect: Face, masters: Any, name: str, no_backstop: None) -> None:
    holder = held_by(connect(masters), name)
    assert not connect(masters, attempt_timeout=PATIENCE).fair_lock(name, timeout=1.0).acquire()
    # The masters keep silent waiters for 60 s, so only the client can have removed the entry.
    await_true(lambda: not any(queue_length(url, name) for url in masters))
    holder.release()
    await_true(lambda: not left_behind(masters, name))


def test_a_dead_waiter_is_skipped(connect: Face, masters: Any, name: str, no_backstop: None) -> None:
    for url in masters:
        with ask(url) as master:
            master.zadd(f"{{{name}}}\0queue", {str(A): 1})
            master.pexpire(f"{{{name}}}\0queue", 60_000)
    lock = connect(masters).fair_lock(name)
    assert lock.acquire(timeout=PATIENCE)
    lock.release()


def test_the_next_waiter_gets_the_lock_when_the_key_expires_or_is_deleted(
    connect: Face, masters: Any, name: str, no_backstop: None
) -> None:
    for delete in (False, True):
        held_by(connect(masters), name)
        lock, call = wait_for(connect(masters), name)
        for url in masters:
            with ask(url) as master:
                master.delete(name) if delete else master.pexpire(name, 500)
        assert call.result(PATIENCE)
        lock.release()


def test_the_release_of_a_plain_lock_on_the_same_name_wakes_the_next_waiter(
    connect: Face, masters: Any, name: str, no_backstop: None
) -> None:
    plain = connect(masters).lock(name, ttl=LONG)
    assert plain.acquire()
    lock, call = wait_for(connect(masters), name)
    plain.release()
    assert call.result(PATIENCE)
    lock.release()


def test_a_waiter_without_pushes_looks_by_itself(
    connect: Face, proxies: Callable[[list[str]], list[Proxy]], masters: Any, name: str
) -> None:
    before = proxies(masters)
    for proxy in before:
        proxy.deaf = True
    holder = held_by(connect(masters), name)
    lock, call = wait_for(connect([proxy.url for proxy in before]), name)
    holder.release()
    assert call.result(PATIENCE)
    lock.release()


def test_the_next_waiter_is_called_when_a_called_one_gives_up(
    connect: Face, proxies: Callable[[list[str]], list[Proxy]], masters: Any, name: str, no_backstop: None
) -> None:
    before = proxies(masters)
    for proxy in before:
        proxy.deaf = True
    holder = held_by(connect(masters), name)
    deaf = connect([proxy.url for proxy in before])
    _, first = wait_for(deaf, name)
    lock, call = wait_for(connect(masters), name)
    holder.release()
    assert not first.done() and not call.done()
    deaf.close()
    # The result of this call does not matter.
    with contextlib.suppress(Exception):
        first.result(PATIENCE)
    assert call.result(PATIENCE)
    lock.release()


def test_one_master_that_is_down_or_silent_delays_no_waiter(
    connect: Face, proxies: Callable[[list[str]], list[Proxy]], farm: Farm, name: str, no_backstop: None
) -> None:
    for fault in ("down", "silent"):
        before = proxies(farm.urls(3))
        urls = [proxy.url for proxy in before]
        clients = [connect(urls) for _ in range(3)]
        for client in clients:
            client.connect()
        # A client needs only the other two masters.
        await_true(partial(lambda before: all(proxy.greeted(3) for proxy in before), before))
        if fault == "silent":
            before[1].replies.clear()
        else:
            before[1].refusing = True
            before[1].cut()
        holder = held_by(clients[0], name)
        waiting = [wait_for(client, name) for client in clients[1:]]
        holder.release()
        for lock, call in waiting:
            assert call.result(PATIENCE)
            lock.release()
        before[1].replies.set()


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_wrong_clock_does_not_change_the_order_of_the_queue(
    connect: Face, masters: Any, name: str, seconds: int, no_backstop: None
) -> None:
    clients = [connect(masters) for _ in range(3)]
    clients[1].raw._quorum.fences._wall = lambda: time.time_ns() // 1000 + seconds * 1_000_000
    holder = held_by(connect(masters), name)
    order: list[int] = []
    waiting = [wait_for(client, name) for client in clients]
    for number, (lock, call) in enumerate(waiting):
        call.add_done_callback(partial(on_turn, order, number, lock))
    holder.release()
    await_true(lambda: len(order) == 3)
    assert order == [0, 1, 2]


def test_the_waiters_of_two_clients_get_the_lock_in_the_order_of_each_client(
    connect: Face, masters: Any, name: str, no_backstop: None
) -> None:
    clients = connect(masters), connect(masters)
    holder = held_by(clients[0], name)
    order: list[int] = []
    calls: list[Any] = []
    for number in range(6):
        client = clients[number // 3]
        lock = client.fair_lock(name, ttl=LONG)
        call = lock.start("acquire")
        # The first waiter of the second client waits at the masters; each other one waits behind one of its own client.
        queued = number + 1 if number < 3 else number - 3
        await_true(partial(lambda client, queued: waiting_in(client) == queued, client, queued))
        await_true(partial(lambda number: number != 3 or watches(clients[1], name), number))
        call.add_done_callback(partial(on_turn, order, number, lock))
        calls.append(call)
    holder.release()
    assert all(call.result(PATIENCE) for call in calls)
    await_true(lambda: len(order) == 6)
    assert [number for number in order if number < 3] == [0, 1, 2]
    assert [number for number in order if number >= 3] == [3, 4, 5]
    await_true(lambda: not left_behind(masters, name))


def waiting_in(client: Any) -> Any:
    """Count the entries in the queues of a client."""
    return sum(len(queue.entries) for queue in list(client.raw._quorum.queues.by_key.values()))


# --- regressions of a review -----------------------------------------------------------------------------


def test_high_fences_do_not_let_one_client_overtake_for_ever(
    connect: Face, three: list[str], name: str, no_backstop: None
) -> None:
    """A client that has seen a fence above the wall clock draws the same fair ticket every time."""
    first, second = connect(three), connect(three)
    # One fenced lock does this when another client's clock was ahead.
    first.raw._quorum.fences.note(time.time_ns() // 1000 + 3_600_000_000)
    holder = held_by(connect(three), name)
    lock, calling = wait_for(first, name)
    other, call = wait_for(second, name)
    holder.release()
    assert calling.result(PATIENCE)
    for _ in range(5):
        again = first.fair_lock(name, ttl=LONG)
        calling = again.start("acquire")
        await_true(lambda: waiting_in(first) == 1)
        lock.release()
        await_true(partial(lambda calling: call.done() or calling.done(), calling))
        if call.done():
            break
        assert calling.result(PATIENCE)
        lock = again
    else:
        lock.release()
        call.result(PATIENCE)
        other.release()
        raise AssertionError("who came again overtook who waited, five times")
    other.release()
    assert calling.result(PATIENCE)
    again.release()


def test_an_undo_after_the_look_calls_its_own_client(
    connect: Face, proxies: Callable[[list[str]], list[Proxy]], farm: Farm, name: str, no_backstop: None
) -> None:
    """The waiter gets the lock although no push reports the undo.

    There are three masters: one is down, and one has another client's key. Ours on the third is undone, and that call
    is not pushed to us (NOLOOP).
    """
    before = proxies(farm.urls(3))
    before[2].refusing = True
    client = connect([proxy.url for proxy in before])
    client.connect()
    with ask(farm.urls(3)[1]) as other:
        other.set(name, "somebody", px=400)
    client.raw._quorum.queues.crowd(name.encode())
    lock = client.fair_lock(name, ttl=LONG)
    call = lock.start("acquire")
    assert call.result(PATIENCE / 2)
    lock.release()


def test_a_waiter_that_gave_up_has_no_entry_on_a_master_that_returns(
    connect: Face, proxies: Callable[[list[str]], list[Proxy]], farm: Farm, name: str
) -> None:
    [proxy] = proxies(farm.urls(1))
    client = connect([proxy.url])
    client.connect()
    proxy.spoil = lambda command, reply: None if b"EVALSHA" in command[0:1] else reply
    proxy.refusing = True
    with pytest.raises(Exception):
        client.fair_lock(name, ttl=LONG).acquire(timeout=5)
    proxy.spoil, proxy.refusing = None, False
    # First the attempt is undone, which gives it an entry in the queue; then the waiter leaves.
    await_true(lambda: any(scripts.FAIR_RELEASE.sha in command for command in list(proxy.answered)))
    assert not left_behind(farm.urls(1), name), "a ghost was left in the queue"


def test_a_poller_that_is_closed_leaves_the_queue(connect: Face, farm: Farm, name: str, no_backstop: None) -> None:
    [url] = farm.urls(1)
    holder = held_by(connect([url]), name)
    poller = connect([url], wakeups="poll")
    poller.fair_lock(name, ttl=LONG).start("acquire")
    await_true(lambda: queue_length(url, name) == 1)
    poller.close()
    # The masters keep silent waiters for 60 s, so only the client can have removed the entry.
    await_true(lambda: queue_length(url, name) == 0)
    holder.release()


def test_a_failed_first_attempt_does_not_improve_the_place(
    connect: Face, proxies: Callable[[list[str]], list[Proxy]], farm: Farm, name: str, no_backstop: None
) -> None:
    """The second attempt no longer checks the ticket, so a clock that is behind would overtake a waiter."""
    [url] = farm.urls(1)
    [proxy] = proxies([url])
    late = connect([proxy.url])
    late.connect()
    late.raw._quorum.fences._wall = lambda: time.time_ns() // 1000 - 3_600_000_000
    holder = held_by(connect([url]), name)
    first, first_call = wait_for(connect([url]), name)
    proxy.requests.clear()
    second = late.fair_lock(name, ttl=LONG)
    second_call = second.start("acquire")
    await_true(lambda: proxy.count(b"EVALSHA") > 0)
    proxy.cut()
    proxy.requests.set()
    await_true(lambda: queue_length(url, name) == 2)
    holder.release()
    await_true(lambda: first_call.done() or second_call.done())
    overtaken = second_call.done() and not first_call.done()
    for lock, call in ((second, second_call), (first, first_call))[:: 1 if overtaken else -1]:
        assert call.result(PATIENCE)
        lock.release()
    assert not overtaken


def test_a_release_whose_script_was_flushed_wakes_the_next_of_its_client(
    connect: Face, farm: Farm, name: str, no_backstop: None
) -> None:
    """The release is sent in full after the next waiter's command, and its own client gets no push for the change."""
    [url] = farm.urls(1)
    client, other = connect([url]), connect([url])
    holder = held_by(client, name)
    lock = client.fair_lock(name, ttl=LONG)
    call = lock.start("acquire")
    await_true(lambda: waiting_in(client) == 1)
    with ask(url) as master:
        master.script_flush()
    # The script that acquires is loaded again.
    held_by(other, name + "-other").release()
    with ask(url) as master:
        master.script_flush()
        master.script_load(scripts.FAIR_ACQUIRE.text)
    # The waiter was refused before.
    client.raw._quorum.queues.crowd(name.encode())
    holder.release()
    assert call.result(PATIENCE / 2)
    lock.release()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", ["writer", "semaphore"])
def test_an_undone_grant_of_one_master_does_not_delay_the_waiter(
    connect: Face,
    proxies: Callable[[list[str]], list[Proxy]],
    farm: Farm,
    name: str,
    no_backstop: None,
    kind: str,
    late: bool,
) -> None:
    """One of three masters is down, and one slot is taken. After our own undo the third sends no push (NOLOOP)."""
    urls = farm.urls(3)
    before = proxies(urls)
    before[2].refusing = True
    client = connect([proxy.url for proxy in before])
    client.connect()
    make = {
        "writer": lambda: client.rw_lock(name, ttl=LONG).write(),
        "semaphore": lambda: client.semaphore(name, 1, ttl=LONG),
    }
    with ask(urls[1]) as other:
        # Another client is in on the second master alone, as after a split vote.
        members = [key for key in ("x",)] if kind == "writer" else ["0"]
        key = keys_of(client, make[kind]())
        other.zadd(key, {members[0]: int(time.time() * 1000) + 60_000})
        other.pexpire(key, 60_000)
        lock = make[kind]()
        asked = scripts_run(urls[0])
        if late:
            before[0].replies.clear()
        call = lock.start("acquire")
        # The grant on the first master arrives only after it was undone.
        if late:
            await_true(lambda: scripts_run(urls[0]) >= asked + 2)
            before[0].replies.set()
        await_true(lambda: watches_key(client, key))
        time.sleep(0.3)
        assert not call.done()
        other.zrem(key, members[0])
    assert call.result(PATIENCE / 2)
    lock.release()


def keys_of(client: Any, lock: Any) -> Any:
    return lock.raw._hold.key


def watches_key(client: Any, key: Any) -> Any:
    queues = client.raw._quorum.queues
    return any(ballot.reopened for ballot in list(queues.watches.by_key.get(key, ())))


def test_a_waiter_that_leaves_while_it_takes_a_higher_ticket_leaves_no_entry(farm: Farm, name: str) -> None:
    """A master that refuses the higher ticket of a waiter keeps its old entry, with the old ticket."""
    [url] = farm.urls(1)
    with redis.Redis.from_url(url, decode_responses=True) as master:
        queue = Queue(master, name)
        queue.ask(A, NOW)
        queue.ask(B, NOW + 1)
        queue.ask(C, NOW + 10_000_000)
        # Another master asked for this ticket.
        other, answer = queue.ask(B, NOW + 5_000_000, place=2)
        assert answer < -NOW
        queue.release(B, other, NOW + 5_000_000)
        assert master.zscore(f"{{{name}}}\0queue", B) is None


def test_a_waiter_whose_ticket_change_was_lost_leaves_no_entry(farm: Farm, name: str) -> None:
    """The waiter left with the new ticket, and its entry had the old one.

    An entry with a later ticket is another waiter's.
    """
    [url] = farm.urls(1)
    with redis.Redis.from_url(url, decode_responses=True) as master:
        queue = Queue(master, name)
        queue.ask(A, NOW)
        token, _ = queue.ask(B, NOW + 1)
        queue.release(B, token, NOW)
        assert master.zscore(f"{{{name}}}\0queue", B) == NOW + 1
        queue.release(B, token, NOW + 5_000_000)
        assert master.zscore(f"{{{name}}}\0queue", B) is None
