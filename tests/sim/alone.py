"""The rule for a single master (R1 to R3): after it has forgotten locks, holders overlap only until they are told.

Such a master is used on, so its locks may be given again at once. An earlier holder goes on until its client reads from
the server. From then on its lock is in doubt, until the master has said that it has the token still. A holder at some
time is *excused* if the master has forgotten something since it last said yes to the token, and the client has not been
told of that. Two holders of one lock break the rule if neither is excused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from redlatch.votes import family_scripts, scripts

from .grants import Grant
from .world import MICROSECOND, World

if TYPE_CHECKING:
    from .host import Host
    from .master import Master
    from .network import Connection

# The scripts whose yes says that the master has the token and lets it live.
SAYS_YES = {
    word
    for script in (
        scripts.ACQUIRE_FENCED,
        scripts.CONFIRM,
        scripts.EXTEND,
        family_scripts.FAIR_ACQUIRE,
        family_scripts.WRITE_ACQUIRE,
        family_scripts.WRITE_EXTEND,
    )
    for word in (script.text, script.sha)
}

# How much later than its bytes a client counts as told: a reply may arrive in two pieces.
PIECES_NS = 25 * MICROSECOND


@dataclass(eq=False)
class Certain:
    """A time in which a holder believed that it has the lock: `remaining()` was positive."""

    grant: Grant
    host: Host
    start: int
    end: int


class Alone:
    """Records what holders believe, what their clients were told, and what a single master has said.

    Args:
        held: the grants that were not released yet, each with its process and its lock object.
    """

    def __init__(self, world: World, master: Master, held: Mapping[Grant, tuple[Host, Any]]) -> None:
        self._world = world
        self._master = master
        self._held = held
        self._open: dict[Grant, Certain] = {}
        self._over: list[Certain] = []
        # By token: when the master said yes to it.
        self._yes: dict[bytes, list[int]] = defaultdict(list)
        # By process: until when it knows all that the master has forgotten, and since when it knows this. Its next turn
        # takes what it was told.
        self._knows: dict[Host, list[tuple[int, int]]] = defaultdict(list)
        self._coming: dict[Host, list[tuple[int, int]]] = defaultdict(list)

    # --- what the master says ------------------------------------------------------------------------------

    def executed(self, words: list[bytes], reply: Any) -> None:
        """Record a command that the master has just executed."""
        name = words[0].upper()
        said = name == b"SET" or (name in (b"EVAL", b"EVALSHA") and words[1] in SAYS_YES)
        # A fenced lock may be granted although the number is too low.
        if said and ((isinstance(reply, int) and reply != 0) or (isinstance(reply, str) and reply == "OK")):
            for word in words[2:]:
                self._yes[word].append(self._world.now)

    def tells(self, connection: Connection, at_ns: int) -> None:
        """Record that a client will know from the next bytes on this connection what was forgotten until now."""
        self._world.at(at_ns + PIECES_NS, self._tell, connection, self._world.now)

    def _tell(self, connection: Connection, until_ns: int) -> None:
        if connection.open:
            self._coming[connection.host].append((self._world.now, until_ns))

    # --- what the holders believe ----------------------------------------------------------------------------

    def turned(self, host: Host, began_ns: int) -> None:
        """Look at what a process believes at the end of a turn."""
        told = self._coming[host]
        while told and told[0][0] < began_ns:
            self._knows[host].append((told.pop(0)[1], host.local))
        for grant, (other, lock) in self._held.items():
            if other is host:
                self._look(grant, host, lock)

    def begins(self, grant: Grant, host: Host, lock: Any) -> None:
        """Record a grant."""
        self._look(grant, host, lock)

    def ends(self, grant: Grant, host: Host) -> None:
        """Record the end of a grant."""
        certain = self._open.pop(grant, None)
        if certain is not None:
            certain.end = min(certain.end, host.local)
            self._over.append(certain)

    def _look(self, grant: Grant, host: Host, lock: Any) -> None:
        hold, now, known = lock._hold, host.local, self._open.get(grant)
        believes = hold.token == grant.token and host.at_no_time(lock.remaining) > 0
        until = host.clock.when(hold.deadline_ns) if believes else 0
        if known is not None and known.end >= now and until > now:
            known.end = until
            return
        self.ends(grant, host)
        if until > now:
            self._open[grant] = Certain(grant, host, now, until)

    # --- the judgement ---------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Look for two holders neither of which is excused."""
        for one, other in combinations(sorted(self._over, key=lambda certain: certain.start), 2):
            start, end = max(one.start, other.start), min(one.end, other.end)
            if one.grant is other.grant or one.grant.name != other.grant.name or start >= end:
                continue
            for at in self._moments(one, other, start, end):
                if not self._excused(one, at) and not self._excused(other, at):
                    self._world.violate(
                        f"{one.grant.name} has two holders, which know all: {one.grant} and {other.grant}"
                    )
                    return

    def _moments(self, one: Certain, other: Certain, start: int, end: int) -> Iterator[int]:
        """Yield the beginnings of all times between which nothing changes."""
        edges = {start, end, *self._master.forgets}
        for certain in (one, other):
            edges.update(self._yes[certain.grant.token])
            edges.update(since for _, since in self._knows[certain.host])
        for at, after in pairwise(sorted(edge for edge in edges if start <= edge <= end)):
            if after > at:
                yield at

    def _excused(self, certain: Certain, at: int) -> bool:
        said = max([yes for yes in self._yes[certain.grant.token] if yes <= at], default=0)
        known = max([until for until, since in self._knows[certain.host] if since <= at], default=-1)
        return any(known < forgot <= at for forgot in self._master.forgets if forgot >= said)
