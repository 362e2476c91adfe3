"""The errors of redlatch.

::

    redis.exceptions.LockError          (handlers written for redis-py's Lock keep working)
    └── LockError                       every error below; name, elapsed and causes on each
        ├── LockTimeout                 timeout= passed while somebody else held the lock   (also TimeoutError)
        ├── LockBusy                    refused at once: a non-blocking ``with`` on a held lock, or too many wait
        ├── LockLost                    the validity is over, or a quorum no longer has our token
        ├── NotOwned                    release or extend of a lock that this object does not hold
        ├── AlreadyHeld                 acquire of a lock object that holds its lock already
        ├── QuorumUnavailable           too many masters failed for any verdict; see ``causes``
        ├── ClientUnusable              the client cannot be used here
        │   ├── ClientClosed            it was closed
        │   ├── ClientForked            it was connected before this process was forked off
        │   └── WrongLoop               an AsyncClient in another event loop
        ├── MasterRefused               why one master has no vote: a replica, a duplicate, bad replies
        │   └── MasterQuarantined       it may have forgotten locks, or its clock is wrong: kept out for a while
        └── ConfigurationError          an argument that cannot work                        (a ValueError, as all are)

No error carries a token, a password or the user info of a URL. Of a server's text, errors repeat only words that are
known not to be secrets (`protocol.said`); "..." stands for all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis.exceptions


class LockError(redis.exceptions.LockError):
    """Base of every error that redlatch raises.

    Attributes:
        name: the lock's name as the caller gave it, or None where no single lock is meant.
        elapsed: seconds spent in the failed call, 0.0 where it was refused at once.
        causes: what each master that could not vote had to say, by its address (no credentials in it).
    """

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
    """Unpickle an error; its keyword arguments are in `state`."""
    error = kind(*args)
    error.__dict__.update(state)
    return error


class LockTimeout(LockError, TimeoutError):
    """The lock was not won within `timeout` seconds."""


class LockBusy(LockError):
    """The lock is held by somebody else, and the caller did not want to wait, or was not let into the line.

    Attributes:
        depth: how many of this client waited for it already.
    """

    def __init__(self, message: str = "", *, depth: int = 0, **named: Any) -> None:
        super().__init__(message, **named)
        self.depth = depth


class LockLost(LockError):
    """The lock was held and is not any more: its validity ran out, or a quorum of masters forgot it.

    Attributes:
        reason: why it was lost, as passed to `on_lost`; empty in an error about several locks.
    """

    def __init__(self, message: str = "", *, reason: str = "", **named: Any) -> None:
        super().__init__(message, **named)
        self.reason = reason


class NotOwned(LockError):
    """This lock object holds nothing that could be released or extended."""


class AlreadyHeld(LockError):
    """This lock object already holds its lock, or is about to; take one object per holder."""


class QuorumUnavailable(LockError):
    """So many masters failed that neither yes nor no can be said; `causes` has each one's failure."""


class ClientUnusable(LockError):
    """The client cannot be used, or not here."""


class ClientClosed(ClientUnusable):
    """The client was closed."""


class ClientForked(ClientUnusable):
    """The client was connected before a fork; a child process owns none of its locks and connections."""


class WrongLoop(ClientUnusable):
    """The AsyncClient belongs to another event loop."""


class MasterRefused(LockError):
    """One master may not vote: a replica, twice in the list, without rights, or used by others in another way."""


class MasterQuarantined(MasterRefused):
    """One master may not vote for a while: it was restarted or flushed, or its clock has jumped or stands still.

    Attributes:
        doubted_ns: before when its votes may be void, on the boot-time clock in ns; 0 is never.
    """

    def __init__(self, message: str = "", *, doubted_ns: int = 0, **named: Any) -> None:
        super().__init__(message, **named)
        self.doubted_ns = doubted_ns


class ConfigurationError(LockError):
    """An argument cannot work; the message names it and says what would be right."""
