"""The peers' own test suites, unchanged apart from the import and the address of the server.

They are in the peers' source distributions, which `make test-all` downloads. The page of each peer, such as
docs/migrate-pottery.md, lists the tests that are left out, with the reasons.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SDISTS = Path(sys.prefix) / ".peers"

INI = """[pytest]
addopts = -p no:cacheprovider -p left_out
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
markers =
    onlynoncluster
"""

# A plugin: it leaves out the tests that the file names, with or without parameters, and fails if one does not exist.
LEFT_OUT = """
from pathlib import Path
import pytest
names = set(Path(__file__).with_name("left_out.txt").read_text().split())
def pytest_collection_modifyitems(config, items):
    def left_out(item):
        return {item.nodeid, item.nodeid.partition("[")[0]} & names
    seen = set().union(*map(left_out, items))
    if seen != names:
        raise pytest.UsageError(f"there is no {names - seen}")
    config.hook.pytest_deselected(items=[item for item in items if left_out(item)])
    items[:] = [item for item in items if not left_out(item)]
"""

POTTERY_FIXTURES = """
import os
import pytest
from redis import Redis
from redis.asyncio import Redis as AIORedis
@pytest.fixture
def redis():
    with Redis.from_url(os.environ["URL"], socket_timeout=1) as client:
        client.flushdb()
        yield client
@pytest.fixture
async def aioredis():
    async with AIORedis.from_url(os.environ["URL"], socket_timeout=1) as client:
        await client.flushdb()
        yield client
"""


@dataclass
class Suite:
    """One peer's tests.

    Args:
        sdist: the name of the source distribution.
        files: the test files about locks.
        imports: patterns and their replacements in the text of the tests; "{port}" is the server's port.
        options: command-line options; "{url}" is the server's URL.
        least: the minimum number of tests that pass.
        fixtures: fixtures that the distribution does not have.
        environment: additional environment variables.
    """

    sdist: str
    files: list[str]
    imports: dict[str, str]
    least: int
    options: list[str] = field(default_factory=list)
    fixtures: str = ""
    environment: dict[str, str] = field(default_factory=dict)


SUITES = {
    "redis-py": Suite(
        "redis",
        ["test_lock.py", "test_asyncio/test_lock.py"],
        {
            r"^from redis\.lock import Lock$": "from redlatch.compat.redis_py import Lock",
            r"^from redis\.asyncio\.lock import Lock$": "from redlatch.compat.redis_py import AsyncLock as Lock",
        },
        79,
        ["--redis-url={url}"],
    ),
    "redlock-py": Suite(
        "redlock[-_]py",
        ["test_redlock.py"],
        {
            r"^from redlock import": "from redlatch.compat.redlock import",
            r'"host": "localhost"': '"host": "127.0.0.1", "port": {port}',
        },
        6,
    ),
    "pottery": Suite(
        "pottery",
        ["test_redlock.py", "test_aioredlock.py"],
        {
            r"^from pottery import (Redlock|AIORedlock|synchronize)$": r"from redlatch.compat.pottery import \1",
            r"localhost:6379": "127.0.0.1:{port}",
        },
        56,
        fixtures=POTTERY_FIXTURES,
    ),
    "python-redis-lock": Suite(
        "python[-_]redis[-_]lock",
        ["test_redis_lock.py", "test_django_integration.py"],
        {
            r"^from redis_lock import": "from redlatch.compat.redis_lock import",
            r"'redis_lock\.django_cache": "'redlatch.compat.redis_lock.django_cache",
        },
        150,
        # Most of these tests wait most of the time.
        options=["-n", "4"],
        environment={"DJANGO_SETTINGS_MODULE": "test_project.settings"},
    ),
}


def left_out_of(peer: str) -> list[str]:
    """Return the tests that the peer's page leaves out: the first column of its last table."""
    text = (ROOT / f"docs/migrate-{peer}.md").read_text()
    section = text.split(f"\n## Left out of {peer}'s suite\n")[1].split("\n#")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def prepare(suite: Suite, peer: str, folder: Path, url: str) -> None:
    """Unpack a suite, change its imports, and write the list of tests that are left out."""
    found = [path for path in SDISTS.glob("*.tar.gz") if re.fullmatch(rf"{suite.sdist}-[\d.]+\.tar\.gz", path.name)]
    if not found:
        pytest.skip(f"the source distribution of {peer}, which has its tests, could not be downloaded")
    with tarfile.open(found[0]) as archive:
        archive.extractall(folder / "sdist", filter="data")
    [unpacked] = (folder / "sdist").iterdir()
    shutil.move(unpacked / "tests", folder / "tests")
    for path in (folder / "tests").rglob("*.py"):
        text = path.read_text()
        for pattern, replacement in suite.imports.items():
            text = re.sub(pattern, replacement.replace("{port}", url.rpartition(":")[2]), text, flags=re.MULTILINE)
        path.write_text(text)
    if suite.fixtures:
        (folder / "tests/conftest.py").write_text(suite.fixtures)
    (folder / "pytest.ini").write_text(INI)
    (folder / "left_out.py").write_text(LEFT_OUT)
    (folder / "left_out.txt").write_text("\n".join(left_out_of(peer)))


@pytest.mark.slow("the peers' own suites, which wait for real time")
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("peer", list(SUITES))
def test_the_suite_of_a_peer_passes_with_the_import_changed(
    peer: str, implementation: Any, tmp_path: Path, single_master: Callable[[], str]
) -> None:
    suite, url = SUITES[peer], single_master()
    if peer == "python-redis-lock":
        if implementation.name == "python":
            pytest.skip("it takes two minutes, and its processes are many: once is enough")
        if shutil.which("redis-server") is None:
            pytest.skip("it starts redis-server, which is not on the path")
    prepare(suite, peer, tmp_path, url)
    python_path = os.pathsep.join([str(tmp_path), str(tmp_path / "tests")])
    environment = os.environ | {"PYTHONPATH": python_path, "URL": url, "REDLATCH_IMPL": implementation.name}
    # In processes that gevent patches, redlatch has to choose the pure implementation by itself.
    if peer == "python-redis-lock":
        del environment["REDLATCH_IMPL"]
    command = [sys.executable, "-m", "pytest", "-q", *[f"tests/{name}" for name in suite.files]]
    command += [option.format(url=url) for option in suite.options]
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment | suite.environment, capture_output=True, text=True, timeout=900
    )
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed is not None
    assert int(passed[1]) >= suite.least
