"""Thousands of schedules on both implementations; `python -m tests.sim` runs more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.selection import ALL

from redlatch import impl
from sim import found
from sim.__main__ import every
from sim.drawing import GUARDING, draw, draw_foreign
from sim.schedule import run
from sim.themes import LATER

# Sanitizers make everything slower.
SLOWER = 10 if "libasan" in os.environ.get("LD_PRELOAD", "") else 1
# Plans that show a limit of what docs/safety.md promises, with what happens.
NOT_PROMISED = {"row 50: swapped": "holders", "FE1: an old marker is swapped back": "fence"}
PLANS = {
    name: plan for name, plan in found.load().items() if name not in NOT_PROMISED and not (plan.prompt or plan.shards)
}
SEEDS = {"c": (3_000 if ALL else 450) // SLOWER, "python": 800 // SLOWER}


def check(
    implementation: impl.Implementation, seeds: int, *options: str, foreign: bool = False, theme: str = ""
) -> None:
    """Check that no schedule of these options breaks a rule."""
    name = implementation.name
    batches = every(0, seeds, os.cpu_count() or 1, name, foreign, theme)
    wrong = [seed for batch in batches for seed, _ in batch.wrong]
    assert not wrong, " ".join(["python -m tests.sim --impl", name, *options, "--seed", str(wrong[0])])


def test_no_schedule_breaks_a_rule(implementation: impl.Implementation) -> None:
    check(implementation, SEEDS[implementation.name])


def test_no_schedule_of_drop_ins_breaks_a_rule(implementation: impl.Implementation) -> None:
    check(implementation, SEEDS[implementation.name] // 4, "--foreign", foreign=True)


@pytest.mark.parametrize("theme", GUARDING)
def test_no_schedule_about_the_guard_breaks_a_rule(implementation: impl.Implementation, theme: str) -> None:
    check(implementation, SEEDS[implementation.name] // (50 if ALL else 25), f"--theme '{theme}'", theme=theme)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_that_once_broke_a_rule_breaks_none(implementation: impl.Implementation, name: str) -> None:
    assert not run(PLANS[name]).wrong


@pytest.mark.parametrize("name", NOT_PROMISED)
def test_a_plan_shows_what_is_not_promised(name: str) -> None:
    """Databases that were swapped back may allow two holders before the next pulse, and lower fences."""
    assert NOT_PROMISED[name] in run(found.load()[name]).wrong[0]


def test_a_plan_is_equal_after_it_was_saved_and_loaded(tmp_path: Path) -> None:
    plans = {str(seed): draw(seed, theme) for seed in range(50) for theme in ("", *LATER, *GUARDING)}
    found.save(plans, tmp_path / "found.json")
    assert found.load(tmp_path / "found.json") == plans


def test_a_seed_fixes_everything_that_happens(implementation: impl.Implementation) -> None:
    for seed in range(100):
        assert run(draw(seed)) == run(draw(seed))


def test_compiled_and_pure_run_the_same_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        both = impl.load("c"), impl.load("python")
    except ImportError:
        pytest.skip("the compiled implementation was not built")
    for plan in [*map(draw, range(300 if ALL else 120)), *map(draw_foreign, range(100 if ALL else 40))]:
        results = []
        for chosen in both:
            monkeypatch.setattr(impl, "current", chosen)
            results.append(run(plan))
        assert results[0] == results[1]
