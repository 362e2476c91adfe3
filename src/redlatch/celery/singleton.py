"""Tasks that run one at a time: the base class `Singleton`.

`apply_async` acquires the lock, and sends its token with the message. In `before_start` the worker takes the lock over:
one step on each master replaces the token by its own. The worker renews the lock, and releases it after the task.
`redlatch.celery.request` ends the lock of a task whose process was killed.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import math
from collections.abc import Sequence
from typing import Any

from celery import Task, states
from celery._state import _task_stack
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject
from celery.result import EagerResult
from celery.signals import task_postrun
from kombu.utils.json import dumps
from kombu.utils.uuid import uuid

from ..client import Lock
from ..errors import ConfigurationError, DuplicateTask, LockBusy, LockError, QuorumUnavailable
from ..locks.lock import note_failure
from .canvas import end_step, end_steps_behind, is_sent_by_worker, is_step
from .client import TaskClient, client_of
from .headers import QUEUED, Passed, label, new_delivery, seconds_in_queue, task_id_in

logger = logging.getLogger("redlatch")

CHOICES = ("raise", "ignore", "return_existing")

# Seconds that a publisher waits while others compete, and its attempts.
WAIT, TRIES = 0.5, 5

HELD, CALLED = "redlatch_lock", "redlatch_called"


class Singleton(Task):  # type: ignore[misc]
    """A base class for tasks that run one at a time, and of which one waits in the queue, for each set of arguments.

    Use it as ``@app.task(base=Singleton, unique_on=["user"])``. The lock is on the servers of the app's setting
    `redlatch_masters`, by default the broker. A subclass that defines `before_start` must call `super().before_start`.

    Attributes:
        unique_on: the names of the arguments that distinguish tasks, as a str or a list of str. With an empty list all
            calls of the task are duplicates; None means all arguments. Default None.
        on_duplicate: what `apply_async` does for a duplicate. "raise" raises `DuplicateTask`; "ignore" returns a result
            with the state IGNORED; "return_existing" returns the result of the existing task. Default
            "return_existing".
        queue_ttl: seconds that the lock lives while the task is in the queue, from the end of its countdown. After
            that a duplicate may be published, but they never run at the same time. Default 300.
        run_ttl: seconds until the lock expires if the worker dies; it is renewed while the task runs. None means the
            client's ttl (10). Default None.
    """

    abstract = True
    Request = "redlatch.celery.request:SingletonRequest"

    unique_on: str | Sequence[str] | None = None
    on_duplicate: str = "return_existing"
    queue_ttl: float = 300.0
    run_ttl: float | None = None

    @classmethod
    def on_bound(cls, app: Any) -> None:
        super().on_bound(app)
        if cls.on_duplicate not in CHOICES:
            raise ConfigurationError(f"on_duplicate: one of {', '.join(CHOICES)} is needed, got {cls.on_duplicate!r}")

    @property
    def lock(self) -> Lock | None:
        """The lock of the running task, or None. Call its `check` right before an exclusive act."""
        lock: Lock | None = getattr(self.request, HELD, None)
        return lock

    @property
    def _running(self) -> Any:
        return None if self.request_stack is None else self.request_stack.top

    @property
    def _client(self) -> TaskClient:
        return client_of(self._get_app())

    def lock_name(self, args: Sequence[Any] | None, kwargs: dict[str, Any] | None) -> str:
        """Return the name of the lock for these arguments; a subclass may choose another one."""
        bound = inspect.signature(self.run).bind(*(args or ()), **(kwargs or {}))
        bound.apply_defaults()
        chosen = dict(bound.arguments)
        if self.unique_on is not None:
            wanted = [self.unique_on] if isinstance(self.unique_on, str) else list(self.unique_on)
            missing = [each for each in wanted if each not in chosen]
            if missing:
                raise ConfigurationError(f"unique_on: {self.name} has no argument {', '.join(missing)}")
            chosen = {each: chosen[each] for each in wanted}
        text = dumps(chosen, sort_keys=True)
        return f"{self.name}:{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task in this process, with its lock, and return its result.

        Raises:
            DuplicateTask: a task with these arguments waits or runs already.
            QuorumUnavailable: too many masters failed. The task did not run.
            LockLost: the lock was lost while the task ran.
        """
        request = self._running
        if getattr(request, HELD, None) is not None and not getattr(request, CALLED, False):
            # A worker, or `apply`, calls the task like this.
            setattr(request, CALLED, True)
            return self.run(*args, **kwargs)
        name, task_id = self.lock_name(args, kwargs), uuid()
        lock = self._client.labelled(name, self.run_ttl, label(new_delivery(), task_id), auto_renew=True)
        holder = self._take_over(lock, task_id)
        if holder is not None:
            raise self._duplicate(holder, name)
        _task_stack.push(self)
        self.push_request(args=args, kwargs=kwargs, **{HELD: lock, CALLED: True})
        try:
            result = self.run(*args, **kwargs)
        except BaseException as struck:
            try:
                lock.release()
            except LockError as failure:
                note_failure(struck, failure)
            raise
        finally:
            self.pop_request()
            _task_stack.pop()
        lock.release()
        return result

    # --- publishing ---------------------------------------------------------------------------------

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        task_id: str | None = None,
        **options: Any,
    ) -> Any:
        """Acquire the lock and publish the task, unless it is a duplicate. After an error nothing was published.

        Args:
            args, kwargs, task_id, options: as for `celery.Task.apply_async`; all others must be named.

        Returns:
            The result of the task, as Celery returns it; for a duplicate, see `on_duplicate`.

        Raises:
            DuplicateTask: a task with these arguments exists already, and `on_duplicate` is "raise".
            LockBusy: several publishers compete, and none of them gets the lock.
            QuorumUnavailable: too many masters failed.
            ConfigurationError: a setting is invalid, or the lock would have to live longer than the guard allows, as
                with a long countdown.
        """
        task_id = task_id or uuid()
        name = self.lock_name(args, kwargs)
        passed = self._passed_on(task_id, name, options)
        if passed is None:
            token, holder = self._acquire_for(task_id, name, self._queue_seconds(options))
            # After a worker was lost, Celery publishes the task again. Its lock may still be there.
            if not token and not (options.get("retries") and holder == task_id):
                return self._duplicate_of(holder, task_id, name, options)
            passed = Passed(name, token)
        options["headers"] = passed.headers(options.get("headers"))
        try:
            return super().apply_async(args, kwargs, task_id=task_id, **options)
        except BaseException as error:
            self._free(passed, error)
            raise

    def _passed_on(self, task_id: str, name: str, options: dict[str, Any]) -> Passed | None:
        # Only a retry of the running task passes on its lock.
        request = self._running
        if request is None or request.id != task_id:
            return None
        lock: Lock | None = getattr(request, HELD, None)
        if lock is None or lock.token is None:
            # No quorum has answered, so the worker has no lock. The next worker takes over that of the message.
            passed = Passed.read(request.headers)
            return passed if passed is not None and passed.name == name else Passed(name)
        if lock.name != name:
            return None
        try:
            lock.extend(self._queue_seconds(options, task_id))
        except QuorumUnavailable as error:
            logger.warning("the lock of task %s was not extended for its retry: %s", task_id, error)
        except LockError:
            # The lock is lost. The next worker acquires a new one if no other task has it.
            return Passed(name)
        return Passed(name, self._client.hand_over(lock))

    def _queue_seconds(self, options: dict[str, Any], retried: str = "") -> float:
        """Return the seconds that the lock of a message with these options lives.

        Celery would drop a retry (the task `retried`) for an error, so they are cut to what the guard allows.
        """
        wanted = seconds_in_queue(self.queue_ttl, options, self._get_app().timezone)
        longest = self._client.longest(wanted)
        if longest == wanted:
            return wanted
        text = (
            f"the lock of {self.name} must live for {math.ceil(wanted):,} s (its queue_ttl, and the countdown or eta), "
            f"and the guard allows {longest:,.0f} s"
        )
        if not retried:
            cure = f'redlatch_options={{"guard": redlatch.Guard(max_ttl={math.ceil(wanted)})}} allows it'
            raise ConfigurationError(f"queue_ttl: {text}; {cure}. All processes of the app need the same setting")
        logger.warning("the lock of task %s runs out before its retry: %s", retried, text)
        return longest

    def _acquire_for(self, task_id: str, name: str, seconds: float) -> tuple[str, str]:
        """Return (token, "") for a task to be published, or ("", id of the existing task)."""
        client = self._client
        for attempt in range(TRIES):
            lock = client.labelled(name, seconds, label(QUEUED, task_id))
            try:
                if lock.acquire(timeout=WAIT if attempt else 0.0):
                    return client.hand_over(lock), ""
            except BaseException:
                # An interrupt may come after the lock was acquired.
                if lock.token is not None:
                    lock.release(wait=False)
                raise
            found = client.holder(name)
            # A task releases its lock right after its result is stored.
            if found is not None and (attempt or not self._has_ended(task_id_in(found))):
                return "", task_id_in(found)
        raise LockBusy(
            f"several publishers try to acquire {name!r} at once, and none gets it; publish again later", name=name
        )

    def _has_ended(self, task_id: str) -> bool:
        if self.ignore_result or isinstance(self.backend, DisabledBackend):
            return False
        return bool(self.AsyncResult(task_id).ready())

    def _duplicate(self, holder: str, name: str) -> DuplicateTask:
        text = f"{self.name} with these arguments waits or runs already: task {holder}"
        return DuplicateTask(text, task_id=holder, name=name)

    def _duplicate_of(self, holder: str, task_id: str, name: str, options: dict[str, Any]) -> Any:
        if self.on_duplicate == "raise" and not is_sent_by_worker(self, options):
            raise self._duplicate(holder, name)
        if is_step(options):
            end_step(self, task_id, holder, options)
        if self.on_duplicate == "ignore":
            return EagerResult(task_id, None, states.IGNORED, name=self.name)
        return self.AsyncResult(holder)

    def _free(self, passed: Passed, error: BaseException) -> None:
        if passed.token:
            try:
                self._client.free(passed.name, passed.token)
            except LockError as failure:
                error.add_note(f"redlatch: {type(failure).__name__} when the lock was released: {failure}")

    # --- running ------------------------------------------------------------------------------------

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Take over the lock that the message passes on."""
        super().before_start(task_id, args, kwargs)
        request = self.request
        passed = Passed.read(request.headers) or Passed(self.lock_name(args, kwargs))
        mine = label(passed.delivery or new_delivery(), task_id)
        lock = self._client.labelled(passed.name, self.run_ttl, mine, passed.token, auto_renew=True)
        # From here on `release_after_run` releases it, even after an interrupt.
        setattr(request, HELD, lock)
        try:
            holder = self._take_over(lock, task_id)
        except QuorumUnavailable as error:
            raise self.retry(exc=error, countdown=max(1.0, error.retry_after)) from error
        if holder is not None:
            self._give_up(request, task_id, holder)

    def _take_over(self, lock: Lock, task_id: str) -> str | None:
        if lock.acquire(blocking=False):
            return None
        name = str(lock.name)
        found = self._client.holder(name)
        # A copy of this message may have the lock, and run the task or expire.
        if (found is None or task_id_in(found) == task_id) and lock.acquire(timeout=lock.ttl):
            return None
        found = self._client.holder(name)
        return task_id if found is None else task_id_in(found)

    def _give_up(self, request: Any, task_id: str, holder: str) -> None:
        if holder == task_id:
            # The broker keeps it in case the running copy dies.
            if self.acks_late:
                raise Reject("another worker runs this task", requeue=True)
            raise Ignore()
        logger.info("task %s is not run: task %s with the same arguments has the lock", task_id, holder)
        store = not request.ignore_result
        reason = f"duplicate of task {holder}"
        self.backend.mark_as_revoked(task_id, reason, request=request, store_result=store)
        end_steps_behind(self, task_id, request.chain, reason)
        raise Ignore()


def release_after_run(sender: Any = None, **_: Any) -> None:
    # Celery calls this after the result was stored. A retry has passed the lock on.
    lock: Lock | None = getattr(sender.request, HELD, None) if isinstance(sender, Singleton) else None
    if lock is None or lock.token is None:
        return
    try:
        lock.release()
    except LockError as error:
        logger.warning("the lock of task %s was not released: %s", sender.request.id, error)


task_postrun.connect(release_after_run)
