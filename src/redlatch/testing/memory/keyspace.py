"""The keys and replies of a Redis or Valkey master, for the commands that redlatch sends.

`tests/sim/test_keyspace.py` compares them with real servers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from copy import copy
from typing import Any

from .lua import Refusal, Status, run

OK = Status("OK")
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NOT_AN_INTEGER = "ERR value is not an integer or out of range"
NOT_A_FLOAT = "ERR value is not a valid float"
SYNTAX = "ERR syntax error"
OOM = "OOM command not allowed when used memory > 'maxmemory'."
READONLY = "READONLY You can't write against a read only replica."

READS = frozenset([b"get", b"pttl", b"exists", b"strlen", b"zscore", b"zrange", b"zcount", b"zcard", b"hget", b"hlen"])
GROWS = frozenset([b"set", b"zadd", b"hset", b"lpush"])
WRITES = GROWS | {b"del", b"pexpire", b"zrem", b"zremrangebyscore", b"hdel", b"delifeq", b"delex"}


class Keyspace:
    """The keys of a master.

    Args:
        changed: called with every key that changed, and with None when all keys were removed.
        dialects: DELIFEQ and DELEX, if the server has them.
    """

    def __init__(
        self,
        now_us: Callable[[], int],
        changed: Callable[[bytes | None], object],
        dialects: frozenset[bytes] = frozenset(),
    ) -> None:
        self.values: dict[bytes, Any] = {}
        # By key: the last millisecond in which it exists.
        self.over: dict[bytes, int] = {}
        self._aside: tuple[dict[bytes, Any], dict[bytes, int]] = ({}, {})
        self.scripts: dict[bytes, bytes] = {}
        self.full = False
        self.replica = False
        self._now_us = now_us
        self._changed = changed
        self._us = 0
        self.made: set[bytes] = set()
        self._in_script = self._begun = False
        known = READS | WRITES | {b"time", b"eval", b"evalsha", b"script", b"ping"}
        self._known = {
            name: getattr(self, "_" + name.decode())
            for name in known
            if name not in (b"delifeq", b"delex") or name in dialects
        }

    def execute(self, words: list[bytes]) -> Any:
        self._us = self._now_us()
        self.made.clear()
        try:
            return self._run(words)
        except Refusal as refusal:
            return refusal

    def swap(self) -> None:
        """Exchange all keys for those of another database. The server sends no push for it."""
        (self.values, self.over), self._aside = self._aside, (self.values, self.over)

    def copies(self) -> tuple[dict[bytes, Any], dict[bytes, int]]:
        return {key: copy(value) for key, value in self.values.items()}, dict(self.over)

    def flush(self) -> None:
        self.values.clear()
        self.over.clear()
        self._changed(None)

    def evict(self, key: bytes) -> None:
        self._drop(key)

    def expire(self, key: bytes) -> None:
        self._us = self._now_us()
        self._look(key)

    def _run(self, words: list[bytes]) -> Any:
        name = words[0].lower()
        call = self._known.get(name)
        if call is None:
            raise Refusal(f"ERR unknown command '{words[0].decode()}'")
        if name in WRITES:
            if self.replica:
                raise Refusal(READONLY)
            if self.full and name in GROWS and not self._begun:
                raise Refusal(OOM)
            self._begun = self._in_script
        try:
            return call(*words[1:])
        except TypeError as error:
            if "positional argument" not in str(error):
                raise
            raise Refusal(f"ERR wrong number of arguments for '{name.decode()}' command") from None

    # --- keys ----------------------------------------------------------------------------------------------

    def _look(self, key: bytes, kind: type | None = None) -> Any:
        over = self.over.get(key)
        if over is not None and self._us // 1000 > over:
            self._drop(key)
        value = self.values.get(key)
        if value is not None and kind is not None and type(value) is not kind:
            raise Refusal(WRONG_TYPE)
        return value

    def _drop(self, key: bytes) -> bool:
        self.over.pop(key, None)
        if self.values.pop(key, None) is None:
            return False
        self._changed(key)
        return True

    def _settle(self, key: bytes) -> None:
        if not self.values[key]:
            self._drop(key)
        else:
            self._changed(key)

    def _set(self, key: bytes, value: bytes, *options: bytes) -> Any:
        words = [option.lower() for option in options]
        absent, present, keeps, over = b"nx" in words, b"xx" in words, b"keepttl" in words, None
        if b"px" in words:
            place = words.index(b"px")
            if place + 1 == len(words):
                raise Refusal(SYNTAX)
            ms = _integer(words.pop(place + 1))
            if ms <= 0:
                raise Refusal("ERR invalid expire time in 'set' command")
            over = self._us // 1000 + ms
        lasts = over is not None
        if (absent and present) or (keeps and lasts) or len(words) != absent + present + keeps + lasts:
            raise Refusal(SYNTAX)
        there = self._look(key) is not None
        if there if absent else present and not there:
            return None
        if not there:
            self.made.add(key)
        self.values[key] = value
        if not keeps:
            self.over.pop(key, None)
        if over is not None:
            self.over[key] = over
        self._changed(key)
        return OK

    def _get(self, key: bytes) -> Any:
        return self._look(key, bytes)

    def _strlen(self, key: bytes) -> int:
        return len(self._look(key, bytes) or b"")

    def _exists(self, *keys: bytes) -> int:
        return sum(self._look(key) is not None for key in keys)

    def _del(self, *keys: bytes) -> int:
        return sum([self._look(key) is not None and self._drop(key) for key in keys])

    def _delifeq(self, key: bytes, value: bytes) -> int:
        return int(self._look(key, bytes) == value and self._drop(key))

    def _delex(self, key: bytes, condition: bytes, value: bytes) -> int:
        if condition.lower() != b"ifeq":
            raise Refusal(SYNTAX)
        return self._delifeq(key, value)

    def _pttl(self, key: bytes) -> int:
        if self._look(key) is None:
            return -2
        over = self.over.get(key)
        return -1 if over is None else max(0, over - self._us // 1000)

    def _pexpire(self, key: bytes, ms: bytes) -> int:
        number = _integer(ms)
        if self._look(key) is None:
            return 0
        if number <= 0:
            self._drop(key)
        else:
            self.over[key] = self._us // 1000 + number
            self._changed(key)
        return 1

    # --- sorted sets and hashes ----------------------------------------------------------------------------

    def _ranked(self, key: bytes) -> list[tuple[float, bytes]]:
        return sorted((score, member) for member, score in (self._look(key, dict) or {}).items())

    def _zadd(self, key: bytes, *pairs: bytes) -> int:
        present = bool(pairs) and pairs[0].lower() == b"xx"
        pairs = pairs[present:]
        if not pairs or len(pairs) % 2:
            raise Refusal(SYNTAX)
        scores = [_float(score) for score in pairs[::2]]
        members = self._look(key, dict)
        if present:
            known = [
                (score, member)
                for score, member in zip(pairs[::2], pairs[1::2], strict=True)
                if member in (members or ())
            ]
            return self._zadd(key, *[word for pair in known for word in pair]) if known else 0
        if members is None:
            members = self.values[key] = {}
        before = dict(members)
        members.update(zip(pairs[1::2], scores, strict=True))
        if members != before:
            self._changed(key)
        return len(members) - len(before)

    def _zrem(self, key: bytes, *members: bytes) -> int:
        there = self._look(key, dict)
        gone = [there.pop(member) for member in members if there and member in there]
        if gone:
            self._settle(key)
        return len(gone)

    def _zscore(self, key: bytes, member: bytes) -> Any:
        score = (self._look(key, dict) or {}).get(member)
        return None if score is None else _written(score)

    def _zcard(self, key: bytes) -> int:
        return len(self._look(key, dict) or ())

    def _zrange(self, key: bytes, first: bytes, last: bytes, *options: bytes) -> list[bytes]:
        ranked = self._ranked(key)
        start, end = _integer(first), _integer(last)
        start = max(0, start + len(ranked) if start < 0 else start)
        end = end + len(ranked) if end < 0 else end
        chosen = ranked[start : end + 1] if end >= 0 else []
        if [option.lower() for option in options] == [b"withscores"]:
            return [word for score, member in chosen for word in (member, _written(score))]
        if options:
            raise Refusal(SYNTAX)
        return [member for _, member in chosen]

    def _within(self, key: bytes, least: bytes, most: bytes) -> list[bytes]:
        bounds = [(_float(bound.removeprefix(b"(")), bound.startswith(b"(")) for bound in (least, most)]
        (low, above), (high, below) = bounds
        return [
            member
            for score, member in self._ranked(key)
            if (score > low or (score == low and not above)) and (score < high or (score == high and not below))
        ]

    def _zcount(self, key: bytes, least: bytes, most: bytes) -> int:
        return len(self._within(key, least, most))

    def _zremrangebyscore(self, key: bytes, least: bytes, most: bytes) -> int:
        gone = self._within(key, least, most)
        return self._zrem(key, *gone) if gone else 0

    def _hset(self, key: bytes, *pairs: bytes) -> int:
        if not pairs or len(pairs) % 2:
            raise Refusal("ERR wrong number of arguments for 'hset' command")
        fields = self._look(key, Hash)
        if fields is None:
            fields = self.values[key] = Hash()
        before = len(fields)
        fields.update(zip(pairs[::2], pairs[1::2], strict=True))
        self._changed(key)
        return len(fields) - before

    def _hget(self, key: bytes, field: bytes) -> Any:
        return (self._look(key, Hash) or {}).get(field)

    def _hlen(self, key: bytes) -> int:
        return len(self._look(key, Hash) or ())

    def _hdel(self, key: bytes, *fields: bytes) -> int:
        there = self._look(key, Hash)
        gone = [there.pop(field) for field in fields if there and field in there]
        if gone:
            self._settle(key)
        return len(gone)

    # --- the server ----------------------------------------------------------------------------------------

    def _lpush(self, key: bytes, *items: bytes) -> int:
        found = self._look(key, list)
        if found is None:
            found = self.values[key] = []
        found[:0] = reversed(items)
        self._settle(key)
        return len(found)

    def _time(self) -> list[bytes]:
        return [b"%d" % (self._us // 1_000_000), b"%d" % (self._us % 1_000_000)]

    def _ping(self) -> Status:
        return Status("PONG")

    def _script(self, what: bytes, *text: bytes) -> Any:
        if what.lower() == b"flush":
            self.scripts.clear()
            return OK
        if what.lower() != b"load" or len(text) != 1:
            raise Refusal(SYNTAX)
        sha = hashlib.sha1(text[0], usedforsecurity=False).hexdigest().encode()
        self.scripts[sha] = text[0]
        return sha

    def _eval(self, text: bytes, keys: bytes, *arguments: bytes) -> Any:
        self._script(b"load", text)
        return self._call(text, keys, arguments)

    def _evalsha(self, sha: bytes, keys: bytes, *arguments: bytes) -> Any:
        text = self.scripts.get(sha.lower())
        if text is None:
            raise Refusal("NOSCRIPT No matching script. Please use EVAL.")
        return self._call(text, keys, arguments)

    def _call(self, text: bytes, keys: bytes, arguments: tuple[bytes, ...]) -> Any:
        number = _integer(keys)
        if number < 0 or number > len(arguments):
            raise Refusal("ERR Number of keys can't be greater than number of args")
        # At maxmemory, a script that has written something may write to its end.
        self._in_script = True
        try:
            return run(text, arguments[:number], arguments[number:], self._run)
        finally:
            self._in_script = self._begun = False


class Hash(dict[bytes, bytes]): ...


def _integer(word: bytes) -> int:
    try:
        number = int(word)
    except ValueError:
        raise Refusal(NOT_AN_INTEGER) from None
    if b"%d" % number != word or not -(2**63) <= number < 2**63:
        raise Refusal(NOT_AN_INTEGER)
    return number


def _float(word: bytes) -> float:
    try:
        number = float(word)
    except ValueError:
        raise Refusal(NOT_A_FLOAT) from None
    if math.isnan(number):
        raise Refusal(NOT_A_FLOAT)
    return number


def _written(score: float) -> bytes:
    if math.isinf(score):
        return b"inf" if score > 0 else b"-inf"
    return b"%d" % score if score == int(score) and abs(score) < 2**63 else b"%.17g" % score
