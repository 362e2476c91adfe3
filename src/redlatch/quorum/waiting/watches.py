"""Watches: ballots that ask the masters about a key, and then wait for pushes of its change.

Masters push no change that this client makes itself. So all code of this client that deletes a key calls `notify`.

A watch is called in two steps: first `decided` is set, then the watch is appended to `called`. Any thread may take it
from there, and the sleeper that it wakes must find `decided` set. There is no call between the two steps, so no
interrupt can separate them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...votes.ballot import Ballot
from ...votes.commands import GONE, Command
from ...votes.key import slot_of

if TYPE_CHECKING:
    from ..quorum import Quorum

# The ttl that is assumed for a key without one: 35 years.
FOREVER_MS = 1 << 40


class Watch(Ballot):
    """A ballot that asks about a key. Once reopened, it waits for pushes, which turn a "no" into a "yes"."""

    __slots__ = ()

    def settled_again(self) -> bool:
        return self.yes >= self.quorum

    def watchable(self) -> bool:
        """Return whether a quorum voted yes or will push a change of the key."""
        return self.yes + (0 if self.answers is None else len(self.answers)) >= self.quorum

    def left_ns(self) -> int:
        """Return in how many nanoseconds enough watched keys expire for a quorum.

        0 if no yes is missing, or too few keys are watched.
        """
        # A copy: another thread may add an answer meanwhile.
        answers = list((self.answers or {}).values())
        left = sorted([answer if answer >= 0 else FOREVER_MS for answer in answers])
        missing = self.quorum - self.yes
        return left[missing - 1] * 1_000_000 if 0 < missing <= len(left) else 0

    def standing(self) -> int:
        return sum([answer != GONE for answer in list((self.answers or {}).values())])

    def change(self, index: int) -> bool:
        """Count a push of a master; return whether that decides the watch."""
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


def in_slots(keys: list[bytes], slots: frozenset[int] | None) -> list[bytes]:
    return keys if slots is None else [key for key in keys if slot_of(key) in slots]


class Watches:
    """All watches of one client.

    Attributes:
        called: receives each watch that is decided; the driver wakes its waiter.
        held: the watched keys of held locks (see `key_watch`); None until there are any.
        polls: whether waiters poll, because fewer masters than a quorum push changes.
    """

    __slots__ = ("by_key", "called", "held", "polls")

    def __init__(self, called: list[Any]) -> None:
        self.by_key: dict[bytes, list[Watch]] = {}
        self.called = called
        self.held: Any = None
        self.polls = False

    def add(self, key: bytes, watch: Watch) -> None:
        while True:
            watches = self.by_key.setdefault(key, [])
            watches.append(watch)
            # Otherwise another thread has removed the list.
            if self.by_key.get(key) is watches:
                return

    def remove(self, key: bytes, watch: Watch) -> None:
        watches = self.by_key.get(key)
        if watches is not None:
            # It is not there if an interrupt struck in `add`, which may have left an empty list.
            if watch in watches:
                watches.remove(watch)
            try:
                # No call may come between this check and the deletion: another thread could add a watch.
                if not watches and self.by_key[key] is watches:
                    del self.by_key[key]
            except KeyError:
                # Another thread was faster.
                pass

    def connected(self, fleet: Any) -> bool:
        """Record which masters are connected; return whether to attend to held locks at once."""
        self.polls = not fleet.quorum_pushes()
        return self.held is not None and self.held.connected([link.traits for link in fleet.links if link.up])

    def changed(self, index: int, key: bytes | frozenset[int] | None) -> bool:
        """Count a push of a master, of one key, of the keys of some slots or of all; return whether to attend."""
        for watched in [key] if isinstance(key, bytes) else in_slots(list(self.by_key), key):
            for watch in list(self.by_key.get(watched, ())):
                if watch.change(index):
                    self.called.append(watch)
        return self.held is not None and self.held.changed(index, key)

    def notify(self, key: bytes) -> None:
        """Call the watches on a key that this client is about to change."""
        if self.by_key:
            for watch in list(self.by_key.get(key, ())):
                self.call(watch)

    def notify_all(self) -> None:
        # A connection broke, and pushes of its master may be lost.
        for key in list(self.by_key):
            self.notify(key)

    def everybody(self) -> list[Watch]:
        return [watch for watches in list(self.by_key.values()) for watch in list(watches)]

    def call(self, watch: Watch) -> None:
        # A watch that begins only now must end at once, too.
        watch.yes = max(watch.yes, watch.quorum)
        if not watch.decided:
            watch.decided = True
            self.called.append(watch)
