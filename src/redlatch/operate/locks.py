"""The locks on some masters, for operators: their holders, their waiters, and how to end them.

redis-py reads them with commands that every server has, so this also works on servers without scripts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import redis
from redis.exceptions import AskError

from redlatch.errors import LockError
from redlatch.holder import Holder
from redlatch.masters.master import Master
from redlatch.votes.key import derived_key, may_have_others, name_of
from redlatch.votes.kinds import ALL, FENCED, LISTED, Storage
from redlatch.votes.label import owner_of
from redlatch.votes.redaction import redacted, redacted_login, shown
from redlatch.votes.units import quorum_of
from redlatch.wire.dial.sentinels import find_master

# Seconds for one command.
TIMEOUT = 2.0

LONGEST_SCAN = 30.0

# A fence has at most this many digits.
LONGEST_FENCE = 20

TOGETHER = 1000

# The commands that read the keys of a kind, by its storage; each with the place of its key in the suffixes.
READS = {
    Storage.TOKEN: (("GET", 0), ("PTTL", 0)),
    Storage.SLOTS: (("ZRANGE", 0), ("HGETALL", 1)),
    Storage.TOKENS: (("ZRANGE", 0),),
    Storage.WRITER: (("ZRANGE", 0), ("GET", 1)),
}

# The commands that read a name, each with the suffix of its key. Some kinds share a key.
FENCE = "GET", FENCED.suffixes[1]
WAITERS = [each.waiters for each in ALL if each.waiters is not None]
QUESTIONS = list(
    dict.fromkeys(
        [
            *[(command, each.suffixes[place]) for each in LISTED.values() for command, place in READS[each.storage]],
            FENCE,
            *WAITERS,
        ]
    )
)

# The member that stands for a writer among the readers.
WRITES = b"w"

# The errors of commands on keys.
_AFTER_LOGIN = (
    redis.exceptions.NoPermissionError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
    AskError,
)

# Makes a client of the node to which a cluster's node redirects, because the slot is on its way there.
Elsewhere = Callable[[AskError], redis.Redis]


@dataclass(frozen=True)
class Grant:
    """One holder on one master; `place` is the slot of a semaphore, and `left_ms` is -1 without a ttl."""

    kind: str
    token: bytes
    place: bytes
    left_ms: float


@dataclass(frozen=True)
class OnMaster:
    """The state of one name on one master; `waiting` counts the queue of a fair lock, and waiting writers."""

    grants: tuple[Grant, ...]
    fence: int | None
    waiting: int


@dataclass(frozen=True)
class LockState:
    """The state of one name on a quorum of masters.

    Attributes:
        split: True if masters have holders that no quorum has: attempts in progress, or the rest of one.
        unsure: True if one of these may be a holder, because masters did not answer.
        tokens: of all holders on any master. Never print them: a token can release the lock.
        node: the address of the node that has the name, in a cluster.
    """

    name: str
    kind: str
    holders: tuple[Holder, ...]
    fence: int | None
    waiting: int
    split: bool
    unsure: bool = False
    tokens: frozenset[bytes] = frozenset()
    node: str = ""

    def as_dict(self) -> dict[str, Any]:
        # JSON has no infinity. Unknown holders are None.
        found = asdict(self)
        del found["tokens"]
        if not self.node:
            del found["node"]
        if self.unsure and not self.holders:
            return found | {"holders": None}
        for holder in found["holders"]:
            if holder["ttl_left"] == math.inf:
                holder["ttl_left"] = None
        return found


def connected(master: Master) -> redis.Redis:
    return master.client(TIMEOUT, None if master.group is None else find_master(master.group).address)


class Unreadable(Exception):
    """A master could not be read. The text contains no secret and can be printed."""


def described(error: Exception) -> str:
    """Return a printable text of an error. A server may repeat a password, or send control characters."""
    text = str(error) or type(error).__name__
    # The texts of these classes are redis-py's own, such as "Connection refused". Subclasses contain replies.
    of_connection = type(error) in (redis.ConnectionError, redis.TimeoutError)
    ours = of_connection or not isinstance(error, redis.RedisError) or isinstance(error, LockError)
    if isinstance(error, _AFTER_LOGIN):
        # The login has succeeded, so the text does not repeat the credentials.
        return redacted(text)
    return shown(text if ours else redacted_login(text))


def on_each(masters: Iterable[Master], work: Any) -> tuple[list[Any], dict[str, Unreadable]]:
    """Call `work` with a client of each master; return the results, and the errors by master."""
    listed = list(masters)

    def one(master: Master) -> Any:
        try:
            with connected(master) as server:
                return work(server)
        # A server may answer anything.
        except Exception as error:
            return Unreadable(described(error))

    with ThreadPoolExecutor(len(listed)) as pool:
        answers = list(pool.map(one, listed))
    named = [(master.name, answer) for master, answer in zip(listed, answers, strict=True)]
    failed = {name: answer for name, answer in named if isinstance(answer, Unreadable)}
    return [answer for answer in answers if not isinstance(answer, Unreadable)], failed


def names_on(server: redis.Redis, prefix: bytes) -> set[bytes]:
    # There may be keys of other tools.
    pattern = b"".join([b"\\" + bytes([each]) if each in b"*?[]\\^" else bytes([each]) for each in prefix]) + b"*"
    patterns = [pattern, b"{" + pattern] if prefix else [pattern]
    found = set()
    end = time.monotonic() + LONGEST_SCAN
    for key in chain.from_iterable([server.scan_iter(each, TOGETHER) for each in patterns]):
        if time.monotonic() > end:
            raise TimeoutError(f"the keys were not listed within {LONGEST_SCAN:g} s")
        name, suffix = name_of(key)
        if name.startswith(prefix) and (suffix or (b"\0" not in key and _is_token(server, key))):
            found.add(name)
    return found


def _is_token(server: redis.Redis, key: bytes) -> bool:
    try:
        value: Any = _get_here(server, key)
    except AskError:
        # It has left since the scan; whoever reads the name finds it.
        return True
    except redis.ResponseError as error:
        if not _is_of_another_type(error):
            raise
        return False
    return isinstance(value, bytes) and len(value) >= 32 and all(each in b"0123456789abcdef" for each in value[:32])


def _get_here(server: redis.Redis, key: bytes) -> Any:
    try:
        return server.get(key)
    except AskError:
        # The slot is on its way to this node.
        server.execute_command("ASKING")
        return server.get(key)


def _is_of_another_type(error: redis.RedisError) -> bool:
    return str(error).startswith("WRONGTYPE")


def read(server: redis.Redis, key: bytes, elsewhere: Elsewhere | None = None) -> OnMaster:
    clock, told = _answers(server, key, elsewhere)
    now = int(time.time() * 1000) if isinstance(clock, redis.ResponseError) else clock[0] * 1000 + clock[1] // 1000
    grants = [
        Grant(each.listed, *grant)
        for each in LISTED.values()
        for grant in _grants(each.storage, *[told[ask, each.suffixes[at]] for ask, at in READS[each.storage]], now=now)
    ]
    waiting = sum([_count(told[question], now) for question in WAITERS])
    fence = told[FENCE] or b""
    return OnMaster(tuple(grants), int(fence) if fence.isdigit() and len(fence) <= LONGEST_FENCE else None, waiting)


def _answers(server: redis.Redis, key: bytes, elsewhere: Elsewhere | None) -> tuple[Any, dict[tuple[str, bytes], Any]]:
    """Return the clock of a master, or an error, and its answer to each question about a name."""
    asked = [question for question in QUESTIONS if not question[1] or may_have_others(key)]
    pipe: Any = server.pipeline(transaction=False)
    with pipe:
        pipe.time()
        for command, suffix in asked:
            _ask(pipe, command, derived_key(key, suffix))
        clock, *answers = pipe.execute(raise_on_error=False)
    told = dict(zip(asked, answers, strict=True))
    if elsewhere is not None:
        told |= _answers_elsewhere(key, told, elsewhere)
    # The right to TIME is optional. Another missing answer might be that of a holder.
    for answer in told.values():
        if isinstance(answer, redis.RedisError) and not _is_of_another_type(answer):
            raise answer
    known = {ask: None if isinstance(each, redis.ResponseError) else each for ask, each in told.items()}
    return clock, dict.fromkeys(QUESTIONS) | known


def _answers_elsewhere(
    key: bytes, told: dict[tuple[str, bytes], Any], elsewhere: Elsewhere
) -> dict[tuple[str, bytes], Any]:
    """Ask about the keys that a node lacks, because they may be at the other end of a move."""
    missing = {question: answer for question, answer in told.items() if type(answer) is AskError}
    if not missing:
        return {}
    with elsewhere(next(iter(missing.values()))) as server:
        pipe: Any = server.pipeline(transaction=False)
        with pipe:
            for command, suffix in missing:
                pipe.execute_command("ASKING")
                _ask(pipe, command, derived_key(key, suffix))
            answers = pipe.execute(raise_on_error=False)
    return dict(zip(missing, answers[1::2], strict=True))


def _ask(pipe: Any, command: str, key: bytes) -> None:
    if command == "ZRANGE":
        pipe.zrange(key, 0, -1, withscores=True)
    else:
        getattr(pipe, command.lower())(key)


def _count(waiters: Any, now: float) -> int:
    # A master answers with a number, or with members that count until they expire.
    return len(list(_living(waiters, now))) if isinstance(waiters, list) else waiters or 0


def _grants(storage: Storage, first: Any, second: Any = None, *, now: float) -> Iterator[tuple[bytes, bytes, float]]:
    """Yield the token, the place and the milliseconds left of each holder from the answers to `READS`."""
    if storage == Storage.TOKEN:
        if first is not None:
            yield first, b"", second
        return
    for member, until in _living(first, now):
        if storage == Storage.SLOTS:
            if member in (second or {}):
                yield second[member], member, until - now
        elif storage == Storage.WRITER:
            if member == WRITES:
                yield second or b"", b"", until - now
        elif member != WRITES:
            yield member, b"", until - now


def _living(members: Any, now: float) -> Iterator[tuple[bytes, float]]:
    return ((member, until) for member, until in members or [] if until > now)


def combine(name: bytes, found: list[OnMaster], size: int) -> LockState:
    lefts: dict[tuple[str, bytes, bytes], list[float]] = {}
    for one in found:
        for grant in one.grants:
            left = math.inf if grant.left_ms < 0 else grant.left_ms
            lefts.setdefault((grant.kind, grant.place, grant.token), []).append(left)
    quorum = quorum_of(size)
    held = {grant: sorted(left, reverse=True)[quorum - 1] for grant, left in lefts.items() if len(left) >= quorum}
    unheard = size - len(found)
    fences = [one.fence for one in found if one.fence is not None]
    return LockState(
        name=shown(name.decode(errors="backslashreplace"), 512),
        kind=next((kind for kind, _, _ in held), ""),
        holders=tuple(_holder(token, left) for (_, _, token), left in held.items()),
        fence=max(fences, default=None),
        waiting=max([one.waiting for one in found], default=0),
        split=len(held) < len(lefts),
        unsure=any([quorum - unheard <= len(left) < quorum for left in lefts.values()]),
        tokens=frozenset([token for _, _, token in lefts]),
    )


def _holder(token: bytes, left_ms: float) -> Holder:
    owner, since = owner_of(token)
    return Holder(owner, left_ms / 1000, max(0.0, time.time() - since) if since else None)
