"""End the holders of a lock on one server, with commands that every server has."""

from __future__ import annotations

from typing import Any

import redis
from redis.exceptions import AskError, TryAgainError

from redlatch.operate.locks import WRITES, Elsewhere, Grant, Unreadable, read
from redlatch.votes.kinds import LISTED, Storage
from redlatch.votes.label import owner_of

# Attempts to delete a key that others keep changing.
TRIES = 20

MOVES = "its slot is being moved, and only some of its keys: run this again when the move has ended"


def end(
    server: redis.Redis, key: bytes, tokens: frozenset[bytes], owner: str | None, elsewhere: Elsewhere | None = None
) -> int:
    """Delete the holders with these tokens from a master, each only while it still holds; return their number."""
    ended = 0
    for _ in range(TRIES):
        doomed = [
            grant
            for grant in read(server, key, elsewhere).grants
            if grant.token in tokens and (owner is None or owner_of(grant.token)[0] == owner)
        ]
        if not doomed:
            return ended
        try:
            ended += sum([_end_one(server, key, grant, elsewhere) for grant in doomed])
        except TryAgainError as error:
            raise Unreadable(MOVES) from error
    raise TimeoutError(f"others change the key all the time{'' if elsewhere is None else f', or {MOVES}'}")


def _end_one(server: redis.Redis, key: bytes, grant: Grant, elsewhere: Elsewhere | None) -> bool:
    try:
        return _end_here(server, key, grant)
    except AskError as error:
        if elsewhere is None or type(error) is not AskError:
            raise
        with elsewhere(error) as there:
            return _end_here(there, key, grant, asking=True)


def _end_here(server: redis.Redis, key: bytes, grant: Grant, asking: bool = False) -> bool:
    declared = LISTED[grant.kind]
    first, second, *_ = [*declared.keys_of(key), b""]
    where = first if declared.storage in (Storage.TOKEN, Storage.TOKENS) else second
    pipe: Any = server.pipeline()

    def ask() -> None:
        # It counts for the next command; before MULTI, for all up to EXEC.
        if asking:
            pipe.immediate_execute_command("ASKING")

    with pipe:
        try:
            ask()
            pipe.watch(where)
            ask()
            if declared.storage == Storage.SLOTS:
                held: bool = pipe.hget(where, grant.place) == grant.token
            elif declared.storage == Storage.TOKENS:
                held = pipe.zscore(where, grant.token) is not None
            else:
                held = pipe.get(where) == grant.token
            ask()
            pipe.multi()
            if held and declared.storage == Storage.TOKEN:
                pipe.delete(where)
            elif held and declared.storage == Storage.SLOTS:
                pipe.hdel(where, grant.place).zrem(first, grant.place)
            elif held and declared.storage == Storage.TOKENS:
                pipe.zrem(where, grant.token)
            elif held:
                pipe.delete(where).zrem(first, WRITES)
            pipe.execute()
        except redis.WatchError:
            return False
    return held
