"""Row 69: a test that uses redlatch freezes the clocks of `time`. redlatch has its own clock, and goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from freezegun import freeze_time
from support.faces import await_true
from support.proxy import Proxy

import redlatch
from redlatch.drivers.background import BackgroundThread
from redlatch.testing import MemoryClient

ROOT = Path(redlatch.__file__).parent
PACKAGES = (
    "compat",
    "django",
    "drivers",
    "guard",
    "locks",
    "masters",
    "quorum",
    "sql",
    "testing/memory",
    "votes",
    "wire",
)
FROZEN = re.compile(r"\btime\.(time|monotonic|perf_counter)(_ns)?\(|\bdatetime\.(now|utcnow|today)\(")


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_reads_a_clock_that_tests_freeze(package: str) -> None:
    found = [path.name for path in Path(ROOT, package).rglob("*.py") if FROZEN.search(path.read_text())]
    assert not found


@pytest.mark.parametrize("when", ["2000-01-01", "2100-01-01"])
def test_late_replies_are_read_after_the_clock_was_frozen(
    when: str,
    implementation: Any,
    three: list[str],
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[BackgroundThread] = []
    read_later = BackgroundThread.read_later

    def note(self: BackgroundThread) -> None:
        asked.append(self)
        read_later(self)

    monkeypatch.setattr(BackgroundThread, "read_later", note)
    relays = proxies(three)
    with redlatch.Client([relay.url for relay in relays]) as client:
        client.connect()
        await_true(lambda: all(master.voting for master in client.health().masters))
        asked.clear()
        with freeze_time(when):
            relays[2].replies.clear()
            assert client.lock(name).acquire()
            while not (asked and asked[0]._read_planned):
                pass
        relays[2].replies.set()
        # No call reads them.
        await_true(lambda: not asked[0]._read_planned)


@pytest.mark.parametrize("when", ["2000-01-01", "2100-01-01"])
def test_locks_live_on_while_the_clock_is_frozen(when: str, implementation: Any, three: list[str], name: str) -> None:
    # freezegun stops an event loop as well.
    with redlatch.Client(three) as client, redlatch.Client(three) as other, freeze_time(when):
        lock = client.lock(name, ttl=1.0, auto_renew=True, fence=True)
        assert lock.acquire()
        await_renewal(lock, lock.deadline_ns)
        assert not other.lock(name, fence=True).acquire(timeout=0.05)
        found = other.lock(name).holder()
        assert found is not None and found.held_for is not None and 0 <= found.held_for < 60
        before = lock.fence
        lock.release()
        again = other.lock(name, fence=True)
        assert again.acquire()
        assert before is not None and again.fence is not None and again.fence > before
        again.release()


def await_renewal(lock: Any, ends: int) -> None:
    """Wait until a lock is renewed. The time limit of the test ends a wait without success: its clock stands still."""
    while lock.deadline_ns == ends:
        pass


def test_a_client_in_memory_works_while_the_clock_is_frozen(name: str) -> None:
    with freeze_time("2000-01-01"):
        client = MemoryClient()
        with client.lock(name, ttl=5):
            client.advance(3)
            assert not client.lock(name).acquire(timeout=1)
        assert client.lock(name).acquire()
