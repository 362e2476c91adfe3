"""The guard's part of a handshake: the commands that it adds, and how their replies become a report.

`GuardHandshake` has the form of `wire.connect.HandshakeExtension`; the driver passes it to the dialler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import redis.exceptions as redis_errors

from redlatch.errors import MasterRefused
from redlatch.guard.marker import MarkerWrite
from redlatch.votes import scripts
from redlatch.votes.commands import pack
from redlatch.votes.said import shown
from redlatch.votes.units import UNBOUNDED

# How long a master without replicas remembers that it was a replica: the default of servers (repl-backlog-ttl).
BACKLOG_MS = 3_600_000

# No clock shows more seconds since 1970.
MOST_SECONDS = 1 << 40


class HandshakeReport(NamedTuple):
    """What a handshake has shown of a master.

    Args:
        run_id: names the server process, and the history of its keys.
        marker: its text, or None.
        server_us: the server's clock, in microseconds since 1970, between `sent_ns` and `came_ns` of ours.
        persists: whether the master has an append-only file.
        promoted: whether it was a replica before, as far as it remembers.
        backlog_ms: how long a master without replicas remembers that (repl-backlog-ttl).
        up_us: for how long the process has run, by the server's clock and in whole seconds; None if it is not known.
    """

    run_id: str
    marker: bytes | None
    server_us: int
    sent_ns: int
    came_ns: int
    persists: bool
    promoted: bool = False
    backlog_ms: int = BACKLOG_MS
    up_us: int | None = None


class Replies(NamedTuple):
    """What the replies to the guard's commands say."""

    marker: bytes | None
    server_us: int
    backlog_ms: int


@dataclass(frozen=True)
class GuardHandshake:
    """What one handshake does for the guard: it reads the marker and the clock, and may write a marker first.

    Args:
        key: of the marker.
        write: the marker to write, or None.
    """

    key: bytes
    write: MarkerWrite | None = None

    info_sections = (b"persistence",)

    def commands(self) -> list[bytes]:
        """Return the guard's commands, in the order of their replies."""
        commands = [pack(b"GET", self.key), pack(b"TIME"), pack(b"CONFIG", b"GET", b"repl-backlog-ttl")]
        if self.write is not None:
            old, new, kept_ms, made_us = self.write
            arguments = self.key, old, new, kept_ms, made_us
            commands.insert(0, pack(b"EVAL", scripts.MARK.text, scripts.MARK.keys, *arguments))
        return commands

    def repeated(self) -> GuardHandshake:
        """Return what another try does. It writes nothing: the reason for the marker may be gone."""
        return replace(self, write=None)

    def read(self, replies: list[Any]) -> Replies:
        """Return what the replies say.

        Raises:
            MasterRefused: a right is missing, or a reply is none to its command.
            redis.exceptions.RedisError: the error that the master answered with.
        """
        *written, marker, clock, backlog = replies
        for answer in (clock, marker, *written):
            if isinstance(answer, redis_errors.NoPermissionError):
                raise MasterRefused(
                    f"the guard needs the rights to GET and EVAL with the key {self.key!r} (which begins with the "
                    "client's prefix), and to TIME; instead of EVAL it also works with WATCH, MULTI, EXEC and DISCARD; "
                    f"or the client guard=None: {answer}"
                )
            # A replica answers READONLY; the handshake refuses it for its role.
            if isinstance(answer, Exception) and not isinstance(answer, redis_errors.ReadOnlyError):
                raise answer
        if not isinstance(marker, (bytes, type(None))):
            raise MasterRefused(f"GET of the marker was answered with {type(marker).__name__}")
        return Replies(marker, _server_us(clock), _backlog_ms(backlog))

    def report(self, found: Replies, info: Mapping[str, str], sent_ns: int, came_ns: int) -> HandshakeReport:
        """Return the report of a handshake.

        Args:
            found: what `read` returned.
            info: the fields of INFO.
            sent_ns, came_ns: when the commands left, and when all replies were there.
        """
        return HandshakeReport(
            run_id=f"{info.get('run_id', '')} {info.get('master_replid', '')}".strip(),
            marker=found.marker,
            server_us=found.server_us,
            sent_ns=sent_ns,
            came_ns=came_ns,
            persists=info.get("aof_enabled") == "1",
            promoted=bool(info.get("master_replid2", "0").strip("0")),
            backlog_ms=found.backlog_ms,
            up_us=_up_us(info.get("uptime_in_seconds", "")),
        )


def _server_us(clock: Any) -> int:
    """Return the server's clock from its reply to TIME."""
    try:
        seconds, microseconds = map(int, clock if isinstance(clock, list) else ())
    except (TypeError, ValueError):
        raise MasterRefused(f"TIME was answered with {type(clock).__name__}, and not with two numbers") from None
    if not 0 <= seconds < MOST_SECONDS:
        raise MasterRefused(f"TIME was answered with {shown(seconds)} seconds")
    return seconds * 1_000_000 + microseconds


def _up_us(seconds: str) -> int | None:
    """Return for how long a server has run, as it says."""
    known = seconds.isdecimal() and len(seconds) <= len(str(MOST_SECONDS))
    return int(seconds) * 1_000_000 if known else None


def _backlog_ms(reply: Any) -> int:
    """Return how long a master remembers that it was a replica; the default of servers if it does not say."""
    words = [word for pair in reply.items() for word in pair] if isinstance(reply, dict) else reply
    if not isinstance(words, list) or len(words) != 2 or not isinstance(words[1], bytes) or not words[1].isdigit():
        return BACKLOG_MS
    # 0 means no limit.
    return min(int(words[1]) * 1000, UNBOUNDED) or UNBOUNDED
