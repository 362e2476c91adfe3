"""Which tests run: each behaviour once by default, and everything with REDLATCH_TESTS=all, as in `make test-all`.

By default a test runs on one build, on the event loop of asyncio and on one kind of server. The build is the compiled
one, if it was built; REDLATCH_IMPL chooses another. A test says where the choice may matter:

* `each_build`: the builds differ there, or one of them may be wrong alone;
* `each_server`: it depends on the server's version;
* ``@pytest.mark.slow("reason")``: only `make test-all` runs it. The reason says what it covers that no other test does.
"""

from __future__ import annotations

import os

import pytest

from redlatch import impl

from .masters import SERVERS

ALL = os.environ.get("REDLATCH_TESTS") == "all"

_BUILDS = ["c", "python"]


def _default_build() -> str:
    """Return the build that REDLATCH_IMPL names, else the compiled one, if it was built.

    REDLATCH_BUILD_EXT=1 makes the compiled one required.
    """
    if os.environ.get("REDLATCH_BUILD_EXT") == "1" and "REDLATCH_IMPL" not in os.environ:
        impl.load("c")
    return impl.current.name


BUILDS = _BUILDS if ALL else [_default_build()]
LOOPS = ["threads", "asyncio", "uvloop"] if ALL else ["threads", "asyncio"]
KINDS = list(SERVERS) if ALL else ["valkey"]

each_build = pytest.mark.parametrize("implementation", _BUILDS, indirect=True)
each_server = pytest.mark.parametrize("server", list(SERVERS), indirect=True)
each_server_kind = pytest.mark.parametrize("server_kind", list(SERVERS), indirect=True)


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `make test-all` alone runs; there, uvloop with the pure build, and where the loop plays no part.

    uvloop with the pure build would take a sixth of the time. That build is tested on the other loop, and uvloop with
    the compiled build.
    """
    left_out = [item for item in items if (_is_doubled(item) if ALL else item.get_closest_marker("slow"))]
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]


def _is_doubled(item: pytest.Item) -> bool:
    spec = getattr(item, "callspec", None)
    if spec is None or spec.params.get("connect") != "uvloop":
        return False
    return spec.params.get("implementation") == "python" or item.get_closest_marker("one_loop") is not None
