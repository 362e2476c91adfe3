"""The programs of docs/metrics.md, run by real servers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.faces import PATIENCE, await_true

from metrics.crew import ROOT

# A program of the page: a block whose first line is a comment with the name of its file.
PROGRAM = re.compile(r"^```python\n# ([\w.]+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = dict(PROGRAM.findall((ROOT / "docs/metrics.md").read_text()))


@pytest.fixture
def folder(tmp_path: Path, three: list[str]) -> Path:
    """Write the programs into a folder, with the masters of the tests."""
    for name, text in PROGRAMS.items():
        for number, url in enumerate(three, 1):
            text = text.replace(f"redis://10.0.0.{number}", url)
        (tmp_path / name).write_text(text)
    return tmp_path


def ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


@contextlib.contextmanager
def started(folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a server in a process group of its own, and kill the group at the end."""
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=folder, text=True, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)


def get(port: int, path: str = "", data: bytes | None = None) -> str:
    """Make a request."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", data, timeout=PATIENCE) as answer:
        return str(answer.read().decode())


def answers(port: int) -> Callable[[], bool]:
    """Return a function that tells whether a port answers a scrape."""

    def ask() -> bool:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            return "redlatch_held" in get(port, "metrics/")
        return False

    return ask


def acquired(port: int, group: str) -> float:
    """Return how many acquires of a group a scrape shows."""
    (found,) = [
        sample.value
        for family in text_string_to_metric_families(get(port, "metrics/"))
        for sample in family.samples
        if sample.name == "redlatch_acquire_total" and sample.labels == {"group": group, "outcome": "acquired"}
    ]
    return float(found)


def test_every_program_is_run_here() -> None:
    assert set(PROGRAMS) == {"metrics_app.py", "metrics_wsgi.py", "gunicorn.conf.py"}


def test_fastapi(folder: Path) -> None:
    (port,) = ports(1)
    with started(folder, "uvicorn", "metrics_app:app", "--port", str(port), "--log-level", "warning"):
        await_true(answers(port))
        assert get(port, "orders/42/pay", b"") == '{"paid":42}'
        assert acquired(port, "order") == 1


def test_wsgi(folder: Path) -> None:
    (port,) = ports(1)
    (folder / "gunicorn.conf.py").unlink()
    application = (folder / "metrics_wsgi.py").read_text().replace('== "/metrics"', '== "/metrics/"')
    (folder / "metrics_wsgi.py").write_text(application)
    with started(folder, "gunicorn", "metrics_wsgi:application", "-b", f"127.0.0.1:{port}", "--log-level", "warning"):
        await_true(answers(port))
        assert get(port) == "done\n"
        assert acquired(port, "report") == 1


def test_each_worker_of_gunicorn_is_scraped(folder: Path) -> None:
    port, *scraped = ports(5)
    config = (folder / "gunicorn.conf.py").read_text()
    assert "range(9400, 9400 + 2 * workers)" in config
    (folder / "gunicorn.conf.py").write_text(config.replace("range(9400, 9400 + 2 * workers)", str(scraped)))
    with started(folder, "gunicorn", "metrics_wsgi:application", "-b", f"127.0.0.1:{port}", "--log-level", "warning"):
        # The two workers take the first two ports.
        await_true(answers(scraped[0]))
        await_true(answers(scraped[1]))
        assert not answers(scraped[2])()
        for _ in range(10):
            assert get(port) == "done\n"
        assert sum(acquired(each, "report") for each in scraped[:2]) == 10
