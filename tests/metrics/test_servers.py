"""The programs of docs/metrics.md, run by real servers."""

from __future__ import annotations

import contextlib
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.faces import PATIENCE, await_true
from support.groups import free_ports, started

from metrics.crew import ROOT

# A program of the page: a block whose first line is a comment with the name of its file.
PROGRAM = re.compile(r"^```python\n# ([\w.]+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = dict(PROGRAM.findall((ROOT / "docs/metrics.md").read_text()))

GUNICORN = ("-m", "gunicorn", "metrics_wsgi:application", "--log-level", "warning")


@pytest.fixture
def folder(tmp_path: Path, three: list[str]) -> Path:
    """Write the programs into a folder, with the masters of the tests."""
    for name, text in PROGRAMS.items():
        for number, url in enumerate(three, 1):
            text = text.replace(f"redis://10.0.0.{number}", url)
        (tmp_path / name).write_text(text)
    return tmp_path


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
    """Return how many acquires of a group a scrape shows: 0 if that process has had no request."""
    found = [
        sample.value
        for family in text_string_to_metric_families(get(port, "metrics/"))
        for sample in family.samples
        if sample.name == "redlatch_acquire_total" and sample.labels == {"group": group, "outcome": "acquired"}
    ]
    assert len(found) <= 1
    return float(sum(found))


def test_every_program_is_run_here() -> None:
    assert set(PROGRAMS) == {"metrics_app.py", "metrics_wsgi.py", "gunicorn.conf.py"}


def test_an_application_of_fastapi_shows_its_figures(folder: Path) -> None:
    (port,) = free_ports(1)
    with started(folder, "-m", "uvicorn", "metrics_app:app", "--port", str(port), "--log-level", "warning"):
        await_true(answers(port))
        assert get(port, "orders/42/pay", b"") == '{"paid":42}'
        assert acquired(port, "order") == 1


def test_an_application_of_wsgi_shows_its_figures(folder: Path) -> None:
    (port,) = free_ports(1)
    (folder / "gunicorn.conf.py").unlink()
    application = (folder / "metrics_wsgi.py").read_text().replace('== "/metrics"', '== "/metrics/"')
    (folder / "metrics_wsgi.py").write_text(application)
    with started(folder, *GUNICORN, "-b", f"127.0.0.1:{port}"):
        await_true(answers(port))
        assert get(port) == "done\n"
        assert acquired(port, "report") == 1


def test_each_worker_of_gunicorn_is_scraped(folder: Path) -> None:
    port, *scraped = free_ports(5)
    config = (folder / "gunicorn.conf.py").read_text()
    assert "range(9400, 9400 + 2 * workers)" in config
    (folder / "gunicorn.conf.py").write_text(config.replace("range(9400, 9400 + 2 * workers)", str(scraped)))
    with started(folder, *GUNICORN, "-b", f"127.0.0.1:{port}"):
        # The two workers take the first two ports.
        await_true(answers(scraped[0]))
        await_true(answers(scraped[1]))
        assert not answers(scraped[2])()
        for _ in range(10):
            assert get(port) == "done\n"
        assert sum(acquired(each, "report") for each in scraped[:2]) == 10
