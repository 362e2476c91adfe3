"""Find the locks of other lock clients on masters: a handover would give their names to new holders.

Programs with redis-py's Lock, or with one of our drop-ins, ignore the guard and continue to use the old master. Their
keys are recognized by the value: a token in the form of these clients.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from typing import Any

import redis

from redlatch.masters.master import Master
from redlatch.operate.locks import LONGEST_SCAN, TOGETHER, on_each
from redlatch.votes.label import owner_of
from redlatch.votes.redaction import shown

MOST_NAMED = 10

# Seconds to wait for locks of other clients, and to add before the next look.
LONGEST_WAIT, LATE = 60.0, 0.1

OTHERS_CURE = (
    "Stop the programs that use them, or give them the new masters, and delete what has no ttl; then run this once "
    "more. --ignore KEY leaves out a key that is no lock"
)

_LONGEST = 64

# 32 hexadecimal digits (redis-py and the drop-ins), a UUID (pottery, aioredlock), 22 letters and digits (redlock-py).
_TOKEN = re.compile(rb"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9A-Za-z]{22}")

# python-redis-lock writes any id of its user to such a key.
_PREFIX = b"lock:"


@dataclass(frozen=True)
class OtherLock:
    key: str
    master: str
    left: float | None

    def __str__(self) -> str:
        left = "no ttl" if self.left is None else f"{self.left:.1f} s left"
        return f"{self.key!r} on {self.master} ({left})"


def find_others(masters: Iterable[Master], ignored: Iterable[str] = ()) -> tuple[list[OtherLock], dict[str, Exception]]:
    """Return the locks of other clients, and why some masters could not be searched, by name."""
    listed, ignored = list(masters), tuple(ignored)
    found, failed = on_each(listed, partial(_on_master, ignored=ignored))
    there = [master.name for master in listed if master.name not in failed]
    locks = [
        OtherLock(key, name, left)
        for name, keys in zip(there, found, strict=True)
        for key, left in sorted(keys.items())
    ]
    return locks, dict(failed)


def outlast(
    look: Callable[[], list[OtherLock]], say: Callable[[str], None], sleep: Callable[[float], None]
) -> list[OtherLock]:
    """Wait until locks have expired, at most for LONGEST_WAIT; return those that are left."""
    locks = look()
    longest = max([math.inf if lock.left is None else lock.left for lock in locks], default=0.0)
    if not 0.0 < longest <= LONGEST_WAIT:
        return locks
    say(f"waiting {longest:.1f} s for {named(locks)}")
    sleep(longest + LATE)
    return look()


def named(locks: list[OtherLock]) -> str:
    rest = len(locks) - MOST_NAMED
    listed = ", ".join(map(str, locks[:MOST_NAMED])) + (f" and {rest} more" if rest > 0 else "")
    return f"locks of other clients, which know nothing of the handover: {listed}"


def _on_master(server: redis.Redis, ignored: tuple[str, ...]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    end = time.monotonic() + LONGEST_SCAN
    keys = iter(server.scan_iter(count=TOGETHER))
    while some := list(islice(keys, TOGETHER)):
        if time.monotonic() > end:
            raise TimeoutError(f"it has too many keys: they were not listed within {LONGEST_SCAN:g} s")
        some = [key for key in some if b"\0" not in key]
        lengths = _ask(server, "STRLEN", some)
        short = [key for key, size in zip(some, lengths, strict=True) if isinstance(size, int) and 0 < size <= _LONGEST]
        values = _ask(server, "GET", short)
        for key, value in zip(short, values, strict=True):
            name = shown(key.decode(errors="backslashreplace"))
            if _is_token(key, value) and not any(fnmatchcase(name, pattern) for pattern in ignored):
                [left_ms] = _ask(server, "PTTL", [key])
                if isinstance(left_ms, int) and left_ms != -2:
                    found[name] = None if left_ms < 0 else left_ms / 1000
    return found


def _is_token(key: bytes, value: Any) -> bool:
    if not isinstance(value, bytes) or owner_of(value) != ("", 0):
        return False
    return _TOKEN.fullmatch(value) is not None or key.startswith(_PREFIX)


def _ask(server: redis.Redis, command: str, keys: list[bytes]) -> list[Any]:
    pipe: Any = server.pipeline(transaction=False)
    with pipe:
        for key in keys:
            pipe.execute_command(command, key)
        answers: list[Any] = pipe.execute(raise_on_error=False) if keys else []
    for answer in answers:
        if isinstance(answer, redis.exceptions.NoPermissionError):
            raise answer
    return answers
