"""The Lua scripts on real servers of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.exceptions

from redlatch import embedded
from redlatch.protocol import scripts

MINE, OTHERS = "my-token", "another-token"
NAMED = {"release": scripts.RELEASE, "extend": scripts.EXTEND, "owned": scripts.OWNED, "locked": scripts.LOCKED}

Call = Callable[..., Any]


@pytest.fixture
def master(farm: Any, server_kind: str) -> Iterator[redis.Redis]:
    """One server of every kind in turn."""
    with redis.Redis.from_url(farm.urls(1, server_kind)[0], decode_responses=True, retry=None) as master:
        yield master


@pytest.fixture
def call(master: redis.Redis, name: str) -> Call:
    """Run a script on the test's own key."""
    return lambda script, *arguments: master.eval(script.text.decode(), 1, name, *arguments)


def test_the_named_scripts_are_all_there_are() -> None:
    assert set(NAMED.values()) == set(scripts.ALL)


@pytest.mark.parametrize("script", NAMED)
def test_a_scripts_sha_is_what_the_server_says(master: redis.Redis, script: str) -> None:
    assert master.script_load(NAMED[script].text.decode()) == NAMED[script].sha.decode()


@pytest.mark.parametrize("script", NAMED)
def test_a_script_called_in_full_can_be_called_by_its_sha_afterwards(
    master: redis.Redis, name: str, script: str
) -> None:
    arguments = [name, MINE, "1000"]
    master.eval(NAMED[script].text.decode(), 1, *arguments)
    assert master.evalsha(NAMED[script].sha.decode(), 1, *arguments) == 0


def test_release_deletes_the_key_that_has_the_token(master: redis.Redis, name: str, call: Call) -> None:
    master.set(name, MINE, px=60_000)
    assert call(scripts.RELEASE, MINE) == 1
    assert not master.exists(name)


def test_release_leaves_another_holders_key_alone(master: redis.Redis, name: str, call: Call) -> None:
    master.set(name, OTHERS, px=60_000)
    assert call(scripts.RELEASE, MINE) == 0
    assert master.get(name) == OTHERS
    assert 0 < master.pttl(name) <= 60_000


def test_release_of_a_missing_key_says_no(master: redis.Redis, name: str, call: Call) -> None:
    assert call(scripts.RELEASE, MINE) == 0


def test_extend_sets_the_ttl_of_the_key_that_has_the_token(master: redis.Redis, name: str, call: Call) -> None:
    master.set(name, MINE, px=60_000)
    assert call(scripts.EXTEND, MINE, "600000") == 1
    assert 60_000 < master.pttl(name) <= 600_000
    assert master.get(name) == MINE


def test_extend_may_also_shorten(master: redis.Redis, name: str, call: Call) -> None:
    master.set(name, MINE, px=600_000)
    assert call(scripts.EXTEND, MINE, "60000") == 1
    assert 0 < master.pttl(name) <= 60_000


def test_extend_gives_another_holder_nothing(master: redis.Redis, name: str, call: Call) -> None:
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
def test_a_question_changes_nothing(master: redis.Redis, name: str, call: Call, script: str) -> None:
    master.set(name, MINE, px=60_000)
    call(NAMED[script], MINE)
    assert master.get(name) == MINE
    assert 0 < master.pttl(name) <= 60_000


@pytest.mark.parametrize("script", NAMED)
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
def test_a_user_who_may_only_get_del_pexpire_and_call_scripts_can_run_them(
    master: redis.Redis, name: str, script: str
) -> None:
    user = f"user-of-{name}"
    rights = ["reset", "on", ">pw", "~*", "-@all", "+get", "+del", "+pexpire", "+eval", "+evalsha"]
    master.execute_command("ACL", "SETUSER", user, *rights)
    try:
        where = master.connection_pool.connection_kwargs
        with redis.Redis(host=where["host"], port=where["port"], username=user, password="pw", retry=None) as limited:
            assert limited.eval(NAMED[script].text.decode(), 1, name, MINE, "1000") == 0
    finally:
        master.execute_command("ACL", "DELUSER", user)
