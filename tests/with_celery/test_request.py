"""The end of a lock whose pool process is gone, or never began. Workers do the same in test_running.py."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from celery import Celery
from support.faces import in_thread

from redlatch.celery.client import TaskClient, client_of
from redlatch.celery.headers import Passed, label
from redlatch.celery.request import end_lock, wait_until_gone


@pytest.fixture
def app(three: list[str]) -> Iterator[Celery]:
    app = Celery("request", broker="memory://")
    app.conf.update(redlatch_masters=three, redlatch_options={"attempt_timeout": 1.0})
    yield app
    client_of(app).close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits to be killed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def held(client: TaskClient, name: str, delivery: str) -> Any:
    lock = client.labelled(name, 30.0, label(delivery, "7"))
    assert lock.acquire()
    return lock


def test_the_lock_of_a_process_ends_when_the_process_is_gone(
    app: Celery, sleeper: subprocess.Popen[bytes], name: str
) -> None:
    lock = held(client_of(app), name, "here")
    ending: Future[None] = in_thread(lambda: end_lock(app, Passed(name, "", "here"), "7", sleeper.pid))
    # The process lives, so the lock does.
    assert not ending.done()
    assert lock.owned()
    sleeper.kill()
    ending.result(30)
    assert not lock.owned()


def test_a_process_that_nobody_has_waited_for_counts_as_gone(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    assert wait_until_gone(sleeper.pid)
    sleeper.wait()
    assert wait_until_gone(sleeper.pid)


def test_a_process_that_does_not_end_keeps_its_lock(
    app: Celery, sleeper: subprocess.Popen[bytes], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redlatch.celery.request.GONE_TIMEOUT", 0.01)
    lock = held(client_of(app), name, "here")
    end_lock(app, Passed(name, "", "here"), "7", sleeper.pid)
    assert lock.owned()
    lock.release()


def test_the_lock_of_another_delivery_stays(app: Celery, name: str) -> None:
    lock = held(client_of(app), name, "there")
    end_lock(app, Passed(name, "f" * 32 + ":queued:7", "here"), "7", None)
    assert lock.owned()
    lock.release()


def test_the_lock_of_a_task_that_never_began_ends(app: Celery, name: str) -> None:
    client = client_of(app)
    token = client.hand_over(held(client, name, "queued"))
    end_lock(app, Passed(name, token, "here"), "7", None)
    assert client.holder(name) is None


def test_the_end_leaves_no_thread_and_no_descriptor(app: Celery, name: str) -> None:
    client_of(app).connect()
    end_lock(app, Passed(name, "", "here"), "7", None)
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        end_lock(app, Passed(name, "", "here"), "7", None)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, descriptors)


def test_a_lock_that_no_quorum_can_end_is_logged(
    name: str, caplog: pytest.LogCaptureFixture, closed_ports: Any
) -> None:
    app = Celery("request", broker="memory://")
    app.conf.update(redlatch_masters=closed_ports(3), redlatch_options={"attempt_timeout": 0.1})
    end_lock(app, Passed(name, "f" * 32 + ":queued:7", "here"), "7", None)
    assert "which does not run any more, stays until it runs out" in caplog.text
    assert "f" * 32 not in caplog.text


CROWDED = """
import os, resource, subprocess, sys
from redlatch.celery.request import wait_until_gone
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
crowd = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
assert crowd[-1] > 1023
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
child.kill()
print(wait_until_gone(child.pid))
child.wait()
"""


def test_a_process_with_more_than_1023_descriptors_waits_too() -> None:
    """`select` cannot wait for such a descriptor: the lock of a killed pool process was never ended."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 4096:
        pytest.skip("the system does not allow so many descriptors")
    ran = subprocess.run([sys.executable, "-c", CROWDED], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.returncode) == ("True\n", 0), ran.stderr
