"""The errors of redlatch.

::

    redis.exceptions.LockError          (handlers written for redis-py's Lock keep working)
    └── LockError
        ├── Retryable
        │   ├── LockTimeout             (also TimeoutError)
        │   ├── LockBusy
        │   │   └── DuplicateTask
        │   └── QuorumUnavailable
        ├── LockLost
        ├── NotOwned
        ├── AlreadyHeld
        ├── ClientUnusable
        │   ├── ClientClosed
        │   ├── ClientForked
        │   └── WrongLoop
        ├── MasterRefused
        │   └── MasterQuarantined
        ├── NotReplicated
        └── ConfigurationError          (a ValueError, as all are)

docs/reference.md has a table with the HTTP status of each error.

No error contains a token, a password or the user info of a URL. Errors repeat only those words of a server's text that
are known not to be secrets (`votes.redaction`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import redis.exceptions

from .loss import Loss, LossKind

if TYPE_CHECKING:
    from .holder import Holder

# Seconds: the client connects again within that time.
RETRY_AFTER = 1.0


class LockError(redis.exceptions.LockError):
    """Base of every error that redlatch raises.

    Attributes:
        name: the name of the lock as the caller gave it; None if the error is not about a single one.
        elapsed: the seconds spent in the failed call; 0.0 if it failed at once.
        causes: the error of each master that could not vote, by the address of the master (without credentials).
        http_status: the status of the response if the error ends an HTTP request. Default 500.
    """

    http_status = 500

    def __init__(
        self,
        message: str = "",
        *,
        name: str | bytes | None = None,
        elapsed: float = 0.0,
        causes: Mapping[str, BaseException] | None = None,
    ) -> None:
        super().__init__(message)
        self.name = name
        self.elapsed = elapsed
        self.causes: dict[str, BaseException] = dict(causes or {})

    @property
    def http_headers(self) -> dict[str, str]:
        """The headers of an HTTP response. A `Retryable` has ``Retry-After``, in whole seconds."""
        return {}

    def __str__(self) -> str:
        text = str(self.args[0]) if self.args else ""
        if not self.causes:
            return text
        each = "; ".join(f"{master}: {str(cause) or type(cause).__name__}" for master, cause in self.causes.items())
        return f"{text} [{each}]"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(kind: type[LockError], args: tuple[str, ...], state: dict[str, object]) -> LockError:
    error = kind(*args)
    error.__dict__.update(state)
    return error


class Retryable(LockError):
    """The same call may succeed later. Catch this class to retry: waiting does not help with any other error.

    Put only the acquire into the ``try``. At the end of a ``with`` a `QuorumUnavailable` means that the body has run.

    Attributes:
        retry_after: the seconds after which another call may succeed, as far as the client knows; always above 0.
            If this client has the lock itself, the rest of its lease. If its queue is full, the time that the earlier
            calls need. If masters fail, the rest of the quarantine for those that are kept out, and 1 s for others,
            because the client connects again within that time. Errors of `connect` and of `redlatch.celery` have 1 s.
            Otherwise only other processes know, and this is the longest pause of the client's `retry`.
    """

    def __init__(self, message: str = "", *, retry_after: float = RETRY_AFTER, **named: Any) -> None:
        super().__init__(message, **named)
        self.retry_after = retry_after

    @property
    def http_headers(self) -> dict[str, str]:
        return {"Retry-After": str(max(1, math.ceil(self.retry_after)))}


class LockTimeout(Retryable, TimeoutError):
    """The lock was not acquired within `timeout` seconds.

    Attributes:
        holder: the holder of the lock: this client itself, or the one that the masters name. They are asked once, for a
            tenth of the timeout or 10 ms, at most 100 ms. None if they did not answer in time, if the lock is free by
            then, or if it has several holders.
    """

    http_status = 423

    def __init__(self, message: str = "", *, holder: Holder | None = None, **named: Any) -> None:
        super().__init__(message, **named)
        self.holder = holder


class LockBusy(Retryable):
    """Another holder has the lock, and the call does not wait; or the queue of this client is full or too slow.

    It is full with `max_waiters`. With `refuse_late` it is too slow if the timeout would pass before the caller's turn.

    Attributes:
        depth: the number of waiters that this client already had for the lock. If there were any, `http_status` is 503
            instead of 423: the service has more requests than it can handle.
        holder: as for `LockTimeout`. After a single attempt the masters are not asked: it is this client, or None.
    """

    http_status = 423

    def __init__(self, message: str = "", *, depth: int = 0, holder: Holder | None = None, **named: Any) -> None:
        super().__init__(message, **named)
        self.depth = depth
        self.holder = holder
        if depth:
            self.http_status = 503


class DuplicateTask(LockBusy):
    """A task of `redlatch.celery.Singleton` with the same arguments waits in the queue or runs already.

    Attributes:
        task_id: the id of that task.
    """

    http_status = 409

    def __init__(self, message: str = "", *, task_id: str = "", **named: Any) -> None:
        super().__init__(message, **named)
        self.task_id = task_id


class LockLost(LockError):
    """The caller held the lock and lost it: its lease expired, or a quorum of masters no longer has its token.

    Attributes:
        reason: a `Loss`: why the lock was lost, as far as the call knows. `check` has the reason that `on_lost` got,
            `extend` and `release` the one that they found. Empty in an error about several locks.
    """

    def __init__(self, message: str = "", *, reason: str = "", **named: Any) -> None:
        super().__init__(message, **named)
        self.reason: Loss = reason if isinstance(reason, Loss) else Loss(LossKind.OTHER, reason)


class NotOwned(LockError):
    """The lock object does not hold a lock, so it cannot release or extend one."""


class AlreadyHeld(LockError):
    """The lock object already holds its lock, or another call is acquiring it. Use one object for each holder."""


class QuorumUnavailable(Retryable):
    """So many masters failed that no quorum can vote yes or no; `causes` has the error of each."""

    http_status = 503


class ClientUnusable(LockError):
    """The client cannot be used, or not in this process or event loop."""


class ClientClosed(ClientUnusable):
    """The client was closed."""

    # The process is about to end; another one may answer the request.
    http_status = 503


class ClientForked(ClientUnusable):
    """The client was connected before a fork. A child process owns none of its locks or connections."""


class WrongLoop(ClientUnusable):
    """The AsyncClient belongs to another event loop."""


class MasterRefused(LockError):
    """One master may not vote.

    It is a replica, is listed twice, lacks rights, sends bad replies, or serves clients with other settings.
    """


class NotReplicated(LockError):
    """The replicas of a master have not confirmed a lock in time (`synced`), so its vote does not count."""


class MasterQuarantined(MasterRefused):
    """One master may not vote for a while: it was restarted or flushed, or its clock jumped or stopped.

    Attributes:
        doubted_ns: votes before this time may be void, in nanoseconds since boot; 0 if none are.
        until_ns: the end of its quarantine, in nanoseconds since boot; 0 if that is not known yet.
        why: the cause of the quarantine; empty if `until_ns` is 0.
    """

    def __init__(
        self, message: str = "", *, doubted_ns: int = 0, until_ns: int = 0, why: str = "", **named: Any
    ) -> None:
        super().__init__(message, **named)
        self.doubted_ns = doubted_ns
        self.until_ns = until_ns
        self.why = why

    @classmethod
    def kept_out(cls, until_ns: int, why: str, now_ns: int) -> MasterQuarantined:
        """Return the error for a master that is kept out until a known time; its text has the remaining time."""
        quarantined = cls(until_ns=until_ns, why=why)
        quarantined.args = (f"kept out for {quarantined.left(now_ns):.1f} s more: {why}",)
        return quarantined

    def left(self, now_ns: int) -> float:
        """Return the remaining seconds of the quarantine; 0.0 if that is not known."""
        return max(0, self.until_ns - now_ns) / 1_000_000_000

    def as_of(self, now_ns: int) -> MasterQuarantined:
        """Return this error with the remaining time at another moment."""
        return type(self).kept_out(self.until_ns, self.why, now_ns) if self.until_ns else self


class ConfigurationError(LockError):
    """An argument cannot work. The message names the argument and the allowed values."""
