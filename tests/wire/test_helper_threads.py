"""`start_thread`: a thread that dies before its first statement is started again."""

from __future__ import annotations

import _thread
import ast
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.faces import PATIENCE, await_true, threads_named

import redlatch
from redlatch import impl
from redlatch.wire import helper_threads as helpers
from redlatch.wire.helper_threads import claim, start_thread

Start = Callable[..., Any]


def test_it_returns_when_the_thread_runs() -> None:
    here: list[int] = []
    ended = threading.Event()

    def work(*args: int) -> None:
        here.extend(args)
        ended.set()

    start_thread("test", work, 1, 2)
    assert ended.wait(PATIENCE)
    assert here == [1, 2]


@pytest.mark.parametrize("deaths", [1, 3])
def test_a_thread_that_dies_before_its_first_statement_is_started_again(
    deaths: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = _thread.start_new_thread
    died: list[Start] = []
    done: list[int] = []

    def strike(function: Start, args: tuple[Any, ...]) -> Any:
        if len(died) < deaths:
            died.append(function)
            return start(int, ())
        return start(function, args)

    monkeypatch.setattr(_thread, "start_new_thread", strike)
    monkeypatch.setattr(helpers, "FIRST_PATIENCE", 0.01)
    start_thread("test", done.append, 1)
    await_true(lambda: done == [1])
    assert len(died) == deaths


def test_a_thread_that_is_only_late_does_the_work_once(monkeypatch: pytest.MonkeyPatch) -> None:
    start = _thread.start_new_thread
    late: list[Start] = []
    done: list[int] = []

    def delay(function: Start, args: tuple[Any, ...]) -> Any:
        if not late:
            late.append(function)
            return 0
        return start(function, args)

    monkeypatch.setattr(_thread, "start_new_thread", delay)
    monkeypatch.setattr(helpers, "FIRST_PATIENCE", 0.01)
    start_thread("test", done.append, 1)
    await_true(lambda: done == [1])
    late[0]()
    assert done == [1]


def test_no_thread_is_awaited_when_the_interpreter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: 0)
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    with pytest.raises(RuntimeError, match="the interpreter ends"):
        start_thread("test", print)


def test_the_kernel_knows_the_name_of_the_thread() -> None:
    end = threading.Event()
    start_thread("test", end.wait, PATIENCE)
    await_true(lambda: len(threads_named("redlatch-test")) == 1)
    end.set()
    await_true(lambda: not threads_named("redlatch-test"))


def test_one_caller_claims() -> None:
    unclaimed = [None]
    assert [claim(unclaimed), claim(unclaimed)] == [True, False]


def test_each_thread_has_the_name_that_the_documentation_lists() -> None:
    """The kernel cuts a name that has more than 15 bytes."""
    named: set[str] = set()
    for path in Path(redlatch.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("start_thread", "run_aside"):
                named.add(ast.unparse(node.args[0]).strip("'"))
            elif isinstance(node, ast.Call) and ast.unparse(node).startswith("partial(run_aside, "):
                named.add(ast.unparse(node.args[1]).strip("'"))
    # `run_aside` passes its own argument on.
    named.remove("name")
    page = (Path(__file__).parents[2] / "docs/architecture.md").read_text()
    assert {f"redlatch-{name}" for name in named} == set(re.findall(r"`(redlatch-\w+)`", page))
    assert len(named) >= 10 and all(len(f"redlatch-{name}") <= 15 for name in named)


def test_a_client_with_a_renewed_lock_shows_its_threads(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    with redlatch.Client(url) as client, client.lock(name, auto_renew=True) as lock:
        assert not lock.lost.is_set()
        await_true(lambda: threads_named("redlatch-upkeep") and threads_named("redlatch-look"))
