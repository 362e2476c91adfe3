"""The examples of the pages of frameworks run as they stand, as the files of one project, on real servers."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import dramatiq
import httpx
import pytest
from dramatiq import Worker
from fastapi import FastAPI
from support.faces import PATIENCE, await_true
from support.groups import free_ports, started
from test_docs import FENCE, ROOT, with_masters

from redlatch import Client, ClientClosed
from redlatch.fastapi import lifespan
from redlatch.testing import Masters

from .conftest import Serve

Fleet = Callable[..., Masters]

NAMED = re.compile(r"# ([\w./]+\.py)\n")


class Project:
    """The files of a page, in a folder.

    Args:
        folder: gets the files.
        masters: stand for 10.0.0.1 to 10.0.0.3.
        other: stands for 10.0.0.9.
    """

    def __init__(self, folder: Path, masters: list[str], other: str = "") -> None:
        self.folder = folder
        self._masters = masters
        self._other = other

    def write(self, page: str) -> list[str]:
        """Write the Python files of a page; return their names."""
        names = []
        for language, block in FENCE.findall((ROOT / "docs" / page).read_text()):
            named = NAMED.match(block)
            if language == "python" and named is not None:
                path = self.folder / named[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(with_masters(block, self._masters).replace("redis://10.0.0.9", self._other))
                names.append(named[1])
        return names

    def run(self, *command: str) -> str:
        """Run Python in the folder; return what it printed."""
        ran = subprocess.run(
            [sys.executable, "-W", "error", *command],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
        return ran.stdout

    def test(self, name: str) -> str:
        """Run a file of tests; return what pytest printed."""
        plugins = ("-p", "redlatch.testing.plugin", "-p", "no:asyncio", "-p", "no:xdist", "-p", "no:cacheprovider")
        # Newer versions of Starlette ask for the successor of httpx.
        return self.run("-m", "pytest", "-q", *plugins, "-o", "filterwarnings=ignore:Using .httpx", name)

    def environment(self) -> dict[str, str]:
        """Return the variables of a program that finds the files and redlatch."""
        path = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")])
        return os.environ | {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": path}


@pytest.fixture
def project(tmp_path: Path, three: list[str], fleet: Fleet) -> Project:
    """Return an empty project with servers."""
    return Project(tmp_path, three, fleet(1).urls[0])


@pytest.fixture
def load(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], types.ModuleType]]:
    """Import a file of a page. Its module is forgotten at the end."""
    monkeypatch.syspath_prepend(project.folder)
    loaded = []

    def load(page: str, name: str) -> types.ModuleType:
        project.write(page)
        loaded.append(name)
        return importlib.import_module(name)

    yield load
    for name in loaded:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("page", ["django.md", "fastapi.md", "dramatiq.md"])
def test_every_example_is_a_file(page: str, tmp_path: Path) -> None:
    blocks = [block for language, block in FENCE.findall((ROOT / "docs" / page).read_text()) if language == "python"]
    names = Project(tmp_path, []).write(page)
    assert len(set(names)) == len(blocks) >= 3


# --- Django --------------------------------------------------------------------------------------------

USE_DJANGO = """
import django
django.setup()
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client
from redlatch.django import get_client
browser = Client()
for path in ("/orders/7/pay", "/report", "/async-report"):
    print(browser.get(path).content.decode())
with cache.lock("report", timeout=30.0):
    assert get_client().lock(":1:report").holder() is not None
call_command("nightly")
with get_client().lock("nightly"):
    call_command("nightly")
call_command("check", "--deploy", "--tag", "redlatch")
"""


def test_the_project_of_django_locks_and_has_no_findings(project: Project) -> None:
    project.write("django.md")
    printed = project.run("-c", USE_DJANGO).splitlines()
    assert printed[:3] == ["paid", "written", "written"]
    assert printed[3:6] == ["clean up", "count", "another machine does it"]
    assert printed[6].startswith("System check identified no issues")


ANSWERS = """
import django
django.setup()
from django.test import Client, RequestFactory
from redis.exceptions import LockError, LockNotOwnedError
from redlatch import ConfigurationError, LockBusy, LockLost, LockTimeout, QuorumUnavailable
from shop.middleware import LockErrors

