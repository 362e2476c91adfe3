"""Rows 3, 6, 23, 33, 34 and 35: masters that forget, that are replaced, or that are not what a client expects."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.faces import PATIENCE, Face, ask, await_true, refused, wins
from support.masters import Keys
from support.proxy import Proxy
from support.selection import on_one_face

from redlatch import ConfigurationError, Guard, LockLost, QuorumUnavailable, impl
from redlatch.testing import embedded
from redlatch.votes.scripts import KEPT_MS
from redlatch.wire.engine.net import now_ns

from . import restarts
from .clocks import Clock

pytestmark = pytest.mark.one_loop

MAX_TTL = 1.2
GUARD = Guard(max_ttl=MAX_TTL)
# Longer than two fail-overs take.
LONGER = 30.0
ALWAYS = {"appendonly": "yes", "appendfsync": "always"}


def held_by_two(client: Any, urls: Any, name: Any, **options: Any) -> Any:
    """Return a lock that stands on the first two of three masters."""
    lock = client.lock(name, **options)
    # With a short ttl an attempt waits for 0.1 s only.
    await_true(lambda: wins(lock))
    for url in urls:
        await_true(partial(lambda url: ask(url).exists(name), url))
    ask(urls[2]).delete(name)
    return lock


def released(lock: Any) -> Any:
    """Return whether a release succeeded."""
    try:
        lock.release()
    except QuorumUnavailable:
        return False
    return True


def assert_nobody_wins_before(lock: Any, client: Any, name: Any) -> None:
    """Try to acquire a lock until it is granted; check that its holder's deadline has passed."""
    rival = client.lock(name)
    while not wins(rival):
        pass
    assert now_ns() >= lock.deadline_ns
    rival.release()


# --- row 3: restarts ---------------------------------------------------------------------------------------


