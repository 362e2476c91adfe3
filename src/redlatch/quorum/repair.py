"""Repair: set the key of a held lock again on the masters that lack it, so that a lock gets back a lost vote.

An extension never creates a key. Without repairs, a lock that is held for long would only lose votes.

Rules:
  * A repair follows an extension that a quorum has granted in time. Without a quorum, another holder may have had the
    lock meanwhile.
  * It goes only to masters that have answered this extension with "no", on the same connection. A master that is kept
    out has no such connection, and a master that has answered knows the ttl (rule G3 of the guard).
  * It sets the key only where it is missing, with the token of the lease. A rival keeps its vote.
  * The key lives at most as long as the extension asked for, counted from when the extension began.
  * The engine decides on it when it counts the vote, in the thread that drives the sockets. The lease must then still
    be held. A release leaves later, on the same connections, and so deletes the key.
  * It is no vote. The next extension asks the master again.
  * Each renewal wakes the waiters of other clients, who hold the missing key for a moment. So a repair that is refused
    is sent again at once, at most MOST times.
  * No repair is sent for a token that was given to a user: a release from anywhere could come before it.
"""

from __future__ import annotations

from ..votes.commands import BY_SHA, FULL_TEXT, LACKS, NEVER, Command
from ..votes.units import MILLISECOND
from .claim import HELD
from .hold import Hold
from .lease import Lease
from .quorum import Quorum

MOST = 8


class Extension(Command):
    __slots__ = ("_began_ns", "_extend", "_hold", "_quorum", "_repairs")

    def __init__(self, quorum: Quorum, hold: Hold, ttl_ms: int, now_ns: int) -> None:
        extend: Command = hold.extending_to(ttl_ms, now_ns)
        self._concern(extend.key, extend.token, now_ns)
        self.ttl_ms = ttl_ms
        self.meaning = LACKS
        self.no = NEVER
        self._extend = extend
        self._quorum = quorum
        self._hold = hold
        self._began_ns = now_ns
        self._repairs = 0

    def payload(self, dialect: int) -> bytes:
        return self._extend.payload(dialect)

    def expects(self, answer: int) -> bool:
        return answer == 0

    def repair(self, index: int, now_ns: int) -> Command | None:
        hold: Hold = self._hold
        lease: Lease = hold.lease
        left_ms: int = self.ttl_ms - (now_ns - self._began_ns) // MILLISECOND - 1
        if lease.token is not self.token or left_ms <= 0 or lease.since_ns < 0:
            return None
        began_ns, lacking = hold.lacking
        hold.lacking = self._began_ns, (lacking if began_ns == self._began_ns else 0) | 1 << index
        # The kind may belong to a later attempt by now. So the command is made before the check.
        command = Repair(hold.kind.repairing(hold.key, lease, left_ms))
        if (
            self._quorum.doubts.cover(self._began_ns, hold.key)
            or hold.lost_ns >= self._began_ns
            or self._repairs == MOST
        ):
            return None
        self._repairs += 1
        lease = hold.lease
        if hold.state != HELD or lease.token is not self.token or now_ns >= lease.deadline_ns or hold.token_exposed:
            return None
        # There was no call since the check of the state: a release that begins now is sent after this command.
        return command


class Repair(Command):
    """The command that sets a key again where it is missing.

    It calls no script by its SHA: the full text might be sent again behind a release. It is not undone when the client
    is closed, since the lock may still be held.
    """

    __slots__ = ("_set",)

    def __init__(self, command: Command) -> None:
        self._concern(command.key, command.token, command.since_ns)
        self.yes = command.yes
        self.yes_line = command.yes_line
        self.no = command.no
        self.meaning = command.meaning
        self._set = command

    def payload(self, dialect: int) -> bytes:
        return self._set.payload(FULL_TEXT if dialect == BY_SHA else dialect)

    def expects(self, answer: int) -> bool:
        return self._set.expects(answer)
