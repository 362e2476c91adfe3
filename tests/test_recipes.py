"""The programs of docs/recipes.md, run by real servers: at SIGTERM another process has their locks at once."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support import groups
from support.faces import PATIENCE, ask, await_true, in_thread
from support.forked import in_child
from support.groups import free_ports

from redlatch import Client, ClientForked, impl

RECIPES = Path(__file__).parents[1] / "docs/recipes.md"

# A program of the document: a block whose first line is a comment with the name of its file.
PROGRAM = re.compile(r"^```python\n# ([\w.]+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Waits of the document, which let requests end. Here none ends.
WAITS = {
    "worker.join(10.0)": "worker.join(0.1)",
    "time.sleep(20)": "time.sleep(0.1)",
    "shutdown_timeout = 20.0": "shutdown_timeout = 0.1",
}

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, three: list[str]) -> Write:
    """Return a function that writes a program of the document into a folder, with the masters of the tests."""
    programs = dict(PROGRAM.findall(RECIPES.read_text()))

    def write(name: str) -> Path:
        text = programs[name]
        for number, url in enumerate(three, 1):
            text = text.replace(f"redis://10.0.0.{number}", url)
        for old, new in WAITS.items():
            text = text.replace(old, new)
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


# Runs Python in a folder, and collects what it prints.
started = partial(groups.started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def is_held(urls: list[str], name: str) -> bool:
    """Return whether all masters have a lock."""
    return all(ask(url).exists(name) for url in urls)


def assert_free_after_sigterm(process: subprocess.Popen[str], urls: list[str], name: str) -> None:
    """Send SIGTERM to a server, and have another process wait for a lock of it; its ttl is 60 s, and it is renewed."""
    assert is_held(urls, name)
    with Client(urls) as client:
        lock = client.lock(name)
        waiting = in_thread(lock.acquire, True, PATIENCE)
        process.send_signal(signal.SIGTERM)
        assert waiting.result(2 * PATIENCE)
        lock.release()


def test_every_program_is_run_here() -> None:
    names = {name for name, _ in PROGRAM.findall(RECIPES.read_text())}
    assert names == {"worker.py", "app.py", "gunicorn.conf.py", "main.py", "tasks.py"}


def test_a_worker_that_is_told_to_stop(three: list[str], write: Write) -> None:
    with started(write("worker.py").parent, "worker.py") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        assert_free_after_sigterm(process, three, "nightly")
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("worker", ["gthread", "sync"])
def test_gunicorn(three: list[str], write: Write, worker: str) -> None:
    pytest.importorskip("gunicorn")
    write("app.py")
    config, port = write("gunicorn.conf.py"), free_ports(1)[0]
    config.write_text(config.read_text().replace('worker_class = "gthread"', f'worker_class = "{worker}"'))
    with started(config.parent, "-m", "gunicorn", "app:application", "-b", f"127.0.0.1:{port}") as process:
        await_true(lambda: listens(port))
        request = in_thread(get, port)
        await_true(lambda: is_held(three, "report"))
        assert_free_after_sigterm(process, three, "report")
        assert not request.done() or request.exception()


def get(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=4 * PATIENCE):
        pass


def test_uvicorn_with_two_workers(three: list[str], write: Write) -> None:
    pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    command = ["-m", "uvicorn", "main:app", "--workers", "2", "--timeout-graceful-shutdown", "20"]
    with started(write("main.py").parent, *command, "--port", str(free_ports(1)[0])) as process:
        await_true(lambda: is_held(three, "leader"))
        assert_free_after_sigterm(process, three, "leader")
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM)


def test_celery_with_two_processes(three: list[str], write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("celery")
    folder = write("tasks.py").parent
    monkeypatch.setenv("REMAP_SIGTERM", "SIGQUIT")
    with started(folder, "-m", "celery", "-A", "tasks", "worker", "-P", "prefork", "-c", "2") as process:
        subprocess.run([sys.executable, "-c", "import tasks; tasks.report.delay('monday')"], cwd=folder, check=True)
        await_true(lambda: is_held(three, "report:monday"))
        assert_free_after_sigterm(process, three, "report:monday")
        assert process.wait(PATIENCE) == 0


def test_a_client_that_is_made_before_the_fork_connects_in_the_child(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    client = Client(three)

    def use() -> None:
        with client.lock(name):
            pass
        client.close(release=True)

    in_child(use)
    in_child(use)
    with client.lock(name):
        pass
    client.close()


def test_a_client_that_has_connected_before_the_fork_is_refused_in_the_child(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    def use() -> None:
        with pytest.raises(ClientForked):
            client.lock(name).acquire()

    with Client(three) as client:
        client.connect()
        in_child(use)
