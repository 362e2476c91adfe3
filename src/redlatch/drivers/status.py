"""The state and the figures of a client, without I/O."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ..guard.master import GuardedMaster
from ..health import Health
from ..quorum.claim import ASKING, WAITING
from ..quorum.quorum import Quorum
from ..stats import MasterStats, Stats, sum_of

if TYPE_CHECKING:
    from ..quorum.figures import Figures


class ClientStatus:
    """The state of one client, its figures, and its masters.

    Args:
        quorum: the client's; the others are the parts of its driver.
    """

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
        """True if this is a child of the process that the client was connected in."""
        return bool(self._lifecycle.forked)

    @property
    def state(self) -> str:
        """The state of the client, in a few words for its repr."""
        lifecycle, fleet = self._lifecycle, self._connections.fleet
        if lifecycle.closing:
            return "closed"
        if lifecycle.forked:
            return "of the parent process"
        if fleet is None:
            return "not connected"
        if not lifecycle.usable:
            return "misconfigured"
        return f"{sum([link.up for link in fleet.links])} of {self._quorum.size} connected"

    def health(self) -> Health:
        """Return what is known of the masters and of the locks that stand on them."""
        health: Health = self._connections.health(self._quorum.queues.held())
        return health

    def stats(self) -> Stats:
        """Return the figures of the client."""
        return stats_of(self._quorum, self._connections.stats())

    def causes(self) -> dict[str, BaseException]:
        """Return why masters do not vote, by their names."""
        causes: dict[str, BaseException] = self._connections.causes()
        return causes


def stats_of(quorum: Quorum, masters: tuple[MasterStats, ...]) -> Stats:
    """Return the figures of a client.

    Args:
        masters: the figures of its masters.
    """
    held, waiting = _present(quorum)
    groups = {
        name: figures.stats(held[figures], waiting[figures]) for name, figures in list(quorum.groups.by_name.items())
    }
    return Stats(**sum_of(list(groups.values())), groups=groups, masters=masters)


def _present(quorum: Quorum) -> tuple[Counter[Figures], Counter[Figures]]:
    """Count the locks of each group that are held, and the acquires that are under way."""
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
    """Return the figures of all masters.

    Args:
        health: what is known of them.
        guarded: what the guard knows of them; None without a guard.
    """
    if guarded is None:
        return tuple([MasterStats(master.address, master.voting) for master in health.masters])
    # Not strict: in the middle of a handover, another thread finds the guard of other masters.
    return tuple(
        [
            MasterStats(
                address=master.address,
                voting=master.voting,
                kept_out=master.kept_out,
                quarantines=known.quarantines,
                reply_time=known.reply_time.histogram(),
            )
            for master, known in zip(health.masters, guarded, strict=False)
        ]
    )
