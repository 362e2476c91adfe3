"""Forks of this process: detect one under way, close SQLite files before it, and give up descriptors after it.

SQLite keeps its locks of a file in the memory of the process, so a child that is forked while the file is open acts as
if it had its parent's locks. Connections to files are closed before a fork, and reopened at their next use. Source:
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
from redlatch.wire.engine.net import now_ns


class HasDescriptors(Protocol):
    def descriptors(self) -> list[int]: ...


_owners: weakref.WeakSet[Any] = weakref.WeakSet()


def give_up_at_fork(owner: HasDescriptors) -> None:
    """Replace an object's descriptors by /dev/null in every forked child.

    Otherwise the child would keep the session and its locks alive, or a finalizer in it could end the session.
    """
    _owners.add(owner)


def _give_up_all() -> None:
    there = [descriptor for owner in list(_owners) for descriptor in owner.descriptors()]
    if there:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in there:
            # Do not close it: a finalizer would close the next file with this number.
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_give_up_all)


# A fork waits for statements at most for this time.
WAIT_NS = SECOND

# Seconds between two looks.
PAUSE = 0.0005

# By thread: until when its fork counts as under way, even if an interrupt has left the entry.
_forking: dict[int, int] = {}

_on_files: weakref.WeakSet[Any] = weakref.WeakSet()
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
    """Make each fork wait for the end of this context."""
    while True:
        # Mark first, then look. A fork begins first, then looks for marks, so one of the two sees the other.
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
