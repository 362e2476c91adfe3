"""Runs a plan of tasks: the world, its masters and clients, the clients' actions, and the judgement."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar

from redlatch import AsyncClient, Guard, Handoff

from .alone import Alone
from .base import Worker
from .checker import Checker
from .faults import Faults
from .foreign import ForeignUses, SimForeign
from .liveness import Liveness
from .logs import taken
from .master import Master
from .moving import Moves
from .outcome import LOST_ATTEMPTS, SPAN_NS, Outcome
from .plan import Plan
from .recount import Recount
from .task_host import SimClient, TaskHost
from .world import EPOCH_MS, SECOND, Drifting, World, without_collector

# The world's time to finish what is left, once all faults are over.
REST_NS = 4 * SECOND
# A pause of so many seconds is a rest, which the schedule takes longer for.
RESTS = 1.0
# The patience of the clients of some seeds, in seconds: longer than some of the outages, and shorter than others.
PATIENCE = 0.5
# A schedule with more events is an endless loop. The longest of 700,000 schedules had 43,000 events: three processes
# polled masters that do not push, while the locks of killed processes lasted 18 s.
MOST_STEPS = 80_000


def run(plan: Plan, tracing: bool = False) -> Outcome:
    """Run a plan."""
    # It imports this module.
    from .cluster_schedule import ClusterSchedule

    with without_collector():
        schedule = (ClusterSchedule if plan.shards else Schedule)(plan, tracing)
        with taken(schedule.logs):
            return schedule.run()


class Schedule(ForeignUses):
    """A schedule of tasks."""

    MASTER: ClassVar[type[Master]] = Master
    HOST: ClassVar[type[TaskHost]] = TaskHost

    def __init__(self, plan: Plan, tracing: bool) -> None:
        world = World(plan.seed, tracing)
        fewest = min([len(listed) for listed in plan.lists], default=1 if plan.shards else len(plan.masters))
        checker = Checker(world, fewest, plan.trusty, plan.fences_hold(), plan.idle_ns())
        masters = [
            self.MASTER(world, index, Drifting(0, rate), kind, pushes, self._executed, index not in plan.scriptless)
            for index, (kind, pushes, rate) in enumerate(plan.masters)
        ]
        hosts = [
            self.HOST(world, number, masters, self._killed, ahead, rate, plan.pauses)
            for number, (rate, ahead, _, _) in enumerate(plan.clients)
        ]
        super().__init__(plan, world, checker, masters, hosts)
        self._prepare()
        self.default_ttl = plan.default_ttl or plan.ttl
        self._know_masters()
        self.liveness = Liveness(world, plan) if plan.prompt else None
        # Locks of drop-ins have no groups.
        self.recount = None if plan.foreign else Recount(world)
        # Not drawn, so that each seed draws what it drew before clients had patience.
        patience = PATIENCE if plan.seed % 4 == 1 else 0.0
        patient = partial(self._client_of, guard=Guard(max_ttl=plan.ttl), patience=patience)
        kind: Any = SimForeign if plan.foreign else patient
        self.clients = [
            kind(host, wakeups="auto" if pushed else "poll", handoff=Handoff(tenure=tenure), ttl=self.default_ttl)
            for host, (_, _, pushed, tenure) in zip(hosts, plan.clients, strict=True)
        ]
        if plan.known:
            since_us = EPOCH_MS * 1000 - round(plan.marked_ago * 1e6) if plan.marked_ago else 0
            self._mark(
                [masters[index] for index in plan.lists[0]] if plan.lists else masters, self.default_ttl, since_us
            )
        self.alone = self._watch_the_only_master() if plan.alone else None

    def _prepare(self) -> None:
        """Do what must be done before the clients are made."""

    def _client_of(self, host: TaskHost, **options: Any) -> AsyncClient:
        return SimClient(host, **options)

    def _know_masters(self) -> None:
        """Tell the processes which masters they use, and how."""
        plan = self.plan
        for host in self.hosts:
            host.dials_patiently = plan.prompt
            host.default_ttl_ms = round(self.default_ttl * 1000)
        for host, knows in zip(self.hosts, plan.knows, strict=False):
            old, new = plan.lists
            host.lists = {"old": (old, ()), "new": (new, ()), "both": (old, new)}[knows]

    def _watch_the_only_master(self) -> Alone:
        """Have what it tells its clients recorded."""
        alone = self.masters[0].told = Alone(self.world, self.masters[0], self.held)
        for host in self.hosts:
            host.turned = alone.turned
        return alone

    def run(self) -> Outcome:
        """Run everything, and judge it."""
        world = self.world
        self._begin()
        with nullcontext() if self.moves is None else self.moves.patched():
            world.run(self._span_ns(), self.working)
        for number, host in self.working.items():
            world.violate(f"task {number} of {host.name} never ended")
        # Clients send their pending releases when a master is back.
        world.run(world.now + REST_NS)
        self._look_for_leftovers(
            [host for host in self.hosts if not host.dead],
            [master for master in self.masters if not (master.swapped or self._kept_out(master))],
        )
        for host, client in zip(self.hosts, self.clients, strict=True):
            if not host.dead:
                host.closing = True
                self._start(host, client.close)
        world.run(world.now + REST_NS)
        # Where a master may be kept out for long, clients look at it once a second.
        if world.steps > (MOST_STEPS if self.plan.ttl < 60 else 4 * MOST_STEPS):
            world.violate(f"{world.steps} events: somebody goes round and round")
        self._judge()
        for host in self.hosts:
            host.end()
        return self._outcome(events=world.steps)

    def _begin(self) -> None:
        """Schedule the faults and the movers, and start the tasks."""
        plan = self.plan
        faults = self._faults()
        for fault in plan.faults:
            faults.plan(fault)
        self.moves = Moves(self.world, self.masters, plan.lists, plan.seed) if plan.moves else None
        for move in plan.moves:
            assert self.moves is not None
            self.moves.plan(move)
        for number, (client, actions) in enumerate(plan.tasks):
            worker = Worker(f"task {number}", client, self.hosts[client])
            self.working[number] = worker.host
            self._start(worker.host, partial(self._work, worker, actions), number)

    def _faults(self) -> Faults:
        return Faults(self.world, self.hosts, self.masters)

    def _kept_out(self, master: Master) -> bool:
        """Return whether a master that was kept out may still have old tokens."""
        return bool(master.doubted) and self.plan.ttl * SECOND > REST_NS

    def _judge(self) -> None:
        super()._judge()
        if self.recount is not None:
            for number, (host, client) in enumerate(zip(self.hosts, self.clients, strict=True)):
                if not host.dead:
                    self.recount.judge(number, {name: it for name, it in client.stats().groups.items() if name})
        if self.alone is not None:
            self.alone.judge()
        if self.liveness is not None:
            self.liveness.judge(self.checker.grants)

    def _span_ns(self) -> int:
        """Return for how long the tasks may go on."""
        plan = self.plan
        # A master whose clock is set back keeps its keys longer.
        longer = sum(fault.details[1] for fault in plan.faults if fault.what == "set_back")
        # Clients may rest.
        longer += sum(action.pause for action in plan.uses() if action.pause > RESTS)
        # Masters may be kept out for the longest ttl.
        longer += len(plan.faults) * plan.ttl if plan.ttl >= 10 and not plan.prompt else 0
        # Attempts wait for a handover (`drivers.handover.LONGEST_NS`).
        longer += 60 * len(plan.moves)
        # The holders may come one after another.
        longer += sum(action.hold for action in plan.uses())
        if any(action.kind == "given" for action in plan.uses()):
            longer += LOST_ATTEMPTS * plan.ttl
        return SPAN_NS + int(longer * SECOND)