answer = LockErrors(None).process_exception
for error in (LockTimeout("x"), LockBusy("x"), LockError("x")):
    assert (answer(None, error).status_code, answer(None, error).headers["Retry-After"]) == (423, "1"), error
unavailable = answer(None, QuorumUnavailable("x", retry_after=11.5))
assert (unavailable.status_code, unavailable.headers["Retry-After"]) == (503, "12")
for error in (LockLost("x"), LockNotOwnedError("x"), ConfigurationError("x"), KeyError()):
    assert answer(None, error) is None, error
"""


def test_the_middleware_of_django_answers_each_error(project: Project) -> None:
    project.write("django.md")
    project.run("-c", ANSWERS)


def test_the_tests_of_the_django_page_pass(project: Project) -> None:
    project.write("django.md")
    assert "2 passed" in project.test("test_shop.py")


# A request that does not end, and the application for gunicorn.
NEVER_ENDS = """
import time
from django.core.wsgi import get_wsgi_application
from django.urls import path
application = get_wsgi_application()

from redlatch.django import get_client
from shop.urls import urlpatterns

def hang(request):
    with get_client().lock("hang", ttl=60.0):
        time.sleep(3600)

urlpatterns.append(path("hang", hang))
"""


def test_gunicorn_frees_the_lock_of_a_request_that_does_not_end(project: Project, three: list[str]) -> None:
    project.write("django.md")
    config = project.folder / "gunicorn.conf.py"
    text = config.read_text()
    assert "time.sleep(20)" in text
    config.write_text(text.replace("time.sleep(20)", "time.sleep(0.1)"))
    (project.folder / "wsgi.py").write_text(NEVER_ENDS)
    [port] = free_ports(1)
    command = ("-m", "gunicorn", "-c", "gunicorn.conf.py", "-b", f"127.0.0.1:{port}", "wsgi:application")
    with (
        open(project.folder / "log", "wb") as log,
        started(project.folder, *command, env=project.environment(), stdout=log, stderr=log) as process,
        Client(three, prefix="shop:") as client,
    ):
        await_true(lambda: b"Booting worker" in (project.folder / "log").read_bytes())
        asking = subprocess.Popen(
            [sys.executable, "-c", f"import urllib.request as r; r.urlopen('http://127.0.0.1:{port}/hang')"],
            stderr=subprocess.DEVNULL,
        )
        try:
            await_true(lambda: client.lock("hang").holder() is not None)
            process.send_signal(signal.SIGTERM)
            # Its ttl is 60 s.
            assert client.lock("hang").acquire(timeout=PATIENCE / 2)
        finally:
            asking.kill()
            asking.wait()


# --- FastAPI and Starlette -----------------------------------------------------------------------------

Load = Callable[[str, str], types.ModuleType]


def test_the_application_of_fastapi_pays_under_the_lock(serve: Serve, three: list[str], load: Load) -> None:
    web = serve(load("fastapi.md", "shop").app)
    assert web.post("/orders/7/pay").json() == "paid"
    assert web.delete("/orders/8").json() == "cancelled"
    with Client(three, prefix="shop:") as client, client.lock("order:9"):
        assert web.delete("/orders/9").status_code == 409


def test_the_cause_of_a_refusal_is_logged(
    serve: Serve, three: list[str], load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    load("fastapi.md", "shop")
    web = serve(load("fastapi.md", "logged").app)
    with Client(three, prefix="shop:") as client, client.lock("order:9"):
        assert web.delete("/orders/9").status_code == 409
    [line] = [record.getMessage() for record in caplog.records if record.name == "shop"]
    assert line.startswith("409 /orders/9: ") and "order:9" in line


def served(serve: Serve, masters: list[str], load: Load, name: str) -> httpx.Client:
    """Serve the router of a file."""
    app = FastAPI(lifespan=lifespan(masters))
    app.include_router(load("fastapi.md", name).router)
    return serve(app)


def test_a_name_may_come_from_the_request(serve: Serve, three: list[str], load: Load) -> None:
    web = served(serve, three, load, "by_customer")
    assert web.post("/basket", headers={"X-Customer": "ann"}).json() == "customer:ann"
    with Client(three) as client, client.lock("customer:ann"):
        assert web.post("/basket", headers={"X-Customer": "ann"}).status_code == 423


def test_the_report_of_fastapi_has_one_writer(serve: Serve, three: list[str], load: Load) -> None:
    web = served(serve, three, load, "report")
    assert web.post("/report").json() == "written"
    assert web.get("/report/holder").json() == "nobody"
    with Client(three, owner="the test") as client, client.lock("report"):
        assert web.post("/report").status_code == 423
        assert web.get("/report/holder").json() == "the test"


def test_the_application_of_starlette_pays_under_the_lock(serve: Serve, three: list[str], load: Load) -> None:
    web = serve(load("fastapi.md", "shop_starlette").app)
    assert web.post("/orders/27/pay").text == "paid"
    with Client(three) as client, client.lock("order:29"):
        assert web.post("/orders/29/pay").status_code == 423


@pytest.mark.parametrize(("name", "passed"), [("test_shop.py", 3), ("test_shop_servers.py", 1)])
def test_the_tests_of_the_fastapi_page_pass(name: str, passed: int, project: Project) -> None:
    project.write("fastapi.md")
    assert f"{passed} passed" in project.test(name)


def test_the_web_handler_of_the_start_page_pays_under_the_lock(
    serve: Serve, three: list[str], project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("start.md")
    monkeypatch.syspath_prepend(project.folder)
    web = serve(importlib.import_module("web").app)
    monkeypatch.delitem(sys.modules, "web")
    assert web.post("/orders/37/pay").json() == "paid"
    with Client(three) as client, client.lock("order:39"):
        assert web.post("/orders/39/pay").status_code == 423


# --- dramatiq ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def working(module: types.ModuleType) -> Iterator[Callable[[], None]]:
    """Run a worker for the actors of a module; yield a function that waits until all messages are done."""
    worker = Worker(module.broker, worker_timeout=100)
    worker.start()

    def wait() -> None:
        module.broker.join("default", timeout=int(PATIENCE * 1000))
        worker.join()

    try:
        yield wait
    finally:
        worker.stop()
        module.broker.close()


@pytest.fixture
def global_broker() -> Iterator[None]:
    """Put dramatiq's global broker back at the end."""
    before = dramatiq.broker.global_broker
    yield
    dramatiq.broker.global_broker = before


