"""The bytes of commands in RESP: SET NX PX, the two commands that compare and delete, and the calls of scripts.

`ext/redlatch/_c/votes/payloads.pyx` has the same functions, and writes each command into one string without the parts:
that saves 2,500 instructions in a cycle of a plain lock.
"""

from __future__ import annotations

_SET = b"*6\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$2\r\nNX\r\n$2\r\nPX\r\n$%d\r\n%d\r\n"
_DELIFEQ = b"*3\r\n$7\r\nDELIFEQ\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"
_DELEX = b"*4\r\n$5\r\nDELEX\r\n$%d\r\n%b\r\n$4\r\nIFEQ\r\n$%d\r\n%b\r\n"


def set_nx(key: bytes, token: bytes, ttl_ms: int) -> bytes:
    return _SET % (len(key), key, len(token), token, len(str(ttl_ms)), ttl_ms)


def delifeq(key: bytes, token: bytes) -> bytes:
    # Valkey 9.
    return _DELIFEQ % (len(key), key, len(token), token)


def delex(key: bytes, token: bytes) -> bytes:
    # Redis 8.4.
    return _DELEX % (len(key), key, len(token), token)


def strings(begin: bytes, arguments: list[bytes]) -> bytes:
    """Return `begin`, and behind it each argument with its length."""
    return b"".join([begin, *[b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments]])


def joined(first: bytes, second: bytes) -> bytes:
    return first + second


def digits(number: int) -> bytes:
    return b"%d" % number
