"""Real processes, masters and faults, and the check of what the holders believed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from sim.grants import Grant, certain, fences_back, overlaps
from support.faces import await_true

from history.wgl import explainable
from redlatch import Client
from redlatch.testing import embedded

HOLDER = str(Path(__file__).with_name("holder.py"))
SECONDS, TTL = 6.0, 0.15
HOLDERS = (("a", "threads"), ("b", "asyncio"), ("c", "threads"))


def history_of(urls: list[str], kind: str, implementation: str, stop: list[int]) -> list[Grant]:
    """Let processes use locks while masters and processes are stopped now and then; return the recorded grants."""
    env = os.environ | {"REDLATCH_IMPL": implementation}
    processes = [
        subprocess.Popen(
            [sys.executable, HOLDER, who, ",".join(urls), "one,two", str(SECONDS), str(TTL), face, kind],
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        for who, face in HOLDERS
    ]
    chance = random.Random(0)
    until = time.monotonic() + SECONDS - 1.0
    time.sleep(0.5)
    while time.monotonic() < until:
        victim = chance.choice([*stop, *(process.pid for process in processes)])
        os.kill(victim, signal.SIGSTOP)
        time.sleep(chance.choice((0.01, 0.1, TTL * 1.5)))
        os.kill(victim, signal.SIGCONT)
        time.sleep(chance.uniform(0.0, 0.2))
    told = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [Grant(**json.loads(line)) for lines in told for line in lines.splitlines()]


@pytest.mark.parametrize("kind", ["fence", "fair"])
def test_real_holders_never_overlap_and_fences_increase(implementation: Any, kind: str) -> None:
    with embedded.masters(3) as urls:
        # New masters whose first client is stopped in the middle of founding them are kept out for `max_ttl`.
        with Client(urls) as client:
            client.connect()
            await_true(lambda: client.health().ready)
        grants = history_of(urls, kind, implementation.name, [process_of(urls[0])])
    by_name = certain(grants)
    assert sum(map(len, by_name.values())) > 100
    for history in by_name.values():
        assert not list(overlaps(history, 1))
        assert not list(fences_back(history, strictly=True))
        for first in range(0, len(history), 50):
            assert explainable(history[first : first + 50])


def process_of(url: str) -> int:
    """Return the process id of a master."""
    with redis.Redis.from_url(url) as master:
        return int(master.info("server")["process_id"])


# --- the checkers themselves -------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10), st.integers(1, 10)), max_size=6))
def test_both_checkers_agree(spans: list[tuple[int, int, int]]) -> None:
    """Both checkers find an overlap, or neither does.

    The holders asked long before their grants, so any order of the grants may explain them.
    """
    grants = [
        Grant(str(n), "x", "plain", 0, start, start + wait, start + wait + held)
        for n, (start, wait, held) in enumerate(spans)
    ]
    history = certain(grants).get("x", [])
    assert explainable(history) is not bool(list(overlaps(history, 1)))


def test_a_history_with_two_holders_or_a_decreasing_fence_is_found() -> None:
    one, two = Grant("a", "x", "fence", 7, 0, 10, 20), Grant("b", "x", "fence", 7, 5, 19, 30)
    assert list(overlaps([one, two], 1))
    assert not explainable([one, two])
    assert list(fences_back([one, two], strictly=False))
    two.start, two.fence = 20, 6
    assert not list(overlaps([one, two], 1))
    assert explainable([one, two])
    assert not list(fences_back([one, two], strictly=False))
    assert list(fences_back([one, two], strictly=True))
