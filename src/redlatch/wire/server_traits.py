"""The traits of a server, its errors, and the limits for its replies."""

from __future__ import annotations

import re
from typing import Any

import redis.exceptions as redis_errors

from ..errors import MasterRefused
from ..votes.commands import BY_SHA, DELEX, DELIFEQ, FULL_TEXT
from ..votes.redaction import redacted, redacted_login, shown
from .engine.redirects import Redirected

_ERROR_KINDS: dict[str, type[Exception]] = {
    "NOAUTH": redis_errors.AuthenticationError,
    "WRONGPASS": redis_errors.AuthenticationError,
    "NOPERM": redis_errors.NoPermissionError,
    "LOADING": redis_errors.BusyLoadingError,
    "READONLY": redis_errors.ReadOnlyError,
    "OOM": redis_errors.OutOfMemoryError,
    "NOSCRIPT": redis_errors.NoScriptError,
}

# An IPv6 address has no brackets. An empty host is the one that was asked; "?" says that the node knows none.
_REDIRECT = re.compile(r"(MOVED|ASK) (\d{1,5}) ([\w.:%-]{0,255}|\?):(\d{1,5})", re.ASCII)

# Errors of servers for a script that calls a command without permission. Redis up to 7.0 does not name the command.
_NOT_IN_SCRIPTS = "ACL failure in script", "executing the script can't run this command"

_HEADER = re.compile(rb"[*%~>|$=!]\d{1,8}")

# A handshake returns some INFO sections of a few kilobytes each, and the SHA of each script.
MAX_BYTES = 131_072

# The map of HELLO has fourteen elements, and seven more for each module.
MAX_ELEMENTS = 4096

# A length with more digits counts as too large.
MAX_DIGITS = 18

_WITH_LENGTH = b"$=!"
_WITH_COUNT = b"*%~>|"
_OF_PAIRS = b"%|"


def reply_error(text: str, login: bool = False) -> Exception:
    """Turn an error reply into redis-py's exception.

    Its text is filtered, because a server may repeat what it was sent; `login` is True if that had credentials.
    """
    found = None if login else _REDIRECT.fullmatch(text)
    if found is not None:
        return Redirected(text, found[3], int(found[4]), found[1] == "ASK")
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
        replicas: how many replicas it sends its writes to.
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
        self.replicas = sum([field.startswith("slave") and ",state=online," in info[field] for field in info])
        policy = info.get("maxmemory_policy", "noeviction")
        self.evicts = "" if policy == "noeviction" or info.get("maxmemory") == "0" else shown(policy)

    def ends(self, error: Exception) -> bool:
        """Return whether an error means that the connection is of no use any more."""
        return False

    def lacks(self, error: Exception) -> bool:
        """Return whether an error means that a script's full text may work instead."""
        return str(error).startswith(("NOSCRIPT", "NOPERM", "ERR unknown command"))

    def downgrade(self, error: Exception, dialect: int) -> int:
        """Return the dialect to use from now on; a native command that is not allowed is not tried again."""
        return dialect if dialect == FULL_TEXT or str(error).startswith("NOSCRIPT") else BY_SHA


def _version_of(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def _dialect_of(server: str, version: tuple[int, ...]) -> int:
    if server == "valkey":
        return DELIFEQ if version >= (9,) else BY_SHA
    return DELEX if version >= (8, 4) else BY_SHA


class Limits:
    """The limits for the replies to a handshake, checked before the parser sees them.

    hiredis allocates a list as long as the header of an array says, before any element has come: fourteen bytes can
    cost eight gigabytes. After the handshake, only the bridge to a server without scripts parses replies with a length
    (see `wire.engine.replies`); there the limits count for each batch of commands.
    """

    def __init__(self, most_bytes: int = MAX_BYTES, most_elements: int = MAX_ELEMENTS) -> None:
        self._most_bytes = most_bytes
        self._most_elements = most_elements
        self._bytes = self._elements = 0
        # The number of bytes of the current string that have not come yet.
        self._skip = 0
        # The beginning of a line whose end has not come yet.
        self._line = b""

    def forgive(self) -> None:
        self._bytes = self._elements = 0

    def check(self, data: bytes) -> None:
        """Raise MasterRefused if the stream is too long, or a header announces too many bytes or elements."""
        self._bytes += len(data)
        if self._bytes > self._most_bytes:
            raise MasterRefused(f"the server sent more than {self._most_bytes} bytes in answer to the handshake")
        start = 0
        while start < len(data):
            if self._skip:
                step = min(self._skip, len(data) - start)
                self._skip -= step
                start += step
                continue
            end = data.find(b"\n", start)
            if end < 0:
                self._line += data[start:]
                return
            line, self._line = self._line + data[start:end], b""
            start = end + 1
            self._take(line[:1], line[1:].rstrip(b"\r"))

    def _take(self, kind: bytes, said: bytes) -> None:
        """Check one header. The parser refuses a header without a number."""
        if not kind or kind not in _WITH_LENGTH + _WITH_COUNT or not said.isdigit():
            return
        number = int(said) if len(said) <= MAX_DIGITS else 1 << 62
        if kind in _WITH_LENGTH:
            if number > self._most_bytes:
                raise MasterRefused(f"the server announced a string of {number} bytes in answer to the handshake")
            self._skip = number + 2
            return
        self._elements += number * (2 if kind in _OF_PAIRS else 1)
        if self._elements > self._most_elements:
            raise MasterRefused(
                f"the server announced more than {self._most_elements} elements in answer to the handshake"
            )
