"""The state and the figures of a client and of its masters, without I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import MasterQuarantined
from ..guard.master import GuardedMaster
from ..health import Health, MasterHealth
from ..masters.master import Master
from ..quorum.claim import ASKING, WAITING
from ..quorum.quorum import Quorum
from ..stats import Histogram, MasterStats, Stats, sum_of
from ..votes.redaction import shown
from ..votes.units import SECOND
from .master_log import MOST_SHOWN

if TYPE_CHECKING:
    from ..quorum.figures import Figures
    from ..quorum.hold import Hold
    from ..wire.engine.link import Link


class ClientStatus:
    def __init__(self, quorum: Any, connections: Any, lifecycle: Any) -> None:
        self._quorum = quorum
        self._connections = connections
        self._lifecycle = lifecycle

    @property
    def usable(self) -> bool:
        """True if a call may begin."""
        return bool(self._lifecycle.usable)

    @property
    def forked(self) -> bool:
        return bool(self._lifecycle.forked)

    @property
    def of_cluster(self) -> bool:
        return bool(self._connections.is_cluster)

    @property
    def state(self) -> str:
        lifecycle, fleet = self._lifecycle, self._connections.fleet
        if lifecycle.closing:
            return "closed"
        if lifecycle.forked:
            return "of the parent process"
        if fleet is None:
            return "not connected"
        if not lifecycle.usable:
            return "misconfigured"
        return f"{sum([link.up for link in fleet.links])} of {self._connections.size()} connected"

    def sizes(self) -> tuple[int, int]:
        """Return how many masters there are, and how many must vote; for a cluster its nodes, and all of them."""
        return self._connections.size(), self._connections.needed()

    def health(self) -> Health:
        health: Health = self._connections.health(self._quorum.queues.held())
        return health

    def stats(self) -> Stats:
        return stats_of(self._quorum, self._connections.stats())

    def causes(self) -> dict[str, BaseException]:
        causes: dict[str, BaseException] = self._connections.causes()
        return causes


def stats_of(quorum: Quorum, masters: tuple[MasterStats, ...]) -> Stats:
    held, waiting = _present(quorum)
    groups = {
        name: figures.stats(held[figures], waiting[figures]) for name, figures in list(quorum.groups.by_name.items())
    }
    return Stats(**sum_of(list(groups.values())), groups=groups, masters=masters)


def _present(quorum: Quorum) -> tuple[Counter[Figures], Counter[Figures]]:
    held: Counter[Figures] = Counter()
    waiting: Counter[Figures] = Counter()
    now_ns = quorum.clock.now()
    queued = [entry.hold for queue in list(quorum.queues.by_key.values()) for entry in list(queue.entries)]
    for hold in {*quorum.queues.holds(), *queued}:
        figures = hold.figures_in(quorum)
        if hold.held(now_ns):
            held[figures] += 1
        elif hold.state in (WAITING, ASKING):
            waiting[figures] += 1
    return held, waiting


def stats_of_masters(health: Health, guarded: list[GuardedMaster] | None) -> tuple[MasterStats, ...]:
    if guarded is None:
        return tuple([MasterStats(master.address, master.voting) for master in health.masters])
    # Not strict: in the middle of a handover, another thread finds the guard of other masters.
    return tuple([stats_of_master(master, [known]) for master, known in zip(health.masters, guarded, strict=False)])


def stats_of_master(master: MasterHealth, known: list[GuardedMaster]) -> MasterStats:
    """Return the figures of one master, which the client may have known several times."""
    return MasterStats(
        address=master.address,
        voting=master.voting,
        kept_out=master.kept_out,
        quarantines=sum([each.quarantines for each in known]),
        reply_time=sum([each.reply_time.histogram() for each in known], Histogram()),
    )


def health_of_all(
    masters: list[Master],
    links: Sequence[Link] | None,
    guarded: list[GuardedMaster] | None,
    quorum: int,
    refused: str,
    unused: bool,
    held: Iterable[Hold],
    now_ns: int,
) -> Health:
    """Return what is known of all masters, and of the locks that are held.

    Args:
        refused: why no call can succeed, or "".
        unused: whether that is because the client is closed or forked, so that no master votes.
        held: the holds that may be held.
    """
    nothing = [None] * len(masters)
    # Not strict: in the middle of a handover, another thread finds links of other masters.
    known = zip(masters, links or nothing, guarded or nothing, strict=False)
    found = [health_of(*each, now_ns) for each in known]
    if unused:
        found = [replace(master, voting=False, why=refused, kept_out=0.0) for master in found]
    at_risk = 0 if unused or not links else count_at_risk(held, links, quorum, guarded is not None, now_ns)
    return Health(tuple(found), quorum, refused, at_risk)


def causes_of(masters: list[Master], links: Sequence[Link] | None, guarded: bool) -> dict[str, BaseException]:
    """Return why masters do not vote, by their names."""
    waiting = ConnectionError("it is not connected yet")
    known: Sequence[Link | None] = [None] * len(masters) if links is None else links
    return {
        master.name: (link.cause or waiting) if link is not None else waiting
        for master, link in zip(masters, known, strict=False)
        if link is None or not link.up or (guarded and link.monitor is None)
    }


def health_of(master: Master, link: Link | None, guarded: GuardedMaster | None, now_ns: int) -> MasterHealth:
    votes = link is not None and link.up and (guarded is None or link.monitor is not None)
    found = MasterHealth(master.address, votes)
    if link is not None and link.up:
        found = replace(found, evicts=link.traits.evicts)
    if not found.voting:
        found = replace(found, **_why_not(None if link is None else link.cause, now_ns))
    marker = None if guarded is None else guarded.marker
    if marker is None:
        return found
    # Any client may have written them.
    masters = tuple([shown(address) for address in marker.masters])
    found = replace(found, masters=masters, horizon=marker.horizon / 1000, marked=marker.since / 1_000_000)
    heals_ns = max(0, guarded.heals_ns - now_ns) if found.voting and guarded is not None else 0
    return replace(found, heals=heals_ns / SECOND)


def count_at_risk(holds: Iterable[Hold], links: Sequence[Link], quorum: int, guarded: bool, now_ns: int) -> int:
    """Count the held locks that would be lost if one more master failed.

    A master has the key of a lock if its connection is older than the last acquire or extension of the lock, and it
    has not answered since then that it lacks the key.
    """
    if quorum >= len(links):
        return 0
    voting = [link for link in links if link.up and not link.suspected and (link.monitor is not None or not guarded)]

    def spares_one(hold: Hold) -> bool:
        asked_ns = hold.lease.asked_ns
        extended_ns, lacking = hold.lacking
        lost = lacking if extended_ns == asked_ns else 0
        return len([link for link in voting if link.adopted_ns <= asked_ns and not lost >> link.index & 1]) > quorum

    return sum([hold.held(now_ns) and not spares_one(hold) for hold in dict.fromkeys(holds)])


def _why_not(cause: BaseException | None, now_ns: int) -> dict[str, Any]:
    if cause is None:
        return {"why": "not connected yet"}
    if isinstance(cause, MasterQuarantined):
        return {"why": shown(cause.as_of(now_ns), MOST_SHOWN), "kept_out": cause.left(now_ns)}
    return {"why": shown(cause, MOST_SHOWN)}
