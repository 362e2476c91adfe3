"""The bytes of the commands of nearly every cycle, in RESP: SET NX PX, and the two commands that compare and delete.

This module also exists as `ext/redlatch/_c/votes/payloads.pyx`, which writes each command into one string without the
parts: that saves 2,500 instructions in a cycle.
"""

from __future__ import annotations

_SET = b"*6\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$2\r\nNX\r\n$2\r\nPX\r\n$%d\r\n%d\r\n"
_DELIFEQ = b"*3\r\n$7\r\nDELIFEQ\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"
_DELEX = b"*4\r\n$5\r\nDELEX\r\n$%d\r\n%b\r\n$4\r\nIFEQ\r\n$%d\r\n%b\r\n"


def set_nx(key: bytes, token: bytes, ttl_ms: int) -> bytes:
    """Return SET key token NX PX ttl_ms."""
    return _SET % (len(key), key, len(token), token, len(str(ttl_ms)), ttl_ms)


def delifeq(key: bytes, token: bytes) -> bytes:
    """Return DELIFEQ key token (Valkey 9)."""
    return _DELIFEQ % (len(key), key, len(token), token)


def delex(key: bytes, token: bytes) -> bytes:
    """Return DELEX key IFEQ token (Redis 8.4)."""
    return _DELEX % (len(key), key, len(token), token)
