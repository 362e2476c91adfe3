"""The examples of docs/frameworks.md run as they stand, with the addresses of real servers."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import dramatiq
import pytest
from dramatiq import Worker
from support.faces import PATIENCE
from test_docs import FENCE, ROOT, with_masters

from redlatch import Client
from redlatch.testing import Masters

from .conftest import Serve

TEXT = (ROOT / "docs/frameworks.md").read_text()

Fleet = Callable[..., Masters]


def examples_of(heading: str, masters: list[str], other: str) -> list[str]:
    """Return the Python examples of a section, with addresses of real servers."""
    level = heading.partition(" ")[0]
    section = TEXT.split(f"\n{heading}\n")[1].split(f"\n{level} ")[0]
    found = [block for language, block in FENCE.findall(section) if language == "python"]
    return [with_masters(block, masters).replace("redis://10.0.0.9", other) for block in found]


def loaded(code: str, name: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Run an example as a module."""
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(code, name, "exec"), module.__dict__)
    return module


def test_every_example_is_run_here() -> None:
    blocks = [block for language, block in FENCE.findall(TEXT) if language == "python"]
    tested = [examples_of(heading, [], "") for heading in ("## Django", "## FastAPI and Starlette", "## dramatiq")]
    assert sum(map(len, tested)) == len(blocks)
    assert list(map(len, tested)) == [2, 2, 1]


USE = """
import asyncio
from django.core.management import call_command
from django.test import RequestFactory
import django
django.setup()
import shop_views
request = RequestFactory().get("/")
print(shop_views.report(request).content, asyncio.run(shop_views.async_report(request)).content)
call_command("check", "--deploy", "--tag", "redlatch")
"""


def test_the_project_of_django_locks_and_has_no_findings(three: list[str], fleet: Fleet, tmp_path: Path) -> None:
    settings, views = examples_of("## Django", three, fleet(1).urls[0])
    (tmp_path / "shop_settings.py").write_text(settings)
    (tmp_path / "shop_views.py").write_text(views)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "shop_settings", "PYTHONPATH": path}
    command = [sys.executable, "-W", "error", "-c", USE]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("b'written' b'written'\nSystem check identified no issues")


def test_the_application_of_fastapi_pays_under_the_lock(
    serve: Serve, three: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _ = examples_of("## FastAPI and Starlette", three, "")
    web = serve(loaded(code, "shop_fastapi", monkeypatch).app)
    assert web.post("/orders/7/pay").json() == "paid"
    assert web.delete("/orders/8").json() == "cancelled"
    with Client(three, prefix="shop:") as client, client.lock("order:9"):
        assert web.delete("/orders/9").status_code == 409


def test_the_web_handler_of_the_start_page_pays_under_the_lock(
    serve: Serve, three: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = with_masters((ROOT / "docs/start.md").read_text(), three)
    [code] = [block for _, block in FENCE.findall(start) if block.startswith("# web.py")]
    web = serve(loaded(code, "start_web", monkeypatch).app)
    assert web.post("/orders/37/pay").json() == "paid"
    with Client(three) as client, client.lock("order:39"):
        assert web.post("/orders/39/pay").status_code == 423


def test_the_application_of_starlette_pays_under_the_lock(
    serve: Serve, three: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, code = examples_of("## FastAPI and Starlette", three, "")
    web = serve(loaded(code, "shop_starlette", monkeypatch).app)
    assert web.post("/orders/27/pay").text == "paid"
    with Client(three) as client, client.lock("order:29"):
        assert web.post("/orders/29/pay").status_code == 423


def test_the_actors_of_dramatiq_run_under_the_limits(
    three: list[str], fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [code] = examples_of("## dramatiq", three, fleet(1).urls[0])
    before = dramatiq.broker.global_broker
    module = loaded(code, "shop_actors", monkeypatch)
    worker = Worker(module.broker, worker_timeout=100)
    worker.start()
    try:
        paths = [tmp_path / str(number) for number in range(3)]
        for path in paths:
            module.export.send(str(path))
        module.mail.send("ann@example.org")
        module.broker.join("default", timeout=int(PATIENCE * 1000))
        worker.join()
        assert all(path.exists() for path in paths)
    finally:
        worker.stop()
        module.broker.close()
        module.backend._client.close()
        dramatiq.broker.global_broker = before
