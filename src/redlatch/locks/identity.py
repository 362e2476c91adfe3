"""The tokens of a client: their random part, and the label that names the owner."""

from __future__ import annotations

import os
import secrets
import socket
import time
from binascii import hexlify
from struct import Struct

from ..errors import ConfigurationError
from ..votes.label import LONGEST, label_of

# Cuts 100 tokens of 32 characters out of a string.
_CUT = Struct("32s" * 100)


def draw_tokens() -> list[bytes]:
    """Return 100 tokens: 128 random bits each, from the system, in hexadecimal.

    The first acquire draws the first 100. After an acquire the client cannot be used in a forked child, so two
    processes never share tokens.
    """
    return list(_CUT.unpack(hexlify(secrets.token_bytes(_CUT.size // 2))))


def owner_name(owner: str | None) -> str:
    """Return whose client this is, as holders and markers say.

    Args:
        owner: a name, or None for the host and the process; "" for none.

    Raises:
        TypeError, ConfigurationError: the name is malformed.
    """
    if owner is None:
        pid = f":{os.getpid()}"
        return socket.gethostname().encode()[: LONGEST - len(pid)].decode(errors="ignore") + pid
    if not isinstance(owner, str):
        raise TypeError(f"owner: a name as str is needed, not {type(owner).__name__}")
    if len(owner.encode(errors="replace")) > LONGEST or not owner.isprintable():
        raise ConfigurationError(f"owner: a name of at most {LONGEST} bytes that can be printed is needed")
    return owner


def label_of_now(owner: str | None) -> bytes:
    """Return the label of the tokens of this second; the process may be a fork of the one that made the client."""
    return label_of(owner_name(owner).encode(), wall_us() // 1_000_000)


def wall_us() -> int:
    """Return microseconds since 1970. Tests may freeze `time.time`, but not the clocks of masters."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1000
