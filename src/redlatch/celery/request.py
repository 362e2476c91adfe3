"""Ends the locks of tasks whose pool process was killed, in a worker's main process.

It waits until the pool process has ended: until then the task may still act.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from typing import Any

from celery.worker.request import Request

from ..errors import LockError
from .client import new_client
from .headers import DELIVERY, Passed, label, new_delivery

logger = logging.getLogger("redlatch")

# Seconds that a pool process may take to end. After that the lock expires.
GONE_TIMEOUT = 60.0


class SingletonRequest(Request):  # type: ignore[misc]
    _lock_ended = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._request_dict[DELIVERY] = new_delivery()

    def on_timeout(self, soft: bool, timeout: float) -> None:
        # After a soft limit the task ends itself.
        super().on_timeout(soft, timeout)
        if not soft:
            self._end_lock()

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """End the lock of a task whose process has died. After an error the task has released it itself."""
        try:
            return super().on_failure(exc_info, send_failed_event, return_ok)
        finally:
            if not return_ok:
                self._end_lock()

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        super()._announce_revoked(reason, terminated, signum, expired)
        # `on_failure` follows if a running task was terminated.
        if not terminated:
            self._end_lock()

    def _end_lock(self) -> None:
        # In another thread, which may wait for the process and for the masters.
        passed = Passed.read(self._request_dict)
        if passed is not None and not self._lock_ended:
            # A hard time limit calls both `on_failure` and `on_timeout`.
            self._lock_ended = True
            end = (self.app, passed, self.id, self.worker_pid)
            threading.Thread(target=end_lock, args=end, name="redlatch-end", daemon=True).start()


def end_lock(app: Any, passed: Passed, task_id: str, pid: int | None) -> None:
    # `pid` is None for a task in the queue.
    if pid is not None and pid != os.getpid() and not wait_until_gone(pid):
        return
    # The main process forks. A client that lives only here leaves no thread and no socket to its children.
    try:
        with new_client(app) as client:
            if passed.token:
                client.free(passed.name, passed.token)
            client.end(passed.name, label(passed.delivery, task_id))
    except LockError as error:
        logger.warning("the lock of task %s, which does not run any more, stays until it runs out: %s", task_id, error)


def wait_until_gone(pid: int) -> bool:
    """Return False after `GONE_TIMEOUT`, or if the system cannot tell."""
    try:
        opened = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):
        return False
    try:
        # Not `select`, which fails above descriptor 1023.
        poll = select.poll()
        poll.register(opened, select.POLLIN)
        return bool(poll.poll(GONE_TIMEOUT * 1000))
    finally:
        os.close(opened)
