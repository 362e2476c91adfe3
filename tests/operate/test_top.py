"""`redlatch top`: the locks that are held or waited for."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from click.testing import CliRunner
from support.faces import PATIENCE, await_true
from support.proxy import Proxy

from redlatch import Client, Holder
from redlatch.cli import build
from redlatch.operate.held import Watch, table_of
from redlatch.operate.locks import LockState


def state(name: str, *owners: str, held_for: float = 1.0) -> LockState:
    return LockState(name, "lock", tuple(Holder(owner, 5.0, held_for) for owner in owners), None, 0, False)


@pytest.mark.parametrize(
    ("looks", "changes"),
    [
        ([["a"]], 0),
        ([["a"], ["a"]], 0),
        ([["a"], ["b"]], 1),
        ([["a"], [], ["b"]], 1),
        ([["a"], [], ["a"]], 0),
        ([["a", "b"], ["b", "c"], ["c", "d"]], 2),
    ],
)
def test_a_change_is_a_holder_that_the_look_before_did_not_see(looks: list[list[str]], changes: int) -> None:
    watch = Watch()
    for owners in looks:
        watch.note([state("x", *owners)], 100.0)
    assert watch.changes["x"] == changes


def test_a_holder_that_took_the_lock_again_is_another_one() -> None:
    watch = Watch()
    watch.note([state("x", "a", held_for=1.0)], 100.0)
    watch.note([state("x", "a", held_for=2.0)], 101.0)
    assert watch.changes["x"] == 0
    watch.note([state("x", "a", held_for=0.4)], 102.0)
    assert watch.changes["x"] == 1


def test_the_locks_are_shown_with_their_owners(three: list[str], name: str) -> None:
    with Client(three, owner="web-1") as client, client.lock(f"{name}-a"), client.semaphore(f"{name}-b", 3):
        done = CliRunner().invoke(build(), ["top", "--looks", "2", "--every", "0.1", "--prefix", name, *three])
    assert done.exit_code == 0, done.output
    assert "2 locks are held" in done.stdout
    assert f"{name}-a" in done.stdout and f"{name}-b" in done.stdout and "web-1" in done.stdout


@pytest.mark.parametrize("kind", ["[eu]", "[/eu]", "[red]x", ":smile:"])
def test_a_name_is_shown_as_it_is(three: list[str], name: str, kind: str) -> None:
    with Client(three, owner=f"web{kind}") as client, client.lock(name + kind):
        done = CliRunner().invoke(build(), ["top", "--looks", "1", "--prefix", name, *three])
    assert done.exit_code == 0, done.output
    assert f" {name}{kind} " in done.stdout and f" web{kind} " in done.stdout


def test_each_look_is_written_at_once_into_a_pipe(three: list[str], name: str) -> None:
    command = [sys.executable, "-m", "redlatch.cli", "top", "--every", "0.1", "--prefix", name, *three]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top:
        assert top.stdout is not None
        for _ in range(2):
            lines = list(itertools.takewhile(lambda line: "└" not in line, top.stdout))
            assert "0 locks are held" in lines[0]
        # As with `| head`.
        top.stdout.close()
        assert top.wait(PATIENCE) == 74


def test_the_title_counts_the_locks_that_are_held() -> None:
    titles = [table_of([state("x", *owners)], Watch()).title for owners in ([], ["a"], ["a", "b"])]
    assert titles == ["0 locks are held", "1 lock is held", "1 lock is held"]
    assert table_of([state("x", "a"), state("y", "b")], Watch()).title == "2 locks are held"


def test_ctrl_c_ends_it_without_a_traceback(
    three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    command = [sys.executable, "-m", "redlatch.cli", "top", "--every", "60", "--prefix", name]
    top = subprocess.Popen([*command, *[proxy.url for proxy in before]], stderr=subprocess.PIPE, text=True)
    await_true(lambda: all([proxy.commands for proxy in before]))
    top.send_signal(signal.SIGINT)
    _, err = top.communicate(timeout=PATIENCE)
    # 1 would say that no lock is held, or that a probe has failed.
    assert (top.returncode, err) == (130, "")