@pytest.mark.usefixtures("global_broker")
def test_an_actor_waits_in_the_queue_until_the_lock_is_free(
    three: list[str], load: Load, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load("dramatiq.md", "actors")
    monkeypatch.chdir(project.folder)
    with Client(three, prefix="jobs:") as client, working(module) as wait:
        lock = client.lock("order:17")
        assert lock.acquire(blocking=False)
        module.ship.send(17)
        # A message that comes back stands in the queue of those that are due later.
        await_true(lambda: module.broker.do_qsize("default.DQ") > 0)
        assert not (project.folder / "order-17.txt").exists()
        lock.release()
        wait()
        assert (project.folder / "order-17.txt").exists()
    with pytest.raises(ClientClosed):
        module.client.lock("order:17").acquire()


@pytest.mark.usefixtures("global_broker")
def test_the_actors_of_dramatiq_run_under_the_limits(load: Load, tmp_path: Path) -> None:
    module = load("dramatiq.md", "limits")
    with working(module) as wait:
        paths = [tmp_path / str(number) for number in range(3)]
        for path in paths:
            module.export.send(str(path))
        module.mail.send("ann@example.org")
        wait()
        assert all(path.exists() for path in paths)
    module.backend._client.close()


def test_the_tests_of_the_dramatiq_page_pass(project: Project) -> None:
    project.write("dramatiq.md")
    assert "3 passed" in project.test("test_actors.py")
