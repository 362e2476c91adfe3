"""Schedules of threads: a part of those that `python -m tests.simthreads` runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.selection import ALL

from simthreads import instrument
from simthreads.farm import TESTS, every, stream
from simthreads.rows import ROWS, Row, bring_back

SOURCE = TESTS.parent / "src"

pytest.importorskip("greenlet", reason="simulated threads run in greenlets")

# Sanitizers would only check the interpreter: redlatch's compiled code does not run here.
pytestmark = pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="pure Python")

SEEDS = 2000 if ALL else 150


def test_no_schedule_of_threads_breaks_a_rule() -> None:
    wrong = [item for batch in every(0, SEEDS, os.cpu_count() or 1, SOURCE) for item in batch.wrong]
    assert not wrong, f"python -m tests.simthreads --seed {wrong[0][0]}"


def test_a_seed_fixes_everything_that_happens() -> None:
    [whole] = stream(0, 100, SOURCE)
    [again] = stream(0, 100, SOURCE)
    assert whole == again
    assert whole.counts["switches"] > 1000


def test_a_schedule_does_not_depend_on_those_before_it() -> None:
    [alone] = stream(7, 1, SOURCE)
    [behind] = stream(6, 1, SOURCE)
    [both] = stream(6, 2, SOURCE)
    assert both.counts == {name: number + behind.counts[name] for name, number in alone.counts.items()}


@pytest.mark.slow("each fault needs many schedules")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_schedules_find_each_fault_of_0_1_0(row: Row, tmp_path: Path) -> None:
    package = tmp_path / "redlatch"
    shutil.copytree(SOURCE / "redlatch", package, ignore=shutil.ignore_patterns("_c", "__pycache__"))
    bring_back(row, package)
    wrong = [item for batch in stream(0, 50_000, tmp_path, stop=True, theme=row.theme) for item in batch.wrong]
    assert [seed for seed, rule in wrong if row.rule in rule], wrong


def points_of(source: str) -> list[str]:
    """Run the function `f` of a source text; return the points that it passed and the names that it noted."""
    noted: list[str] = []

    class Thing:
        def method(self) -> str:
            noted.append("method")
            return "m"

    def gate(*_: object) -> None:
        noted.append("point")

    def value(result: object) -> object:
        noted.append("point")
        return result

    gates: Any = instrument.load_gates()
    gates.left, gates.point = 0, gate

    def always(function: Any) -> Any:  # each gate decides
        def gated(*args: Any, **named: Any) -> Any:
            gates.left = 0
            return function(*args, **named)

        return gated

    names = {
        f"__sim_{name}__": always(getattr(gates, name)) for name in ("enter", "hot", "value", "call0", "call1", "calln")
    }
    space = names | {"thing": Thing(), "note": noted.append, "items": []}
    exec(instrument.instrumented(source, "f.py", frozenset()), space)
    space["f"]()
    return noted


def test_there_is_a_point_after_a_c_function_and_none_after_a_python_function() -> None:
    assert points_of("def f():\n    note('a')\n    note('b')\n") == ["point", "a", "point", "b", "point"]
    assert points_of("def f():\n    thing.method()\n    note('b')\n") == ["point", "method", "b", "point"]


def test_a_loop_with_a_condition_has_its_point_after_the_condition_when_it_repeats() -> None:
    source = "def f():\n    left = 2\n    while left:\n        left -= 1\n        items.append\n"
    assert points_of(source) == ["point", "point"]


def test_other_loops_have_their_point_at_the_end_of_the_body() -> None:
    assert points_of("def f():\n    for _ in (1, 2):\n        items.append\n") == ["point"] * 3
    assert points_of("def f():\n    while True:\n        break\n") == ["point"]


def test_a_generator_has_a_point_where_it_resumes() -> None:
    source = "def g():\n    yield 1\n\ndef f():\n    for _ in g():\n        pass\n"
    assert points_of(source) == ["point", "point", "point", "point"]
