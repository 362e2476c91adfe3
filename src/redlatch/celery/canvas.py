"""Ends a chain, a group or a chord if one of its steps is a duplicate.

Callers wait for the results of all steps. A duplicate and the steps after it are not published, so without a state they
would stay PENDING.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from celery import Task
from celery.app.task import Context
from celery.backends.base import DisabledBackend

logger = logging.getLogger("redlatch")

_CONTAINERS = ("celery.chain", "celery.group", "celery.chord")


def is_step(options: Mapping[str, Any]) -> bool:
    # The last step of a chain has an empty chain.
    return any([options.get(name) is not None for name in ("chain", "group_id", "chord")])


def is_sent_by_worker(task: Task, options: Mapping[str, Any]) -> bool:
    # An error in the worker that publishes the next step of a chain would make the previous step fail.
    before = task.app.current_worker_task
    sender = None if before is None else before.request.id
    return "chain" in options and sender is not None and options.get("parent_id") == sender


def end_step(task: Task, task_id: str, holder: str, options: Mapping[str, Any]) -> None:
    reason = f"duplicate of task {holder}"
    if not isinstance(task.backend, DisabledBackend):
        names = {"group": options.get("group_id"), "group_index": options.get("group_index")}
        request = Context(id=task_id, task=task.name, chord=options.get("chord"), **names)
        task.backend.mark_as_revoked(task_id, reason, request=request, store_result=not task.ignore_result)
    behind = end_steps_behind(task, task_id, options.get("chain"), reason)
    logger.warning(
        "task %s, a step of a chain or a group, is not published: task %s with the same arguments waits or runs; "
        "%d steps behind it do not run, either",
        task_id,
        holder,
        behind,
    )


def end_steps_behind(task: Task, task_id: str, chain: Sequence[Any] | None, reason: str) -> int:
    """Set the steps after one that does not run to REVOKED; return their number."""
    # Each step of a chord's header contains its body.
    ids = dict.fromkeys(_ids_in(chain or ()))
    if not isinstance(task.backend, DisabledBackend):
        for each in ids:
            task.backend.mark_as_revoked(each, f"task {task_id}, a step before it, is a {reason}")
    return len(ids)


def _ids_in(steps: Any) -> Iterator[str]:
    if isinstance(steps, Mapping):
        options: Mapping[str, Any] = steps.get("options") or {}
        inner: Mapping[str, Any] = steps.get("kwargs") or {}
        if steps.get("task") in _CONTAINERS:
            yield from _ids_in([inner.get(part) for part in ("tasks", "header", "body")])
        elif isinstance(options.get("task_id"), str):
            yield options["task_id"]
        yield from _ids_in([options.get("chain"), options.get("chord")])
    elif isinstance(steps, (list, tuple)):
        for step in steps:
            yield from _ids_in(step)
