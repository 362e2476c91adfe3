"""`redlatch status NAME` and `redlatch unlock`: who holds what, and how to end it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result
from support.faces import await_true

from redlatch import Client
from redlatch.cli import build
from redlatch.operate.held import states_of
from redlatch.testing import embedded

LONG = 60.0

Call = Callable[..., Result]


@pytest.fixture
def cli(three: list[str]) -> Call:
    """Run a command on three masters, and return its result."""

    def call(*words: str, answer: str = "") -> Result:
        return CliRunner(env={"REDLATCH_MASTERS": ",".join(three)}).invoke(build(), words, input=answer)

    return call


@pytest.fixture
def holder(three: list[str]) -> Iterator[Client]:
    with Client(three, owner="web-1:orders") as client:
        yield client


def locks_of(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.output
    found: list[Any] = json.loads(result.stdout)["locks"]
    return found


def test_the_holders_of_all_kinds_are_told(cli: Call, holder: Client, name: str) -> None:
    kinds: list[tuple[str, Any]] = [
        ("lock", holder.lock(f"{name}-a", ttl=LONG)),
        ("lock", holder.lock(f"{name}-b", ttl=LONG, fence=True)),
        ("lock", holder.fair_lock(f"{name}-c", ttl=LONG)),
        ("semaphore", holder.semaphore(f"{name}-d", 2, ttl=LONG)),
        ("readers", holder.rw_lock(f"{name}-e", ttl=LONG).read()),
        ("writer", holder.rw_lock(f"{name}-f", ttl=LONG).write()),
    ]
    for _, lock in kinds:
        assert lock.acquire()
    found = locks_of(cli("status", "--json", "--prefix", name))
    assert [(lock["name"], lock["kind"]) for lock in found] == [(lock.name, kind) for kind, lock in kinds]
    for state, (_, lock) in zip(found, kinds, strict=True):
        [told] = state["holders"]
        assert told["owner"] == "web-1:orders" and 0 < told["ttl_left"] <= LONG and told["held_for"] is not None
        assert state["fence"] == lock.fence and not state["split"] and not state["waiting"]
    table = cli("status", f"{name}-a", f"{name}-z").stdout
    assert "3 of 3 masters vote" in table and "web-1:orders" in table and "nobody" in table
    for _, lock in kinds:
        lock.release()
    assert "no lock is held" in cli("status", "--prefix", name).stdout


def test_the_permits_of_a_rate_limit_are_told_until_they_end_or_are_taken_away(
    cli: Call, holder: Client, name: str
) -> None:
    limit = holder.rate_limit(name, 2, LONG - 5)
    assert limit.acquire() and limit.acquire()
    [state] = locks_of(cli("status", "--json", name))
    assert (state["name"], state["kind"]) == (name, "rate limit")
    assert [told["owner"] for told in state["holders"]] == ["web-1:orders"] * 2
    assert not limit.acquire(blocking=False)
    assert cli("unlock", "-y", name).exit_code == 0
    assert limit.acquire(blocking=False)


def test_waiters_of_a_fair_lock_are_counted(cli: Call, three: list[str], holder: Client, name: str) -> None:
    with holder.fair_lock(name, ttl=LONG):
        for url in three:
            with redis.Redis.from_url(url) as server:
                server.zadd(f"{{{name}}}\0queue", {b"another client": 1})
                server.pexpire(f"{{{name}}}\0queue", 60_000)
        [state] = locks_of(cli("status", "--json", name))
        assert state["waiting"] == 1


def test_the_keys_of_other_tools_are_left_out(cli: Call, three: list[str], name: str) -> None:
    for url in three:
        with redis.Redis.from_url(url) as server:
            server.set(f"{name}*[1]", "a value", px=60_000)
            server.lpush(f"{name}-list", "an element")
            server.pexpire(f"{name}-list", 60_000)
    assert locks_of(cli("status", "--json", "--prefix", name)) == []
    # Who names a key is told what it has.
    [state] = locks_of(cli("status", "--json", f"{name}*[1]"))
    assert state["holders"][0]["owner"] == ""
    [state] = locks_of(cli("status", "--json", f"{name}-list"))
    assert state["holders"] == []


def test_what_only_a_minority_has_is_called_a_split(cli: Call, three: list[str], name: str) -> None:
    with redis.Redis.from_url(three[0]) as server:
        server.set(name, "ab" * 16, px=60_000)
    [state] = locks_of(cli("status", "--json", name))
    assert (state["kind"], state["holders"], state["split"]) == ("", [], True)
    assert "the masters disagree" in cli("status", name).stdout
    assert cli("unlock", "-y", name).exit_code == 0
    [state] = locks_of(cli("status", "--json", name))
    assert not state["split"]


def test_unlock_takes_a_lock_away_and_says_what_it_was(cli: Call, holder: Client, name: str) -> None:
    lost: list[str] = []
    lock = holder.lock(name, ttl=1.0, auto_renew=True, on_lost=lambda _, reason: lost.append(reason))
    assert lock.acquire()
    done = cli("unlock", name, answer="y\n")
    assert done.exit_code == 0
    assert f"{name}: web-1:orders has held it for" in done.stdout
    assert "deleted on 3 of 3 masters" in done.stdout
    await_true(lambda: lost != [])
    assert cli("unlock", name, answer="y\n").exit_code == 1


def test_unlock_asks_first_and_does_nothing_without_an_answer(cli: Call, holder: Client, name: str) -> None:
    with holder.lock(name, ttl=LONG) as lock:
        assert cli("unlock", name, answer="n\n").exit_code == 1
        assert cli("unlock", name).exit_code == 1
        assert lock.owned()


def test_unlock_with_a_condition_spares_other_holders(cli: Call, holder: Client, name: str) -> None:
    lock = holder.lock(name, ttl=LONG, fence=True)
    assert lock.acquire()
    for wrong in (["--if-owner", "web-2:orders"], ["--if-fence", str((lock.fence or 0) + 1)]):
        refused = cli("unlock", "-y", *wrong, name)
        assert refused.exit_code == 1 and "not" in refused.stderr
    assert lock.owned()
    assert cli("unlock", "-y", "--if-owner", "web-1:orders", "--if-fence", str(lock.fence), name).exit_code == 0
    assert not lock.owned()


def test_unlock_says_that_a_lock_has_no_fence(cli: Call, holder: Client, name: str) -> None:
    with holder.lock(name, ttl=LONG) as lock:
        refused = cli("unlock", "-y", "--if-fence", "3", name)
        assert (refused.exit_code, refused.stderr) == (1, f"Error: {name!r} has no fence, not 3\n")
        assert lock.owned()


def test_unlock_of_many_holders_ends_those_of_one_owner(cli: Call, three: list[str], holder: Client, name: str) -> None:
    with Client(three, owner="web-2:orders") as other:
        mine = [holder.semaphore(name, 5, ttl=LONG), holder.rw_lock(name, ttl=LONG).read()]
        theirs = [other.semaphore(name, 5, ttl=LONG), other.rw_lock(name, ttl=LONG).read()]
        for lock in mine + theirs:
            assert lock.acquire()
        assert cli("unlock", "-y", "--if-owner", "web-2:orders", name).exit_code == 0
        assert [lock.owned() for lock in mine + theirs] == [True, True, False, False]
        assert cli("unlock", "-y", name).exit_code == 0
        assert [lock.owned() for lock in mine] == [False, False]


def test_without_a_quorum_nobody_says_who_holds_a_lock(fleet: Callable[..., embedded.Masters], name: str) -> None:
    masters = fleet(3)
    urls = ",".join(masters.urls)
    masters.kill(0)
    masters.kill(1)
    for words in (["unlock", "-y", name], ["status", name]):
        done = CliRunner(env={"REDLATCH_MASTERS": urls}).invoke(build(), words)
        assert done.exit_code == 69
        assert "1 of 3 masters answer, too few to say" in done.stderr
        assert "Connection refused" in done.stderr


def test_masters_may_be_named_in_every_way(three: list[str], name: str) -> None:
    runner = CliRunner()
    each = [word for url in three for word in ("-m", url)]
    for words in (["status", *three], ["status", *each], ["masters", *three], ["status", "-m", " ".join(three)]):
        assert runner.invoke(build(), words).exit_code == 0, words
    assert "REDLATCH_MASTERS is not set" in runner.invoke(build(), ["status", name]).stderr


def test_unlock_spares_a_holder_that_came_while_it_asked(
    three: list[str], holder: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = holder.lock(name, ttl=LONG), holder.lock(name, ttl=LONG)
    assert first.acquire()

    def answer(*_: object, **__: object) -> bool:
        first.release()
        assert second.acquire(timeout=5)
        return True

    monkeypatch.setattr("click.confirm", answer)
    done = CliRunner().invoke(build(), ["unlock", "-m", " ".join(three), name])
    assert "deleted on 0 of 3 masters" in done.stdout
    assert done.exit_code == 1
    assert second.owned()
    second.release()


def test_what_is_printed_is_json_and_has_no_token(cli: Call, three: list[str], name: str) -> None:
    token = "ab" * 16
    for url in three:
        with redis.Redis.from_url(url) as server:
            server.set(name, f"{token}:\x1b[31m" + "x" * 1000)
            server.set(f"{{{name}}}\0fence", "9" * 5000)
    done = cli("status", "--json", name)
    [state] = locks_of(done)
    [told] = state["holders"]
    assert told["ttl_left"] is None and len(told["owner"]) == 64 and state["fence"] is None
    assert token not in done.stdout and "Infinity" not in done.stdout and "\x1b" not in done.stdout
    assert "for ever" in cli("status", name).stdout
    assert cli("unlock", "-y", name).exit_code == 0
    for url in three:
        with redis.Redis.from_url(url) as server:
            server.delete(f"{{{name}}}\0fence")


def test_a_user_without_the_right_to_time_sees_the_holders(three: list[str], holder: Client, name: str) -> None:
    for url in three:
        with redis.Redis.from_url(url) as server:
            server.execute_command("ACL", "SETUSER", name, "on", ">s3cret", "~*", "+@all", "-time")
    limited = [url.replace("//", f"//{name}:s3cret@") for url in three]
    try:
        with holder.rw_lock(name, ttl=LONG).read(), holder.lock(name, ttl=LONG):
            states = states_of(limited, b"", [name.encode()])
            assert len(states[0].holders) == 2
        wrong = [url.replace("s3cret", "wrong") for url in limited]
        done = CliRunner().invoke(build(), ["unlock", "-y", "-m", " ".join(wrong), name])
        assert done.exit_code == 69 and "wrong" not in done.output
    finally:
        for url in three:
            with redis.Redis.from_url(url) as server:
                server.execute_command("ACL", "DELUSER", name)


def test_a_name_is_shown_as_it_is(cli: Call, holder: Client, name: str) -> None:
    with holder.lock(f"{name}:lock:17", ttl=LONG):
        assert f"{name}:lock:17" in cli("status", f"{name}:lock:17").stdout
    assert cli("unlock", "-y", "\udcff").exit_code == 1
