"""The Lua scripts of plain and fenced locks and of the guard, on real servers of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.exceptions

from redlatch.guard.settings import LONGEST_MAX_TTL
from redlatch.testing import embedded
from redlatch.votes import scripts

pytestmark = pytest.mark.each_server

MINE, OTHERS = "my-token", "another-token"
NAMED = {
    "release": scripts.RELEASE,
    "extend": scripts.EXTEND,
    "owned": scripts.OWNED,
    "locked": scripts.LOCKED,
    "holder": scripts.HOLDER,
    "acquire_fenced": scripts.ACQUIRE_FENCED,
    "confirm": scripts.CONFIRM,
    "pulse": scripts.PULSE,
}

Call = Callable[..., Any]


@pytest.fixture
def master(farm: Any, server_kind: str) -> Iterator[redis.Redis]:
    """One server of each kind in turn."""
    with redis.Redis.from_url(farm.urls(1, server_kind)[0], decode_responses=True, retry=None) as master:
        yield master


@pytest.fixture
def call(master: redis.Redis, name: str) -> Call:
    """Run a script on the test's own key and its counter."""
    return lambda script, *arguments: master.eval(
        script.text.decode(), script.keys, *[name, f"{{{name}}}\0fence"][: script.keys], *arguments
    )


def test_the_named_scripts_are_all_there_are() -> None:
    assert set(NAMED.values()) == set(scripts.ALL)


@pytest.mark.parametrize("script", NAMED)
def test_the_sha_of_a_script_is_the_servers(master: redis.Redis, script: str) -> None:
    assert master.script_load(NAMED[script].text.decode()) == NAMED[script].sha.decode()


@pytest.mark.parametrize("script", NAMED)
def test_a_script_called_in_full_can_be_called_by_its_sha_afterwards(
    master: redis.Redis, name: str, script: str
) -> None:
    if script != "holder":
        master.set(name, OTHERS if script != "locked" else "", px=60_000)
    keys = NAMED[script].keys
    arguments = [*[name, f"{{{name}}}\0fence"][:keys], MINE, "1000", "1", "1"]
    first = master.eval(NAMED[script].text.decode(), keys, *arguments)
    assert master.evalsha(NAMED[script].sha.decode(), keys, *arguments) == first == (script == "locked")


def test_release_deletes_the_key_that_has_the_token(master: redis.Redis, name: str, call: Call) -> None:
    master.set(name, MINE, px=60_000)
    assert call(scripts.RELEASE, MINE) == 1
    assert not master.exists(name)


def test_release_leaves_another_holders_key_alone(master: redis.Redis, name: str, call: Call) -> None:
    master.set(name, OTHERS, px=60_000)
    assert call(scripts.RELEASE, MINE) == 0
    assert master.get(name) == OTHERS
    assert 0 < master.pttl(name) <= 60_000


def test_release_of_a_missing_key_returns_0(master: redis.Redis, name: str, call: Call) -> None:
    assert call(scripts.RELEASE, MINE) == 0


def test_extend_sets_the_ttl_of_the_key_that_has_the_token(master: redis.Redis, name: str, call: Call) -> None:
    master.set(name, MINE, px=60_000)
    assert call(scripts.EXTEND, MINE, "600000") == 1
    assert 60_000 < master.pttl(name) <= 600_000
    assert master.get(name) == MINE


def test_row_39_extend_never_shortens(master: redis.Redis, name: str, call: Call) -> None:
    master.set(name, MINE, px=600_000)
    assert call(scripts.EXTEND, MINE, "60000") == 1
    assert 60_000 < master.pttl(name) <= 600_000


def test_row_39_extend_gives_a_ttl_to_a_key_that_has_none(master: redis.Redis, name: str, call: Call) -> None:
    master.set(name, MINE)
    assert call(scripts.EXTEND, MINE, "60000") == 1
    assert 0 < master.pttl(name) <= 60_000


