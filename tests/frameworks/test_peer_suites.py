"""The frameworks' own test suites, with redlatch in the place of their locks and backends.

They are in the source distributions, which `make test-all` downloads. The texts of the tests stay as they are; what
surrounds them there, but is not in the distribution (dramatiq's fixtures), is written here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from compat import test_peer_suites as compat

from redlatch import impl

DRAMATIQ_CONFTEST = """
import os
import pytest
from redlatch import Client
from redlatch.dramatiq import RedlatchBackend
from redlatch.testing import clear
@pytest.fixture
def rate_limiter_backend():
    urls = os.environ["URLS"].split()
    clear(urls)
    with Client(urls) as client:
        yield RedlatchBackend(client)
"""

DRAMATIQ_COMMON = "skip_in_ci = lambda test: test\n"

# The settings of django-redis' suite that need neither more packages nor another server; Sentinel and unix sockets do.
DJANGO_REDIS_SETTINGS = ("sqlite", "sqlite_herd", "sqlite_json", "sqlite_sharding", "sqlite_zlib")

BACKEND = r'"BACKEND": "django_redis\.cache\.RedisCache"'


def unpacked(name: str, folder: Path) -> Path:
    """Return the unpacked source distribution of a package."""
    found = [path for path in compat.SDISTS.glob("*.tar.gz") if re.fullmatch(rf"{name}-[\d.]+\.tar\.gz", path.name)]
    if not found:
        pytest.skip(f"the source distribution of {name}, which has its tests, could not be downloaded")
    with tarfile.open(found[0]) as archive:
        archive.extractall(folder, filter="data")
    [root] = folder.iterdir()
    return root


def run(folder: Path, *words: str, **environment: str) -> int:
    """Run a suite, and return how many tests passed."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -p no:asyncio\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed is not None
    assert "skipped" not in ran.stdout
    return int(passed[1])


@pytest.mark.slow("the frameworks' own suites, which wait for real time")
@pytest.mark.parametrize("implementation", [impl.current.name], indirect=True)
def test_the_limiter_tests_of_dramatiq_pass_with_our_backend(
    implementation: impl.Implementation, tmp_path: Path, three: list[str]
) -> None:
    root = unpacked("dramatiq", tmp_path / "sdist")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/__init__.py").touch()
    (tmp_path / "tests/conftest.py").write_text(DRAMATIQ_CONFTEST)
    (tmp_path / "tests/common.py").write_text(DRAMATIQ_COMMON)
    names = ["barrier", "bucket_rate_limiter", "concurrent_rate_limiter", "window_rate_limiter"]
    for name in names:
        (root / f"tests/test_{name}.py").rename(tmp_path / f"tests/test_{name}.py")
    files = [f"tests/test_{name}.py" for name in names]
    # It asserts that two threads go on within 10 ms. Our parties look again after up to 50 ms.
    left_out = "--deselect=tests/test_barrier.py::test_barriers_can_block"
    assert run(tmp_path, *files, left_out, URLS=" ".join(three), REDLATCH_IMPL=implementation.name) == 7


@pytest.mark.slow("the frameworks' own suites, which wait for real time")
def test_the_lock_tests_of_django_redis_pass_with_our_cache(
    implementation: impl.Implementation, tmp_path: Path, url: str
) -> None:
    tests = unpacked("django[-_]redis", tmp_path / "sdist") / "tests"
    tests.rename(tmp_path / "tests")
    for name in DJANGO_REDIS_SETTINGS:
        path = tmp_path / f"tests/settings/{name}.py"
        text, count = re.subn(BACKEND, '"BACKEND": "redlatch.django.django_redis_cache.RedisCache"', path.read_text())
        assert count
        path.write_text(text.replace("127.0.0.1:6379", url.removeprefix("redis://")))
    path = tmp_path / "tests/conftest.py"
    text, count = re.subn(
        r"settings = \[\n.*?\]", f"settings = {list(DJANGO_REDIS_SETTINGS)}", path.read_text(), flags=re.DOTALL
    )
    assert count == 1
    path.write_text(text)
    passed = 0
    # Django reads its settings once, so each project needs a process.
    for name in DJANGO_REDIS_SETTINGS:
        words = ["tests/test_backend.py", "-k", f"test_lock and {name}]", "-n", "0"]
        passed += run(tmp_path, *words, REDLATCH_IMPL=implementation.name)
    assert passed >= 3 * len(DJANGO_REDIS_SETTINGS)
