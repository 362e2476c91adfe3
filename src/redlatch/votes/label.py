"""The label of a token: who took it, and when.

A token is 32 random hexadecimal digits, which make it unique. For people, a label adds ":", the second since 1970 in
hexadecimal, ":" and the name of the owner.
"""

from __future__ import annotations

import re

# The most bytes of an owner's name in a label.
LONGEST = 64

# Stands before a label instead of an unknown token.
NO_TOKEN = b"0" * 32

# For `bytes.translate`. Redis, too, replaces line breaks by spaces in what a script returns.
ONE_LINE = bytes.maketrans(b"\r\n", b"  ")

# Other tools write values of their own, or a label without a time.
_TOKEN = re.compile(rb"[0-9a-f]{32}(?::([0-9a-f]{8}))?:(.*)", re.DOTALL)


def label_of(owner: bytes, seconds: int) -> bytes:
    """Return the label of tokens that are taken in this second, since 1970."""
    return b":%08x:%b" % (seconds, owner)


def owner_of(token: bytes) -> tuple[str, int]:
    """Return the owner that a token names and the second in which it was taken; "" and 0 if it tells neither.

    What cannot be printed is replaced by "?".
    """
    found = _TOKEN.fullmatch(token)
    if found is None:
        return "", 0
    # Another tool may have written a longer one.
    owner = found[2][:LONGEST].decode(errors="replace")
    shown = "".join([character if character.isprintable() else "?" for character in owner])
    return shown, int(found[1], 16) if found[1] else 0
