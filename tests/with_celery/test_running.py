"""Running a task of `Singleton` in real workers: they take its lock over, and it ends with the task."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import redis
from celery import chain, chord, states
from celery.exceptions import ChordError, TaskRevokedError, TimeLimitExceeded, WorkerLostError
from support.faces import await_true

from redlatch.celery import Singleton, singleton
from redlatch.testing import embedded

from .conftest import TTL, Site


def forward(site: Site, origin: str, queue: str, copies: int = 1) -> None:
    """Give a worker what waits in a queue without one, perhaps several copies of each message."""
    for message in reversed(site.tasks.store.lrange(origin, 0, -1)):
        site.tasks.store.lpush(queue, *[message] * copies)
    site.tasks.store.delete(origin)


def gone(pid: int) -> bool:
    """Return whether a process has ended. A process that waits for its parent to notice counts as ended."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


# --- begin and end -------------------------------------------------------------------------------------


def test_the_worker_takes_the_lock_over_and_releases_it(site: Site, queue: str, name: str) -> None:
    first = site.tasks.steady.apply_async([name, name], queue=queue)
    site.await_told(name, "begin")
    label = site.holder(site.tasks.steady, name, name)
    assert label is not None and label.endswith(f":{first.id}") and not label.startswith("queued:")
    # The key lives for the time of a running task, and not for that of one in the queue.
    key = "redlatch:celery:" + site.tasks.steady.lock_name([name, name], {})
    with redis.Redis.from_url(site.masters[0]) as master:
        assert 0 < master.pttl(key) <= site.tasks.LONG * 1000
    assert site.tasks.steady.apply_async([name, name], queue=queue).id == first.id
    site.open_gate(name)
    assert first.get(timeout=30) == name
    site.await_free(site.tasks.steady, name, name)
    second = site.tasks.steady.apply_async([name, name], queue=queue)
    assert second.id != first.id
    assert second.get(timeout=30) == name
    assert site.told(name) == ["begin", "end"] * 2


def test_a_task_that_runs_longer_than_the_ttl_keeps_its_lock(site: Site, prefork: str, name: str) -> None:
    first = site.tasks.work.apply_async([name, name], queue=prefork)
    site.await_told(name, "begin")
    # A time without an event: nothing happens while a lock is renewed.
    until = time.monotonic() + 2 * TTL
    while time.monotonic() < until:
        assert site.holder(site.tasks.work, name, name) is not None
    assert site.tasks.work.apply_async([name, name], queue=prefork).id == first.id
    site.open_gate(name)
    assert first.get(timeout=30) == name


def test_a_task_that_fails_releases_its_lock(site: Site, queue: str, name: str) -> None:
    with pytest.raises(Exception, match=name):
        site.tasks.fail.apply_async([name], queue=queue).get(timeout=30)
    site.await_free(site.tasks.fail, name)


