"""Limits for the replies to a handshake, checked before the parser sees them.

hiredis allocates a list as long as the header of an array says, before any element has come: fourteen bytes can cost
eight gigabytes. After the handshake, only the bridge to a server without scripts parses replies with a length (see
`engine`); there the limits count for each batch of commands.
"""

from __future__ import annotations

from ..errors import MasterRefused

# A handshake returns some INFO sections of a few kilobytes each, and the SHA of each script.
MAX_BYTES = 131_072

# The map of HELLO has fourteen elements, and seven more for each module.
MAX_ELEMENTS = 4096

MAX_DIGITS = 18

_WITH_LENGTH = b"$=!"
_WITH_COUNT = b"*%~>|"
_OF_PAIRS = b"%|"


class Limits:
    def __init__(self) -> None:
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
        if self._bytes > MAX_BYTES:
            raise MasterRefused(f"the server sent more than {MAX_BYTES} bytes in answer to the handshake")
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
            if number > MAX_BYTES:
                raise MasterRefused(f"the server announced a string of {number} bytes in answer to the handshake")
            self._skip = number + 2
            return
        self._elements += number * (2 if kind in _OF_PAIRS else 1)
        if self._elements > MAX_ELEMENTS:
            raise MasterRefused(f"the server announced more than {MAX_ELEMENTS} elements in answer to the handshake")
