"""Drop-ins and originals on one key, in separate processes: they exclude each other, and wake each other."""

from __future__ import annotations

import importlib.util
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.faces import PATIENCE, ask, await_true
from support.masters import Farm

ACTOR = Path(__file__).with_name("actor.py")

# For each client: its key for a name, its number of masters, and its answer to a `try` that is refused.
KEYS = {
    "redis_py": ("{}", 1, "False"),
    "redis_py_async": ("{}", 1, "False"),
    "redlock": ("{}", 3, "False"),
    "pottery": ("redlock:{}", 3, "False"),
    "pottery_async": ("redlock:{}", 3, "False"),
    "redis_lock": ("lock:{}", 1, "False"),
    "aioredlock": ("{}", 3, "LockAcquiringError"),
}

# The answer to a release while another client has the lock.
REFUSED = {
    "redis_py": "LockError",
    "redis_py_async": "LockError",
    # redlock-py reports no error.
    "redlock": "None",
    "pottery": "ReleaseUnlockedLock",
    "pottery_async": "ReleaseUnlockedLock",
    "redis_lock": "NotAcquired",
    "aioredlock": "LockAcquiringError",
}


class Actor:
    """A process that uses one client (`actor`)."""

    def __init__(self, whose: str, client: str, name: str, urls: list[str]) -> None:
        command = [sys.executable, "-W", "ignore", str(ACTOR), whose, client, name, *urls]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._said: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        said = self.said()
        if said != "ready":
            assert self._process.stderr is not None
            raise AssertionError(self._process.stderr.read())

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(line.strip())
        self._said.put("ended")

    def tell(self, what: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()

    def said(self, seconds: float = PATIENCE) -> str:
        return self._said.get(timeout=seconds)

    def is_silent(self) -> bool:
        try:
            self._said.put(self._said.get(timeout=0.5))
        except queue.Empty:
            return True
        return False

    def ask(self, what: str) -> str:
        self.tell(what)
        return self.said()

    def close(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
        self._listener.join(PATIENCE)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def actors() -> Iterator[Callable[..., Actor]]:
    made: list[Actor] = []

    def make(*args: Any) -> Actor:
        made.append(Actor(*args))
        return made[-1]

    yield make
    for actor in made:
        actor.close()


def check_original(client: str) -> None:
    if client == "aioredlock" and importlib.util.find_spec("aioredlock") is None:
        pytest.skip("aioredlock needs Python 3.11 or less")


both_ways = pytest.mark.parametrize("pair", [("theirs", "ours"), ("ours", "theirs")], ids="-".join)


@both_ways
@pytest.mark.parametrize("client", list(KEYS))
def test_each_client_excludes_the_other_and_wakes_it(
    client: Any, pair: Any, farm: Farm, actors: Callable[..., Actor], name: str
) -> None:
    check_original(client)
    key, count, refused = KEYS[client]
    urls = farm.urls(count)
    one, other = (actors(whose, client, name, urls) for whose in pair)
    assert one.ask("try") == "True"
    # On a busy machine a quorum may have answered before one of the masters did.
    url, token = next((url, found) for url in urls if (found := ask(url).get(key.format(name))))
    assert other.ask("try") == refused
    assert other.ask("release") == REFUSED[client]
    # The refused release did not change the key.
    assert ask(url).get(key.format(name)) == token
    other.tell("acquire")
    assert other.is_silent()
    assert one.ask("release") == "None"
    assert other.said() == "True"
    tokens = [ask(url).get(key.format(name)) for url in urls]
    # One master may have refused just before the release.
    assert sum(found not in (token, None) for found in tokens) > len(urls) // 2
    assert one.ask("try") == refused
    assert other.ask("release") == "None"
    assert one.ask("try") == "True"
    assert one.ask("release") == "None"
    # The release returned after a quorum; the other masters may be later.
    await_true(lambda: not any(ask(url).exists(key.format(name)) for url in urls))


@pytest.mark.slow("all clients at once; each pair is tested beside it")
@pytest.mark.parametrize("holder", ["theirs", "ours"])
def test_all_clients_that_use_the_name_as_the_key_exclude_each_other(
    holder: str, farm: Farm, actors: Callable[..., Actor], name: str
) -> None:
    [url] = farm.urls(1)
    clients = ["redis_py", "redis_py_async", "redlock", "aioredlock"]
    if importlib.util.find_spec("aioredlock") is None:
        clients.remove("aioredlock")
    for client in clients:
        one = actors(holder, client, name, [url])
        assert one.ask("try") == "True"
        for other in clients:
            assert actors("ours", other, name, [url]).ask("try") == KEYS[other][2], (client, other)
        assert one.ask("release") == "None"


def test_waiters_of_python_redis_lock_are_woken_one_by_one(farm: Farm, actors: Callable[..., Actor], name: str) -> None:
    [url] = farm.urls(1)
    ours = actors("ours", "redis_lock", name, [url])
    assert ours.ask("try") == "True"
    waiters = [actors("theirs", "redis_lock", name, [url]) for _ in range(3)]
    for waiter in waiters:
        waiter.tell("acquire")
    assert all(waiter.is_silent() for waiter in waiters)
    assert ours.ask("release") == "None"
    # Each release by an original wakes the next one.
    while waiters:
        await_true(lambda: any(not waiter.is_silent() for waiter in waiters))
        [woken] = [waiter for waiter in waiters if not waiter.is_silent()]
        assert woken.said() == "True"
        waiters.remove(woken)
        assert woken.ask("release") == "None"
