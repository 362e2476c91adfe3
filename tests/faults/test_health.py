"""What a client says of its masters, and the subcommands that print it, with real servers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.faces import Face, ask, await_true

from redlatch import Client, Guard, Health
from redlatch.testing import Masters

pytestmark = pytest.mark.one_loop

COMMAND = (sys.executable, "-m", "redlatch.cli")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60, check=False)


def addresses(masters: Masters) -> list[str]:
    return [url.rpartition("/")[2] for url in masters.urls]


def test_before_the_first_use_no_master_is_connected(connect: Face, fleet: Callable[..., Masters]) -> None:
    health: Health = connect(fleet(3).urls).health()
    assert [(each.voting, each.why) for each in health.masters] == [(False, "not connected yet")] * 3
    assert (health.quorum, health.available, health.ready) == (2, False, False)


def test_each_master_votes_and_shows_its_marker(connect: Face, fleet: Callable[..., Masters]) -> None:
    masters = fleet(3)
    client = connect(masters.urls, ttl=20.0)
    client.connect()
    await_true(lambda: client.health().ready)
    health = client.health()
    assert [each.address for each in health.masters] == addresses(masters)
    for each in health.masters:
        assert (each.voting, each.why, each.kept_out) == (True, "", 0.0)
        assert each.masters == tuple(sorted(addresses(masters)))
        assert each.horizon == 20.0
        assert each.marked == pytest.approx(time.time(), abs=60)
    assert health.available


def test_without_a_guard_nothing_is_known_of_markers(connect: Face, fleet: Callable[..., Masters]) -> None:
    client = connect(fleet(1).urls, guard=None)
    client.connect()
    [master] = client.health().masters
    assert (master.voting, master.masters, master.horizon, master.marked) == (True, (), 0.0, 0.0)


def test_a_master_that_is_down_is_named_with_the_reason(connect: Face, fleet: Callable[..., Masters]) -> None:
    masters = fleet(3)
    masters.kill(1)
    client = connect(masters.urls, guard=None)
    client.connect()
    health = client.health()
    assert [each.voting for each in health.masters] == [True, False, True]
    assert "refused" in health.masters[1].why
    assert (health.available, health.ready) == (True, False)


def test_a_master_that_has_forgotten_is_kept_out_for_a_time_that_gets_shorter(
    connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    masters = fleet(3)
    client = connect(masters.urls)
    client.connect()
    await_true(lambda: client.health().ready)
    ask(masters.urls[2]).flushall()

    def kept_out() -> Any:
        lock = client.lock(name)
        assert lock.acquire(timeout=20)
        lock.release()
        return client.health().masters[2].kept_out

    await_true(kept_out)
    first = client.health().masters[2]
    assert first.why == f"kept out for {first.kept_out:.1f} s more: it has lost its marker, and maybe locks"
    await_true(lambda: client.health().masters[2].kept_out < first.kept_out - 0.2)
    assert client.health().available


def use(urls: list[str], **options: Any) -> None:
    """Be the first client of new masters."""
    with Client(urls, **options) as client:
        await_true(lambda: client.health().ready)


def test_a_client_that_is_closed_offers_nothing(connect: Face, fleet: Callable[..., Masters]) -> None:
    client = connect(fleet(1).urls)
    client.connect()
    assert client.health().available
    client.close()
    health = client.health()
    assert (health.refused, health.available, health.ready) == ("client: it is closed", False, False)
    assert [(master.voting, master.why) for master in health.masters] == [(False, "client: it is closed")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_was_forked_off_offers_nothing(fleet: Callable[..., Masters]) -> None:
    code = (
        "import os, sys, redlatch\n"
        "client = redlatch.Client(sys.argv[1:])\n"
        "client.connect()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    health = client.health()\n"
        "    nothing = not health.available and 'forked' in health.refused\n"
        "    os._exit(9 if not nothing or any(master.voting for master in health.masters) else 0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code, *fleet(1).urls], timeout=60, check=False).returncode == 0


def test_a_max_ttl_that_leaves_no_validity_is_named_by_its_option() -> None:
    ended = run("status", "--max-ttl", "0.001", "redis://127.0.0.1:1")
    assert (ended.returncode, "'--max-ttl': 0.001 is not in the range" in ended.stderr) == (2, True)
    ended = run("status", "--max-ttl", "0.003", "redis://127.0.0.1:1")
    assert (ended.returncode, ended.stderr, "0 of 1 masters vote" in ended.stdout) == (2, "", True)


def test_status_says_that_all_masters_vote(fleet: Callable[..., Masters]) -> None:
    masters = fleet(3)
    for words in ((), ("--ready",)):
        ended = run("status", "--wait", "20", *words, *masters.urls)
        assert (ended.stdout.splitlines()[0].endswith("2 must agree"), ended.returncode) == (True, 0), ended.stderr


def test_a_probe_between_restarts_waits_until_the_restarted_master_votes_again(fleet: Callable[..., Masters]) -> None:
    masters = fleet(3)
    # A master that was restarted is kept out for this long.
    use(masters.urls, ttl=1.5, guard=Guard(max_ttl=3.0))
    masters.kill(0)
    ended = run("status", "--ready", "--max-ttl", "3", *masters.urls)
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[0] == "2 of 3 masters vote, 2 must agree"
    assert "refused" in ended.stdout.splitlines()[1]
    masters.start(0)
    ended = run("status", "--ready", "--wait", "40", "--max-ttl", "3", *masters.urls)
    assert (ended.stdout, ended.returncode) == ("3 of 3 masters vote, 2 must agree\n", 0)


def test_status_without_a_quorum(fleet: Callable[..., Masters]) -> None:
    masters = fleet(3)
    for index in range(2):
        masters.kill(index)
    ended = run("status", "--json", *masters.urls)
    found = json.loads(ended.stdout)
    assert (found["available"], found["ready"], ended.returncode) == (False, False, 2)
    assert [master["voting"] for master in found["masters"]] == [False, False, False]
    assert "no answer yet from" in found["masters"][2]["why"]


def test_status_with_another_list_says_so_and_leaves_nothing(fleet: Callable[..., Masters]) -> None:
    masters = fleet(4)
    use(masters.urls[:3])
    ended = run("status", "--wait", "0.2", *masters.urls[1:])
    assert ended.returncode == 2
    assert "all clients must have the same list" in ended.stdout
    assert ask(masters.urls[3]).dbsize() == 0


def test_masters_shows_list_ttl_and_time(fleet: Callable[..., Masters]) -> None:
    masters = fleet(3)
    use(masters.urls, guard=Guard(max_ttl=30.0), ttl=25.0)
    ended = run("masters", "--max-ttl", "30", *masters.urls)
    assert ended.returncode == 0, ended.stderr
    for address in addresses(masters):
        assert address in ended.stdout
    assert ended.stdout.count("25 s") == 3
    assert ended.stdout.count(" UTC") == 3


def test_a_time_to_wait_that_is_no_number_ends_at_once(fleet: Callable[..., Masters]) -> None:
    masters = fleet(1)
    masters.kill(0)
    assert run("status", "--wait", "nan", *masters.urls).returncode == 2
    assert run("status", "--wait", "-1", *masters.urls).returncode == 2


def test_a_marker_of_somebody_else_is_shown_in_printable_form(fleet: Callable[..., Masters]) -> None:
    [url] = fleet(1).urls
    with Client(url) as client:
        client.connect()
        server = ask(url)
        text = server.get(b"\0guard").decode()
        address = url.rpartition("/")[2]
        since = re.search(r'"since":(\d+)', text)
        assert since is not None
        text = text.replace(f'"masters":["{address}"]', '"masters":["\\u001b[31mred"]')
        server.set(b"\0guard", text.replace(since[1], str(1 << 61)), px=60_000)
    ended = run("masters", url)
    assert "red" in ended.stdout
    assert "\x1b" not in ended.stdout and "Traceback" not in ended.stderr


def test_a_wrong_option_is_named(fleet: Callable[..., Masters]) -> None:
    ended = run("status", "--max-ttl", "-1", *fleet(1).urls)
    assert ended.returncode == 2
    assert "not in the range x>=0.003" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_master_that_may_evict_locks_says_by_which_policy(connect: Face, fleet: Callable[..., Masters]) -> None:
    client = connect(fleet(1, config={"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}).urls)
    client.connect()
    assert [each.evicts for each in client.health().masters] == ["allkeys-lru"]
