"""Runs a plan: the world, its masters, its processes with their threads, and the judgement."""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from greenlet import GreenletExit
from sim.checker import Checker
from sim.faults import Faults
from sim.grants import Grant
from sim.host import Host
from sim.logs import Logs, taken
from sim.master import Master
from sim.network import Route
from sim.outcome import LATE_NS, SPAN_NS, Outcome
from sim.parts import PERMITS
from sim.reports import Pairs, Reports, keep_true
from sim.world import MICROSECOND, MILLISECOND, SECOND, Drifting

from redlatch import ClientUnusable, ConfigurationError, Guard, Handoff, LockError, LockLost, QuorumUnavailable
from redlatch.drivers import lifetime
from redlatch.guard.marker import FINAL, MARKER, Marker
from redlatch.masters.listed import masters_of
from redlatch.masters.master import Master as Address
from redlatch.quorum.claim import HELD, UNDOING
from redlatch.votes.scripts import KEPT_MS

from . import fakes
from .host import ThreadClient, ThreadHost
from .instrument import Globals
from .kernel import Kernel, SimWorld, Thread
from .plan import Plan, Use

# The world's time to finish background work, and to close.
REST_NS = 2 * SECOND
CLOSE_NS = 3 * SECOND

# Seconds that a forked child waits for answers: longer than the sum of its stalls, which take 5 ms on average at most.
CHILD_PATIENCE = 5.0


@dataclass(frozen=True, kw_only=True)
class Result(Outcome):
    """The outcome of a schedule of threads.

    Attributes:
        points, switches: how often a thread could have been preempted, and was.
    """

    points: int
    switches: int


def run(plan: Plan, tracing: bool = False) -> Result:
    """Run a plan."""
    enabled = gc.isenabled()
    gc.disable()  # the collector would run finalizers at times that the seed does not fix
    report = sys.unraisablehook
    sys.unraisablehook = partial(_report_unraisable, report)
    schedule = _Schedule(plan, tracing)
    try:
        with taken(schedule.logs):
            try:
                return schedule.run()
            finally:
                schedule.clean_up()
    finally:
        sys.unraisablehook = report
        if enabled:
            gc.enable()


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


