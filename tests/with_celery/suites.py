"""What the test suites of others share that run over `redlatch.celery`."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def left_out(title: str) -> list[str]:
    """Return the tests that a section of docs/celery.md leaves out: the first column of its table."""
    section = (ROOT / "docs/celery.md").read_text().split(f"\n### {title}\n")[1].split("\n#")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def check(returncode: int, out: str, err: str, least: int, deselected: int) -> None:
    """Check that a suite has passed, with so many tests, and without those that are left out."""
    assert returncode == 0, out[-20_000:] + err[-2_000:]
    passed, without = (re.search(rf"(\d+) {what}", out) for what in ("passed", "deselected"))
    assert passed is not None and int(passed[1]) >= least
    assert without is not None and int(without[1]) == deselected
