"""Watches: keys whose changes the masters push to this client, and the ballots that wait for these pushes.

A waiter asks the masters about a key, and each master that still has the key pushes its next change. Masters push no
change that this client makes itself. So all code of this client that deletes a key calls `notify`.

A ballot is called in two steps: first `decided` is set, then the ballot is appended to `called`. Any thread may take a
ballot from `called`, and the sleeper that it wakes must find `decided` set. There is no call between the two steps, so
no interrupt can separate them. The driver for threads removes the ballot from `called` after it has woken the waiter.

Compiled as `redlatch._c.quorum.waiting.watches`, too (see `redlatch._c`).
"""

from __future__ import annotations

from collections import deque

from ...votes.ballot import Ballot


class Watches:
    """All watches of one client.

    Args:
        called: receives each ballot that is decided here; the driver wakes its waiter.

    Attributes:
        by_key: the ballots that watch each key.
    """

    __slots__ = ("by_key", "called")

    def __init__(self, called: deque[Ballot]) -> None:
        self.by_key: dict[bytes, list[Ballot]] = {}
        self.called = called

    def add(self, key: bytes, ballot: Ballot) -> None:
        """Let a ballot watch a key."""
        while True:
            ballots = self.by_key.setdefault(key, [])
            ballots.append(ballot)
            # Another thread may have removed the list since `setdefault` returned it.
            if self.by_key.get(key) is ballots:
                return

    def remove(self, key: bytes, ballot: Ballot) -> None:
        """End a watch, if it has not ended."""
        ballots = self.by_key.get(key)
        if ballots is not None and ballot in ballots:
            ballots.remove(ballot)
            try:
                # There is no call between this check and the deletion: otherwise another thread could add a ballot.
                if not ballots and self.by_key[key] is ballots:
                    del self.by_key[key]
            except KeyError:
                pass  # another thread was faster

    def changed(self, index: int, key: bytes | None) -> None:
        """Count a push of master `index`: the key has changed; None stands for all keys."""
        for watched in [key] if key is not None else list(self.by_key):
            for ballot in list(self.by_key.get(watched, ())):
                if ballot.change(index):
                    # `change` has set `decided`.
                    self.called.append(ballot)

    def notify(self, key: bytes) -> None:
        """Call the ballots that watch a key which this client is about to change."""
        if self.by_key:
            for ballot in list(self.by_key.get(key, ())):
                self.call(ballot)

    def notify_all(self) -> None:
        """Call all ballots, because a connection broke and pushes of its master may be lost."""
        for key in list(self.by_key):
            self.notify(key)

    def everybody(self) -> list[Ballot]:
        """Return all ballots; for a client that closes."""
        return [ballot for ballots in list(self.by_key.values()) for ballot in list(ballots)]

    def call(self, ballot: Ballot) -> None:
        """Decide a ballot and have the driver wake its waiter."""
        # A watch that begins only now must end at once, too.
        ballot.yes = max(ballot.yes, ballot.quorum)
        if not ballot.decided:
            ballot.decided = True
            self.called.append(ballot)
