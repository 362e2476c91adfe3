"""The base of both drivers: what each client has besides its calls."""

from __future__ import annotations

from redlatch.drivers.arrivals import MakeDialler, MakeGuard, weakly
from redlatch.drivers.cluster import ClusterConnections
from redlatch.drivers.connections import Connections
from redlatch.drivers.handover import MovingConnections
from redlatch.drivers.lifetime import HeldLocks
from redlatch.drivers.status import ClientStatus
from redlatch.guard.handover import Successor
from redlatch.masters.cluster import Cluster
from redlatch.masters.master import Master
from redlatch.quorum.upkeep_schedule import UpkeepSchedule

from ..quorum.calls import Calls
from ..votes.commands import Command
from ..wire.engine.fleet import Fleet
from .lifecycle import Lifecycle


class BaseDriver:
    """The parts of a client that need neither threads nor asyncio."""

    def __init__(
        self,
        masters: list[Master],
        quorum: Calls,
        tracking: bool,
        dialler: MakeDialler,
        guard: MakeGuard | None,
        successor: Successor | None = None,
    ) -> None:
        self._quorum = quorum
        self._clock = quorum.clock
        self.queues = quorum.queues
        deliver = weakly(self)
        self._lifecycle = lifecycle = Lifecycle()
        self._connections: Connections
        if isinstance(masters[0], Cluster):
            self._connections = ClusterConnections(
                masters[0], quorum, Fleet, deliver, tracking, dialler, guard, lifecycle
            )
        elif successor is None:
            self._connections = Connections(
                masters,
                quorum.majority,
                quorum.clock,
                Fleet,
                deliver,
                tracking,
                dialler,
                guard,
                quorum.doubts,
                lifecycle,
            )
        else:
            self._connections = MovingConnections(
                masters, quorum, Fleet, deliver, tracking, dialler, guard, successor, lifecycle
            )
        self._connections.replicas = quorum.replicas
        self.schedule = UpkeepSchedule(quorum)
        self.status = ClientStatus(quorum, self._connections, lifecycle)
        self.held_locks = HeldLocks(quorum)

    def send(self, commands: list[Command]) -> None:
        raise NotImplementedError

    def wake_called(self) -> None:
        raise NotImplementedError
