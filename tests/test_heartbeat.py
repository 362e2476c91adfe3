"""`heartbeat`: a process that was stopped, or whose event loop was blocked, does not go on renewing its locks."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from support.faces import PATIENCE, Face, await_true, finish, line_of, run_script

from redlatch import AsyncClient, ConfigurationError, LockLost, impl

# The ttl of locks, the heartbeat of clients, and a longer pause. The pause is so short that the lock outlives it.
TTL = 4.0
HEARTBEAT = 1.0
PAUSE = 1.5


def test_locks_of_a_blocked_event_loop_run_out(
    implementation: impl.Implementation, three: list[str], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    async def main() -> None:
        async with AsyncClient(three, heartbeat=HEARTBEAT, attempt_timeout=PATIENCE) as client:
            lock = client.lock(name, ttl=TTL, auto_renew=True, on_lost=lambda lock, why: told.append(why))
            silent = client.lock(f"{name}-silent", ttl=TTL, auto_renew=True)
            assert await lock.acquire() and await silent.acquire()
            # This is the fault.
            time.sleep(PAUSE)
            deadline = lock.deadline_ns
            await asyncio.wait_for(lock.lost.wait(), PATIENCE)
            assert lock.deadline_ns == deadline
            # It was acquired a moment later.
            while silent.remaining():
                await asyncio.sleep(0.01)
            with pytest.raises(LockLost, match="had not run for"):
                silent.check()
            # A lock that is acquired from now on is renewed.
            assert await client.lock(f"{name}-later", ttl=TTL).acquire()
            later = client.lock(f"{name}-renewed", ttl=1.5, auto_renew=True)
            assert await later.acquire()
            first = later.deadline_ns
            while later.deadline_ns == first:
                later.check()
                await asyncio.sleep(0.01)

    asyncio.run(main())
    [reason] = told
    assert reason.startswith("its process, or event loop, had not run for ")
    assert reason.endswith(" s, so it was not renewed any more")
    seconds = float(reason.split()[-9])
    assert PAUSE <= seconds < PATIENCE
    warned = [record.getMessage() for record in caplog.records if "heartbeat" in record.getMessage()]
    assert warned == [
        f"held locks are not renewed any more: this process, or its event loop, had not run for {seconds:.1f} s "
        "(heartbeat=1)"
    ]


STOPPED = """
import sys, threading
from redlatch import Client

with Client(sys.argv[2:], heartbeat=1.0, attempt_timeout=30.0) as client:
    lost = threading.Event()
    def on_lost(lock, reason):
        print(reason, flush=True)
        lost.set()
    lock = client.lock(sys.argv[1], ttl=4.0, auto_renew=True, on_lost=on_lost)
    assert lock.acquire()
    # The background thread runs when it has renewed the lock.
    first = lock.deadline_ns
    while lock.deadline_ns == first:
        lost.wait(0.01)
    print("held", flush=True)
    lost.wait(30)
"""


def test_locks_of_a_process_that_was_stopped_run_out(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    process = run_script(STOPPED, implementation.name, name, *three, wait=False)
    assert line_of(process) == "held\n"
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(PAUSE)
    os.kill(process.pid, signal.SIGCONT)
    out, err = finish(process)
    assert out.startswith("its process, or event loop, had not run for "), out
    assert "held locks are not renewed any more" in err
    assert process.returncode == 0


def test_a_client_that_runs_renews_its_locks(connect: Face, three: list[str], name: str) -> None:
    lock = connect(three, heartbeat=PATIENCE, attempt_timeout=PATIENCE).lock(name, ttl=1.5, auto_renew=True)
    assert lock.acquire()
    for _ in range(2):
        deadline = lock.deadline_ns
        await_true(lambda: lock.deadline_ns > deadline)  # noqa: B023
    lock.release()


@pytest.mark.parametrize("heartbeat", [0, -1.0, float("nan"), 0.0001])
def test_a_heartbeat_is_a_time(connect: Face, three: list[str], heartbeat: float) -> None:
    with pytest.raises(ConfigurationError, match="heartbeat: seconds"):
        connect(three, heartbeat=heartbeat)


def test_a_heartbeat_is_a_number(connect: Face, three: list[str]) -> None:
    with pytest.raises(TypeError, match="heartbeat: seconds"):
        connect(three, heartbeat="30")
