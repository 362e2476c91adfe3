"""The Python of docs/testing.md: all of it runs, as the files of one project."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs/testing.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (\w+)\.py\n")

TESTS = {
    "test_shop": 5,
    "test_workers": 1,
    "test_servers": 2,
    "test_own_fixtures": 2,
    "test_cluster": 3,
    "test_own_cluster": 1,
}


def files() -> dict[str, str]:
    """Return the text of each file on the page, by its name."""
    found = {}
    for block in BLOCK.findall(PAGE.read_text()):
        named = NAMED.match(block)
        assert named is not None, f"a block names no file, so nothing runs it: {block}"
        found[named[1]] = block
    return found


def test_every_file_of_tests_is_known() -> None:
    assert {name for name in files() if name.startswith("test_")} == set(TESTS)


@pytest.mark.parametrize("name", TESTS)
def test_a_file_runs(name: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(**files())
    options = "-p", "redlatch.testing.plugin", "-p", "no:asyncio", "-p", "no:xdist", "-W", "error"
    pytester.runpytest_subprocess(*options, f"{name}.py").assert_outcomes(passed=TESTS[name])