def test_extend_does_not_prolong_another_holders_key(master: redis.Redis, name: str, call: Call) -> None:
    master.set(name, OTHERS, px=60_000)
    assert call(scripts.EXTEND, MINE, "600000") == 0
    assert 0 < master.pttl(name) <= 60_000


def test_extend_never_creates_a_key(master: redis.Redis, name: str, call: Call) -> None:
    assert call(scripts.EXTEND, MINE, "600000") == 0
    assert not master.exists(name)


@pytest.mark.parametrize(("stored", "verdict"), [(MINE, 1), (OTHERS, 0), (None, 0)])
def test_owned_compares_the_token(master: redis.Redis, name: str, call: Call, stored: str | None, verdict: int) -> None:
    if stored:
        master.set(name, stored, px=60_000)
    assert call(scripts.OWNED, MINE) == verdict


@pytest.mark.parametrize(("stored", "verdict"), [(MINE, 1), (OTHERS, 1), (None, 0)])
def test_locked_sees_any_key(master: redis.Redis, name: str, call: Call, stored: str | None, verdict: int) -> None:
    if stored:
        master.set(name, stored, px=60_000)
    assert call(scripts.LOCKED) == verdict


@pytest.mark.parametrize("script", ["owned", "locked"])
def test_owned_and_locked_change_nothing(master: redis.Redis, name: str, call: Call, script: str) -> None:
    master.set(name, MINE, px=60_000)
    call(NAMED[script], MINE)
    assert master.get(name) == MINE
    assert 0 < master.pttl(name) <= 60_000


@pytest.mark.parametrize("script", [script for script in NAMED if script != "acquire_fenced"])
def test_a_key_of_another_type_is_an_error_and_no_vote(master: redis.Redis, name: str, call: Call, script: str) -> None:
    master.rpush(name, MINE)
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        call(NAMED[script], MINE, "1000")


def test_extend_and_release_work_at_maxmemory_where_set_does_not(server: str) -> None:
    with embedded.masters(1, server=server) as [url], redis.Redis.from_url(url, retry=None) as master:
        master.set("k", MINE, px=60_000)
        master.config_set("maxmemory", "1")
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            master.set("other", MINE)
        assert master.eval(scripts.EXTEND.text, 1, "k", MINE, "600000") == 1
        assert master.eval(scripts.OWNED.text, 1, "k", MINE) == 1
        assert master.eval(scripts.LOCKED.text, 1, "k") == 1
        assert master.eval(scripts.RELEASE.text, 1, "k", MINE) == 1


@pytest.mark.parametrize("script", NAMED)
def test_a_user_with_the_rights_to_a_few_commands_can_run_the_scripts(
    master: redis.Redis, name: str, script: str
) -> None:
    user = f"user-of-{name}"
    rights = ["reset", "on", ">pw", "~*", "-@all", "+get", "+del", "+pttl", "+pexpire", "+eval", "+evalsha"]
    if NAMED[script].keys == 2:
        rights += ["+set", "+time"]
    master.execute_command("ACL", "SETUSER", user, *rights)
    try:
        where = master.connection_pool.connection_kwargs
        login: dict[str, Any] = {"username": user, "password": "pw", "retry": None}
        with redis.Redis(host=where["host"], port=where["port"], **login) as limited:
            keys = NAMED[script].keys
            if script != "holder":
                master.set(name, OTHERS if script != "locked" else MINE, px=60_000)
            names = [name, f"{{{name}}}\0fence"][:keys]
            answer = limited.eval(NAMED[script].text.decode(), keys, *names, MINE, "1000", "1", "1")
            assert answer == (script == "locked")
    finally:
        master.execute_command("ACL", "DELUSER", user)


# --- the holder ----------------------------------------------------------------------------------------


