"""Servers, workers and beats for the tests of `redlatch.celery`. Workers and beats are processes of their own."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from support.faces import PATIENCE, await_true

from redlatch.celery.client import client_of
from redlatch.testing import embedded

# Seconds: how long a lock lives after its worker has died, in all tests.
TTL = 3.0

TESTS = Path(__file__).parents[1]


class Site:
    """A broker, three masters, and the processes of a test.

    Args:
        fleet: the servers; the first is the broker.
        urls: of the servers.
        folder: for the logs.
    """

    def __init__(self, fleet: embedded.Masters, urls: list[str], folder: Path) -> None:
        self.fleet = fleet
        self.broker, *self.masters = urls
        self.folder = folder
        self.environment = {
            "CELERY_TEST_URL": self.broker,
            "CELERY_TEST_MASTERS": " ".join(self.masters),
            "CELERY_TEST_TTL": str(TTL),
            "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)]),
        }
        self.number = 0
        # The name of the worker on each queue.
        self.names: dict[str, str] = {}

    @cached_property
    def tasks(self) -> Any:
        """The module of the tasks in this process. Only the site that all tests share has it."""
        os.environ.update(self.environment)
        return importlib.import_module("with_celery.tasks")

    def run(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a command of Celery. Its output goes to a file."""
        self.number += 1
        command = [sys.executable, "-m", "celery", "-A", "with_celery.tasks", *words]
        with open(self.folder / f"{self.number}.log", "wb") as log:
            return subprocess.Popen(
                command,
                env=os.environ | self.environment | environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @contextlib.contextmanager
    def worker(
        self, pool: str, queue: str, processes: int = 2, **environment: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker on a queue."""
        name = self.names[queue] = f"{queue}-{self.number}@test"
        words = ["-P", pool, "-c", str(processes), "-Q", queue, "-n", name, "-l", "INFO", "--prefetch-multiplier=1"]
        process = self.run("worker", *words, "--without-gossip", "--without-mingle", **environment)
        try:
            await_true(lambda: self.tasks.app.control.ping([name], timeout=0.2))
            yield process
        finally:
            end(process)

    @contextlib.contextmanager
    def beat(self, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a beat."""
        scheduler = "redlatch.celery.RedBeatScheduler"
        process = self.run("beat", "-S", scheduler, "-l", "INFO", "--pidfile=", **environment)
        try:
            yield process
        finally:
            end(process)

    def log(self, number: int = 0) -> str:
        """Return what a process has written: by default the last one."""
        return (self.folder / f"{number or self.number}.log").read_text(errors="replace")

    def told(self, what: str) -> list[str]:
        """Return what tasks have written, without the ids of their processes."""
        return [word.rpartition(":")[0] for word in self.tasks.store.lrange(f"told:{what}", 0, -1)]

    def pids(self, what: str) -> list[int]:
        """Return the processes that have written."""
        return [int(word.rpartition(":")[2]) for word in self.tasks.store.lrange(f"told:{what}", 0, -1)]

    def await_told(self, what: str, *words: str) -> None:
        """Wait until tasks have written these words, and no others."""
        await_true(lambda: len(self.told(what)) >= len(words))
        assert self.told(what) == list(words)

    def open_gate(self, gate: str) -> None:
        self.tasks.store.rpush(f"gate:{gate}", "open")

    def holder(self, task: Any, *args: Any) -> str | None:
        """Return the label of the lock of a task; None if it is free."""
        found: str | None = task._client.holder(task.lock_name(args, {}))
        return found

    def await_free(self, task: Any, *args: Any, seconds: float = PATIENCE) -> None:
        await_true(lambda: self.holder(task, *args) is None, seconds)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    fleet = embedded.masters(4)
    with fleet as urls:
        yield Site(fleet, urls, tmp_path_factory.mktemp("celery"))


@pytest.fixture(scope="session")
def prefork(site: Site) -> Iterator[str]:
    """The queue of a worker with two pool processes."""
    with site.worker("prefork", "prefork"):
        yield "prefork"


@pytest.fixture(scope="session")
def solo(site: Site) -> Iterator[str]:
    """The queue of a worker that runs tasks in its main process."""
    with site.worker("solo", "solo"):
        yield "solo"


@pytest.fixture(params=["prefork", "solo", "threads"])
def queue(request: pytest.FixtureRequest) -> str:
    """The queue of a worker of each kind."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture(scope="session")
def threads(site: Site) -> Iterator[str]:
    """The queue of a worker that runs tasks in two threads."""
    with site.worker("threads", "threads"):
        yield "threads"


@pytest.fixture
def nobody(site: Site, name: str) -> Callable[[], list[bytes]]:
    """A queue without a worker, called like the test's lock name; the fixture returns its messages."""

    def messages() -> list[bytes]:
        found: list[bytes] = site.tasks.store.lrange(name, 0, -1)
        return found

    return messages


@pytest.fixture
def other(site: Site) -> Iterator[Celery]:
    """Another app on the broker of the site."""
    app = Celery("other", broker=site.broker)
    yield app
    client_of(app).close()
    app.close()


@pytest.fixture(autouse=True)
def own_garbage() -> Iterator[None]:
    """Collect the connections that kombu leaves in cycles here: the collector may find a socket before its owner."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
