"""The descriptors of connections: a forked child gives them up, and the end of an idle connection is noticed."""

from __future__ import annotations

import os
import select
import socket
import weakref
from typing import Any, Protocol

_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}

HANGUP: int = getattr(select, "POLLRDHUP", 0)


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


def descriptor_of(raw: Any) -> int:
    source: Any = raw if hasattr(raw, "fileno") else getattr(raw, "_sock", None)
    return -1 if source is None else int(source.fileno())


def keep_alive(descriptor: int) -> None:
    """Let the system notice a silent peer after about 25 seconds."""
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE.items():
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
