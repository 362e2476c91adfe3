"""Moving one slot of an embedded cluster, key by key or at once.

Two changes at a time can undo each other: the owner of the later epoch claims all its slots again, as it knows them. So
`Cluster` makes one change at a time. But nodes promote a replica by themselves, too, and then the claim is repeated.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence

import redis

from redlatch.errors import ConfigurationError
from redlatch.testing.groups import port_of
from redlatch.testing.nodes import Nodes
from redlatch.testing.topology import wait_for

__all__ = ["Move"]

# The keys in one MIGRATE.
TOGETHER = 100

MIGRATE_MILLISECONDS = 3000

MOVE_SECONDS = 30.0

CLAIM_SECONDS = 0.5


class Move:
    """The way of one slot from the node that owns it to a shard."""

    def __init__(self, nodes: Nodes, slot: int, shard: int, password: str) -> None:
        self.slot = slot
        self.shard = shard
        self._nodes = nodes
        self._source = nodes.owner(slot)
        self._target = nodes.primary(shard)
        self._login = ["AUTH", password] if password else []

    def open(self) -> None:
        """Make the source answer with ASK for a key that it does not have."""
        self._set(self._target, "IMPORTING", self._nodes.ids[self._source])
        try:
            self._set(self._source, "MIGRATING", self._nodes.ids[self._target])
        except redis.RedisError:
            with contextlib.suppress(redis.RedisError):
                self._set(self._target, "STABLE")
            raise

    def carry(self, keys: Sequence[str | bytes] = ()) -> None:
        """Move these keys, or all."""
        port = port_of(self._nodes.servers.urls[self._target])
        some = keys or self._some_keys()
        while some:
            words = ("MIGRATE", "127.0.0.1", port, "", 0, MIGRATE_MILLISECONDS, *self._login, "KEYS", *some)
            self._nodes.ask(self._source, *words)
            some = () if keys else self._some_keys()

    def finish(self) -> None:
        """Move all keys, make the target the owner, and wait until all living nodes see it."""
        if self._source != self._target:
            # A fail-over of one of both shards may have ended this state.
            self.open()
            self.carry()
        name = self._nodes.ids[self._target]
        # If the source was first, and the target died then, the slot would have no owner.
        self._set(self._target, "NODE", name)
        for node in (self._source, *self._nodes.living):
            # Replicas refuse, and follow their primary.
            with contextlib.suppress(redis.RedisError):
                self._set(node, "NODE", name)
        self._settle()

    def cancel(self) -> None:
        # The source would serve the slot without the keys, until they have come back.
        if moved := self._nodes.ask(self._target, "CLUSTER", "COUNTKEYSINSLOT", self.slot):
            raise RuntimeError(f"node {self._target} has {moved} keys of slot {self.slot} already: finish the move")
        for node in (self._source, self._target):
            self._set(node, "STABLE")

    def at_once(self) -> None:
        """Let the servers move the slot with its keys, and wait until all living nodes know it."""
        words = ("SLOTSRANGE", self.slot, self.slot, "NODE", self._nodes.ids[self._target])
        try:
            before = set(self._exports())
            self._nodes.ask(self._source, "CLUSTER", "MIGRATESLOTS", *words)
        except redis.ResponseError as error:
            if "unknown subcommand" in str(error).lower():
                problem = f"atomic=True needs Valkey 9 or later, and node {self._source} says {error}"
                raise ConfigurationError(problem) from error
            raise
        try:
            wait_for(lambda: self._unfinished(before), MOVE_SECONDS, f"slot {self.slot} was not moved")
        except TimeoutError:
            with contextlib.suppress(redis.RedisError):
                self._nodes.ask(self._source, "CLUSTER", "CANCELSLOTMIGRATIONS")
            raise
        self._settle()

    def _set(self, node: int, *words: str) -> None:
        self._nodes.ask(node, "CLUSTER", "SETSLOT", self.slot, *words)

    def _some_keys(self) -> list[bytes]:
        keys: list[bytes] = self._nodes.ask(self._source, "CLUSTER", "GETKEYSINSLOT", self.slot, TOGETHER)
        return keys

    def _exports(self) -> dict[str, dict[str, str]]:
        """Return the atomic moves that the source knows, by their names."""
        replies = self._nodes.ask(self._source, "CLUSTER", "GETSLOTMIGRATIONS")
        texts = [[word.decode() if isinstance(word, bytes) else str(word) for word in reply] for reply in replies]
        jobs = [dict(zip(words[::2], words[1::2], strict=True)) for words in texts]
        return {job["name"]: job for job in jobs if job["operation"] == "EXPORT"}

    def _unfinished(self, before: Collection[str]) -> str:
        """Return in words what the new atomic move does; an empty string if it has succeeded."""
        for name, job in self._exports().items():
            if name not in before:
                seen = f"node {self._source} says {job['state']} {job['message']}".rstrip()
                if job["state"] in ("failed", "cancelled"):
                    raise RuntimeError(f"slot {self.slot} was not moved: {seen}")
                return "" if job["state"] == "success" else seen
        return f"node {self._source} knows no move of it"

    def _settle(self) -> None:
        """Wait until all living nodes see the shard as the owner."""
        claim_at = time.monotonic() + CLAIM_SECONDS

        def look() -> str:
            nonlocal claim_at
            seen = self._nodes.unmoved(self.slot, self.shard)
            if seen and time.monotonic() >= claim_at:
                claim_at = time.monotonic() + CLAIM_SECONDS
                seen += self._claim()
            return seen

        wait_for(look, MOVE_SECONDS, f"shard {self.shard} does not own slot {self.slot}")

    def _claim(self) -> str:
        """Make the primary of the shard claim the slot with a new epoch."""
        primary = self._nodes.primary(self.shard)
        name = self._nodes.ids[primary]
        try:
            if (owner := self._nodes.owner(self.slot, [primary])) == primary:
                self._nodes.ask(primary, "CLUSTER", "BUMPEPOCH")
            else:
                # Without this state, the server would not take a new epoch.
                self._set(primary, "IMPORTING", self._nodes.ids[owner])
                self._set(primary, "NODE", name)
        except (redis.RedisError, RuntimeError) as error:
            return f"; node {primary} says {error}"
        return ""
