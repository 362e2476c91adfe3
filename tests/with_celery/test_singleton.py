"""Publishing a task of `Singleton`: duplicates, what counts as one, and what is left when publishing fails."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery, chain, current_task, group, states
from celery.exceptions import TaskRevokedError
from celery.result import EagerResult
from support.faces import ask, await_true

from redlatch import ConfigurationError, DuplicateTask, Guard, LockLost, QuorumUnavailable
from redlatch.celery import Singleton

from .conftest import Site

Messages = Callable[[], list[bytes]]


def ttl_of(site: Site, task: Any, *args: Any) -> float:
    """Return the seconds for which the lock of a task lives."""
    key = "redlatch:celery:" + task.lock_name(args, {})
    return float(ask(site.masters[0]).pttl(key)) / 1000


# --- duplicates ----------------------------------------------------------------------------------------


def test_a_duplicate_returns_the_result_of_the_task_that_is_there(site: Site, name: str, nobody: Messages) -> None:
    first = site.tasks.work.apply_async([name], queue=name)
    others = [site.tasks.work.apply_async([name], queue=name) for _ in range(5)]
    assert {other.id for other in others} == {first.id}
    assert len(nobody()) == 1


def test_tasks_with_other_arguments_are_no_duplicates(site: Site, name: str, nobody: Messages) -> None:
    results = [site.tasks.work.apply_async([f"{name}-{number}"], queue=name) for number in range(5)]
    assert len({result.id for result in results}) == len(nobody()) == 5


def test_a_duplicate_may_raise(site: Site, name: str, nobody: Messages) -> None:
    first = site.tasks.strict.apply_async([name], queue=name)
    with pytest.raises(DuplicateTask, match=first.id) as raised:
        site.tasks.strict.apply_async([name], queue=name)
    assert raised.value.task_id == first.id
    assert raised.value.name == site.tasks.strict.lock_name([name], {})
    assert len(nobody()) == 1


def test_a_duplicate_may_be_ignored(site: Site, name: str, nobody: Messages) -> None:
    first = site.tasks.careless.apply_async([name], queue=name)
    second = site.tasks.careless.apply_async([name], queue=name)
    assert isinstance(second, EagerResult)
    assert (second.state, second.get(), second.id != first.id) == (states.IGNORED, None, True)
    assert len(nobody()) == 1


def test_of_many_publishers_at_once_one_publishes(site: Site, name: str, nobody: Messages) -> None:
    start = threading.Barrier(16)

    def publish(_: int) -> str:
        start.wait()
        return str(site.tasks.work.apply_async([name], queue=name).id)

    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(publish, range(16)))) == 1
    assert len(nobody()) == 1


def test_of_many_processes_at_once_one_publishes(site: Site, name: str, nobody: Messages) -> None:
    publish = f"tasks.work.apply_async([{name!r}], queue={name!r}).id"
    code = f"from with_celery import tasks; tasks.wait_for({name!r}); print({publish})"
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    await_true(lambda: ask(site.broker).info("clients")["blocked_clients"] >= 4)
    site.open_gate(name)
    ids = {process.communicate(timeout=60)[0] for process in processes}
    assert len(ids) == len(nobody()) == 1


# --- what counts ---------------------------------------------------------------------------------------


def test_all_arguments_count_by_default_in_whatever_way_they_are_given(site: Site) -> None:
    name_of = site.tasks.work.lock_name
    assert name_of(["a"], {}) == name_of([], {"what": "a"}) == name_of(("a",), {"gate": ""})
    assert name_of(["a"], {}) != name_of(["a"], {"gate": "b"})
    assert name_of(["a"], {}) != site.tasks.late.lock_name(["a"], {})


@pytest.mark.parametrize("task", ["of_user", "of_one_user"])
def test_only_chosen_arguments_count(site: Site, task: str) -> None:
    name_of = getattr(site.tasks, task).lock_name
    assert name_of([1], {"text": "a"}) == name_of([1, "b"], {}) == name_of([], {"user": 1})
    assert name_of([1], {}) != name_of([2], {})


def test_an_empty_list_makes_all_calls_duplicates(site: Site) -> None:
    assert site.tasks.of_nobody.lock_name(["a"], {}) == site.tasks.of_nobody.lock_name(["b"], {})


def test_arguments_that_celery_can_send_can_be_told_apart(site: Site) -> None:
    import datetime
    import decimal
    import uuid

    given = [uuid.UUID(int=1), datetime.datetime(2026, 1, 1), decimal.Decimal("1.5"), b"\xff", {"b": 1, "a": [2]}, None]
    assert len({site.tasks.work.lock_name([each], {}) for each in given}) == len(given)
    assert site.tasks.work.lock_name([{"a": 1, "b": 2}], {}) == site.tasks.work.lock_name([{"b": 2, "a": 1}], {})


def test_an_argument_that_the_task_does_not_have_is_refused() -> None:
    app = Celery("other", broker="redis://127.0.0.1:1")

    @app.task(base=Singleton, unique_on=["user", "nonsense"])
    def some(user: int) -> None: ...

    with pytest.raises(ConfigurationError, match="has no argument nonsense"):
        some.delay(1)


def test_an_unknown_choice_for_duplicates_is_refused_when_the_task_is_made() -> None:
    app = Celery("other", broker="redis://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="on_duplicate: one of raise, ignore, return_existing"):

        @app.task(base=Singleton, on_duplicate="panic", lazy=False)
        def some() -> None: ...


# --- how long the lock lives ---------------------------------------------------------------------------


def test_the_lock_lives_for_its_time_in_the_queue(site: Site, name: str) -> None:
    site.tasks.work.apply_async([name], queue=name)
    assert 290 < ttl_of(site, site.tasks.work, name) <= 300


def test_a_countdown_comes_before_the_time_in_the_queue(site: Site, name: str) -> None:
    site.tasks.work.apply_async([name], queue=name, countdown=100)
    assert 390 < ttl_of(site, site.tasks.work, name) <= 400


def test_a_task_that_expires_needs_its_lock_no_longer(site: Site, name: str) -> None:
    site.tasks.work.apply_async([name], queue=name, expires=20)
    assert 15 < ttl_of(site, site.tasks.work, name) <= 21


def test_a_countdown_beyond_what_the_guard_allows_is_refused(site: Site, name: str, nobody: Messages) -> None:
    for delay in ({"countdown": 7200}, {"eta": datetime.now(UTC) + timedelta(hours=2)}):
        with pytest.raises(ConfigurationError, match=r"^queue_ttl: .* 7,500 s .*Guard\(max_ttl=7500\)"):
            site.tasks.work.apply_async([name], queue=name, **delay)
    assert (site.holder(site.tasks.work, name), nobody()) == (None, [])
    site.tasks.work.apply_async([name], queue=name, countdown=3300)
    assert 3590 < ttl_of(site, site.tasks.work, name) <= 3600


def test_the_setting_that_the_error_names_allows_the_countdown(site: Site, other: Celery, name: str) -> None:
    other.conf.update(redlatch_masters=site.masters, redlatch_options={"guard": Guard(max_ttl=7500), "prefix": name})

    @other.task(base=Singleton)
    def some(what: str) -> None: ...

    some.apply_async([name], queue=name, countdown=7200)
    assert 7490_000 < ask(site.masters[0]).pttl(name + some.lock_name([name], {})) <= 7500_000


def test_a_queue_ttl_beyond_what_the_guard_allows_is_refused(site: Site, other: Celery, name: str) -> None:
    other.conf.redlatch_masters = site.masters

    @other.task(base=Singleton, queue_ttl=7200)
    def some(what: str) -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"^queue_ttl: the lock of .*some must live for 7,200 s .*max_ttl=7200"
    ):
        some.delay(name)


def test_a_duplicate_may_be_published_when_the_lock_has_run_out(site: Site, name: str, nobody: Messages) -> None:
    first = site.tasks.patient.apply_async([name], queue=name)
    assert site.tasks.patient.apply_async([name], queue=name).id == first.id
    site.await_free(site.tasks.patient, name)
    assert site.tasks.patient.apply_async([name], queue=name).id != first.id
    assert len(nobody()) == 2


# --- canvas ----------------------------------------------------------------------------------------------


# Celery stores a result with a call that redis-py 8 calls deprecated.
stores = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

CHOICES = pytest.mark.parametrize("choice", ["work", "careless"])


def revoked(result: Any) -> str:
    """Return why a task was revoked."""
    with pytest.raises(TaskRevokedError):
        result.get(timeout=10)
    assert result.state == states.REVOKED
    return str(result.result)


@stores
@CHOICES
def test_a_duplicate_at_the_head_of_a_chain_ends_the_chain(
    site: Site, name: str, nobody: Messages, choice: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = getattr(site.tasks, choice)
    first = task.apply_async([name], queue=name)
    steps = chain(
        task.s(name).set(queue=name),
        group(site.tasks.counted.si("x"), site.tasks.counted.si("y")),
        site.tasks.counted.si("z"),
    )
    last = steps.apply_async()
    head = last.parent.parent
    assert revoked(head) == f"duplicate of task {first.id}"
    why = f"task {head.id}, a step before it, is a duplicate of task {first.id}"
    assert {revoked(result) for result in (last, *last.parent.results)} == {why}
    assert len(nobody()) == 1
    [said] = [record.getMessage() for record in caplog.records if "a step of a chain" in record.getMessage()]
    assert f"task {first.id} with the same arguments" in said and "3 steps behind it" in said


def test_a_duplicate_at_the_head_of_a_chain_may_raise(site: Site, name: str, nobody: Messages) -> None:
    site.tasks.strict.apply_async([name], queue=name)
    with pytest.raises(DuplicateTask):
        chain(site.tasks.strict.s(name).set(queue=name), site.tasks.counted.si("z")).apply_async()
    assert len(nobody()) == 1


@stores
@CHOICES
def test_a_duplicate_in_a_group_does_not_stay_pending(site: Site, name: str, nobody: Messages, choice: str) -> None:
    task = getattr(site.tasks, choice)
    first = task.apply_async([name], queue=name)
    results = group(task.s(name).set(queue=name), task.s(f"{name}-2").set(queue=name)).apply_async()
    assert revoked(results.results[0]) == f"duplicate of task {first.id}"
    assert results.results[1].state == states.PENDING
    assert len(nobody()) == 2


def test_a_task_with_an_id_of_the_caller_is_no_step(site: Site, name: str, nobody: Messages) -> None:
    first = site.tasks.work.apply_async([name], queue=name)
    assert site.tasks.work.apply_async([name], queue=name, task_id=f"mine-{name}").id == first.id
    assert site.tasks.app.AsyncResult(f"mine-{name}").state == states.PENDING


# --- a plain call ------------------------------------------------------------------------------------------


def test_a_plain_call_runs_with_the_lock(site: Site, other: Celery, name: str) -> None:
    other.conf.update(redlatch_masters=site.masters)

    @other.task(base=Singleton, bind=True)
    def some(self: Any, what: str, again: bool = False) -> str:
        self.lock.check()
        assert current_task.name == self.name
        assert self._client.holder(self.lock_name([what], {"again": again})) is not None
        if again:
            with pytest.raises(DuplicateTask):
                self(what, again=True)
            return str(self(what))
        return what

    assert some(name) == name
    assert some(name, again=True) == name
    assert (some.lock, site.holder(some, name)) == (None, None)


def test_a_plain_call_of_a_duplicate_raises(site: Site, name: str, nobody: Messages) -> None:
    first = site.tasks.work.apply_async([name], queue=name)
    with pytest.raises(DuplicateTask, match=first.id) as caught:
        site.tasks.work(name)
    assert caught.value.task_id == first.id
    assert site.told(name) == []


def test_a_plain_call_that_raises_releases_the_lock(site: Site, name: str) -> None:
    with pytest.raises(site.tasks.Failed):
        site.tasks.fail(name)
    assert site.holder(site.tasks.fail, name) is None


def test_a_plain_call_whose_lock_is_lost_raises(site: Site, other: Celery, name: str) -> None:
    other.conf.update(redlatch_masters=site.masters)

    @other.task(base=Singleton)
    def some(what: str) -> None:
        for url in site.masters:
            ask(url).delete("redlatch:celery:" + some.lock_name([what], {}))

    with pytest.raises(LockLost):
        some(name)


# --- when publishing fails -----------------------------------------------------------------------------


def test_a_message_that_cannot_be_sent_leaves_no_lock(site: Site, name: str, nobody: Messages) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        site.tasks.work.apply_async([name], queue=name, headers={"unsendable": object()})
    assert site.holder(site.tasks.work, name) is None
    site.tasks.work.apply_async([name], queue=name)
    assert len(nobody()) == 1


def test_an_interrupt_while_the_message_is_sent_leaves_no_lock(
    site: Site, name: str, nobody: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strike(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(site.tasks.app, "send_task", strike)
    with pytest.raises(KeyboardInterrupt):
        site.tasks.work.apply_async([name], queue=name)
    monkeypatch.undo()
    assert site.holder(site.tasks.work, name) is None


def test_without_a_quorum_nothing_is_published(
    site: Site, other: Celery, name: str, nobody: Messages, closed_ports: Any
) -> None:
    masters = [site.masters[0], *closed_ports(2)]
    # A prefix of its own, because clients with one prefix have the same masters.
    other.conf.update(redlatch_masters=masters, redlatch_options={"attempt_timeout": 0.2, "prefix": name})

    @other.task(base=Singleton)
    def some(what: str) -> None: ...

    with pytest.raises(QuorumUnavailable):
        some.apply_async([name], queue=name)
    assert nobody() == []


def test_publishing_needs_masters() -> None:
    app = Celery("other", broker="memory://")

    @app.task(base=Singleton)
    def some() -> None: ...

    with pytest.raises(ConfigurationError, match="redlatch_masters: set it to the URLs"):
        some.delay()


def test_the_broker_is_the_master_by_default(site: Site, other: Celery, name: str) -> None:
    @other.task(base=Singleton)
    def some(what: str) -> None: ...

    some.apply_async([name], queue=name)
    with redis.Redis.from_url(site.broker) as broker:
        assert broker.pttl("redlatch:celery:" + some.lock_name([name], {})) > 0


def test_an_eager_task_runs_and_leaves_no_lock(site: Site, other: Celery, name: str) -> None:
    other.conf.update(redlatch_masters=site.masters, task_always_eager=True)
    seen = []

    @other.task(base=Singleton, bind=True)
    def some(self: Any, what: str) -> str:
        self.lock.check()
        seen.append(self._client.holder(self.lock_name([what], {})))
        return what

    result = some.delay(name)
    assert result.get() == name
    assert seen[0].partition(":")[2] == result.id
    assert some._client.holder(some.lock_name([name], {})) is None
    assert some.lock is None
