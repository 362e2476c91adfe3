"""RedBeat's own test suite with this package's scheduler, on a real server.

The suite is in RedBeat's source distribution, which `make test-all` downloads. docs/celery.md lists the tests that are
left out, with the reasons.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from redlatch import impl
from redlatch.testing import embedded

from .suites import ROOT, check, left_out

SDIST = Path(sys.prefix) / ".peers" / f"celery_redbeat-{version('celery-redbeat')}.tar.gz"

# How many of the 85 tests of version 2.4.2 pass. RedBeat skips two itself.
LEAST = 78

# What changes in the text of the tests: the scheduler, the function that acquires its lock when beat starts, and the
# server. The suite uses a server in memory. Here it uses a real one, which is also the master of the lock. Without a
# prefix the lock has the key of RedBeat's lock, which the suite reads.
CHANGES = {
    "from redbeat import RedBeatScheduler\n": "from redlatch.celery import RedBeatScheduler\n",
    "    acquire_distributed_beat_lock,\n": "",
    "from tests.basecase import": "from redlatch.celery.beat import acquire_at_start as acquire_distributed_beat_lock\n"
    "from tests.basecase import",
    "from fakeredis import FakeRedis, FakeServer": "import os\nfrom redis import Redis",
    "        self.redis_server = FakeServer()\n": "",
    "FakeRedis(decode_responses=True, server=self.redis_server)": 'Redis.from_url(os.environ["URL"], '
    "decode_responses=True)\n        self.app.conf.redlatch_masters = [os.environ['URL']]\n"
    "        self.app.conf.redlatch_options = {'prefix': ''}",
}


@pytest.fixture
def url() -> Iterator[str]:
    """A server of its own, because the suite flushes it."""
    with embedded.masters(1) as urls:
        yield urls[0]


def prepare(folder: Path) -> None:
    """Unpack the suite, and change its imports and its server."""
    with tarfile.open(SDIST) as archive:
        archive.extractall(folder / "sdist", filter="data")
    [unpacked] = (folder / "sdist").iterdir()
    shutil.move(unpacked / "tests", folder / "tests")
    changed = set()
    for path in (folder / "tests").glob("*.py"):
        text = path.read_text()
        for old, new in CHANGES.items():
            if old in text:
                # The import of the function is also its name in the tests, so each change is of one place.
                text = text.replace(old, new, 1)
                changed.add(old)
        path.write_text(text)
    assert changed == set(CHANGES)
    (folder / "pytest.ini").write_text(
        "[pytest]\npython_classes = *Case Test* test_*\naddopts = -p no:cacheprovider -p no:asyncio\n"
    )


@pytest.mark.slow("RedBeat's own suite")
@pytest.mark.timeout(300)
def test_redbeats_suite_passes_with_this_scheduler(
    implementation: impl.Implementation, url: str, tmp_path: Path
) -> None:
    if not SDIST.exists():
        pytest.skip("the source distribution of RedBeat, which has its tests, could not be downloaded")
    prepare(tmp_path)
    environment = os.environ | {"URL": url, "REDLATCH_IMPL": implementation.name}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    out = [f"--deselect=tests/{name}" for name in left_out("Left out of RedBeat's suite")]
    command = [sys.executable, "-m", "pytest", "-q", "tests", *out]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250)
    check(ran.returncode, ran.stdout, ran.stderr, LEAST, len(out))
