"""The examples of docs/celery.md, in a real worker and in pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.faces import await_true

from .conftest import Site, end

DOCUMENT = Path(__file__).parents[2] / "docs/celery.md"

# What the document promises about the examples.
PROMISES = """
import time
from orders import client, ship
from redlatch import DuplicateTask
from tasks import import_data, pay_out

first = import_data.delay(7)
assert import_data.delay(7, "app").id == first.id
assert import_data.delay(8).id != first.id
paid = pay_out.delay(1)
try:
    pay_out.delay(1)
except DuplicateTask as error:
    assert error.task_id == paid.id
else:
    raise AssertionError
lock = client.lock("order:17")
lock.acquire()
shipped = ship.delay(17)
print("published", flush=True)
input()
assert first.get(timeout=30) == "7 from web"
assert paid.get(timeout=30) == "paid 1"
while shipped.state != "RETRY":
    time.sleep(0.05)
lock.release()
assert shipped.get(timeout=30) == "parcel of order 17"
client.close()
"""


def write_files(folder: Path, masters: list[str], broker: str) -> set[str]:
    """Write the Python files of the document into a folder; return their names."""
    names = set()
    for name, block in re.findall(
        r"^```python\n# (\w+\.py)\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL
    ):
        text = block.replace('broker="redis://10.0.0.1", backend="redis://10.0.0.1"', "broker=BROKER, backend=BROKER")
        for number, url in enumerate(masters, 1):
            text = text.replace(f"redis://10.0.0.{number}", url)
        (folder / name).write_text(text.replace("BROKER", repr(broker)))
        names.add(name)
    return names


def test_every_example_is_a_file(tmp_path: Path) -> None:
    assert write_files(tmp_path, [], "") == {"orders.py", "tasks.py", "test_tasks.py"}
    assert DOCUMENT.read_text().count("```python\n") == 3


def test_the_examples_do_what_the_document_says(site: Site, tmp_path: Path) -> None:
    # A database of its own, so that the workers of other tests do not get these tasks.
    write_files(tmp_path, site.masters, f"{site.broker}/7")
    publisher = subprocess.Popen(
        [sys.executable, "-c", PROMISES], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert publisher.stdin is not None and publisher.stdout is not None
    assert publisher.stdout.readline() == "published\n"
    words = [sys.executable, "-m", "celery", "-A", "orders", "worker", "-c", "1", "--without-gossip"]
    with open(tmp_path / "log", "wb") as log:
        worker = subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
    try:
        await_true(lambda: "celery@" in (tmp_path / "log").read_text())
        publisher.communicate("\n", timeout=60)
        assert publisher.returncode == 0, (tmp_path / "log").read_text()
    finally:
        end(worker)


def test_the_tests_of_the_document_pass(site: Site, tmp_path: Path) -> None:
    write_files(tmp_path, site.masters, "memory://")
    plugins = ("-p", "redlatch.testing.plugin", "-p", "no:asyncio", "-p", "no:xdist", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "test_tasks.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "3 passed" in ran.stdout


def the_settings() -> list[str]:
    """Return the settings and attributes that the document lists: the first column of its tables."""
    return re.findall(r"^\| `(redlatch_\w+|[a-z_]+_ttl|unique_on|on_duplicate)` \|", DOCUMENT.read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", the_settings())
def test_each_setting_that_is_listed_exists(name: str) -> None:
    folder = Path(__file__).parents[2] / "src/redlatch/celery"
    assert any(re.search(rf"\b{name}\b", path.read_text()) for path in folder.glob("*.py"))
    assert len(the_settings()) == 6
