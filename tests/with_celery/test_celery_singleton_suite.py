"""celery-singleton's own tests with this package's base class, on a real server and a real worker.

Newer source distributions of celery-singleton have no tests, so these are those of 0.1.3. docs/celery.md lists the test
that is left out, and says what the tests of its repository show.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from compat.versions import SINGLETON

from redlatch import impl
from redlatch.testing import embedded

from .suites import ROOT, check, left_out

SDIST = Path(sys.prefix) / ".peers" / f"celery-singleton-{SINGLETON}.tar.gz"

# How many of the seven tests pass.
LEAST = 6

# What changes in the text of the tests: the base class, and the server.
CHANGES = {
    "from celery_singleton import Singleton\n": "import os\n\nfrom redlatch.celery import Singleton\n",
    "'redis://localhost:6379'": "os.environ['URL']",
}


@pytest.fixture
def url() -> Iterator[str]:
    """A server of its own: it is the broker, keeps the results, and is the master of the locks."""
    with embedded.masters(1) as urls:
        yield urls[0]


def prepare(folder: Path) -> None:
    """Unpack the tests, and change their base class and their server."""
    with tarfile.open(SDIST) as archive:
        member = archive.extractfile(f"celery-singleton-{SINGLETON}/tests.py")
        assert member is not None
        text = member.read().decode()
    for old, new in CHANGES.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "test_them.py").write_text(text)
    # The fixture of the worker is Celery's own.
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = -p no:cacheprovider -p no:asyncio -p celery.contrib.pytest\n"
    )


@pytest.mark.timeout(120)
def test_celery_singletons_tests_pass_with_this_base_class(
    implementation: impl.Implementation, url: str, tmp_path: Path
) -> None:
    if not SDIST.exists():
        pytest.skip("the source distribution of celery-singleton, which has its tests, could not be downloaded")
    prepare(tmp_path)
    environment = os.environ | {"URL": url, "REDLATCH_IMPL": implementation.name, "PYTHONPATH": str(ROOT / "src")}
    out = [f"--deselect=test_them.py::{name}" for name in left_out("Left out of celery-singleton's tests")]
    command = [sys.executable, "-m", "pytest", "-q", "test_them.py", *out]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110)
    check(ran.returncode, ran.stdout, ran.stderr, LEAST, len(out))