class _Schedule:
    def __init__(self, plan: Plan, tracing: bool) -> None:
        self.plan = plan
        self.world = world = SimWorld(plan.seed, tracing)
        _globals.restore()
        fakes.State.files.clear()
        self.kernel = Kernel(world, fakes.State.gates, plan.choice, plan.tick_ns)
        self.kernel.aim = plan.aim
        fakes.State.kernel = self.kernel
        self.checker = Checker(world, len(plan.masters), plan.trusty, plan.trusty, plan.idle_ns())
        self.masters = [
            Master(world, index, Drifting(0, 1.0), kind, pushes, self._executed)
            for index, (kind, pushes) in enumerate(plan.masters)
        ]
        self.reports = Reports(world, self.masters, self.checker.quorum, plan.trusty)
        self.hosts = [
            ThreadHost(world, self.kernel, number, self.masters, Drifting(SECOND, 1.0), Drifting(0, 1.0), self._killed)
            for number in range(len(plan.clients))
        ]
        far = [int(world.chance.uniform(0.5, 1.5) * plan.far_us * MICROSECOND) for _ in self.masters]
        for host in self.hosts:
            host.routes = [Route(ns, ns) for ns in far]
            host.ended = self._ended
        self.made: list[ThreadClient] = []  # kept, so that no finalizer runs before the end
        self.clients = [
            self._client(host, pushed, tenure) for host, (pushed, tenure) in zip(self.hosts, plan.clients, strict=True)
        ]
        self._mark_all()
        self.logs = Logs(world, self.reports)
        self.held: dict[Grant, tuple[ThreadHost, Any]] = {}
        self.told: list[Any] = []  # locks whose loss was reported
        self.working: dict[Thread, None] = {}  # threads that must end
        self.mains: dict[ThreadHost, Thread] = {}
        self.readwrite: dict[tuple[int, str, bool, bool], Any] = {}
        self.closed: set[ThreadHost] = set()
        self.surrendered: set[ThreadHost] = set()

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

    def _mark_all(self) -> None:
        """Write the guard's markers to all masters, as any earlier use would."""
        addresses = tuple(sorted(f"master-{master.index}:6379" for master in self.masters))
        for master in self.masters:
            mine = f"master-{master.index}:6379"
            ttl_ms = round(self.plan.ttl * 1000)
            marker = Marker(
                master.info()["run_id"], 0, 0, 0, 0, FINAL, True, ttl_ms, False, False, mine, addresses, ttl_ms
            )
            master.keys.execute([b"SET", MARKER, marker.text(), b"PX", b"%d" % KEPT_MS])

    def clean_up(self) -> None:
        """Remove everything that would run or warn later."""
        self.logs.setLevel(logging.CRITICAL + 1)  # the background thread logs the GreenletExit that ends it
        self.kernel.end()
        for host in self.hosts:
            host.end()
        fakes.State.kernel = None
        for client in self.made:
            driver: Any = client._driver
            driver._connections.standing.forked = True  # so that its finalizer sends nothing
        for name, made in (("_all_connections", weakref.WeakSet), ("_drivers", weakref.WeakSet)):
            if hasattr(lifetime, name):
                setattr(lifetime, name, made())

    # --- phases --------------------------------------------------------------------------------------------

    def run(self) -> Result:
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
            thread = self._start(host, f"thread {number}", partial(self._work, f"thread {number}", index, uses))
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
        self._look_for_leftovers()
        self._close_all()
        self._released_at_last()
        self.checker.judge()
        self.reports.judge(self.checker.grants)
        self._count_losses()
        return Result(
            seed=plan.seed,
            wrong=tuple(world.wrong),
            digest=world.digest(),
            grants=len(self.checker.grants),
            points=kernel.points,
            switches=kernel.switches,
            trace=tuple(world.trace),
        )

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
        self.kernel.run(
            self.world.now + CLOSE_NS + int(longest * SECOND)
        )  # losses of held locks are reported until then
        for thread in list(self.kernel.threads):
            if not thread.host.finalizing:
                self.world.violate(f"{thread.host.name}: its {thread.name} did not end when it was closed")

    def _executed(self, index: int, words: list[bytes], reply: Any) -> None:
        self.checker.executed(self.masters[index], words, reply)
        self.reports.executed(index, words, reply)

    def _look_for_leftovers(self) -> None:
        """Check that no master has a token of a client after all its locks were released, unless it has just ended."""
        gone = self.closed - self.surrendered
        live = [host for host in self.hosts if not (host.dead or host.finalizing or host in gone)]
        tokens = {token: host.name for host in live for token in host.tokens}
        # Schedules in which a client is closed have no faults: if it releases its locks, it leaves none on any master.
        for master in [master for master in self.masters if self.surrendered or not master.doubted]:
            for key in list(master.keys.values):
                master.keys.expire(key)
            for key, value in master.keys.values.items():
                values = [value] if isinstance(value, bytes) else [*value, *getattr(value, "values", list)()]
                for found in values:
                    if isinstance(found, bytes) and found in tokens and (master.index, found) not in self.checker.stays:
                        self.world.violate(f"{tokens[found]} has left {key!r} on {master.name}")

    # --- processes that close, end or fork -----------------------------------------------------------------

    def _start(self, host: ThreadHost, name: str, work: Any) -> Thread:
        thread = self.kernel.spawn(host, name, work)
        self.working[thread] = None
        return thread

    def _ended(self, thread: Thread) -> None:
        self.working.pop(thread, None)

    def _killed(self, host: Host) -> None:
        for thread in [thread for thread in self.working if thread.host is host]:
            del self.working[thread]

    def _close(self, client: int) -> None:
        """Close a client while other threads use it; in every other schedule it releases the locks that they hold."""
        host = self.hosts[client]
        self.closed.add(host)
        host.closing = True
        self.world.note(self.world.now, host.name, "is closed")
        close = self.clients[client].close
        if self.plan.seed % 2:
            self.surrendered.add(host)
            close = partial(close, release=True)
        self._start(host, "close", close)

    def _shutdown(self, client: int) -> None:
        """End the interpreter while all other threads are daemons; a finalizer then closes the client."""
        host = self.hosts[client]
        self.closed.add(host)
        host.closing = True
        self.world.note(self.world.now, host.name, "ends")
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
        self._killed_but(host, me)
        self.clients[client].close()

    def _killed_but(self, host: ThreadHost, me: Thread | None) -> None:
        for thread in [thread for thread in self.working if thread.host is host and thread is not me]:
            del self.working[thread]

    def _fork(self, client: int) -> None:
        """Fork; the simulation continues with the child, which has one new thread and none of the parent's."""
        host = self.hosts[client]
        if not host.threads:
            return
        self.closed.add(host)
        host.closing = True
        self.world.note(self.world.now, host.name, f"is forked; {len(host.threads)} threads are no more")
        self.kernel.vanish(list(host.threads))
        host.pid += 1
        self._killed_but(host, None)
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
                self._say(host, "child", "has a lock of its own")
        except QuorumUnavailable:
            if not self.plan.faults:
                raise
        self.clients[client].close()

    # --- what threads do -----------------------------------------------------------------------------------

    def _say(self, host: ThreadHost, name: str, what: str) -> None:
        self.world.note(self.kernel.now(), host.name, f"{name} {what}")

    def _work(self, name: str, client: int, uses: tuple[Use, ...]) -> None:
        host = self.hosts[client]
        me = self.kernel.current
        assert me is not None
        for place, use in enumerate(uses):
            if use.pause:
                self.kernel.sleep(int(use.pause * SECOND))
            me.strikes = 0
            me.in_call = place < len(uses) - 1  # no interrupt in the last use, which cleans up after earlier ones
            try:
                self._use(name, client, use)
            except KeyboardInterrupt:
                self._say(host, name, "was interrupted")
            except QuorumUnavailable as error:
                self._say(host, name, f"QuorumUnavailable: {error}")
                self.reports.unavailable(error)
                if self.plan.quiet():
                    self.world.violate(f"{host.name}: {name} has no quorum, and all masters answer: {error}")
            except ClientUnusable as error:
                self._say(host, name, f"{type(error).__name__}: {error}")
                if host not in self.closed:
                    self.world.violate(f"{host.name}: {name}: {type(error).__name__}: {error}")
                return
            except (LockError, ConfigurationError) as error:
                self._say(host, name, f"{type(error).__name__}: {error}")
            finally:
                me.in_call = me.interrupted = False

    def _use(self, name: str, client: int, use: Use) -> None:
        host = self.hosts[client]
        if use.kind == "many":
            self._use_many(name, client, use)
            return
        lock = self._lock_of(client, use)
        self._say(host, name, f"asks for {use.kind} {' '.join(use.names)}")
        asked = self.kernel.now()
        if not self._acquired(name, use, lock, asked):
            self._say(host, name, "did not get it")
            return
        # No call of the package from here to the `try`: an interrupt in it would be the user's to deal with.
        parts = [lock]
        if use.kind == "multi":
            parts = lock._locks
        elif use.kind == "rlock":
            parts = [held for held, _ in lock._held.values()]
        pairs = [(self._granted(name, host, use, part, asked), part) for part in parts]
        try:
            if use.hold:
                self.kernel.sleep(int(use.hold / 2 * SECOND))
            self._check(host, lock, pairs)
            if use.extend:
                self._say(host, name, "extends it")
                with self.reports.call("extend", host, pairs):
                    self._in_time(host, name, "an extension", lock.extend)
            if use.kind == "rlock":
                with self.reports.call("check", host, pairs):
                    lock.acquire()
                self._insist(lock.release)
            if use.hold:
                self.kernel.sleep(int(use.hold / 2 * SECOND))
            self._check(host, lock, pairs)
            if use.renew:
                self._see_the_renewal(host, name, use, lock)
            if use.watch:
                self._see_the_loss(host, name, lock)
            if use.asks:
                self._ask(host, name, pairs)
        except LockLost:
            self._check(host, lock, pairs)
            raise
        finally:
            self._released(host, name, pairs)
            self._let_go(name, host, use, lock, pairs)

    def _check(self, host: ThreadHost, lock: Any, pairs: Pairs) -> None:
        """Check the lock, which takes no time; whether it is lost does not matter to its thread."""
        with suppress(LockError), self.reports.call("check", host, pairs):
            self.kernel.at_no_time(lock.check)

    def _ask(self, host: ThreadHost, name: str, pairs: Pairs) -> None:
        """Ask the masters whether the lock is held."""
        try:
            with self.reports.call("owned", host, pairs) as calls:
                if not pairs[0][1].owned():
                    calls.clear()
        except QuorumUnavailable as error:
            self._say(host, name, f"does not know whether it has the lock: {error}")

    def _let_go(self, name: str, host: ThreadHost, use: Use, lock: Any, pairs: Pairs) -> None:
        """Release the lock."""
        waits = use.wait or use.kind in ("multi", "rlock")
        try:
            release = lock.release if waits else partial(lock.release, wait=False)
            if use.leaves:
                release = partial(lock.__exit__, None, None, None)
            with self.reports.call("release", host, pairs, waits):
                try:
                    self._in_time(host, name, "a release", partial(self._insist, release))
                except QuorumUnavailable:
                    if self.plan.theme != "losing":
                        raise
                    # It may be called again. Both calls are one for the oracle.
                    self._say(host, name, "releases it again")
                    release()
        except LockError:
            if use.hold < use.ttl and self.plan.quiet():
                raise
        self._say(host, name, "has released it")

    def _insist(self, release: Any) -> Any:
        """Release, and release again after an interrupt, because the first call may not have begun."""
        try:
            return release()
        except KeyboardInterrupt:
            me = self.kernel.current
            assert me is not None
            me.in_call = me.interrupted = False
            with suppress(LockError):  # the first call may have released the lock
                release()
            raise

    def _in_time(self, host: ThreadHost, name: str, what: str, call: Any) -> None:
        """Run a call that needs only replies of the masters, and check that it is short if all masters reply."""
        began = self.kernel.now()
        call()
        took, allowed = self.kernel.now() - began, self.plan.idle_ns()
        late = [ns for end, ns in self.world.stragglers if end > began]
        if allowed and took > allowed + sum(late):
            self.world.violate(
                f"{host.name}: {what} of {name} took {took / MILLISECOND:.3f} ms, and all masters answer"
            )

    def _acquired(self, name: str, use: Use, lock: Any, asked: int) -> bool:
        waits = use.kind in ("plain", "fence", "rlock", "fair")
        if waits:
            self.checker.waits(use.names[0], name, asked)
        try:
            return bool(lock.acquire(timeout=use.timeout))
        finally:
            if waits:
                self.checker.leaves(use.names[0], name)

    def _see_the_loss(self, host: ThreadHost, name: str, lock: Any) -> None:
        """Check that the loss of a lock was reported if its validity is over."""
        if host.read_clock() > lock._hold.deadline_ns + LATE_NS + self.plan.choice.stall_ns:
            stalled_ns = self.kernel.stalled_ns
            self.kernel.sleep(10 * MILLISECOND + 10 * self.plan.choice.stall_ns)
            if lock not in self.told:  # a stall of the reporting thread may be many times the average
                self.kernel.sleep(self.kernel.stalled_ns - stalled_ns)
            if lock not in self.told and not lock._hold.lost_ns:
                self.world.violate(f"{host.name} {name} was not told that it has lost {lock.name}")

    def _see_the_renewal(self, host: ThreadHost, name: str, use: Use, lock: Any) -> None:
        """Check that a lock is still renewed, if every reply arrives in time: less than half of its ttl has passed."""
        left_ns = lock._hold.deadline_ns - host.read_clock()
        if self.plan.quiet() and left_ns < self.world.renewed_ns(use.ttl, self.plan.far_us) - self.kernel.stalled_ns:
            self.world.violate(f"{host.name} {name} does not renew {lock.name}, and all masters answer")

    def _use_many(self, name: str, client: int, use: Use) -> None:
        host, face = self.hosts[client], self.clients[client]
        asked = self.kernel.now()
        locks = face.acquire_many(use.names, use.ttl)
        pairs = [(self._granted(name, host, use, lock, asked), lock) for lock in locks if lock is not None]
        try:
            if use.hold:
                self.kernel.sleep(int(use.hold * SECOND))
            if use.extend:
                with self.reports.call("extend_many", host, pairs) as calls:
                    keep_true(calls, locks, face.extend_many(locks))
        finally:
            self._released(host, name, pairs)
            with self.reports.call("release_many", host, pairs, use.wait) as calls:
                keep_true(calls, locks, self._insist(partial(face.release_many, locks, wait=use.wait)))

    def _lock_of(self, client: int, use: Use) -> Any:
        face, name, ttl = self.clients[client], use.names[0], use.ttl
        options: dict[str, Any] = {"auto_renew": True} if use.renew else {}
        if use.watch:
            options["on_lost"] = self._lost
        if use.kind == "multi":
            return face.multi_lock(use.names, ttl)
        if use.kind == "rlock":
            return face.rlock(name, ttl)
        if use.kind == "semaphore":
            return face.semaphore(name, PERMITS, ttl, **options)
        if use.kind in ("reader", "writer"):
            which = client, name, use.renew, use.watch
            both = self.readwrite.get(which)
            if both is None:
                both = self.readwrite[which] = face.rw_lock(name, ttl, **options)
            return both.read() if use.kind == "reader" else both.write()
        assert use.kind in ("plain", "fence", "fair"), use.kind
        return face.lock(name, ttl, fence=use.kind == "fence", fair=use.kind == "fair", **options)

    def _lost(self, lock: Any, reason: str) -> None:
        self.told.append(lock)
        self.reports.reported(lock)

    def _granted(self, name: str, host: ThreadHost, use: Use, lock: Any, asked: int) -> Grant:
        hold, now = lock._hold, self.kernel.now()
        # The properties of a hold are calls of the package. An interrupt in one would leave the lock to its ttl.
        lease = hold.lease
        fence, token = lease.fence if use.kind == "fence" else 0, lease.token
        self._say(host, name, f"has {hold.name} {fence or ''} by {token.decode()}")
        grant = Grant(f"{host.name} {name}", str(hold.name), use.kind, fence, asked, now)
        grant.token = token
        grant.gave = frozenset(self.checker.taken(token))
        self.held[grant] = host, lock
        self.checker.granted(grant, token)
        self.checker.leaves(grant.name, name)
        return grant

    def _released(self, host: ThreadHost, name: str, pairs: Any) -> None:
        self._say(host, name, "releases it")
        for grant, lock in pairs:
            self.held.pop(grant, None)
            self._end(grant, host, lock)
            if grant.end == host.local:
                self.checker.released(grant, host.local)

    def _released_by(self, host: ThreadHost) -> None:
        for grant in [grant for grant, (other, _) in self.held.items() if other is host]:
            _, lock = self.held.pop(grant)
            self._end(grant, host, lock)

    def _released_at_last(self) -> None:
        for host in self.hosts:
            self._released_by(host)

    def _end(self, grant: Grant, host: ThreadHost, lock: Any) -> None:
        """Set the end of a grant: the time until which its holder relied on it."""
        # As in `_granted`, no call of the package: this is what the property `deadline_ns` says.
        hold = lock._hold
        deadline_ns = hold.lease.deadline_ns if HELD <= hold.state < UNDOING else 0
        grant.end = min(host.local, host.clock.when(deadline_ns))


class _Shown:
    """A global set of which one process sees what is its own; others may add to it meanwhile."""

    def __init__(self, whole: weakref.WeakSet[Any], items: list[Any]) -> None:
        self.add, self._items = whole.add, items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)


class _only:
    """Reduce a global set of the package to the object of one process, as that process would see it."""

    def __init__(self, module: Any, name: str, item: Any) -> None:
        self._module, self._name, self._item = module, name, item

    def __enter__(self) -> None:
        self._all = getattr(self._module, self._name)
        mine = [self._item] if self._item in self._all else []
        setattr(self._module, self._name, _Shown(self._all, mine))

    def __exit__(self, *_: object) -> None:
        setattr(self._module, self._name, self._all)
