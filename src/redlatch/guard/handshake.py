"""The guard's part of a handshake: its commands, and the report that their replies become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import redis.exceptions as redis_errors

from redlatch.errors import MasterRefused
from redlatch.guard.marker import MarkerWrite
from redlatch.votes import scripts
from redlatch.votes.commands import pack
from redlatch.votes.redaction import shown
from redlatch.votes.units import UNBOUNDED

# The servers' default of repl-backlog-ttl: for how long a master without replicas remembers that it was a replica.
BACKLOG_MS = 3_600_000

MOST_SECONDS = 1 << 40


class HandshakeReport(NamedTuple):
    """The result of a handshake with a master.

    Args:
        server_us: the server's clock since 1970, read between `sent_ns` and `came_ns` of ours.
        persists: whether the master has an append-only file.
        promoted: whether it was a replica before, as far as it remembers: for `backlog_ms` without replicas.
        up_us: the age of the process, by the server's clock; None if unknown.
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
    marker: bytes | None
    server_us: int
    backlog_ms: int


@dataclass(frozen=True)
class GuardHandshake:
    """The guard's commands in one handshake, implementing `wire.dial.connect.HandshakeExtension`."""

    key: bytes
    write: MarkerWrite | None = None

    info_sections = (b"persistence",)
    about_the_key = "which begins with the client's prefix"

    def commands(self) -> list[bytes]:
        commands = [pack(b"GET", self.key), pack(b"TIME"), pack(b"CONFIG", b"GET", b"repl-backlog-ttl")]
        if self.write is not None:
            old, new, kept_ms, made_us = self.write
            arguments = self.key, old, new, kept_ms, made_us
            commands.insert(0, pack(b"EVAL", scripts.MARK.text, scripts.MARK.keys, *arguments))
        return commands

    def repeated(self) -> GuardHandshake:
        # The reason for the marker may be gone.
        return replace(self, write=None)

    def read(self, replies: list[Any]) -> Replies:
        *written, marker, clock, backlog = replies
        for answer in (clock, marker, *written):
            if isinstance(answer, redis_errors.NoPermissionError):
                raise MasterRefused(
                    f"the guard needs the rights to GET and EVAL with the key {self.key!r} ({self.about_the_key}), and "
                    "to TIME; instead of EVAL it also works with WATCH, MULTI, EXEC and DISCARD; or the client "
                    f"guard=None: {answer}"
                )
            # A replica answers READONLY; the handshake refuses it for its role.
            if isinstance(answer, Exception) and not isinstance(answer, redis_errors.ReadOnlyError):
                raise answer
        if not isinstance(marker, (bytes, type(None))):
            raise MasterRefused(f"GET of the marker was answered with {type(marker).__name__}")
        return Replies(marker, _server_us(clock), _backlog_ms(backlog))

    def report(self, found: Replies, info: Mapping[str, str], sent_ns: int, came_ns: int) -> HandshakeReport:
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
    try:
        seconds, microseconds = map(int, clock if isinstance(clock, list) else ())
    except (TypeError, ValueError):
        raise MasterRefused(f"TIME was answered with {type(clock).__name__}, and not with two numbers") from None
    if not 0 <= seconds < MOST_SECONDS:
        raise MasterRefused(f"TIME was answered with {shown(seconds)} seconds")
    return seconds * 1_000_000 + microseconds


def _up_us(seconds: str) -> int | None:
    known = seconds.isdecimal() and len(seconds) <= len(str(MOST_SECONDS))
    return int(seconds) * 1_000_000 if known else None


def _backlog_ms(reply: Any) -> int:
    words = [word for pair in reply.items() for word in pair] if isinstance(reply, dict) else reply
    if not isinstance(words, list) or len(words) != 2 or not isinstance(words[1], bytes) or not words[1].isdigit():
        return BACKLOG_MS
    # 0 means no limit.
    return min(int(words[1]) * 1000, UNBOUNDED) or UNBOUNDED
