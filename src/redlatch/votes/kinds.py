"""The table of kinds of locks. The class of a kind (`quorum.kinds`) says how it acquires, undoes and releases."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from redlatch.votes.key import stem_of


class Storage(Enum):
    """The form in which a master keeps the holders of a lock in the keys of `Declaration.suffixes`, in order.

    TOKEN   the first key holds the token
    SLOTS   the first key is a sorted set of slots, by when each ends; the second key has the token of each slot
    TOKENS  the first key is a sorted set of tokens, by when each ends
    WRITER  as TOKENS, but the member "w" stands for the token in the second key
    """

    TOKEN, SLOTS, TOKENS, WRITER = range(4)


_OWN_KEY = (b"",)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Declaration:
    """The properties of a kind of lock that are known without its code.

    Attributes:
        label: the word that a repr adds to the name of the lock; empty if the class says it.
        listed: the word of `redlatch status` for its holders; empty if they are listed as those of a plain lock.
        plural: the word of errors about locks that need scripts.
        suffixes: those of its keys (`votes.key`); the own key of the lock has none. All begin with the first one.
        rights: the commands that its user needs beside those of a plain lock.
        needs_scripts: whether only scripts can perform it.
        home: the module and the class in `quorum.kinds`; empty if it is no kind of lock.
        storage: how a master keeps its holders.
        waiters: the command that asks for its waiters, and the suffix of their key.
    """

    label: str = ""
    listed: str = ""
    plural: str = ""
    suffixes: tuple[bytes, ...] = _OWN_KEY
    rights: str = ""
    needs_scripts: bool = True
    home: str = ""
    storage: Storage = Storage.TOKEN
    waiters: tuple[str, bytes] | None = None

    def keys_of(self, key: bytes) -> list[bytes]:
        """Return the keys of a lock of this kind; `key` is the one of a plain lock with this name."""
        if self.suffixes == _OWN_KEY:
            return [key]
        stem = stem_of(key)
        return [stem + suffix if suffix else key for suffix in self.suffixes]


PLAIN = Declaration(listed="lock", needs_scripts=False, home="plain.Plain")

FENCED = Declaration(label="fenced", suffixes=(b"", b"\0fence"), needs_scripts=False, home="fenced.Fenced")

FAIR = Declaration(
    label="fair",
    plural="fair locks",
    suffixes=(b"", b"\0queue", b"\0queue\0alive"),
    rights="+zadd +zrem +zrange +zscore +strlen",
    home="fair.Fair",
    # The scores are tickets, so all members count.
    waiters=("ZCARD", b"\0queue"),
)

SEMAPHORE = Declaration(
    listed="semaphore",
    plural="semaphores",
    suffixes=(b"\0slots", b"\0slots\0tokens"),
    rights="+zadd +zrem +zcount +zscore +hset +hget +hdel",
    home="semaphore.Slot",
    storage=Storage.SLOTS,
)

RATE_LIMIT = Declaration(
    listed="rate limit",
    plural="rate limits",
    suffixes=(b"\0rate", b"\0rate\0tokens"),
    rights="+zadd +zrem +zcount +zscore +zrange +hset +hget +hdel",
    home="semaphore.Permit",
    storage=Storage.SLOTS,
)

READER = Declaration(
    label="reader",
    listed="readers",
    plural="read-write locks",
    suffixes=(b"\0rw", b"\0rw\0writer", b"\0rw\0waits"),
    rights="+zadd +zrem +zcount +zscore +zremrangebyscore",
    home="readwrite.Reader",
    storage=Storage.TOKENS,
)

WRITER = Declaration(
    label="writer",
    listed="writer",
    plural=READER.plural,
    suffixes=READER.suffixes,
    rights=READER.rights,
    home="readwrite.Writer",
    storage=Storage.WRITER,
    waiters=("ZRANGE", b"\0rw\0waits"),
)

CONDITION = Declaration(
    plural="conditions",
    suffixes=(b"\0cond", b"\0cond\0calls", b"\0cond\0bell"),
    rights="+zadd +zrem +zrange +zscore +zremrangebyscore +exists",
)

LATCH = Declaration(
    plural="latches",
    suffixes=(b"\0latch", b"\0latch\0open"),
    rights="+zadd +zrem +zrange +zscore +zcard +strlen",
)

ALL = (PLAIN, FENCED, FAIR, SEMAPHORE, RATE_LIMIT, READER, WRITER, CONDITION, LATCH)

LISTED = {each.listed: each for each in ALL if each.listed}


def in_words(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), *words[-1:]] if words[1:] else words)


# The kinds that need scripts, as errors name them.
FAMILY = in_words(list(dict.fromkeys([each.plural for each in ALL if each.needs_scripts])))
