"""The locks of tasks. A token is random, then ":", then the label of its holder.

A worker replaces the publisher's token in one step on each master. So a later copy of the message finds another token,
and does not get the lock while the first copy runs.

The classes inherit from those of the client's build, so each build has its own.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from .. import impl
from ..votes.commands import pack
from ..votes.scripts import Script

# ARGV: former token, token, ttl in milliseconds.
TAKE_OVER = Script(
    """local held=redis.call("get",KEYS[1])
if held and held~=ARGV[1] then return 0 end
redis.call("set",KEYS[1],ARGV[2],"px",ARGV[3])
return 1"""
)

# ARGV: label. Delete the key if it holds a token with this label.
END = Script(
    """local held=redis.call("get",KEYS[1])
local colon=held and string.find(held,":",1,true)
if colon and string.sub(held,colon+1)==ARGV[1] then return redis.call("del",KEYS[1]) end
return 0"""
)


@cache
def whole_script(build: impl.Implementation) -> Any:
    # The handshake loads no SHA for these scripts.
    command: Any = build.module("votes.commands").Command

    class WholeScript(command):  # type: ignore[misc]
        # A script without an undo is a release.

        def __init__(self, key: bytes, lease: Any, script: Script, arguments: list[bytes], undo: Any) -> None:
            super().__init__(key, lease.token, lease.since_ns)
            self.releases = undo is None
            self._bytes = pack(b"EVAL", script.text, script.keys, key, *arguments)
            self._undo = undo

        def payload(self, dialect: int) -> bytes:
            return self._bytes

        def undo(self) -> Any:
            return self._undo

    return WholeScript


@cache
def labelled(build: impl.Implementation) -> Any:
    new_lease = build.module("quorum.lease").new_lease
    watching: Any = build.module("quorum.kinds.watching").WatchingKind

    class Labelled(watching):  # type: ignore[misc]
        """A plain lock with a label. The token `former` counts as free: its holder has handed the lock over."""

        def __init__(self, label: bytes, former: bytes = b"") -> None:
            super().__init__()
            self._label = label
            self._former = former

        def lease(self, quorum: Any, key: bytes, since_ns: int, deadline_ns: int) -> Any:
            return new_lease(quorum.tokens.take_plain() + b":" + self._label, since_ns, deadline_ns)

        def acquiring(self, quorum: Any, key: bytes, lease: Any, ttl_ms: int) -> Any:
            if not self._former:
                return super().acquiring(quorum, key, lease, ttl_ms)
            arguments = [self._former, lease.token, b"%d" % ttl_ms]
            return whole_script(build)(key, lease, TAKE_OVER, arguments, self.undoing(key, lease, True))

    return Labelled


@cache
def ending(build: impl.Implementation) -> Any:
    watching: Any = build.module("quorum.kinds.watching").WatchingKind

    class Ending(watching):  # type: ignore[misc]
        def __init__(self, label: bytes) -> None:
            super().__init__()
            self._label = label

        def releasing(self, key: bytes, lease: Any) -> Any:
            return whole_script(build)(key, lease, END, [self._label], None)

    return Ending
