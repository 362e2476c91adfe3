"""The pytest plugin, in test runs of its own."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from redlatch import testing
from redlatch.testing import plugin

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
NAME = "redlatch.testing.plugin"
FIXTURES = ("redlatch_async_memory", "redlatch_client", "redlatch_cluster", "redlatch_masters", "redlatch_memory")


def run(pytester: pytest.Pytester, text: str, *options: str) -> pytest.RunResult:
    """Run tests in a process of their own, where warnings are errors."""
    pytester.makepyfile(text)
    return pytester.runpytest_subprocess("-p", NAME, "-p", "no:asyncio", "-p", "no:xdist", "-W", "error", *options)


def test_the_package_declares_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {NAME: NAME}
    assert importlib.import_module(NAME) is plugin


def test_its_import_loads_nothing_that_is_large() -> None:
    program = f"import json, sys, {NAME}; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-W", "error", "-c", program]))
    ours = {name for name in loaded if name.partition(".")[0] == "redlatch"}
    assert ours == {"redlatch", "redlatch.lazy", "redlatch.testing", NAME}
    assert not {"redis", "hiredis", "lupa", "uvloop"} & set(loaded)


def test_each_test_has_a_client_in_memory_of_its_own(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
        import asyncio
        import pytest
        from redlatch import Client, LockTimeout

        @pytest.mark.parametrize("time", [1, 2])
        def test_memory(redlatch_memory, time):
            assert isinstance(redlatch_memory, Client)
            assert redlatch_memory.lock("a").acquire(blocking=False)
            redlatch_memory.advance(5)
            assert redlatch_memory.memory.now() == pytest.approx(1_800_000_005, abs=0.001)

        def test_asyncio(redlatch_async_memory, redlatch_memory):
            async def main():
                redlatch_memory.hold("a")
                with pytest.raises(LockTimeout):
                    async with redlatch_async_memory.lock("a", timeout=60):
                        pass
                await redlatch_async_memory.lock("kept").acquire()
            asyncio.run(main())
            assert not redlatch_memory.lock("kept").acquire(blocking=False)
        """,
    )
    done.assert_outcomes(passed=3)


def test_real_masters_are_emptied_between_tests(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
        import pytest
        from redlatch import Client

        seen = []

        @pytest.mark.parametrize("time", [1, 2])
        def test_client(redlatch_client, redlatch_masters, time):
            assert redlatch_client.lock("a", ttl=60).acquire(blocking=False)
            assert redlatch_client.semaphore("s", 1, ttl=60).acquire(blocking=False)
            seen.append(redlatch_masters)

        def test_masters(redlatch_masters):
            assert len(redlatch_masters) == 5
            assert seen == [redlatch_masters] * 2
            with Client(redlatch_masters) as client:
                assert client.lock("a").acquire(blocking=False)
        """,
        "-o",
        "redlatch_masters=5",
    )
    done.assert_outcomes(passed=3)


def test_the_cluster_is_whole_and_empty_in_each_test(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
        import pytest
        import redis

        @pytest.mark.parametrize("time", [1, 2])
        def test_cluster(redlatch_cluster, time):
            assert redlatch_cluster.living == [0, 1, 2, 3, 4, 5]
            host, port = redlatch_cluster.address(0).split(":")
            with redis.RedisCluster(host, int(port)) as client:
                assert client.set("a", "value", nx=True)
            redlatch_cluster.begin_move("a", (redlatch_cluster.shard_of("a") + 1) % 3)
            redlatch_cluster.kill(redlatch_cluster.replicas(0)[0])
            redlatch_cluster.pause(redlatch_cluster.replicas(1)[0])
        """,
    )
    done.assert_outcomes(passed=2)


def test_a_wrong_number_of_masters_is_named(pytester: pytest.Pytester) -> None:
    done = run(pytester, "def test_memory(redlatch_memory): pass", "-o", "redlatch_masters=none")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*redlatch_masters: a number from 1 on is needed, got 'none'*"])


def test_pytest_lists_the_fixtures_with_what_they_are(pytester: pytest.Pytester) -> None:
    lines = run(pytester, "", "--fixtures").stdout.lines
    listed = [line.partition(" -- ")[0] for line in lines if line.startswith("redlatch_")]
    assert sorted(listed) == sorted(FIXTURES)
    assert not [line for line in lines if "no docstring available" in line and "redlatch" in line]


@pytest.mark.parametrize("name", testing.__all__)
def test_a_public_name_of_the_package_is_no_module_also_after_the_import_of_all(name: str) -> None:
    home = testing._HOMES[name]
    program = f"import redlatch.testing{home}; from redlatch.testing import {name}; print(type({name}).__name__)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() in ("type", "function")
    assert name in dir(testing)
    with pytest.raises(AttributeError, match="nonsense"):
        testing.nonsense  # type: ignore[attr-defined]  # noqa: B018
