"""Which tests run: each behaviour once by default, and everything with REDLATCH_TESTS=all, as in `make test-all`.

By default a test runs on one build, on the event loop of asyncio and on one kind of server. The build is the compiled
one, if it was built; REDLATCH_IMPL chooses another. Marks change that:

* `each_build`: the builds have different code there, or a comparison of both is the test;
* `each_server`: the test depends on the server's version;
* ``slow("reason")``: only `make test-all` runs it. The reason says what it covers that no other test does;
* ``usual("reason", {"connect": "asyncio"}, ...)``: of the test's parameters only combinations that have these values.
  The reason says why the others differ so little that only `make test-all` runs them.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from redlatch import impl

ALL = os.environ.get("REDLATCH_TESTS") == "all"

# The parameters of fixtures that choose, with the mark that keeps all choices, and the choice without it.
_CHOICES = {
    "implementation": ("each_build", impl.current.name),
    "build": ("each_build", impl.current.name),
    "server": ("each_server", "valkey"),
    "server_kind": ("each_server", "valkey"),
}


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `make test-all` alone runs; there, uvloop with the pure build, and where the loop plays no part.

    uvloop with the pure build would take a sixth of the time. That build is tested on the other loop, and uvloop with
    the compiled build.
    """
    if os.environ.get("REDLATCH_BUILD_EXT") == "1" and "REDLATCH_IMPL" not in os.environ:
        # The compiled build is required.
        impl.load("c")
    if not any("::" in argument for argument in config.args):
        _check_usual(items)
    left_out = [item for item in items if (_is_doubled(item) if ALL else _is_extra(item))]
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]


def on_one_face(name: str) -> pytest.MarkDecorator:
    """Mark a test that takes long and is about what both faces share: the rules, the guard, the servers, sentinels."""
    return pytest.mark.usual("both faces share what it is about", {"connect": name})


def _choices(item: pytest.Item) -> dict[str, Any]:
    spec = getattr(item, "callspec", None)
    return {} if spec is None else spec.params


def _is_extra(item: pytest.Item) -> bool:
    chosen = _choices(item)
    if chosen.get("connect") == "uvloop" or item.get_closest_marker("slow"):
        return True
    for fixture, (mark, usual) in _CHOICES.items():
        if chosen.get(fixture, usual) != usual and not item.get_closest_marker(mark):
            return True
    return not _is_usual(item)


def _is_usual(item: pytest.Item) -> bool:
    """Return whether a test has usual parameters. A parameter that the test does not have is a KeyError."""
    mark, chosen = item.get_closest_marker("usual"), _choices(item)
    if mark is None:
        return True
    _, *combinations = mark.args
    return any(all(chosen[name] == value for name, value in each.items()) for each in combinations)


def _check_usual(items: list[pytest.Item]) -> None:
    """Check that each test has usual parameters: a wrong value in its mark would leave it out."""
    tests = {item.nodeid.partition("[")[0] for item in items if item.get_closest_marker("usual")}
    without = tests - {item.nodeid.partition("[")[0] for item in items if _is_usual(item)}
    if without:
        raise pytest.UsageError(f"no parameters of these tests are usual: {', '.join(sorted(without))}")


def _is_doubled(item: pytest.Item) -> bool:
    chosen = _choices(item)
    if chosen.get("connect") != "uvloop":
        return False
    return chosen.get("implementation") == "python" or item.get_closest_marker("one_loop") is not None
