"""The oracle of reports: a holder hears of every loss, once, and no call returns as if a lost lock were held.

The world knows when a lock really ended: when its validity was over by its holder's clock, or when another holder was
granted it. A call that began later must not return as if the lock were held. What the client knows plays no part; the
commands that the masters executed do:

* No such call returns if the validity was over when it began, or after `on_lost` was called or an extension raised
  LockLost.
* If another holder had been granted the lock when the call began, an extension or `owned` returns only if a quorum of
  masters said yes to the token meanwhile: masters that have forgotten the other holder.
* Then a release returns only if so few masters said no that a quorum was still possible. One no is not known to be
  one: that to a second copy of a release, from the memory that was behind the connection of the first copy, as its
  handshake said. And one that was still in transit does not count: a release that a quorum has answered does not wait
  for a master that is silent. A release that does not wait for answers returns, but a report follows, if they are read
  before the deadline. Nor does a "no" count if the same master has said "yes" to an earlier copy of the release.
* `check` asks no master. It knows of another holder where exclusion is promised; `alone` has its rule for one master.
* No loss is reported twice to `on_lost`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redlatch import LockLost, QuorumUnavailable
from redlatch.quorum.claim import UNCONFIRMED
from redlatch.testing.memory.lua import Refusal, Status

from .grants import Grant, certain
from .parts import EXCLUSIVE, FAMILIES, PERMITS
from .world import MILLISECOND, SECOND, World

if TYPE_CHECKING:
    from .host import Host
    from .master import Master

# Grants, each with its lock object.
Pairs = list[tuple[Grant, Any]]

# After which time a process has read an answer that no caller waits for (`redlatch.drivers.background.PERIOD`).
READ_NS = 300 * MILLISECOND

# For how long a connection must have stood, so that the answers to a release which does not wait have arrived.
ANSWERED_NS = 2 * SECOND


@dataclass(eq=False)
class Call:
    """One call of a holder.

    Attributes:
        what: its name.
        host, grant, lock: the process that calls, its grant, and the lock object.
        began, ended: when the call began, and returned as if the lock were held; -1 if it did not.
        over: whether the validity was over when it began.
        waits: whether it waits for the masters' answers.
        until: the world's time of the deadline. A no that is read later may be that of a key that has expired.
        asked: for each master, its connection when the call began, and the memory that was behind it when it was made.
        copy: the release that is called again, or None.
        unknown: the masters whose "no" may be the echo of a yes whose answer was lost, or was still in transit when the
            call ended.
    """

    what: str
    host: Host
    grant: Grant
    lock: Any
    began: int
    over: bool
    waits: bool
    until: int
    ended: int = -1
    asked: dict[int, tuple[object, int]] = field(default_factory=dict)
    copy: Any = None
    unknown: frozenset[int] = frozenset()

    def __str__(self) -> str:
        return f"{self.what} at {self.began / MILLISECOND:.6f} ms returned as if {self.grant} were held"


class Reports:
    """Records the calls of holders and what they are told, and judges it.

    Args:
        quorum: of the masters.
        trusty: whether mutual exclusion is promised.
    """

    def __init__(self, world: World, masters: list[Master], quorum: int, trusty: bool) -> None:
        self._world = world
        self._masters = masters
        self._quorum = quorum
        self._trusty = trusty
        self._calls: list[Call] = []
        # By token: when which master said yes to it, or no, since the first call for it.
        self._answers: dict[bytes, list[tuple[int, int, bool]]] = {}
        # The lock objects and tokens for which `on_lost` was called.
        self._reported: set[tuple[int, bytes]] = set()
        # When the loss was told first, by `on_lost` or the error of an extension or a release.
        self._told: dict[tuple[int, bytes], int] = {}
        # By name: when losses were logged.
        self._logged: dict[str, list[int]] = defaultdict(list)

    # --- what the masters answer ---------------------------------------------------------------------------

    def executed(self, index: int, words: list[bytes], reply: Any) -> None:
        """Record a command that a master has just executed."""
        # Of a transaction, only the value that it reads is an answer by itself.
        if isinstance(reply, Refusal) or (words[0] == b"PART" and type(reply) is not bytes):
            return
        for word in words:
            if word in self._answers:
                yes = reply == word if type(reply) is bytes else isinstance(reply, Status) or bool(reply)
                self._answers[word].append((self._world.now, index, yes))

    # --- what holders are told -----------------------------------------------------------------------------

    @contextmanager
    def call(self, what: str, host: Host, pairs: Pairs, waits: bool = True) -> Iterator[list[Call]]:
        """Record a call for some grants, unless it raises. The caller may remove those that it did not return for."""
        calls = [self._begin(what, host, grant, lock, waits) for grant, lock in pairs]
        try:
            yield calls
        except LockLost:
            # `check` raises it while the lock is in doubt, too, and of several locks nobody knows which one was lost.
            if what in ("extend", "release") and len(pairs) == 1:
                [(grant, lock)] = pairs
                self._told.setdefault((id(lock), grant.token), self._world.now)
            raise
        for call in calls:
            self._end(call)

    def _begin(self, what: str, host: Host, grant: Grant, lock: Any, waits: bool) -> Call:
        now, lease = host.local, lock._hold.lease
        self._answers.setdefault(grant.token, [])
        over = lease.token == grant.token and lease.refresh is None and host.clock.read(now) >= lease.deadline_ns
        call = Call(what, host, grant, lock, now, over, waits, host.clock.when(lease.deadline_ns))
        call.copy = lock._hold.unanswered if lock._hold.state == UNCONFIRMED else None
        connections = {connection.master.index: connection for connection in host.connections}
        for master in self._masters:
            if master.index in connections:
                call.asked[master.index] = connections[master.index], connections[master.index].memory
            elif host.left[master.index]:
                call.asked[master.index] = None, host.left[master.index][-1][1]
        return call

    def _end(self, call: Call) -> None:
        call.ended = call.host.local
        connections = {connection.master.index: connection for connection in call.host.connections}
        echoes = frozenset(
            index
            for index, (connection, memory) in call.asked.items()
            if connections.get(index) is not connection or connection is None
            if memory == self._masters[index].memories
        )
        if call.copy is not None:
            # A new connection begins with a copy for which no caller waits. Its "yes" counts, whoever came then.
            agreed = {index for _, index, yes in self._answers[call.grant.token] if yes}
            echoes |= {index for index in agreed if call.copy.obeyed >> index & 1}
        call.unknown = echoes | {index for index, connection in connections.items() if connection.answering}
        self._calls.append(call)
        told = self._told.get((id(call.lock), call.grant.token), call.began)
        if call.over:
            self._world.violate(f"{call}, whose validity was over")
        elif told < call.began:
            self._world.violate(f"{call}, whose loss was told at {told / MILLISECOND:.6f} ms")

    def reported(self, lock: Any) -> None:
        """Record a call of `on_lost`."""
        which = id(lock), lock._hold.lease.token
        if which in self._reported:
            self._world.violate(f"the loss of {lock.name} was reported twice")
        self._reported.add(which)
        self._told.setdefault(which, self._world.now)

    def unavailable(self, error: QuorumUnavailable) -> None:
        """Check that an error which says that masters failed, or did not answer, says how many."""
        if "masters ;" in str(error):
            self._world.violate(f"all masters have answered: {error}")

    def logged(self, name: Any) -> None:
        """Record that a loss was logged, because its lock has no `on_lost`."""
        self._logged[str(name)].append(self._world.now)

    def count(self, host: Host, lost: int) -> None:
        """Compare the losses that a client counts with those that its holders were told, if none was only logged."""
        told = len([token for _, token in self._told if token in host.tokens])
        if not self._logged and lost != told:
            self._world.violate(f"{host.name} counts {lost} losses, and its holders were told of {told}")

    # --- the judgement -------------------------------------------------------------------------------------

    def judge(self, grants: list[Grant], deleted: Callable[[Grant], object] = lambda grant: False) -> None:
        """Look for calls that returned as if the lock were held after another holder was granted it.

        Args:
            deleted: whether a lock was deleted by hand. No exclusion is promised then.
        """
        by_name = certain(grants)
        for call in self._calls:
            lost_ns = _lost_ns(call.grant, by_name.get(call.grant.name, []), call.began)
            if call.what == "check" and deleted(call.grant):
                continue
            if lost_ns >= 0 and self._wrong(call):
                told = "nobody heard of it" if not call.waits else "it returned"
                self._world.violate(f"{call}, and another had it since {lost_ns / MILLISECOND:.6f} ms: {told}")

    def _wrong(self, call: Call) -> bool:
        """Return whether a call should not have returned, given that another holder had the lock when it began."""
        if call.what == "check":
            return self._trusty
        if not call.waits:
            return self._refused(call, call.until - READ_NS, self._lost_to(call)) and not self._heard(call)
        if "release" in call.what:
            return self._refused(call, call.ended, call.unknown)
        answers = self._answers[call.grant.token]
        agreed = {index for at, index, yes in answers if yes and call.began <= at <= call.ended}
        return len(agreed) < self._quorum

    def _refused(self, call: Call, until: int, unknown: frozenset[int]) -> bool:
        """Return whether so many masters said no that a quorum is impossible; the answers of some are not known."""
        answers = [(index, yes) for at, index, yes in self._answers[call.grant.token] if call.began <= at <= until]
        agreed = {index for index, yes in answers if yes}
        refusals = {index for index, yes in answers if not yes} - agreed - unknown
        return not call.host.dead and len(self._masters) - len(refusals) < self._quorum

    def _lost_to(self, call: Call) -> frozenset[int]:
        """Return the masters whose no to a call that does not wait may have been lost, or may be an echo.

        The first copy may have reached the memory that answers, and its answer may have been lost with its connection.
        """
        broke = {
            master.index
            for master in self._masters
            if call.asked.get(master.index, (None, 0))[0] is None
            or any(call.began <= lost < call.began + ANSWERED_NS for lost, _ in call.host.left[master.index])
        }
        same = {index for index, (_, memory) in call.asked.items() if memory == self._masters[index].memories}
        return frozenset(broke & (same | {master.index for master in self._masters if master.index not in call.asked}))

    def _heard(self, call: Call) -> bool:
        """Return whether the loss was reported to `on_lost`, or logged."""
        logged = [at for at in self._logged[call.grant.name] if at >= call.grant.start]
        return bool(logged) or (id(call.lock), call.grant.token) in self._told


def keep_true(calls: list[Call], locks: list[Any], verdicts: list[bool]) -> None:
    """Remove the calls of a batch that returned False for their lock."""
    told = [verdict for lock, verdict in zip(locks, verdicts, strict=True) if lock is not None]
    calls[:] = [call for call, verdict in zip(calls, told, strict=True) if verdict]


def _lost_ns(grant: Grant, others: list[Grant], until: int) -> int:
    """Return when another holder was granted the lock of a grant, at `until` at the latest; -1 if none was."""
    rivals = [other for other in others if _family(other.kind) is _family(grant.kind) and other.token != grant.token]
    later = [other for other in rivals if grant.start < other.start <= until]
    for other in later:
        if grant.kind == "reader" == other.kind:
            continue
        beside = [third for third in later if third.start <= other.start < third.end]
        if grant.kind != "semaphore" or len(beside) >= PERMITS:
            return other.start
    return -1


def _family(kind: str) -> tuple[str, ...]:
    """Return the kinds that exclude each other on one name, with this one."""
    return next((kinds for kinds in FAMILIES if kind in kinds), EXCLUSIVE)
