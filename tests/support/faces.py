"""One interface to both faces, so that one test runs over threads and asyncio; and helpers that wait with a limit."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest
import redis

from redlatch import AsyncClient, Client, ConfigurationError, QuorumUnavailable

# Far longer than anything takes that does not hang.
PATIENCE = 30.0


def await_true(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait for a condition that no event reports."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)


def descriptors() -> int:
    """Count the descriptors that this process has open."""
    return len(os.listdir("/proc/self/fd"))


def ask(url: str) -> Any:
    """Return a client of one master, to read its keys.

    The types that redis-py gives its replies are too wide: a test knows the type of each reply.
    """
    return redis.Redis.from_url(url, socket_timeout=PATIENCE, retry=None)


def wins(lock: Any) -> bool:
    """Return whether one attempt acquires the lock."""
    try:
        return bool(lock.acquire(blocking=False))
    except QuorumUnavailable:
        return False


def refused(client: Any, why: str) -> bool:
    """Return whether a client refuses its list of masters for that reason."""
    try:
        client.connect()
    except ConfigurationError as error:
        return why in str(error)
    return False


def threads_named(name: str) -> list[int]:
    """Return the threads of this process that have a name in the kernel."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        # It may end meanwhile.
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().strip() == name:
                found.append(int(task.name))
    return found


def in_thread(call: Callable[..., Any], *args: Any) -> Future[Any]:
    """Make a call in a thread of its own."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """Make the calls in threads that start together; return their results, or raise the error of one of them."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait(PATIENCE)
        return call()

    return [future.result(PATIENCE) for future in [in_thread(run, call) for call in calls]]


class Faced:
    """A client or a lock of either face. Its calls block, and fail instead of hanging."""

    _CALLS = frozenset(
        "acquire release extend locked owned holder connect close acquire_many release_many extend_many "
        "wait notify notify_all count_down".split()
    )

    def __init__(self, raw: Any, start: Callable[..., Future[Any]]) -> None:
        self.raw = raw
        self._start = start

    def start(self, call: str, *args: Any, **named: Any) -> Future[Any]:
        """Begin a call and return its future."""
        return self._start(lambda: getattr(self.raw, call)(*args, **named))

    def lock(self, *args: Any, **named: Any) -> Faced:
        return Faced(self.raw.lock(*args, **named), self._start)

    def fair_lock(self, *args: Any, **named: Any) -> Faced:
        return Faced(self.raw.fair_lock(*args, **named), self._start)

    def semaphore(self, *args: Any, **named: Any) -> Faced:
        return Faced(self.raw.semaphore(*args, **named), self._start)

    def rate_limit(self, *args: Any, **named: Any) -> Faced:
        return Faced(self.raw.rate_limit(*args, **named), self._start)

    def condition(self, *args: Any, **named: Any) -> Faced:
        return Faced(self.raw.condition(*args, **named), self._start)

    def latch(self, *args: Any, **named: Any) -> Faced:
        return Faced(self.raw.latch(*args, **named), self._start)

    def multi_lock(self, *args: Any, **named: Any) -> Faced:
        return Faced(self.raw.multi_lock(*args, **named), self._start)

    def rw_lock(self, *args: Any, **named: Any) -> Faced:
        return Faced(self.raw.rw_lock(*args, **named), self._start)

    def read(self) -> Faced:
        return Faced(self.raw.read(), self._start)

    def write(self) -> Faced:
        return Faced(self.raw.write(), self._start)

    def __getattr__(self, name: str) -> Any:
        if name in self._CALLS:
            return lambda *args, **named: _result(self.start(name, *args, **named))
        return getattr(self.raw, name)


def _result(future: Future[Any]) -> Any:
    """Return the result of a call; if it hangs, show where every thread is."""
    finished, _ = wait([future], PATIENCE)
    if not finished:
        faulthandler.dump_traceback(2)
    return future.result(0)


class Face:
    """One face: "threads", "asyncio", or "uvloop" (asyncio on uvloop).

    It makes clients and closes them after the test.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._clients: list[Faced] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        if name != "threads":
            loops = pytest.importorskip("uvloop") if name == "uvloop" else asyncio
            self._loop = loop = loops.new_event_loop()
            self._thread = threading.Thread(target=loop.run_forever, daemon=True)
            self._thread.start()

    def __call__(self, masters: Any, **options: Any) -> Faced:
        kind = AsyncClient if self._loop else Client
        client = Faced(kind(masters, **options), self._start)
        self._clients.append(client)
        return client

    def _start(self, call: Callable[[], Any]) -> Future[Any]:
        if self._loop is None:
            return in_thread(call)

        async def run() -> Any:
            return await call()

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE)
            self._loop.close()


def run_script(
    text: str, implementation: str, *args: str, wait: bool = True, options: tuple[str, ...] = ("-W", "error")
) -> subprocess.Popen[str]:
    """Run Python source in a new process with one implementation forced; its output is piped."""
    command = [sys.executable, *options, "-c", text, *args]
    environment = os.environ | {"REDLATCH_IMPL": implementation}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    if wait:
        finish(process)
    return process


def line_of(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process writes."""
    assert process.stdout is not None
    return process.stdout.readline()


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait for the end of a process and return its output. Kill a process that hangs, and fail the test."""
    try:
        return process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"the process hung; it wrote\n{out}\n{err}") from None
