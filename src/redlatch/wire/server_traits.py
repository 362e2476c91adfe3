"""The traits of a server, from its handshake, and the exceptions for errors from servers."""

from __future__ import annotations

import re
from typing import Any

import redis.exceptions as redis_errors

from ..votes.commands import BY_SHA, DELEX, DELIFEQ, FULL_TEXT
from ..votes.redaction import redacted, redacted_login, shown

_ERROR_KINDS: dict[str, type[Exception]] = {
    "NOAUTH": redis_errors.AuthenticationError,
    "WRONGPASS": redis_errors.AuthenticationError,
    "NOPERM": redis_errors.NoPermissionError,
    "LOADING": redis_errors.BusyLoadingError,
    "READONLY": redis_errors.ReadOnlyError,
    "OOM": redis_errors.OutOfMemoryError,
    "NOSCRIPT": redis_errors.NoScriptError,
}

# Errors of servers for a script that calls a command without permission. Redis up to 7.0 does not name the command.
_NOT_IN_SCRIPTS = "ACL failure in script", "executing the script can't run this command"

_HEADER = re.compile(rb"[*%~>|$=!]\d{1,8}")


def reply_error(text: str, login: bool = False) -> Exception:
    """Turn an error reply into redis-py's exception.

    Its text is filtered, because a server may repeat what it was sent; `login` is True if that had credentials.
    """
    return _kind_of(text)(redacted_login(text) if login else redacted(text))


def _kind_of(text: str) -> type[Exception]:
    if text.startswith("ERR ") and any([words in text for words in _NOT_IN_SCRIPTS]):
        return redis_errors.NoPermissionError
    return _ERROR_KINDS.get(text.partition(" ")[0], redis_errors.ResponseError)


def described(reply: object) -> str:
    """Describe an unexpected reply for an error message. Its text is filtered, too."""
    if isinstance(reply, (bytes, bytearray)):
        header = _HEADER.match(reply)
        return repr(redacted(reply.decode(errors="replace")) if header is None else bytes(header[0]).decode())
    return shown(reply) if isinstance(reply, (int, float, type(None))) else type(reply).__name__


class Traits:
    """The traits of a server, from its handshake.

    Attributes:
        run_id: the server's own random name, new at every start.
        role: "master", or the role that it reports, made printable.
        protocol: 3, or 2 where HELLO was refused.
        tracking: whether the server pushes when a key that was noted has changed.
        dialect: the cheapest way to call it (see votes.commands).
        evicts: its maxmemory_policy, made printable, if that may evict keys before they expire; else "".
        doubted_ns: votes of former connections before this time may be void. Only a bridge says so; for a server of
            Redis the guard decides.
        report: what the extension of the handshake returned; None without an extension.
        reports_itself: whether the log already describes this server to its owner.
    """

    reply_error, described = staticmethod(reply_error), staticmethod(described)

    report: Any = None
    doubted_ns = 0
    scripts = True
    reports_itself = False

    def __init__(self, info: dict[str, str], protocol: int, tracking: bool = False) -> None:
        self.run_id = info.get("run_id", "")
        self.server = info.get("server_name", "redis")
        self.version = _version_of(info.get(f"{self.server}_version") or info.get("redis_version", ""))
        self.role = shown(info.get("role", "unknown"))
        self.protocol = protocol
        self.tracking = tracking
        self.dialect = _dialect_of(self.server, self.version)
        policy = info.get("maxmemory_policy", "noeviction")
        self.evicts = "" if policy == "noeviction" or info.get("maxmemory") == "0" else shown(policy)

    def ends(self, error: Exception) -> bool:
        """Return whether an error means that the connection is of no use any more."""
        return False

    def lacks(self, error: Exception) -> bool:
        """Return whether an error means that a script's full text may work instead."""
        return str(error).startswith(("NOSCRIPT", "NOPERM", "ERR unknown command"))

    def downgrade(self, error: Exception, dialect: int) -> int:
        """A native command that is not allowed is not tried again."""
        return dialect if dialect == FULL_TEXT or str(error).startswith("NOSCRIPT") else BY_SHA


def _version_of(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def _dialect_of(server: str, version: tuple[int, ...]) -> int:
    if server == "valkey":
        return DELIFEQ if version >= (9,) else BY_SHA
    return DELEX if version >= (8, 4) else BY_SHA
