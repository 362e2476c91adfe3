"""The watch on the keys of held locks: the masters push a change of a key, and the holder asks whether the key is gone.

Only locks whose user wants to hear of a loss are watched (`Upkeep.asked`). A question asks every master whether the key
still has the lease's token, and has the master push its next change. The answers decide, never a push: another client
may only have touched the key. The lock is lost if no quorum can have the token.

A server stops tracking a key as soon as any client changes it, and pushes nothing for changes on our own connection. So
a question follows each extension, each push that may mean a loss, and each new connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

from redlatch.errors import MasterQuarantined
from redlatch.loss import KEY_GONE
from redlatch.quorum.hold import Hold
from redlatch.quorum.quorum import Quorum
from redlatch.quorum.waiting.watches import in_slots
from redlatch.votes.ballot import Ballot
from redlatch.votes.commands import TRACKED
from redlatch.votes.units import MILLISECOND, SECOND, UNBOUNDED

# A lock that is released before this time costs no question.
FIRST_NS = 50 * MILLISECOND

# The pause after a push that meant no loss. It doubles with each such push, up to a twelfth of the ttl: at most four
# questions for each renewal. New connections count as such pushes, because a master whose connection breaks all the
# time must not burden the others.
PAUSE_NS = 50 * MILLISECOND
PAUSES_IN_TTL = 12

# A question without a verdict is repeated after at least this time.
AGAIN_NS = SECOND

SLACK = 64


class KeyWatch:
    """The watch on the key of one lease.

    The thread that attends changes it, except that `change` runs in the thread that drives the sockets, and `ask` in
    the one that puts the question.

    Attributes:
        alarmed: whether pushes may mean that the lock is lost, and nothing has followed from that yet.
        ballot: the last question; None while the next one is about to be sent.
        pushed: the masters that have pushed a change since the last question began, as a bit mask.
    """

    __slots__ = ("_by_push", "_longest_ns", "_pause_ns", "_rest_ns", "alarmed", "asking", "ballot", "due_ns", "pushed")

    def __init__(self, ttl_ms: int, due_ns: int) -> None:
        self.due_ns = due_ns
        self.alarmed = self.asking = False
        self.ballot: Ballot | None = None
        self.pushed = 0
        self._longest_ns = max(PAUSE_NS, ttl_ms * MILLISECOND // PAUSES_IN_TTL)
        self._pause_ns = PAUSE_NS
        self._rest_ns = 0
        self._by_push = False

    def ask_by(self, due_ns: int) -> None:
        self.due_ns = min(self.due_ns, max(due_ns, self._rest_ns))

    def ask_now(self) -> None:
        """Ask without a pause: under a frozen clock, a pause does not end."""
        self._rest_ns = self.due_ns = 0

    def look_ns(self) -> int:
        return UNBOUNDED if self.asking else self.due_ns

    def is_due(self, now_ns: int) -> bool:
        """Return whether to ask now. After an interrupt, the question is due again later."""
        if self.asking or self.due_ns > now_ns:
            return False
        self.due_ns = now_ns + AGAIN_NS
        return True

    def begin(self, now_ns: int) -> None:
        self.asking = True
        # The answers to the last question say nothing about this one, which may never be sent.
        self.ballot = None
        self.due_ns = UNBOUNDED
        if self._by_push:
            self._by_push = False
            self._rest_ns = now_ns + self._pause_ns
            self._pause_ns = min(2 * self._pause_ns, self._longest_ns)
        elif self._rest_ns <= now_ns:
            self._pause_ns = max(PAUSE_NS, self._pause_ns // 2)

    def ask(self, ballot: Ballot) -> Ballot:
        # First, so that pushes from now on count.
        self.pushed = 0
        self.ballot = ballot
        return ballot

    def change(self, index: int) -> bool:
        self.pushed |= 1 << index
        return not self.asking and self.short()

    def short(self) -> bool:
        """Return whether fewer than a quorum are known to have the key and have not pushed."""
        ballot = self.ballot
        return ballot is not None and ballot.yes - self.pushed.bit_count() < ballot.quorum

    def conclude(self, now_ns: int) -> bool:
        self.asking = False
        ballot = self.ballot
        if ballot is None or ballot.yes < ballot.quorum:
            self.ask_by(now_ns + max(AGAIN_NS, self._longest_ns))
            return ballot is not None and ballot.refused()
        if self.short():
            self.alarm(now_ns)
        return False

    def alarm(self, now_ns: int) -> None:
        self.alarmed = False
        self._by_push = True
        self.ask_by(now_ns)


class KeyWatches:
    """The watched keys of one client.

    `changed` and `connected` are called by the thread that drives the sockets, `conclude` and `watching` by any thread,
    all others by the thread that attends.
    """

    def __init__(self, watches: Any) -> None:
        self._watches = watches
        self.possible = True
        self._by_key: dict[bytes, tuple[Any, ...]] = {}
        self._alarmed: deque[Any] = deque()
        self._ended: deque[list[Any]] = deque()
        self._connections: list[Any] = []
        self._reconnected = False
        self._due: list[Any] = []
        self._most = SLACK
        self._witness: Any = None

    # --- what the masters push ---------------------------------------------------------------------

    def changed(self, index: int, key: bytes | frozenset[int] | None) -> bool:
        """Record a push of a key, of the keys of some slots or of all; return whether to attend at once."""
        for watched in [key] if isinstance(key, bytes) else in_slots(list(self._by_key), key):
            for term in self._by_key.get(watched, ()):
                if term.cared_for() and term.watch.change(index) and not term.watch.alarmed:
                    term.watch.alarmed = True
                    self._alarmed.append(term)
        return bool(self._alarmed)

    def connected(self, connections: list[Any]) -> bool:
        """Record the connections; a master tracks no key on a new one. Return whether to attend at once."""
        new = [connection for connection in connections if connection not in self._connections]
        self._connections = connections
        self._reconnected = self._reconnected or bool(new)
        return self._reconnected and bool(self._by_key)

    def ask_now(self) -> None:
        for terms in list(self._by_key.values()):
            for term in terms:
                term.watch.ask_now()
                self._alarmed.append(term)

    # --- the watched leases ------------------------------------------------------------------------

    def begin(self, term: Any, now_ns: int) -> None:
        hold = term.hold
        # None if the key changes with other holders, too.
        key: bytes | None = hold.kind.watched(hold.key) if self.possible else None
        if key is None:
            return
        self._watches.held = self
        if len(self._by_key) > self._most:
            for other, terms in list(self._by_key.items()):
                if not any([one.cared_for() for one in terms]):
                    del self._by_key[other]
            self._most = SLACK + 2 * len(self._by_key)
        watch = KeyWatch(term.upkeep.ttl_ms, now_ns + FIRST_NS)
        # First: `changed` finds the watch of each lease in the table.
        term.watch = watch
        self._by_key[key] = (*[other for other in self._by_key.get(key, ()) if other.cared_for()], term)

    def watching(self) -> bool:
        """Return whether any key is watched.

        This runs after each event of a socket. So it looks at all leases only when the one that it found last ends, the
        newest first, because they usually live longest.
        """
        witness = self._witness
        if witness is None or not witness.cared_for():
            newest = reversed(list(self._by_key.values()))
            self._witness = witness = next((term for terms in newest for term in terms if term.cared_for()), None)
        return witness is not None

    def plan(self, term: Any, now_ns: int) -> None:
        if term.watch is not None and term.watch.is_due(now_ns) and not self._watches.polls:
            self._due.append(term)

    def take_due(self) -> list[Any]:
        due, self._due = self._due, []
        return due

    def conclude(self, asked: list[Any]) -> None:
        self._ended.append(asked)

    def take_news(self, now_ns: int) -> list[Any]:
        news: list[Any] = []
        while self._ended:
            for term in self._ended[0]:
                if term.watch.conclude(now_ns) and term.live():
                    term.lose(KEY_GONE, now_ns)
                news.append(term)
            self._ended.popleft()
        while self._alarmed:
            term = self._alarmed[0]
            term.watch.alarm(now_ns)
            news.append(term)
            self._alarmed.popleft()
        if self._reconnected:
            self._reconnected = False
            again = [term for terms in list(self._by_key.values()) for term in terms]
            for each in again:
                each.watch.alarm(now_ns)
            news += again
        return news


def beyond_proof(quorum: Quorum, hold: Hold, causes: Collection[tuple[str, BaseException]]) -> bool:
    """Return whether a lease in doubt can never be verified before its deadline.

    That is so if masters without which there is no quorum are kept out until then, and the vote of one of them is in
    doubt: it is kept out because it has forgotten locks, so the doubt stays.
    """
    deadline_ns = hold.deadline_ns
    out = {name for name, why in causes if isinstance(why, MasterQuarantined) and why.until_ns >= deadline_ns}
    doubted = {name for index, name in enumerate(quorum.masters) if quorum.doubts.of(index, hold.lease.asked_ns)}
    return len(out) > quorum.size - quorum.majority and bool(out & doubted)


def question(quorum: Quorum, term: Any) -> Ballot:
    hold, now_ns = term.hold, quorum.clock.now()
    command = hold.kind.owned(hold.key, hold.lease)
    command.meaning = TRACKED
    ballot: Ballot = term.watch.ask(quorum.ballot(command, now_ns + quorum.wait_ns(term.upkeep.ttl_ms)))
    return ballot
