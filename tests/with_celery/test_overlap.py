"""Publishers race, messages come twice, and processes are killed: no two tasks with one lock overlap."""

from __future__ import annotations

import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from celery import states
from support.faces import await_true

from .conftest import Site

NAMES = 4
EACH = 60
LIMIT = 120.0


def pool_processes(worker: int) -> list[int]:
    """Return the pool processes of a worker."""
    return [int(word) for word in Path(f"/proc/{worker}/task/{worker}/children").read_text().split()]


def test_no_two_tasks_with_one_lock_overlap(site: Site, name: str) -> None:
    tasks, store = site.tasks, site.tasks.store
    ended, overlaps = threading.Event(), "told:overlaps"
    store.delete(overlaps)
    rng = random.Random(7)

    def publish(publisher: int) -> list[str]:
        """Publish one task after the other; wait for each, so that the next one is no duplicate of it."""
        found = []
        for number in range(EACH):
            what = f"{name}-{(publisher + number) % NAMES}"
            result = tasks.exclusive.apply_async([what, number], queue=f"{name}-in")
            result.get(timeout=LIMIT, propagate=False)
            found.append(result.state)
        return found

    def double() -> None:
        """Give the messages to the worker, some of them twice. What it rejects comes back to here, too."""
        while not ended.is_set():
            found = store.brpop([f"{name}-in"], timeout=0.2)
            if found:
                store.lpush(name, *[found[1]] * rng.choice([1, 1, 2]))

    def done() -> int:
        """Count the tasks that have run to their end."""
        return sum(int(count or 0) for count in store.mget([f"done:{name}-{number}" for number in range(NAMES)]))

    def goes_on(before: int) -> bool:
        return done() > before or ended.is_set()

    def kill(worker: int) -> int:
        """Kill a pool process at once, and then now and then, as the kernel does: each time after some progress.

        On a busy machine a pool that loses a process each half second would never run a task.
        """
        killed = 0
        while not (killed and ended.wait(0.5)):
            children = pool_processes(worker)
            if children:
                os.kill(rng.choice(children), signal.SIGKILL)
                killed += 1
                await_true(partial(goes_on, done()), LIMIT)
        return killed

    with site.worker("prefork", name, processes=4) as worker, ThreadPoolExecutor(5) as pool:
        killer, doubler = pool.submit(kill, worker.pid), pool.submit(double)
        try:
            found = [state for states_ in pool.map(publish, range(3)) for state in states_]
        finally:
            ended.set()
        assert killer.result() > 0
        doubler.result()
        assert store.lrange(overlaps, 0, -1) == []
        # A publisher that comes while a copy runs gets the result of the copy's task.
        assert set(found) <= {states.SUCCESS, states.REVOKED}
        assert found.count(states.SUCCESS) > len(found) * 0.9
        await_true(lambda: all(site.holder(tasks.exclusive, f"{name}-{n}", 0) is None for n in range(NAMES)))
