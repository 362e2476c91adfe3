"""Forks of this process: when one is under way, and what it must not find.

SQLite keeps its locks of a file in the memory of the process. A child that was forked while the file was open believes
that it has locks which only its parent has: it waits for them, or others write beside it. So connections to files are
closed before a fork, and opened again at their next use. Source: https://www.sqlite.org/howtocorrupt.html, section 2.6.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from redlatch.sql.files import DatabaseFile
from redlatch.votes.units import SECOND
from redlatch.wire.net import now_ns

# For how long a fork waits for statements at most. A statement on a file takes as long as a commit, or LOCK_WAIT_MS.
WAIT_NS = SECOND

# How long to wait before another look, in seconds.
PAUSE = 0.0005

# By thread: until when its fork counts as under way. An interrupt may leave an entry, which then soon counts no more.
_forking: dict[int, int] = {}

_on_files: weakref.WeakSet[Any] = weakref.WeakSet()
# The device and inode of each file that was open in a parent of this process at the fork.
_inherited: set[tuple[int, int]] = set()


class _Count:
    """How many forks have ended."""

    ended = 0


class OnFile(Protocol):
    """A connection to a file of SQLite."""

    file: DatabaseFile | None

    def is_open(self) -> bool:
        """Return whether the connection has the file open."""

    def give_up(self, until_ns: int) -> None:
        """Close the file, for a fork that waits until then; the next statement opens it again."""


def give_up_before_fork(connection: OnFile) -> None:
    """Have `connection.give_up(until_ns)` called before each fork, unless it is gone by then."""
    _on_files.add(connection)


def was_inherited(file: DatabaseFile) -> bool:
    """Return whether a parent of this process had the file open at the fork, so that SQLite cannot be used for it."""
    return (file.device, file.inode) in _inherited


def forks_so_far() -> int:
    """Return how many forks have ended."""
    return _Count.ended


def forked_since(forks: int) -> bool:
    """Return whether there may be a child that was forked since `forks_so_far` had this value."""
    return bool(_forking) or _Count.ended != forks


@contextmanager
def no_fork(connection: Any) -> Iterator[None]:
    """Have each fork wait for the end of this context. `connection.working` says that it is entered."""
    while True:
        # The mark comes before the look, and a fork looks for marks after it began: one of the two sees the other.
        connection.working = True
        if not _is_forking():
            break
        connection.working = False
        time.sleep(PAUSE)
    try:
        yield
    finally:
        connection.working = False


def _is_forking() -> bool:
    now = now_ns()
    return any([now < until_ns for until_ns in list(_forking.values())])


def _before() -> None:
    until_ns = now_ns() + WAIT_NS
    _forking[threading.get_ident()] = until_ns + WAIT_NS
    for connection in list(_on_files):
        connection.give_up(until_ns)


def _after_in_parent() -> None:
    _Count.ended += 1
    _forking.pop(threading.get_ident(), None)


def _after_in_child() -> None:
    _forking.clear()
    for connection in list(_on_files):
        if connection.file is not None and connection.is_open():
            _inherited.add((connection.file.device, connection.file.inode))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