def test_the_holder_is_told_in_one_line(master: redis.Redis, name: str) -> None:
    keys = [name, f"{{{name}}}\0fence"]
    text = scripts.HOLDER.text.decode()
    assert master.eval(text, 2, *keys) == 0
    master.set(name, b"a\r\nb" + b"c" * 200, px=60_000)
    left, counter, token = master.eval(text, 2, *keys).split(" ", 2)
    assert 0 < int(left) <= 60_000
    assert (counter, token) == ("0", "a  b" + "c" * (scripts.LONGEST_TOKEN - 4))
    master.set(keys[1], 77, px=60_000)
    assert master.eval(text, 2, *keys).split(" ")[1] == "77"
    # A lock without a counter names its key twice.
    assert master.eval(text, 2, name, name).split(" ")[1] == "0"
    master.persist(name)
    assert master.eval(text, 2, name, name).startswith("-1 0 a")


# --- the guard's marker --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "wanted", "horizon"), [(10_000, 10_000, 10_000), (10_000, 9_999, 10_000), (10_000, 60_000, 60_000)]
)
def test_a_pulse_returns_the_time_and_the_horizon_which_never_falls(
    master: redis.Redis, name: str, call: Call, stored: int, wanted: int, horizon: int
) -> None:
    master.set(name, f"{MINE}\n{stored}", px=1000)
    clock, said = str(call(scripts.PULSE, MINE, wanted)).split(" ")
    assert int(clock) == pytest.approx(now_us(master), abs=10_000_000)
    assert int(said) == horizon
    assert master.get(name) == f"{MINE}\n{horizon}"


@pytest.mark.parametrize("horizon", [10_000, 1000 * LONGEST_MAX_TTL])
@pytest.mark.parametrize("raised", [False, True])
def test_row_71_a_marker_lives_for_35_days_and_longer_than_any_lock(
    master: redis.Redis, name: str, call: Call, horizon: int, raised: bool
) -> None:
    kept = 35 * 86_400_000
    assert kept > 2 * horizon
    master.set(name, f"{MINE}\n{1 if raised else horizon}", px=1000)
    call(scripts.PULSE, MINE, horizon)
    assert kept - 1000 < master.pttl(name) <= kept


@pytest.mark.parametrize("stored", [OTHERS, None, MINE, f"{MINE}1\n10000", f"{OTHERS}\n{MINE}\n10000"])
def test_a_pulse_finds_another_marker_and_raises_nothing(
    master: redis.Redis, name: str, call: Call, stored: str | None
) -> None:
    if stored:
        master.set(name, stored, px=60_000)
    assert call(scripts.PULSE, MINE, "600000") == 0
    assert master.pttl(name) <= 60_000
    assert master.get(name) == stored


def test_a_pulse_raises_the_horizon_at_maxmemory_too(server: str) -> None:
    with embedded.masters(1, server=server) as [url], redis.Redis.from_url(url, retry=None) as master:
        master.set("k", f"{MINE}\n10000", px=1000)
        master.config_set("maxmemory", "1")
        assert master.eval(scripts.PULSE.text, 1, "k", MINE, "60000").split()[1] == b"60000"
        assert master.get("k") == f"{MINE}\n60000".encode()
        assert master.pttl("k") > 60_000


@pytest.mark.parametrize("stored", [None, MINE])
def test_a_marker_is_written_at_maxmemory_too(stored: str | None, server: str) -> None:
    """After a restart with its keys a master at maxmemory has an old marker, and must get a new one."""
    with embedded.masters(1, server=server) as [url], redis.Redis.from_url(url, retry=None) as master:
        if stored:
            master.set("k", stored, px=60_000)
        master.config_set("maxmemory", "1")
        arguments = "k", stored or "", OTHERS, "60000", now_us(master)
        assert master.eval(scripts.MARK.text.decode(), 1, *arguments) == 1
        assert master.get("k") == OTHERS.encode()
        assert 0 < master.pttl("k") <= 60_000