def test_who_has_the_result_of_a_task_may_publish_the_next_one(
    site: Site, prefork: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is released after the result was stored. A publisher waits for that, and not for a task that runs."""

    def ended(self: Singleton, task_id: str) -> bool:
        found = has_ended(self, task_id)
        site.open_gate(name)
        return found

    has_ended = Singleton._has_ended
    monkeypatch.setattr(Singleton, "_has_ended", ended)
    monkeypatch.setattr(singleton, "WAIT", 30.0)
    first = site.tasks.linger.apply_async([name], queue=prefork)
    assert first.get(timeout=30) == name
    assert site.holder(site.tasks.linger, name) is not None
    second = site.tasks.linger.apply_async([name], queue=prefork)
    assert second.id != first.id
    assert second.get(timeout=30) == name


def test_a_lock_that_stays_after_the_result_makes_a_duplicate(
    site: Site, prefork: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(singleton, "WAIT", 0.1)
    first = site.tasks.linger.apply_async([name], queue=prefork)
    assert first.get(timeout=30) == name
    assert site.tasks.linger.apply_async([name], queue=prefork).id == first.id
    site.open_gate(name)


def test_a_soft_time_limit_releases_the_lock(site: Site, prefork: str, name: str) -> None:
    with pytest.raises(Exception, match="SoftTimeLimitExceeded"):
        site.tasks.soft.apply_async([name], queue=prefork).get(timeout=30)
    site.await_free(site.tasks.soft, name)


def test_a_task_learns_that_its_lock_is_lost(site: Site, prefork: str, name: str) -> None:
    result = site.tasks.guarded.apply_async([name], queue=prefork)
    site.await_told(name, "begin")
    for master in site.masters:
        with redis.Redis.from_url(master) as server:
            server.delete("redlatch:celery:" + site.tasks.guarded.lock_name([name], {}))
    assert result.get(timeout=30) == name
    assert site.told(name) == ["begin", "lost-True"]


# --- retries -------------------------------------------------------------------------------------------


def test_a_retry_keeps_the_lock_from_one_try_to_the_next(site: Site, queue: str, name: str) -> None:
    first = site.tasks.again.apply_async([name, 1, name], queue=queue)
    site.await_told(name, "try0")
    # Whatever the worker does between the two tries, the lock is never free.
    while len(site.told(name)) < 2:
        assert site.holder(site.tasks.again, name, 1, name) is not None
        assert site.tasks.again.apply_async([name, 1, name], queue=queue).id == first.id
    site.open_gate(name)
    assert first.get(timeout=30) == name
    site.await_free(site.tasks.again, name, 1, name)
    assert site.told(name) == ["try0", "try1", "end"]


# --- copies of a message -------------------------------------------------------------------------------


def test_a_copy_of_a_message_does_not_run_beside_the_first(site: Site, prefork: str, name: str) -> None:
    result = site.tasks.work.apply_async([name, name], queue=name)
    forward(site, name, prefork, copies=2)
    site.await_told(name, "begin")
    # The copy waits for the lock, in the second process, until this task has shown that the worker goes on.
    site.open_gate(name)
    assert result.get(timeout=30) == name
    assert site.tasks.work.apply_async([f"{name}-b"], queue=prefork).get(timeout=30) == f"{name}-b"
    # The copy runs after the first, or not at all: never at the same time. It may be running now.
    await_true(lambda: site.told(name)[-1] == "end")
    assert site.told(name) in (["begin", "end"], ["begin", "end"] * 2)


def test_a_copy_that_waits_too_long_is_dropped_and_leaves_the_result_alone(site: Site, prefork: str, name: str) -> None:
    result = site.tasks.work.apply_async([name, name], queue=name)
    forward(site, name, prefork, copies=2)
    site.await_told(name, "begin")
    # Two processes: this one runs when the copy has been given up.
    assert site.tasks.work.apply_async([f"{name}-b"], queue=prefork).get(timeout=30) == f"{name}-b"
    assert not result.ready()
    site.open_gate(name)
    assert result.get(timeout=30) == name
    assert site.told(name) == ["begin", "end"]


def test_a_late_copy_does_not_run_beside_the_first_and_does_not_block_its_worker(
    site: Site, prefork: str, name: str
) -> None:
    result = site.tasks.late.apply_async([name, name], queue=name)
    forward(site, name, prefork, copies=2)
    site.await_told(name, "begin")
    # The worker gets on with other tasks between two tries of the copy.
    assert site.tasks.work.apply_async([f"{name}-b"], queue=prefork).get(timeout=30) == f"{name}-b"
    assert site.told(name) == ["begin"]
    site.open_gate(name)
    assert result.get(timeout=30) == name
    # The broker has forgotten the copy when the first was acknowledged, or the copy runs afterwards.
    site.await_free(site.tasks.late, name, name)
    assert site.told(name) in (["begin", "end"], ["begin", "end"] * 2)


# --- a lock that ran out in the queue ------------------------------------------------------------------


def test_a_task_whose_lock_ran_out_in_the_queue_runs(site: Site, queue: str, name: str) -> None:
    result = site.tasks.patient.apply_async([name], queue=name)
    site.await_free(site.tasks.patient, name)
    forward(site, name, queue)
    assert result.get(timeout=30) == name
    site.await_free(site.tasks.patient, name)


def test_of_two_tasks_in_the_queue_the_one_with_the_lock_runs(site: Site, queue: str, name: str) -> None:
    first = site.tasks.patient.apply_async([name], queue=name)
    site.await_free(site.tasks.patient, name)
    # A longer time, so that the second still has its lock when the worker comes to the first.
    second = site.tasks.patient.apply_async([name], queue=name, countdown=0.1, task_id=f"{name}-second")
    third = site.tasks.patient.apply_async([name], queue=name)
    assert third.id == second.id != first.id
    key = "redlatch:celery:" + site.tasks.patient.lock_name([name], {})
    for master in site.masters:
        with redis.Redis.from_url(master) as server:
            server.pexpire(key, 60_000)
    forward(site, name, queue)
    with pytest.raises(TaskRevokedError, match=f"duplicate of task {second.id}"):
        first.get(timeout=30)
    assert second.get(timeout=30) == name
    assert site.told(name) == ["begin", "end"]


def test_a_task_that_was_sent_by_its_name_runs_with_a_lock_or_not_at_all(site: Site, queue: str, name: str) -> None:
    app = site.tasks.app
    first = app.send_task("with_celery.tasks.steady", [name, name], queue=queue)
    site.await_told(name, "begin")
    assert site.tasks.steady.apply_async([name, name], queue=queue).id == first.id
    if queue == "solo":
        # This worker runs one task at a time.
        site.open_gate(name)
        assert first.get(timeout=30) == name
        return
    second = app.send_task("with_celery.tasks.steady", [name, name], queue=queue)
    with pytest.raises(TaskRevokedError, match=f"duplicate of task {first.id}"):
        second.get(timeout=30)
    site.open_gate(name)
    assert first.get(timeout=30) == name
    assert site.told(name) == ["begin", "end"]


# --- revoked and killed --------------------------------------------------------------------------------


def test_a_task_that_is_revoked_in_the_queue_frees_its_lock(site: Site, queue: str, name: str) -> None:
    result = site.tasks.steady.apply_async([name], queue=name)
    site.tasks.app.control.revoke(result.id, destination=[site.names[queue]], reply=True, timeout=30)
    forward(site, name, queue)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=30)
    site.await_free(site.tasks.steady, name)
    assert site.told(name) == []


def test_a_task_that_has_expired_frees_its_lock(site: Site, queue: str, name: str) -> None:
    result = site.tasks.steady.apply_async([name], queue=name, expires=0.1)
    key = "redlatch:celery:" + site.tasks.steady.lock_name([name], {})
    for master in site.masters:
        with redis.Redis.from_url(master) as server:
            server.pexpire(key, 60_000)
    until = time.monotonic() + 0.2
    await_true(lambda: time.monotonic() > until)
    forward(site, name, queue)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=30)
    site.await_free(site.tasks.steady, name)
    assert site.told(name) == []


def free_and_gone(site: Site, task: Any, *args: Any) -> bool:
    """Wait until the lock is free; return whether the process that ran the task had ended before."""
    [pid] = site.pids(args[0])
    while site.holder(task, *args) is not None:
        pass
    return gone(pid)


def test_a_running_task_that_is_revoked_frees_its_lock_when_its_process_is_gone(
    site: Site, prefork: str, name: str
) -> None:
    result = site.tasks.steady.apply_async([name, name], queue=prefork)
    site.await_told(name, "begin")
    result.revoke(terminate=True, signal="SIGKILL")
    assert free_and_gone(site, site.tasks.steady, name, name)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=30)


def test_a_hard_time_limit_frees_the_lock(site: Site, prefork: str, name: str) -> None:
    result = site.tasks.limited.apply_async([name], queue=prefork)
    site.await_told(name, "begin")
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=30)
    site.await_free(site.tasks.limited, name)
    assert site.told(name) == ["begin"]


def test_a_hard_time_limit_frees_the_lock_of_a_stubborn_task_when_its_process_is_gone(
    site: Site, prefork: str, name: str
) -> None:
    result = site.tasks.stubborn.apply_async([name], queue=prefork)
    site.await_told(name, "begin")
    assert free_and_gone(site, site.tasks.stubborn, name)
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=30)


def test_a_process_that_is_killed_frees_its_lock(site: Site, prefork: str, name: str) -> None:
    result = site.tasks.die.apply_async([name], queue=prefork)
    with pytest.raises(WorkerLostError):
        result.get(timeout=30)
    assert free_and_gone(site, site.tasks.die, name)


def test_a_late_task_whose_process_is_killed_runs_again(site: Site, prefork: str, name: str) -> None:
    result = site.tasks.steady_late.apply_async([name, name], queue=prefork)
    site.await_told(name, "begin")
    [pid] = site.pids(name)
    os.kill(pid, signal.SIGKILL)
    await_true(lambda: len(site.told(name)) == 2)
    assert site.told(name) == ["begin", "begin"]
    assert gone(pid)
    site.open_gate(name)
    assert result.get(timeout=30) == name
    site.await_free(site.tasks.steady_late, name, name)


def test_the_lock_of_a_worker_that_is_killed_runs_out(site: Site, name: str) -> None:
    with site.worker("prefork", name) as worker:
        site.tasks.work.apply_async([name, name], queue=name)
        site.await_told(name, "begin")
        os.killpg(worker.pid, signal.SIGKILL)
        site.await_free(site.tasks.work, name, name)
    with site.worker("prefork", f"{name}-b"):
        second = site.tasks.work.apply_async([name, name], queue=f"{name}-b")
        site.open_gate(name)
        assert second.get(timeout=30) == name


def test_a_late_task_of_a_worker_that_is_killed_runs_on_another(site: Site, name: str) -> None:
    result = site.tasks.late.apply_async([name, name], queue=name)
    [message] = site.tasks.store.lrange(name, 0, -1)
    with site.worker("prefork", name) as worker:
        site.await_told(name, "begin")
        os.killpg(worker.pid, signal.SIGKILL)
    with site.worker("prefork", f"{name}-b"):
        # What the broker does after the visibility timeout, an hour by default.
        site.tasks.store.lpush(f"{name}-b", message)
        site.open_gate(name)
        assert result.get(timeout=30) == name
    assert site.told(name) == ["begin", "begin", "end"]


# --- no quorum -----------------------------------------------------------------------------------------


def test_a_task_that_finds_no_quorum_is_tried_again(site: Site, name: str) -> None:
    fleet = embedded.masters(3)
    with fleet as urls, site.worker("prefork", name, CELERY_TEST_MASTERS=" ".join(urls)):
        assert site.tasks.app.send_task("with_celery.tasks.work", [f"{name}-a"], queue=name).get(timeout=30)
        for index in (0, 1):
            fleet.pause(index)
        result = site.tasks.app.send_task("with_celery.tasks.work", [name], queue=name)
        await_true(lambda: result.state == "RETRY")
        assert site.told(name) == []
        for index in (0, 1):
            fleet.resume(index)
        assert result.get(timeout=60) == name
        assert site.told(name) == ["begin", "end"]


def test_a_retry_without_a_quorum_is_sent_all_the_same(site: Site, name: str) -> None:
    fleet = embedded.masters(3)
    with fleet as urls, site.worker("prefork", name, CELERY_TEST_MASTERS=" ".join(urls)):
        result = site.tasks.app.send_task("with_celery.tasks.again_later", [name, name], queue=name)
        site.await_told(name, "try0")
        for index in (0, 1):
            fleet.pause(index)
        site.open_gate(name)
        await_true(lambda: result.state == "RETRY")
        for index in (0, 1):
            fleet.resume(index)
        assert result.get(timeout=60) == name
        assert site.told(name) == ["try0", "try1"]


def test_a_retry_after_a_loss_runs_with_a_new_lock(site: Site, prefork: str, name: str) -> None:
    result = site.tasks.again_later.apply_async([name, name], queue=prefork)
    site.await_told(name, "try0")
    key = "redlatch:celery:" + site.tasks.again_later.lock_name([name, name], {})
    for master in site.masters:
        with redis.Redis.from_url(master) as server:
            server.delete(key)
    site.open_gate(name)
    assert result.get(timeout=60) == name
    site.await_free(site.tasks.again_later, name, name)


def test_a_worker_that_is_told_to_stop_ends_its_task_and_releases_the_lock(site: Site, name: str) -> None:
    with site.worker("prefork", name) as worker:
        result = site.tasks.steady.apply_async([name, name], queue=name)
        site.await_told(name, "begin")
        worker.send_signal(signal.SIGTERM)
        site.open_gate(name)
        assert result.get(timeout=30) == name
        assert worker.wait(30) == 0
    assert site.holder(site.tasks.steady, name, name) is None


# --- canvas ----------------------------------------------------------------------------------------------

# Celery stores a result with a call that redis-py 8 calls deprecated.
stores = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


def why_revoked(result: Any) -> str:
    await_true(result.ready)
    assert result.state == states.REVOKED
    return str(result.result)


@pytest.mark.parametrize("choice", ["work", "careless", "strict"])
def test_a_duplicate_in_a_chain_ends_the_chain_and_not_the_step_before_it(
    site: Site, solo: str, name: str, choice: str
) -> None:
    """With "raise", too: Celery would store the error as that of the step before, which has succeeded."""
    task = getattr(site.tasks, choice)
    first = task.apply_async([name], queue=name)
    steps = [site.tasks.steady.si(f"{name}-1"), task.si(name), site.tasks.counted.si(f"{name}-2")]
    last = chain(*[step.set(queue=solo) for step in steps]).apply_async()
    assert last.parent.parent.get(timeout=30) == f"{name}-1"
    assert why_revoked(last.parent) == f"duplicate of task {first.id}"
    assert why_revoked(last) == f"task {last.parent.id}, a step before it, is a duplicate of task {first.id}"
    assert site.told(f"{name}-2") == []
    assert f"task {last.parent.id}, a step of a chain or a group, is not published" in logs(site)


def test_a_chain_whose_step_finds_its_lock_taken_ends(site: Site, solo: str, name: str) -> None:
    steps = [site.tasks.patient.si(name), site.tasks.counted.si(f"{name}-2")]
    last = chain(*[step.set(queue=name) for step in steps]).apply_async()
    site.await_free(site.tasks.patient, name)
    second = site.tasks.patient.apply_async([name], queue=f"{name}-other")
    forward(site, name, solo)
    assert why_revoked(last.parent) == f"duplicate of task {second.id}"
    assert why_revoked(last) == f"task {last.parent.id}, a step before it, is a duplicate of task {second.id}"


@stores
def test_a_duplicate_in_the_header_of_a_chord_fails_its_body(site: Site, solo: str, name: str) -> None:
    first = site.tasks.work.apply_async([name], queue=name)
    header = [site.tasks.work.si(name), site.tasks.steady.si(f"{name}-1")]
    body = chord([step.set(queue=solo) for step in header])(site.tasks.counted.si(f"{name}-2").set(queue=solo))
    await_true(body.ready)
    assert isinstance(body.result, ChordError) and f"duplicate of task {first.id}" in str(body.result)
    assert site.told(f"{name}-2") == []


def logs(site: Site) -> str:
    """Return what all processes have written."""
    return "".join(path.read_text(errors="replace") for path in site.folder.glob("*.log"))


def test_a_retry_after_the_time_that_the_guard_allows_is_logged(site: Site, solo: str, name: str) -> None:
    result = site.tasks.much_later.apply_async([name], queue=solo)
    site.await_told(name, "try0")
    await_true(lambda: f"the lock of task {result.id} runs out before its retry" in logs(site))
    assert "must live for 7,500 s" in logs(site)
    result.revoke()
