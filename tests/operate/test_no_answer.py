"""Commands that show locks tell "none" from "not known" (row 70)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
import redis
from click.testing import CliRunner, Result
from support.faces import PATIENCE

from redlatch import Client
from redlatch.cli import build
from redlatch.testing import embedded

LONG = 60.0

# A user without one of these rights cannot say who holds nothing.
RIGHTS = ["get", "pttl", "zcard", "zrange", "hgetall"]

LISTS = [["status", "--locks"], ["status", "--prefix", "NAME"], ["top", "--looks", "1"]]
NAMES = [["status", "NAME"], ["unlock", "-y", "NAME"]]


def call(urls: list[str], name: str, words: list[str], *more: str) -> Result:
    words = [name if word == "NAME" else word for word in words]
    return CliRunner(env={"REDLATCH_MASTERS": ",".join(urls)}).invoke(build(), [*words, *more])


@pytest.fixture
def limited(three: list[str], name: str) -> Iterator[Callable[..., list[str]]]:
    """Make a user who may do all but some commands; return URLs for it."""

    def make(*without: str, password: str = "s3cret") -> list[str]:
        for url in three:
            with redis.Redis.from_url(url) as server:
                rights = [f"-{command}" for command in without]
                server.execute_command("ACL", "SETUSER", name, "on", ">s3cret", "~*", "+@all", *rights)
        return [url.replace("//", f"//{name}:{password}@") for url in three]

    yield make
    for url in three:
        with redis.Redis.from_url(url) as server:
            server.execute_command("ACL", "DELUSER", name)


def refuses(done: Result, reason: str) -> None:
    assert done.exit_code == 69, done.output
    assert "0 of 3 masters answer, too few to say" in done.stderr and reason in done.stderr
    assert "held" not in done.stdout and "nobody" not in done.stdout


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
def test_without_the_right_to_scan_a_list_is_not_empty(
    limited: Callable[..., list[str]], name: str, words: list[str]
) -> None:
    refuses(call(limited("scan"), name, words), "'scan' command")


@pytest.mark.parametrize("words", [*LISTS, *NAMES], ids=" ".join)
def test_with_a_wrong_password_nothing_is_known(limited: Callable[..., list[str]], name: str, words: list[str]) -> None:
    refuses(call(limited(password="wrong"), name, words), "invalid username-password pair")


@pytest.mark.parametrize("words", [*LISTS, *NAMES], ids=" ".join)
def test_a_password_that_was_left_out_is_named(
    fleet: Callable[..., embedded.Masters], name: str, words: list[str]
) -> None:
    masters = fleet(3, config={"requirepass": "s3cret"})
    refuses(call([url.replace(":s3cret@", "") for url in masters.urls], name, words), "already authenticated")


@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize("words", [LISTS[1], *NAMES], ids=" ".join)
def test_without_a_right_to_read_a_kind_nobody_is_no_answer(
    limited: Callable[..., list[str]], three: list[str], name: str, words: list[str], right: str
) -> None:
    with Client(three) as client, client.lock(name, ttl=LONG):
        refuses(call(limited(right), name, words), f"'{right}' command")


@pytest.mark.parametrize("words", [*LISTS, *NAMES], ids=" ".join)
def test_masters_that_are_down_say_nothing(fleet: Callable[..., embedded.Masters], name: str, words: list[str]) -> None:
    masters = fleet(3)
    for index in range(3):
        masters.kill(index)
    refuses(call(masters.urls, name, words), "Connection refused")


@pytest.mark.parametrize("words", [["status", "--locks"], ["status", "--prefix", "NAME"], ["status", "NAME"]])
def test_what_is_not_known_is_null(limited: Callable[..., list[str]], name: str, words: list[str]) -> None:
    done = call(limited("scan", "get"), name, words, "--json")
    found = json.loads(done.stdout)
    # The client of the command has all rights that its health needs but one.
    assert found["locks"] is None and len(found["masters"]) == 3
    assert done.exit_code == 69 and "too few to say" in done.stderr


def test_an_empty_answer_is_an_answer(three: list[str], name: str) -> None:
    done = call(three, name, ["status", "--prefix", "NAME", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["locks"]) == (0, [])
    done = call(three, name, ["top", "--looks", "1", "--prefix", "NAME"])
    assert done.exit_code == 0 and "0 locks are held" in done.stdout


def test_one_master_of_three_that_is_down_hides_nothing(fleet: Callable[..., embedded.Masters], name: str) -> None:
    masters = fleet(3)
    with Client(masters.urls, owner="web-1") as client:
        lock = client.lock(name, ttl=LONG)
        assert lock.acquire(timeout=PATIENCE)
        masters.kill(0)
        for words in (["status", "--locks"], ["status", "NAME"], ["top", "--looks", "1"]):
            done = call(masters.urls, name, words)
            assert done.exit_code == 0 and "web-1" in done.stdout


def test_a_master_that_does_not_answer_may_decide_who_holds_a_lock(
    fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet(3)
    for url in masters.urls[:2]:
        with redis.Redis.from_url(url) as server:
            server.set(name, "ab" * 16 + ":web-1", px=60_000)
    masters.kill(0)
    done = call(masters.urls, name, ["status", "NAME"])
    assert done.exit_code == 69
    assert "unknown: masters that do not answer decide" in done.stdout and "disagree" not in done.stdout
    assert f"masters that do not answer decide who holds {name}" in done.stderr
    [state] = json.loads(call(masters.urls, name, ["status", "NAME", "--json"]).stdout)["locks"]
    assert (state["holders"], state["unsure"], state["split"]) == (None, True, True)
    shown = call(masters.urls, name, ["top", "--looks", "1"]).stdout
    assert "0 locks are held" in shown and "unknown" in shown
