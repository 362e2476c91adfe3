"""Watches: ballots that ask the masters about a key, and then wait for pushes of its change.

A waiter asks the masters about a key, and each master that still has the key pushes its next change. Masters push no
change that this client makes itself. So all code of this client that deletes a key calls `notify`.

A watch is called in two steps: first `decided` is set, then the watch is appended to `called`. Any thread may take a
watch from `called`, and the sleeper that it wakes must find `decided` set. There is no call between the two steps, so
no interrupt can separate them. The driver for threads removes the watch from `called` after it has woken the waiter.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from ...votes.ballot import Ballot
from ...votes.commands import GONE, Command

if TYPE_CHECKING:
    from ..quorum import Quorum

# The time to live that is assumed for a key without a ttl: 35 years.
FOREVER_MS = 1 << 40


class Watch(Ballot):
    """A ballot that asks about a key, and then waits for pushes of the masters that have the key.

    A push turns the "no" of its master into a "yes". Until `reopen` is called, the votes decide, as in any ballot.
    """

    __slots__ = ()

    def settled_again(self) -> bool:
        """Return whether a quorum of masters voted yes or has pushed a change."""
        return self.yes >= self.quorum

    def watchable(self) -> bool:
        """Return whether a quorum of masters voted yes or will push a change of the key."""
        return self.yes + (0 if self.answers is None else len(self.answers)) >= self.quorum

    def left_ns(self) -> int:
        """Return in how many nanoseconds enough watched keys expire for a quorum of yes votes.

        Returns 0 if no yes vote is missing, or if fewer keys are watched than yes votes are missing.
        """
        # Copy the values in one call, because another thread may add an answer at any time.
        answers = list((self.answers or {}).values())
        left = sorted([answer if answer >= 0 else FOREVER_MS for answer in answers])
        missing = self.quorum - self.yes
        return left[missing - 1] * 1_000_000 if 0 < missing <= len(left) else 0

    def standing(self) -> int:
        """Count the masters that had the key when they were asked and that will push its next change."""
        return sum([answer != GONE for answer in list((self.answers or {}).values())])

    def change(self, index: int) -> bool:
        """Turn the "no" of a master that pushed a change into a "yes"; return whether that decides the watch."""
        if self.answers is None or self.answers.pop(index, None) is None:
            return False
        self.no -= 1
        self.yes += 1
        if self.decided or self.yes < self.quorum:
            return False
        self.decided = True
        return True


def new_watch(quorum: Quorum, command: Command, until_ns: int) -> Watch:
    watch: Watch = Watch.__new__(Watch)
    watch._begin(command, quorum.size, quorum.majority, until_ns)
    return watch


class Watches:
    """All watches of one client.

    Args:
        called: receives each watch that is decided here; the driver wakes its waiter.

    Attributes:
        held: the watched keys of held locks; None until there are any (see `key_watch`).
        polls: whether waiters poll, because fewer masters than a quorum push changes.
    """

    __slots__ = ("by_key", "called", "held", "polls")

    def __init__(self, called: deque[Any]) -> None:
        self.by_key: dict[bytes, list[Watch]] = {}
        self.called = called
        self.held: Any = None
        self.polls = False

    def add(self, key: bytes, watch: Watch) -> None:
        while True:
            watches = self.by_key.setdefault(key, [])
            watches.append(watch)
            # Another thread may have removed the list since `setdefault` returned it.
            if self.by_key.get(key) is watches:
                return

    def remove(self, key: bytes, watch: Watch) -> None:
        watches = self.by_key.get(key)
        if watches is not None:
            # It is not there if an interrupt struck in `add`, which may have left an empty list.
            if watch in watches:
                watches.remove(watch)
            try:
                # There is no call between this check and the deletion: otherwise another thread could add a watch.
                if not watches and self.by_key[key] is watches:
                    del self.by_key[key]
            except KeyError:
                # Another thread was faster.
                pass

    def connected(self, fleet: Any) -> bool:
        """Record which masters are connected; return whether to attend to held locks at once."""
        self.polls = not fleet.quorum_pushes()
        return self.held is not None and self.held.connected([link.traits for link in fleet.links if link.up])

    def changed(self, index: int, key: bytes | None) -> bool:
        """Count a push of master `index`: the key has changed; None stands for all keys.

        Returns:
            Whether a held lock may be lost, so that the driver must attend at once.
        """
        for watched in [key] if key is not None else list(self.by_key):
            for watch in list(self.by_key.get(watched, ())):
                if watch.change(index):
                    # `change` has set `decided`.
                    self.called.append(watch)
        return self.held is not None and self.held.changed(index, key)

    def notify(self, key: bytes) -> None:
        """Call the watches on a key that this client is about to change."""
        if self.by_key:
            for watch in list(self.by_key.get(key, ())):
                self.call(watch)

    def notify_all(self) -> None:
        """Call all watches, because a connection broke and pushes of its master may be lost."""
        for key in list(self.by_key):
            self.notify(key)

    def everybody(self) -> list[Watch]:
        """Return all watches; for a client that closes."""
        return [watch for watches in list(self.by_key.values()) for watch in list(watches)]

    def call(self, watch: Watch) -> None:
        """Decide a watch and have the driver wake its waiter."""
        # A watch that begins only now must end at once, too.
        watch.yes = max(watch.yes, watch.quorum)
        if not watch.decided:
            watch.decided = True
            self.called.append(watch)
