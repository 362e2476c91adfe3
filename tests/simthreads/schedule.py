"""Runs a plan of threads: the world, its masters, its processes with their threads, and the judgement."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from greenlet import GreenletExit
from sim.base import Worker
from sim.checker import Checker
from sim.faults import Faults
from sim.host import Host
from sim.logs import taken
from sim.master import Master
from sim.outcome import SPAN_NS, Outcome
from sim.world import SECOND, Drifting, without_collector

from redlatch import ClientUnusable, Guard, Handoff, QuorumUnavailable
from redlatch.drivers import lifetime
from redlatch.masters.listed import masters_of
from redlatch.masters.master import Master as Address

from . import fakes
from .host import ThreadClient, ThreadHost
from .instrument import Globals
from .kernel import Kernel, SimWorld, Thread
from .plan import Plan
from .thread_uses import ThreadUses

# The world's time to finish background work, and to close.
REST_NS = 2 * SECOND
CLOSE_NS = 3 * SECOND

# Seconds that a forked child waits for answers: longer than the sum of its stalls, which take 5 ms on average at most.
CHILD_PATIENCE = 5.0


def run(plan: Plan, tracing: bool = False) -> Outcome:
    """Run a plan."""
    report = sys.unraisablehook
    sys.unraisablehook = partial(_report_unraisable, report)
    try:
        with without_collector():
            schedule = _Schedule(plan, tracing)
            with taken(schedule.logs):
                try:
                    return schedule.run()
                finally:
                    schedule.clean_up()
    finally:
        sys.unraisablehook = report


def _report_unraisable(report: Callable[[Any], None], unraisable: Any) -> None:
    """Report an exception that could not be raised.

    The end of a schedule ends its threads with GreenletExit. If that closes a generator, Python cannot raise it there.
    """
    if unraisable.exc_type is not GreenletExit:
        report(unraisable)


_globals = Globals()


@cache
def _addresses(count: int) -> list[Address]:
    return masters_of([f"redis://master-{index}" for index in range(count)])


class _Schedule(ThreadUses):
    def __init__(self, plan: Plan, tracing: bool) -> None:
        world = SimWorld(plan.seed, tracing)
        _globals.restore()
        fakes.State.files.clear()
        self.kernel = fakes.State.kernel = Kernel(world, fakes.State.gates, plan.choice, plan.tick_ns)
        self.kernel.aim = plan.aim
        checker = Checker(world, len(plan.masters), plan.trusty, plan.trusty, plan.idle_ns())
        masters = [
            Master(world, index, Drifting(0, 1.0), kind, pushes, self._executed)
            for index, (kind, pushes) in enumerate(plan.masters)
        ]
        hosts = [
            ThreadHost(self.kernel, world, number, masters, Drifting(SECOND, 1.0), Drifting(0, 1.0), self._killed)
            for number in range(len(plan.clients))
        ]
        super().__init__(plan, world, checker, masters, hosts)
        for host in hosts:
            host.ended = self._ended
        self.made: list[ThreadClient] = []  # kept, so that no finalizer runs before the end
        self.clients = [
            self._client(host, pushed, tenure) for host, (pushed, tenure) in zip(hosts, plan.clients, strict=True)
        ]
        self._mark(masters, plan.ttl)
        self.working: dict[Thread, None] = {}  # threads that must end
        self.mains: dict[ThreadHost, Thread] = {}
        self.surrendered: set[ThreadHost] = set()

    def _identity(self, master: Master) -> str:
        # Not the one that a handshake reports, so clients write new markers first.
        return str(master.info()["run_id"])

    def _client(
        self, host: ThreadHost, pushed: bool, tenure: float, attempt_timeout: float | None = None
    ) -> ThreadClient:
        client = ThreadClient(
            host,
            _addresses(len(self.masters)),
            wakeups="auto" if pushed else "poll",
            handoff=Handoff(tenure=tenure),
            ttl=self.plan.ttl,
            guard=Guard(max_ttl=self.plan.ttl),
            attempt_timeout=attempt_timeout,
        )
        self.made.append(client)
        return client

    def clean_up(self) -> None:
        """Remove everything that would run or warn later."""
        self.logs.setLevel(logging.CRITICAL + 1)  # the background thread logs the GreenletExit that ends it
        self.kernel.end()
        for host in self.hosts:
            host.end()
        fakes.State.kernel = None
        for client in self.made:
            driver: Any = client._driver
            driver._connections.lifecycle.forked = True  # so that its finalizer sends nothing
        for name, made in (("_all_connections", weakref.WeakSet), ("_drivers", weakref.WeakSet)):
            if hasattr(lifetime, name):
                setattr(lifetime, name, made())

    # --- phases --------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        world, plan, kernel = self.world, self.plan, self.kernel
        if plan.dialled:
            for client, host in zip(self.clients, self.hosts, strict=True):
                self._start(host, "connect", client.connect)
            kernel.run(SECOND, self.working)
        faults = Faults(world, self.hosts, self.masters)
        begun = world.now
        for fault in plan.faults:
            world.at(begun + int(fault.at * SECOND), faults._strike, fault)
        for number, (index, uses) in enumerate(plan.tasks):
            host = self.hosts[index]
            worker = Worker(f"thread {number}", index, host)
            thread = self._start(host, worker.name, partial(self._work, worker, uses))
            self.mains.setdefault(host, thread)
        for index, at in plan.interrupts:
            main = self.mains.get(self.hosts[index])
            if main is not None:  # else the schedule was made smaller
                world.at(begun + int(at * SECOND), kernel.interrupt, main)
        if plan.ending is not None:
            index, at, what = plan.ending
            world.at(begun + int(at * SECOND), getattr(self, f"_{what}"), index)
        kernel.run(begun + SPAN_NS, self.working)
        self._look_for_sleepers()
        kernel.run(world.now + REST_NS)  # background work ends
        # A client that is closed, ends or forks has left its tokens, unless it has released its locks.
        gone = self.closed - self.surrendered
        self._look_for_leftovers(
            [host for host in self.hosts if not (host.dead or host.finalizing or host in gone)],
            # Schedules in which a client is closed have no faults.
            [master for master in self.masters if self.surrendered or not master.doubted],
        )
        self._close_all()
        self._judge()
        self._count_losses()
        return self._outcome(points=kernel.points, switches=kernel.switches)

    def _count_losses(self) -> None:
        """Compare what clients count with what their threads were told, where each loss is told by one call."""
        plan = self.plan
        kinds = {use.kind for use in plan.uses()}
        if plan.interrupts or plan.ending is not None or kinds & {"multi", "many", "rlock"}:
            return
        for host, client in zip(self.hosts, self.clients, strict=True):
            if not host.dead:
                self.reports.count(host, sum(client.stats().lost.values()))

    def _look_for_sleepers(self) -> None:
        if self.kernel.points > self.plan.choice.most_points:
            self.world.violate("somebody goes round and round")
        for thread in list(self.working):
            self.world.violate(f"{thread.host.name}: {thread.name} never ended")
        self.kernel.vanish([thread for thread in self.working if not thread.vanished])
        self.working.clear()

    def _close_all(self) -> None:
        """Close every client; all their threads have to end."""
        for client, host in zip(self.clients, self.hosts, strict=True):
            if not host.dead and not host.finalizing and host not in self.closed:
                host.closing = True
                self._start(host, "close", client.close)
        self.kernel.run(self.world.now + CLOSE_NS, self.working)
        self._look_for_sleepers()
        longest = max((use.ttl for use in self.plan.uses()), default=0.0)
        # Losses of held locks are reported until then.
        self.kernel.run(self.world.now + CLOSE_NS + int(longest * SECOND))
        for thread in list(self.kernel.threads):
            if not thread.host.finalizing:
                self.world.violate(f"{thread.host.name}: its {thread.name} did not end when it was closed")

    # --- processes that close, end or fork -----------------------------------------------------------------

    def _start(self, host: ThreadHost, name: str, work: Any) -> Thread:
        thread = self.kernel.spawn(host, name, work)
        self.working[thread] = None
        return thread

    def _ended(self, thread: Thread) -> None:
        self.working.pop(thread, None)

    def _killed(self, host: Host, me: Thread | None = None) -> None:
        for thread in [thread for thread in self.working if thread.host is host and thread is not me]:
            del self.working[thread]

    def _closing(self, client: int, what: str) -> ThreadHost:
        """Record that a client is no longer usable; return its process."""
        host = self.hosts[client]
        self.closed.add(host)
        host.closing = True
        self.world.note(self.world.now, host.name, what)
        return host

    def _close(self, client: int) -> None:
        """Close a client while other threads use it; in every other schedule it releases the locks that they hold."""
        host = self._closing(client, "is closed")
        close = self.clients[client].close
        if self.plan.seed % 2:
            self.surrendered.add(host)
            close = partial(close, release=True)
        self._start(host, "close", close)

    def _shutdown(self, client: int) -> None:
        """End the interpreter while all other threads are daemons; a finalizer then closes the client."""
        host = self._closing(client, "ends")
        self._start(host, "interpreter's end", partial(self._finalize, host, client))

    def _finalize(self, host: ThreadHost, client: int) -> None:
        with _only(lifetime, "_drivers", self.clients[client]._driver):
            for call in fakes.State.at_exit:
                call()
        me = self.kernel.current
        host.finalizing = True
        others = [thread for thread in host.threads if thread is not me]
        self.world.note(self.world.now, host.name, f"has {len(others)} daemon threads, which are no more")
        self.kernel.vanish(others)
        self._killed(host, me)
        self.clients[client].close()

    def _fork(self, client: int) -> None:
        """Fork; the simulation continues with the child, which has one new thread and none of the parent's."""
        host = self.hosts[client]
        if not host.threads:
            return
        self._closing(client, f"is forked; {len(host.threads)} threads are no more")
        self.kernel.vanish(list(host.threads))
        host.pid += 1
        self._killed(host)
        self._released_by(host)
        self._start(host, "child", partial(self._be_child, host, client))

    def _be_child(self, host: ThreadHost, client: int) -> None:
        driver: Any = self.clients[client]._driver
        with _only(lifetime, "_all_connections", driver._connections):
            for call in fakes.State.at_fork:
                call()
        if driver._leader.fleet is not None:
            try:
                self.clients[client].lock("of the parent").acquire(timeout=0.1)
            except ClientUnusable:
                pass
            else:
                self.world.violate(f"{host.name}: a child uses its parent's client")
        self.clients[client] = self._client(host, *self.plan.clients[client], CHILD_PATIENCE)
        try:
            with self.clients[client].lock("of the child"):
                self._say(Worker("child", client, host), "has a lock of its own")
        except QuorumUnavailable:
            if not self.plan.faults:
                raise
        self.clients[client].close()


class _Shown:
    """A global set of which one process sees what is its own; others may add to it meanwhile."""

    def __init__(self, whole: weakref.WeakSet[Any], items: list[Any]) -> None:
        self.add, self._items = whole.add, items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)


@contextmanager
def _only(module: Any, name: str, item: Any) -> Iterator[None]:
    """Reduce a global set of the package to the object of one process, as that process would see it."""
    whole = getattr(module, name)
    setattr(module, name, _Shown(whole, [item] if item in whole else []))
    try:
        yield
    finally:
        setattr(module, name, whole)
