"""Bytes to replies and pushes. No length from the wire is trusted.

hiredis parses only replies of one line. No command of the engine has a reply with a length, and `read_push` reads the
only pushes that the engine accepts.
"""

from __future__ import annotations

import re
from typing import Any

from ...votes.commands import OK
from ...votes.key import MAX_BYTES, MAX_SUFFIX

# A link closes its connection if more bytes than this come without an end of line.
MAX_LINE = 65536

# None is a reply.
NOTHING: Any = object()

# Nearly every reply is one of these lines (without the \n). The look-up costs a third of a call of the parser.
USUAL: dict[bytes, Any] = {b"+OK\r": OK, b":1\r": 1, b":0\r": 0, b"_\r": None, b"$-1\r": None}

# The push that a key, or all keys, have changed.
_PUSH_BEGINS = b">2\r\n$10\r\ninvalidate\r\n"
_PUSH = re.compile(re.escape(_PUSH_BEGINS) + rb"(?:\*1\r\n\$(\d{1,3})\r\n|_\r\n|\*-1\r\n)")
_PUSH_BEGINS_BY = len(_PUSH_BEGINS) + len(b"*1\r\n$512\r\n")

_ONE_LINE = (b"+", b"-", b":", b"_", b"#", b",", b"(", b"$-1\r")


def begins_line(tail: bytes) -> bool:
    """Return whether bytes without an end of line may be the beginning of a reply."""
    return tail[:1] in b"+-:_#,($>" and len(tail) <= MAX_LINE


def parse_line(reader: Any, line: bytes) -> Any:
    """Parse a reply of one line. Return any other line as a bytearray, which is never a vote."""
    if not line.startswith(_ONE_LINE):
        return bytearray(line[:20])
    reader.feed(line + b"\n")
    reply = reader.gets()
    return bytearray(line[:20]) if reply is NOTHING else reply


def read_push(data: bytes, start: int) -> tuple[int, bytes | None] | None:
    """Return where a push ends, and the key that has changed, or None for all keys.

    A push that is not complete ends at `start`. The result is None for a push that the engine does not accept.
    """
    found = _PUSH.match(data, start)
    if found is None:
        rest = data[start:]
        begins = _PUSH_BEGINS.startswith(rest) or (rest.startswith(_PUSH_BEGINS) and len(rest) < _PUSH_BEGINS_BY)
        return (start, None) if begins else None
    if found[1] is None:
        return found.end(), None
    if int(found[1]) > MAX_BYTES + MAX_SUFFIX:
        return None
    end = found.end() + int(found[1])
    if len(data) < end + 2:
        return start, None
    return (end + 2, data[found.end() : end]) if data[end : end + 2] == b"\r\n" else None
