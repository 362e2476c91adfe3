"""The example of docs/celery.md in a real worker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.faces import await_true

from .conftest import Site, end

DOCUMENT = Path(__file__).parents[2] / "docs/celery.md"

# What the document promises about the example.
PROMISES = """
from celery.exceptions import TaskRevokedError
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
print("published", flush=True)
input()
assert first.get(timeout=30) == "7 from web"
assert paid.get(timeout=30) == "paid 1"
"""


def test_the_example_does_what_the_document_says(site: Site, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    text = blocks[0].replace('broker="redis://10.0.0.1", backend="redis://10.0.0.1"', "broker=BROKER, backend=BROKER")
    for number, url in enumerate(site.masters, 1):
        text = text.replace(f"redis://10.0.0.{number}", url)
    # A database of its own, so that the workers of other tests do not get these tasks.
    (tmp_path / "tasks.py").write_text(text.replace("BROKER", f'"{site.broker}/7"'))
    publisher = subprocess.Popen(
        [sys.executable, "-c", PROMISES], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert publisher.stdin is not None and publisher.stdout is not None
    assert publisher.stdout.readline() == "published\n"
    words = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-c", "1", "--without-gossip"]
    with open(tmp_path / "log", "wb") as log:
        worker = subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
    try:
        await_true(lambda: "celery@" in (tmp_path / "log").read_text())
        publisher.communicate("\n", timeout=60)
        assert publisher.returncode == 0, (tmp_path / "log").read_text()
    finally:
        end(worker)


def the_settings() -> list[str]:
    """Return the settings and attributes that the document lists: the first column of its tables."""
    return re.findall(r"^\| `(redlatch_\w+|[a-z_]+_ttl|unique_on|on_duplicate)` \|", DOCUMENT.read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", the_settings())
def test_each_setting_that_is_listed_exists(name: str) -> None:
    folder = Path(__file__).parents[2] / "src/redlatch/celery"
    assert any(re.search(rf"\b{name}\b", path.read_text()) for path in folder.glob("*.py"))
    assert len(the_settings()) == 6
