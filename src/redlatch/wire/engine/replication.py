"""Votes that count only once replicas have them (`synced`), so that a promoted replica forgets no lock.

A yes to a command that takes or extends a lock is kept back. One WAIT at the end of each flush covers all commands
before it on the connection; its reply lets the votes count, or fail as `NotReplicated`. WAIT blocks the connection, so
at most one is outstanding for each link, and its timeout is that of the attempts. After one has failed, commands that
take or extend a lock fail at once, and are not sent, until a short WAIT has succeeded.

How many replicas must have the writes is counted once a second, behind the commands of a flush. If there are more than
before, a WAIT under way is repeated.

Source: https://redis.io/docs/latest/commands/wait/
"""

from __future__ import annotations

from typing import Any

from redlatch.errors import NotReplicated
from redlatch.votes.units import MILLISECOND, SECOND, UNBOUNDED

# A link whose replicas lag is tried again after this time, with a WAIT of PROBE_MS.
PROBE_NS = 100 * MILLISECOND
PROBE_MS = 1

# For a ballot without a caller, such as an extension behind a hand-off.
DEFAULT_WAIT_MS = 100


class Sync:
    """The votes of one connection that wait for replicas.

    Args:
        wanted: how many replicas must have each vote; -1 for all that are connected.
        replicas: how many are connected.
    """

    def __init__(self, address: str, wanted: int, replicas: int, now_ns: int) -> None:
        self._address = address
        self._wanted = wanted
        self._connected = replicas
        self._counted_ns = now_ns
        self._unconfirmed: list[tuple[Any, Any]] = []
        # The number in the WAIT under way, or 0.
        self._asked = 0
        self._until_ns = 0
        self._writes = False
        self._lags = False
        self._probe_ns = 0

    def needed(self) -> int:
        return max(1, self._connected if self._wanted < 0 else self._wanted)

    def has(self, ballot: Any) -> bool:
        return any([each is ballot for each, _ in self._unconfirmed])

    def ballots(self) -> list[Any]:
        return [ballot for ballot, _ in self._unconfirmed]

    def first(self) -> tuple[Any, Any]:
        return self._unconfirmed[0]

    def forget_first(self) -> None:
        """Forget the first vote, after it was counted: an interrupt counts it twice rather than never."""
        del self._unconfirmed[0]

    def refuses(self, now_ns: int) -> NotReplicated | None:
        """Return why a command that must last is not sent now; None if it is."""
        if not self._lags:
            return None
        if now_ns >= self._probe_ns:
            self._writes = True
        return self._error(None)

    def note(self, until_ns: int) -> None:
        """Record that a command was staged whose vote must last. `until_ns` is 0 if it has no caller."""
        self._writes = True
        self._until_ns = max(self._until_ns, until_ns)

    def defer(self, ballot: Any, reply: Any) -> None:
        """Keep a vote back. A WAIT under way covers it, since replies come in order; else another one is to be sent."""
        self._unconfirmed.append((ballot, reply))
        if not self._asked:
            self.note(until_of(ballot))

    def waits(self) -> bool:
        """Return whether a WAIT is to be sent."""
        return self._writes and not self._asked

    def next_wait(self, now_ns: int) -> tuple[bool, int, int]:
        """Return whether to count the replicas, and the number and the timeout in ms of the next WAIT."""
        counts = self._wanted < 0 and now_ns - self._counted_ns >= SECOND
        if counts:
            self._counted_ns = now_ns
        timeout_ms = DEFAULT_WAIT_MS
        if self._until_ns:
            # The reply must come before the callers leave, and a server looks at timeouts ten times a second.
            left_ms = (self._until_ns - now_ns) // MILLISECOND
            timeout_ms = max(PROBE_MS, left_ms // 2, left_ms - 150)
        self._asked, self._writes, self._until_ns = self.needed(), False, 0
        return counts, self._asked, PROBE_MS if self._lags else timeout_ms

    def counted(self, replicas: int) -> None:
        self._connected = replicas

    def confirm(self, have: int, now_ns: int) -> tuple[int, NotReplicated | None]:
        """Take the reply to WAIT; return how many votes it decides, and why they fail, if they do."""
        asked, self._asked = self._asked, 0
        needed = self.needed()
        if asked <= have < needed:
            # Another replica has come meanwhile.
            self._writes, self._until_ns = True, now_ns + DEFAULT_WAIT_MS * MILLISECOND
            return 0, None
        self._lags = have < needed
        self._probe_ns = now_ns + PROBE_NS
        return len(self._unconfirmed), self._error(have) if self._lags else None

    def _error(self, have: int | None) -> NotReplicated:
        if self._wanted < 0 and not self._connected:
            return NotReplicated(f"{self._address} has no replica that could take over")
        needed, found = self.needed(), "" if have is None else f", {have} have the last writes"
        replicas = "replica" if needed == 1 else "replicas"
        return NotReplicated(f"{self._address}: {needed} {replicas} must have a lock before it counts{found}")


def until_of(ballot: Any) -> int:
    return 0 if ballot.until_ns >= UNBOUNDED else int(ballot.until_ns)
