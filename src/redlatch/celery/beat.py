"""`RedBeatScheduler`: a scheduler for several processes of ``celery beat``, of which one at a time sends tasks.

It uses RedBeat's schedule in Redis, but a lock of redlatch. If the lock is lost, beat sends nothing and waits for the
lock again. RedBeat's own scheduler would end the process.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.signals import beat_init
from redbeat import schedulers

from ..client import Lock
from ..errors import ClientUnusable, LockError, LockLost, NotOwned, QuorumUnavailable
from .client import client_of

logger = logging.getLogger("redlatch")

# Seconds that a tick waits for the lock. Beat stops between ticks.
WAIT = 5.0

PAUSE = 1.0


class BeatLock:
    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def check(self) -> None:
        self._lock.check()

    def extend(self, seconds: float) -> None:
        # RedBeat's seconds are for a lock that only ticks renew.
        self._lock.extend()

    def owned(self) -> bool:
        return self._lock.owned()

    def release(self) -> None:
        self._lock.release()


class RedBeatScheduler(schedulers.RedBeatScheduler):  # type: ignore[misc]
    """RedBeat's scheduler with a lock of redlatch: ``celery beat -S redlatch.celery.RedBeatScheduler``.

    The lock is on the servers of the app's setting `redlatch_masters`, by default the broker. The schedule is where
    RedBeat's settings put it.

    Args:
        app: the Celery app.
        lock_key: the name of the lock. Default: RedBeat's setting `redbeat_lock_key`, or its prefix and ":lock".
        lock_timeout: seconds until the lock expires if this process dies. Default: RedBeat's setting
            `redbeat_lock_timeout`, or else the client's ttl, 10.
        options: as for RedBeat's scheduler.

    Raises:
        ConfigurationError: the app has no servers for locks.
    """

    lock: BeatLock | None = None

    def __init__(
        self, app: Any, lock_key: str | None = None, lock_timeout: float | None = None, **options: Any
    ) -> None:
        super().__init__(app, lock_key=lock_key, lock_timeout=lock_timeout, **options)
        self._ttl: float | None = lock_timeout or app.redbeat_conf.lock_timeout or None
        self._said = ""
        self._closed = False

    def acquire_lock(self, timeout: float) -> bool:
        """Acquire the lock within `timeout` seconds, if this process does not have it."""
        if self.lock is not None:
            return True
        client = client_of(self.app)
        ttl = None if self._ttl is None else client.longest(self._ttl)
        if ttl != self._ttl:
            # A shorter ttl only lets another beat begin earlier after a crash.
            logger.warning(
                "beat: the lock lives for %s s instead of %s s, which the guard does not allow", ttl, self._ttl
            )
            self._ttl = ttl
        lock = client.lock(self.lock_key, ttl, auto_renew=True)
        if not lock.acquire(timeout=timeout):
            if self._said != "waits":
                self._said = "waits"
                logger.info("beat: waiting for the lock %r, which another process has", self.lock_key)
            return False
        self.lock = BeatLock(lock)
        logger.info("beat: acquired the lock %r", self.lock_key)
        return True

    def tick(self, min: Any = min, **options: Any) -> float:
        """Send the tasks that are due, if this process has the lock; otherwise wait for it.

        Return the seconds until the next tick.
        """
        self._check_open()
        if not self.lock_key:
            return float(super().tick(min=min, **options))
        try:
            if not self.acquire_lock(min([WAIT, self.max_interval])):
                return 0.0
            seconds = float(super().tick(min=min, **options))
            self._said = ""
            return seconds
        except QuorumUnavailable as error:
            if self._said != "no quorum":
                self._said = "no quorum"
                logger.warning("beat: nothing is sent until a quorum answers: %s", error)
            return PAUSE
        except (LockLost, NotOwned) as error:
            logger.warning("beat: nothing is sent until the lock is acquired again: %s", error)
            self._drop_lock()
            return 0.0

    def maybe_due(self, entry: Any, **options: Any) -> Any:
        """Send a task if it is due, and check the lock right before."""
        self._check_open()
        if self.lock is not None:
            self.lock.check()
        return super().maybe_due(entry, **options)

    def close(self) -> None:
        self._closed = True
        self._drop_lock()
        left, self.lock = self.lock, None
        super().close()
        self.lock = left

    def _check_open(self) -> None:
        # If the signal comes inside a `__del__`, Python drops the SystemExit of Celery's handler, and beat would go on.
        if self._closed:
            raise SystemExit

    def _drop_lock(self) -> None:
        lock = self.lock
        if lock is None:
            return
        try:
            lock.release()
        except (LockLost, NotOwned):
            pass
        except LockError as error:
            if type(error) is ClientUnusable:
                # Celery's signal handler calls this inside a call of the client, and again after it.
                return
            logger.warning("beat: the lock was not released, and runs out: %s", error)
        self.lock = None

    @property
    def info(self) -> str:
        lines = [line for line in super().info.splitlines() if "lock ->" not in line]
        return "\n".join([*lines, *([f"       . lock -> `{self.lock_key}` (redlatch)"] if self.lock_key else [])])


def acquire_at_start(sender: Any = None, **named: Any) -> None:
    """Try once to acquire the lock when beat starts. With RedBeat's own scheduler, RedBeat's function waits for it."""
    if isinstance(sender.scheduler, RedBeatScheduler):
        try:
            if sender.scheduler.lock_key:
                sender.scheduler.acquire_lock(0.0)
        except QuorumUnavailable:
            return
    else:
        schedulers.acquire_distributed_beat_lock(sender, **named)


# RedBeat's function would acquire its own lock for our scheduler, too, and wait for it indefinitely.
beat_init.disconnect(schedulers.acquire_distributed_beat_lock)
beat_init.connect(acquire_at_start)