@on_one_face("asyncio")
@pytest.mark.parametrize("knew", [True, False], ids=["who knew it", "who comes new"])
def test_row_3_a_master_that_was_restarted_empty_lets_no_second_holder_in(
    knew: bool, connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet()
    owner = connect(masters.urls, guard=GUARD, ttl=MAX_TTL)
    rival = connect(masters.urls, guard=GUARD, ttl=MAX_TTL)
    if knew:
        rival.connect()
    lock = held_by_two(owner, masters.urls, name)
    masters.kill(0)
    masters.start(0)
    assert_nobody_wins_before(lock, rival, name)


@on_one_face("threads")
def test_row_3_the_error_says_why_a_master_is_kept_out(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet()
    client = connect(masters.urls)
    client.connect()
    for index in (0, 1):
        masters.kill(index)
        masters.start(index)

    def refused() -> Any:
        with pytest.raises(QuorumUnavailable) as caught:
            client.lock(name).acquire(blocking=False)
        return all("kept out for" in str(cause) for cause in caught.value.causes.values())

    await_true(refused)
    with pytest.raises(QuorumUnavailable) as caught:
        client.lock(name).acquire(blocking=False)
    # One more master than the healthy one must be back.
    kept_out = [float(str(cause).split()[3]) for cause in caught.value.causes.values()]
    assert caught.value.retry_after == pytest.approx(min(kept_out), abs=0.5)
    assert 0 < caught.value.retry_after < 61


def test_row_3_the_log_says_when_the_reason_changes_and_how_many_masters_are_connected(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    masters = fleet()
    client = connect(masters.urls, guard=GUARD, ttl=MAX_TTL, attempt_timeout=PATIENCE)
    client.connect()

    def tells(what: Any) -> Any:
        # A client that is not used notices nothing.
        lock = client.lock(name)
        assert lock.acquire(timeout=PATIENCE)
        lock.release()
        return what in caplog.text

    masters.kill(0)
    await_true(lambda: tells("Connection refused; 2 of 3 are connected, 2 must agree"))
    masters.start(0)
    await_true(lambda: tells("is back: 3 of 3 are connected, 2 must agree"))
    told = [record.getMessage().partition("cannot be used: ")[2][:16] for record in caplog.records]
    assert any(reason.startswith("kept out for") for reason in told)
    # The log does not repeat the reason for every attempt to connect.
    assert all(reason != following for reason, following in itertools.pairwise(told) if reason)


def test_row_3_a_master_that_keeps_all_keys_is_trusted_with_trust_persistence(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet(config=ALWAYS)
    trusting = Guard(trust_persistence=True)
    owner, rival = connect(masters.urls, guard=trusting), connect(masters.urls, guard=trusting)
    lock = owner.lock(name)
    assert lock.acquire()
    for url in masters.urls:
        await_true(partial(lambda url: ask(url).exists(name), url))
    for index in range(3):
        masters.kill(index)
        masters.start(index)
        assert not wins(rival.lock(name))
    await_true(lambda: released(lock))
    await_true(lambda: wins(rival.lock(name)))


def test_row_3_a_master_without_an_append_only_file_is_not_trusted(
    connect: Face, fleet: Callable[..., embedded.Masters]
) -> None:
    with pytest.raises(ConfigurationError, match="no append-only file"):
        client = connect(fleet().urls, guard=Guard(trust_persistence=True))
        client.connect()


def test_row_3_new_masters_vote_at_once(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str, keys: Keys
) -> None:
    masters = fleet(5)
    lock = connect(masters.urls).lock(name)
    assert lock.acquire(blocking=False)
    await_true(lambda: len(keys(masters.urls, name)) == 5)


def test_row_3_many_restarts_lead_to_no_double_grant(implementation: impl.Implementation) -> None:
    tally = restarts.Tally()
    # On a busy machine most locks expire before their master is back.
    while tally.trials < 30 or tally.tries <= 300:
        tally.add(restarts.run(30, Guard(max_ttl=restarts.TTL), 6))
        assert tally.double == 0


def test_row_3_without_a_guard_restarts_lead_to_double_grants(implementation: impl.Implementation) -> None:
    # No rival wins if starting a master takes longer than the ttl.
    await_true(lambda: restarts.run(6, None, 6).double > 0)


@on_one_face("asyncio")
def test_row_3_short_lived_processes_let_restarted_masters_in_again(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet()

    def job() -> Any:
        """Do as a cron job does: connect, use a lock, end."""
        client = connect(masters.urls, guard=GUARD, ttl=MAX_TTL)
        won = wins(client.lock(name))
        if won:
            client.lock(name + "-other").acquire()
        return won

    await_true(job)
    for index in (0, 1):
        masters.kill(index)
        masters.start(index)
        ask(masters.urls[index]).delete(name)
    await_true(lambda: [ask(url).delete(name) for url in masters.urls] and job())
    assert all(ask(url).get(b"\0guard") for url in masters.urls)


def test_row_3_new_masters_vote_at_once_although_one_is_slow_to_answer(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet()
    masters.pause(2)
    client = connect(masters.urls)
    late = threading.Timer(1.3, masters.resume, (2,))
    late.start()
    assert client.lock(name).acquire(timeout=PATIENCE)
    late.join()
    await_true(lambda: all(b'"out":0,' in (ask(url).get(b"\0guard") or b"") for url in masters.urls))


@on_one_face("threads")
def test_row_3_a_master_that_restarts_with_a_slow_clock_is_kept_out_as_long(
    library: Path, tmp_path: Path, connect: Face, name: str
) -> None:
    clocks = [Clock(library, tmp_path, str(index)) for index in range(3)]
    program = embedded.find_server()
    masters = embedded.masters(3, server=[clock.wrapped(program) for clock in clocks])
    with masters as urls:
        owner, knew = connect(urls, guard=GUARD, ttl=MAX_TTL), connect(urls, guard=GUARD, ttl=MAX_TTL)
        knew.connect()
        lock = held_by_two(owner, urls, name)
        masters.kill(0)
        clocks[0].set_ahead(-30)
        masters.start(0)
        await_true(lambda: wins(knew.lock(name + "-other")) or ask(urls[0]).get(b"\0guard"))
        # Then a client comes that has noticed none of this.
        clocks[0].set_ahead(0)
        assert_nobody_wins_before(lock, connect(urls, guard=GUARD, ttl=MAX_TTL), name)


# --- row 33: keys that were deleted by hand ----------------------------------------------------------------


def test_row_33_a_master_that_was_flushed_lets_no_second_holder_in(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet()
    owner = connect(masters.urls, guard=GUARD, ttl=MAX_TTL)
    rival = connect(masters.urls, guard=GUARD, ttl=MAX_TTL)
    rival.connect()
    lock = held_by_two(owner, masters.urls, name)
    deadline_ns = lock.deadline_ns
    ask(masters.urls[0]).flushall()
    owner.lock(name + "-other").acquire(blocking=False)
    # The owner has noticed the flush and doubts its lock.
    await_true(lambda: lock.remaining() == 0)
    with pytest.raises(LockLost, match="may have forgotten"):
        lock.check()
    again = rival.lock(name)
    await_true(lambda: wins(again))
    # No other client gets the lock before the deadline.
    assert now_ns() >= deadline_ns


@on_one_face("threads")
@pytest.mark.parametrize("count", [1, 3])
def test_row_33_clients_that_knew_the_masters_keep_them_out_after_a_flush_of_all(
    count: int, connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet(count)
    guard = Guard(max_ttl=MAX_TTL, strict=True)
    owner, knew = connect(masters.urls, guard=guard, ttl=MAX_TTL), connect(masters.urls, guard=guard, ttl=MAX_TTL)
    knew.connect()
    lock = owner.lock(name)
    assert lock.acquire()
    for url in masters.urls:
        ask(url).flushall()
    fresh = connect(masters.urls, guard=guard, ttl=MAX_TTL)
    # The masters look new to this client.
    fresh.connect()
    assert_nobody_wins_before(lock, knew, name)


@on_one_face("asyncio")
@pytest.mark.parametrize("how", ["extend", "renewal"])
def test_row_33_a_holder_prolongs_the_markers(
    how: str, connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet()
    client = connect(masters.urls, attempt_timeout=PATIENCE)
    lock = client.lock(name, ttl=3.0, auto_renew=how == "renewal")
    assert lock.acquire()
    for url in masters.urls:
        ask(url).pexpire(b"\0guard", 60_000)

    def kept() -> Any:
        if how == "extend":
            lock.extend()
        return all(ask(url).pttl(b"\0guard") > 60_000 for url in masters.urls)

    await_true(kept)
    lock.release()


@pytest.mark.parametrize("how", ["auto_renew", "on_lost"])
def test_row_33_a_renewed_or_watched_lock_is_verified_after_a_flush_of_a_minority(
    how: str, connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet()
    told = []
    options = {"auto_renew": True} if how == "auto_renew" else {"on_lost": lambda lock, why: told.append(why)}
    lock = connect(masters.urls).lock(name, **options)
    assert lock.acquire()
    for url in masters.urls:
        await_true(partial(lambda url: ask(url).exists(name), url))
    deadline_ns, server = lock.deadline_ns, ask(masters.urls[0])
    server.flushall()
    # The client has noticed the flush.
    await_true(lambda: server.get(b"\0guard"))
    # It has asked the other masters.
    await_true(lambda: lock.remaining() > 0)
    assert lock.deadline_ns >= deadline_ns - 200_000_000 or how == "auto_renew"
    assert not told
    lock.release()


def test_row_33_a_renewed_or_watched_lock_is_lost_after_a_flush_of_a_majority(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet()
    told = []
    client = connect(masters.urls, guard=GUARD, ttl=MAX_TTL)
    lock = client.lock(name, auto_renew=True, on_lost=lambda lock, why: told.append(why))
    assert lock.acquire()
    for url in masters.urls[:2]:
        ask(url).flushall()
    await_true(lambda: told)
    assert lock.remaining() == 0


def test_row_33_a_marker_that_was_deleted_by_hand_counts_as_lost_memory(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet()
    client = connect(masters.urls, guard=GUARD, ttl=MAX_TTL, attempt_timeout=PATIENCE)
    client.connect()
    server = ask(masters.urls[0])
    before = server.get(b"\0guard")
    server.delete(b"\0guard")

    def marked() -> Any:
        lock = client.lock(name)
        assert lock.acquire(timeout=PATIENCE)
        lock.release()
        return server.get(b"\0guard")

    await_true(marked)
    assert b'"out":0,' in before
    assert b'"out":0,' not in server.get(b"\0guard")


def test_row_33_a_marker_has_a_ttl_and_each_pulse_prolongs_it(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet(1)
    client, server = connect(masters.urls), ask(masters.urls[0])
    client.connect()
    assert KEPT_MS - 100_000 < server.pttl(b"\0guard") <= KEPT_MS
    server.pexpire(b"\0guard", 60_000)

    def prolonged() -> Any:
        lock = client.lock(name)
        assert lock.acquire()
        lock.release()
        return server.pttl(b"\0guard") > 60_000

    await_true(prolonged)


# --- row 34: clients that do not agree ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "guard", "why"),
    [
        ([0, 1, 2], Guard(), "is one of 5 masters for "),
        ([0, 1, 2, 3, 4], Guard(strict=True), "strict=False by others"),
        ([0, 1, 2, 3, 5], Guard(), "all clients must have the same list"),
        ([5], Guard(max_ttl=20, trust_persistence=True), "trust_persistence=False by others"),
    ],
)
def test_row_34_a_client_that_disagrees_is_refused(
    chosen: Any, guard: Any, why: Any, connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    first, other = fleet(5), fleet(1)
    urls = first.urls + other.urls
    connect(first.urls).connect()
    connect(other.urls, guard=Guard(max_ttl=20)).connect()
    client = connect([urls[index] for index in chosen], guard=guard)
    # If a server is slow, the answer of the last one comes after the first call.
    await_true(lambda: refused(client, why))


def test_row_34_a_database_of_a_master_is_another_master(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    urls = fleet(3).urls
    connect(urls).connect()
    client = connect([urls[0] + "/1", *urls[1:]])

    def refused() -> Any:
        with pytest.raises((ConfigurationError, QuorumUnavailable)) as caught:
            client.lock(name).acquire()
        return "is not one of the masters" in str(caught.value)

    await_true(refused)


def test_row_34_the_same_masters_may_have_other_lists_under_other_prefixes(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    urls = fleet(3).urls
    for prefix, chosen in (("", urls), ("one:", urls[:1]), ("two:", urls[1:])):
        assert connect(chosen, prefix=prefix).lock(name).acquire()


def test_row_34_the_same_masters_may_be_known_by_other_addresses(
    connect: Face, fleet: Callable[..., embedded.Masters], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    urls = fleet(3).urls
    assert connect(urls).lock(name).acquire()
    assert not wins(connect([proxy.url for proxy in proxies(urls)]).lock(name))


@on_one_face("threads")
def test_row_34_a_client_with_other_addresses_can_use_masters_after_a_restart(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet(3)
    connect(masters.urls, guard=GUARD, ttl=MAX_TTL).connect()
    for _ in range(2):
        masters.kill(0)
        masters.start(0)
        client = connect([url.replace("127.0.0.1", "localhost") for url in masters.urls], guard=GUARD, ttl=MAX_TTL)
        assert client.lock(name).acquire(timeout=PATIENCE)
        await_true(lambda: ask(masters.urls[0]).get(b"\0guard"))
        # One client: hundreds of clients that dial dead masters would keep the loop from its turn when the test ends.
        returned = connect(masters.urls, guard=GUARD, ttl=MAX_TTL).lock(name)
        await_true(partial(wins, returned))
        for url in masters.urls:
            ask(url).delete(name)


# --- rows 23 and 35: servers that are not suited for locks -------------------------------------------------


@pytest.mark.parametrize(("policy", "warned"), [("volatile-lru", True), ("allkeys-lfu", True), ("noeviction", False)])
def test_row_23_a_master_that_may_evict_locks_is_reported(
    policy: Any, warned: Any, connect: Face, fleet: Callable[..., embedded.Masters], caplog: pytest.LogCaptureFixture
) -> None:
    masters = fleet(1, config={"maxmemory": "100mb", "maxmemory-policy": policy})
    with caplog.at_level(logging.WARNING, "redlatch"):
        connect(masters.urls).connect()
    assert any("may evict keys" in record.getMessage() for record in caplog.records) == warned


@on_one_face("asyncio")
@pytest.mark.parametrize("trusted", [False, True])
def test_row_35_a_replica_that_was_promoted_lets_no_second_holder_in(
    trusted: bool,
    connect: Face,
    fleet: Callable[..., embedded.Masters],
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
) -> None:
    guard, config = Guard(max_ttl=MAX_TTL, trust_persistence=trusted), ALWAYS if trusted else {}
    masters, spare = fleet(3, config=config), fleet(1, config=config)
    replica = ask(spare.urls[0])
    (before,) = proxies(masters.urls[:1])
    urls = [before.url, *masters.urls[1:]]
    # A master begins a replication history with its first replica.
    replica.replicaof("127.0.0.1", masters.urls[0].rpartition(":")[2])
    await_true(lambda: replica.info("replication")["master_link_status"] == "up")
    owner = connect(urls, guard=guard, ttl=MAX_TTL)
    rival = connect(urls, guard=guard, ttl=MAX_TTL)
    rival.connect()
    # The replica has copied the marker with all other keys, but it does not have the lock.
    await_true(lambda: replica.get(b"\0guard"))
    ask(masters.urls[0]).execute_command("CLIENT", "KILL", "TYPE", "replica")
    replica.replicaof("NO", "ONE")
    lock = held_by_two(owner, masters.urls, name)
    before.lead_to(spare.urls[0])
    masters.kill(0)
    assert_nobody_wins_before(lock, rival, name)
    assert b'"out":0,' not in replica.get(b"\0guard")


@on_one_face("threads")
def test_row_35_a_first_replica_costs_nothing(connect: Face, fleet: Callable[..., embedded.Masters], name: str) -> None:
    masters, spare = fleet(3), fleet(1)
    connect(masters.urls).connect()
    replica = ask(spare.urls[0])
    replica.replicaof("127.0.0.1", masters.urls[0].rpartition(":")[2])
    await_true(lambda: replica.info("replication")["master_link_status"] == "up")
    lock = connect(masters.urls).lock(name)
    assert lock.acquire(blocking=False)
    # The master votes at once.
    await_true(lambda: ask(masters.urls[0]).exists(name))
    lock.release()


@on_one_face("asyncio")
@pytest.mark.parametrize("backlog", [1, 3600])
def test_row_50_a_fail_over_and_back_keeps_the_master_out(
    backlog: int,
    connect: Face,
    fleet: Callable[..., embedded.Masters],
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
) -> None:
    soon = {"repl-diskless-sync-delay": "0"}
    masters, spare = fleet(3, config={"repl-backlog-ttl": str(backlog)} | soon), fleet(1, config=soon)
    first, other = ask(masters.urls[0]), ask(spare.urls[0])
    (before,) = proxies(masters.urls[:1])
    urls = [before.url, *masters.urls[1:]]
    guard = Guard(max_ttl=LONGER)
    owner, rival = (connect(urls, guard=guard, ttl=LONGER) for _ in range(2))
    owner.connect()
    rival.connect()
    follow(other, masters.urls[0])
    other.replicaof("NO", "ONE")
    # The other server does not have this key.
    held = held_by_two(owner, masters.urls, name)
    before.refusing = True
    before.cut()
    follow(first, spare.urls[0])
    first.replicaof("NO", "ONE")
    assert not first.exists(name)
    # The master then forgets that it was a replica.
    if backlog == 1:
        await_true(lambda: not first.info("replication")["master_replid2"])
    before.refusing = False
    lock = rival.lock(name)

    def kept_out() -> Any:
        assert not wins(lock)
        return b'"out":0,' not in first.get(b"\0guard")

    await_true(kept_out)
    assert held.remaining() > 0


def follow(server: Any, url: Any) -> None:
    """Make a server the replica of another one, and wait until it has copied the keys."""
    server.replicaof("127.0.0.1", url.rpartition(":")[2])
    await_true(lambda: server.info("replication")["master_link_status"] == "up")


def test_row_35_the_client_disconnects_at_once_from_a_master_that_became_a_replica(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet(3)
    client = connect(masters.urls)
    client.connect()
    server = ask(masters.urls[0])
    server.replicaof("127.0.0.1", masters.urls[1].rpartition(":")[2])
    for _ in range(3):
        lock = client.lock(name)
        assert lock.acquire(timeout=PATIENCE)
        lock.release()
    await_true(lambda: all(one["name"] != "redlatch" for one in server.client_list()))
