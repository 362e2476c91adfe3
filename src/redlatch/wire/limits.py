"""Bounds on what a server may say in a handshake, before the parser sees it: it believes every length.

hiredis makes a list as long as an array's header says, whatever comes behind it: eight gigabytes for fourteen bytes.
After the handshake no length is believed at all (see `engine`).
"""

from __future__ import annotations

from ..errors import MasterRefused

# A handshake has some INFO sections of a few kilobytes each, and one word for each script.
MAX_BYTES = 131_072

# HELLO's map has fourteen, and seven for each module.
MAX_ELEMENTS = 4096

# A number of more digits is none that anybody means.
MAX_DIGITS = 18

_WITH_LENGTH = b"$=!"
_WITH_COUNT = b"*%~>|"
_OF_PAIRS = b"%|"


class Limits:
    """Follows a stream of RESP from one header to the next."""

    def __init__(self) -> None:
        self._bytes = self._elements = 0
        self._skip = 0  # so many bytes of a string are still to come
        self._line = b""  # the beginning of a line whose end has not come yet

    def check(self, data: bytes) -> None:
        """Look through the bytes that came next.

        Raises:
            MasterRefused: they are too many, or announce too much.
        """
        self._bytes += len(data)
        if self._bytes > MAX_BYTES:
            raise MasterRefused(f"more than {MAX_BYTES} bytes in answer to the handshake")
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
        """Take a header; what is no number is left to the parser, which refuses it."""
        if not kind or kind not in _WITH_LENGTH + _WITH_COUNT or not said.isdigit():
            return
        number = int(said) if len(said) <= MAX_DIGITS else 1 << 62
        if kind in _WITH_LENGTH:
            if number > MAX_BYTES:
                raise MasterRefused(f"a string of {number} bytes in answer to the handshake")
            self._skip = number + 2
            return
        self._elements += number * (2 if kind in _OF_PAIRS else 1)
        if self._elements > MAX_ELEMENTS:
            raise MasterRefused(f"more than {MAX_ELEMENTS} elements in answer to the handshake")
