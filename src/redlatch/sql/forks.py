"""Forks of this process: detect one under way, and close SQLite files before it.

SQLite keeps its locks of a file in the memory of the process. A child that was forked while the file was open acts as
if it had its parent's locks. So connections to files are closed before a fork, and reopened at their next use. Source:
https://www.sqlite.org/howtocorrupt.html, section 2.6.
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

# A fork waits for statements at most for this time.
WAIT_NS = SECOND

PAUSE = 0.0005

# The fork of each thread counts as under way until then, even if an interrupt has left its entry.
_forking: dict[int, int] = {}

_on_files: weakref.WeakSet[Any] = weakref.WeakSet()
# Device and inode of the files that were open in a parent at a fork.
_inherited: set[tuple[int, int]] = set()


class _Count:
    ended = 0


class OnFile(Protocol):
    file: DatabaseFile | None

    def is_open(self) -> bool: ...

    def give_up(self, until_ns: int) -> None: ...


def give_up_before_fork(connection: OnFile) -> None:
    _on_files.add(connection)


def was_inherited(file: DatabaseFile) -> bool:
    return (file.device, file.inode) in _inherited


def forks_so_far() -> int:
    return _Count.ended


def forked_since(forks: int) -> bool:
    return bool(_forking) or _Count.ended != forks


@contextmanager
def no_fork(connection: Any) -> Iterator[None]:
    """Make each fork wait for the end of this context, in which `connection.working` is True."""
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