@pytest.mark.parametrize(
    ("stored", "old", "ago", "written"),
    [(None, "", 0, True), (OTHERS, OTHERS, 4, True), (OTHERS, "", 0, False), (None, "", 6, False)],
)
def test_a_marker_replaces_only_the_marker_that_was_just_read(
    master: redis.Redis, name: str, stored: str | None, old: str, ago: int, written: bool
) -> None:
    if stored:
        master.set(name, stored, px=1000)
    made_us = now_us(master) - ago * 1_000_000
    assert master.eval(scripts.MARK.text.decode(), 1, name, old, MINE, "60000", made_us) == written
    assert master.get(name) == (MINE if written else stored)
    assert master.pttl(name) <= 60_000
    assert master.pttl(name) != -1


# --- fences --------------------------------------------------------------------------------------------


def now_us(master: redis.Redis) -> int:
    seconds, microseconds = master.time()
    return seconds * 1_000_000 + microseconds


def counter(master: redis.Redis, name: str) -> int:
    return int(master.get(f"{{{name}}}\0fence") or 0)


def test_a_fence_above_the_counter_is_granted_with_the_key(master: redis.Redis, name: str, call: Call) -> None:
    first = now_us(master)
    assert call(scripts.ACQUIRE_FENCED, MINE, "60000", first, first + 7) == first
    assert master.get(name) == MINE
    assert 0 < master.pttl(name) <= 60_000
    assert counter(master, name) == first + 7


@pytest.mark.parametrize("below", [0, 1, 1000])
def test_a_fence_not_above_the_counter_is_refused_but_the_key_is_set(
    master: redis.Redis, name: str, call: Call, below: int
) -> None:
    high = now_us(master)
    master.set(f"{{{name}}}\0fence", high)
    assert call(scripts.ACQUIRE_FENCED, MINE, "60000", high - below, high + 5) == -high
    assert master.get(name) == MINE
    assert counter(master, name) == high


def test_a_key_that_is_taken_changes_no_counter(master: redis.Redis, name: str, call: Call) -> None:
    master.set(name, OTHERS, px=60_000)
    first = now_us(master)
    assert call(scripts.ACQUIRE_FENCED, MINE, "60000", first, first) == 0
    assert counter(master, name) == 0


def test_a_missing_counter_counts_as_half_a_day_before_the_servers_clock(
    master: redis.Redis, name: str, call: Call
) -> None:
    half_a_day = 43_200_000_000
    refused = call(scripts.ACQUIRE_FENCED, MINE, "60000", 1, 1)
    assert -refused == pytest.approx(now_us(master) - half_a_day, abs=60_000_000)


def test_a_counter_stays_for_a_day_after_its_last_use(master: redis.Redis, name: str, call: Call) -> None:
    first = now_us(master)
    call(scripts.ACQUIRE_FENCED, MINE, "60000", first, first)
    assert 86_000_000 < master.pttl(f"{{{name}}}\0fence") <= 86_400_000
    master.pexpire(f"{{{name}}}\0fence", 1000)
    call(scripts.CONFIRM, MINE, first + 1, first + 1)
    assert 86_000_000 < master.pttl(f"{{{name}}}\0fence") <= 86_400_000


def test_a_fence_is_confirmed_only_for_the_holder_of_the_key(master: redis.Redis, name: str, call: Call) -> None:
    high = now_us(master)
    master.set(name, MINE, px=60_000)
    master.set(f"{{{name}}}\0fence", high)
    assert call(scripts.CONFIRM, OTHERS, high + 1, high + 1) == 0
    assert call(scripts.CONFIRM, MINE, high, high) == 0
    assert counter(master, name) == high
    assert call(scripts.CONFIRM, MINE, high + 1, high + 3) == 1
    assert counter(master, name) == high + 3


def test_fences_of_this_century_lose_no_digit_in_lua(master: redis.Redis, name: str, call: Call) -> None:
    # The year 2100.
    last = 4_102_444_800_000_001
    assert call(scripts.ACQUIRE_FENCED, MINE, "60000", last, last) == last
    assert counter(master, name) == last
    master.delete(name)
    assert call(scripts.ACQUIRE_FENCED, MINE, "60000", last, last) == -last
