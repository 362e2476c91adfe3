"""The link to one master: its connection, its FIFO of ballots, and the releases that it owes."""

from __future__ import annotations

from collections import deque
from typing import Any

from ...votes.ballot import Ballot
from ...votes.commands import FULL_TEXT, Command

# See `silence.SILENT_ROUNDS`.
SILENT_NS = 10_000_000


class Link:
    """The link to one master. Only the engine changes the FIFO.

    Attributes:
        index: the place of the link among all links of the client.
        voter: the number of the master, of which all nodes of a cluster are one.
        up: a link that is neither up nor being dialled votes "failed" at once.
        tail: the beginning of a line whose end has not come yet.
        pending: the ballots in the order of the sent commands. The entries before `head` are None.
        head: the index of the oldest ballot in `pending` that waits for its reply.
        cut: the number of ballots that were removed from the front of `pending`. `cut + head` replies have ever come.
        pushes: the number of further pushes that are accepted.
        parked: the ballots that came while the connection was being made.
        owed: the ballots on releases whose outcome is unknown, by key and token. Locks may share a chosen token.
        full_from: the number of the first command that was sent in full after scripts turned out to be missing, or -1.
        cause: why the link was down last.
        adopted_ns, lost_ns: when the last connection was adopted, and when one broke last; -1 if never.
        monitor, pulse: the guard's, if there is one.
        horizon_ms, raised_ns: the horizon that the master has acknowledged on this connection, and when.
        refused_ns: when it last answered a pulse with an error, or -1.
        raising: the last pulse that asked it to store a higher horizon, until its answer comes.
        suspected: True if ballots no longer wait for the votes of the master.
        missing_vote: the number of the command whose vote was missing at the suspicion; -1 after the vote has come.
        late_ns: the delay of its last late vote; 0 if it came so late that the master must have stopped.
        silent_ns: the shortest silence that makes the master suspected.
        sync: what confirms the votes of the master, if they must be on replicas (see `replication`); else None.
        sent, looked_at: the number of the last release, and of the last other command, with each key and token among
            the first `looked_at` commands.
        full_at: above its limit, a link with fewer replies at `full_ns` + STALL_NS counts as stopped.
    """

    def __init__(self, index: int, address: str, voter: int = -1) -> None:
        self.index = index
        self.voter = index if voter < 0 else voter
        self.address = address
        self.up = False
        self.dialling = True
        self.reader: Any = None
        self.tail = b""
        self.pending: list[Any] = []
        self.head = 0
        self.pushes = 0
        self.parked: deque[Ballot] = deque()
        self.owed: dict[tuple[bytes, bytes], Any] = {}
        self.traits: Any = None
        self.dialect = FULL_TEXT
        self.full_from = -1
        self.cause: BaseException | None = None
        self.adopted_ns = self.lost_ns = -1
        self.cut = 0
        self.monitor: Any = None
        self.pulse: Any = None
        self.horizon_ms = 0
        self.raised_ns = -1
        self.refused_ns = -1
        self.raising: Ballot | None = None
        self.suspected = False
        self.missing_vote = -1
        self.suspected_ns = 0
        self.late_ns = 0
        self.silent_ns = SILENT_NS
        self.sync: Any = None
        self.sent: dict[tuple[bytes, bytes, bool], int] = {}
        self.looked_at = 0
        self.full_at, self.full_ns = -1, 0

    def __repr__(self) -> str:
        return f"<Link {self.address} {'up' if self.up else 'dialling' if self.dialling else 'down'}>"

    def owing(self) -> int:
        return len(self.pending) - self.head

    def advance(self) -> None:
        # First: after an interrupt between the two lines there is still a ballot at the head.
        self.head += 1
        self.pending[self.head - 1] = None

    def cut_front(self) -> None:
        """Delete the entries before `head`. This copies the rest, so the engine does it rarely."""
        del self.pending[: self.head]
        self.cut += self.head
        self.head = 0

    def owe(self, ballot: Ballot, most: int) -> None:
        """Keep a release for the next connection; the oldest of more than `most` keys are left to their ttl."""
        owed = self.owed
        owed[ballot.command.key, ballot.command.token] = ballot
        if len(owed) > most:
            owed.pop(next(iter(owed)))

    def has_undone(self, command: Command) -> bool:
        """Return whether the release that undoes a command was already sent on this link."""
        if command.undo() is None:
            return False
        return self._sent(command, True)

    def may_execute(self, release: Command) -> bool:
        """Return whether a command that a release undoes was sent on this link, and is not answered yet."""
        return self._sent(release, False)

    def _sent(self, command: Command, releases: bool) -> bool:
        """Return whether a release, or another command, with the key and the token of this one is not answered yet."""
        first, end = self.cut + self.head, self.cut + len(self.pending)
        if self.looked_at < first:
            self.sent, self.looked_at = {}, first
        # Each entry once: a slot that moves sends all commands on its way back, one by one.
        while self.looked_at < end:
            sent = self.pending[self.looked_at - self.cut].command
            self.sent[sent.key, sent.token, bool(sent.releases)] = self.looked_at
            self.looked_at += 1
        if len(self.sent) > 2 * len(self.pending):
            self.sent = {which: place for which, place in self.sent.items() if place >= first}
        return bool(self.sent.get((command.key, command.token, releases), -1) >= first)

    def waits_for(self, ballot: Ballot) -> bool:
        unconfirmed = self.sync is not None and self.sync.has(ballot)
        return unconfirmed or ballot in self.pending[self.head :] or ballot in self.parked

    def unexpected(self, reply: Any, what: str = "") -> ConnectionError:
        """Return why the connection is closed after an unexpected reply."""
        described = self.traits.described(reply)
        return ConnectionError(f"{self.address} answered with {described}{what}; the connection was closed")
