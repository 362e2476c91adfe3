"""Runs a plan: the world, its masters and clients, the clients' actions, and the judgement."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from redlatch import ConfigurationError, Guard, Handoff, LockError, LockLost, QuorumUnavailable
from redlatch.compat.shared import shown_token
from redlatch.guard.marker import FINAL, MARKER, Marker
from redlatch.quorum.claim import HELD
from redlatch.quorum.hold import Hold
from redlatch.quorum.losses import KEY_GONE
from redlatch.votes.scripts import KEPT_MS

from .alone import Alone
from .checker import Checker
from .drawing import draw
from .faults import Faults
from .foreign import Deleted, Deletions, SimForeign, key_of
from .grants import Grant
from .host import Host
from .liveness import Liveness
from .logs import Logs, taken
from .master import Master
from .moving import Moves
from .network import Route
from .outcome import LATE_NS, LOST_ATTEMPTS, SPAN_NS, Outcome, told
from .parts import PERMITS
from .plan import DELETE, FOREIGN, Action, Plan
from .recount import Recount, group_of
from .reports import Pairs, Reports, keep_true
from .task_host import SimClient, TaskHost
from .watched import Watched
from .world import EPOCH_MS, MICROSECOND, SECOND, Drifting, World

# The world's time to finish what is left, once all faults are over.
REST_NS = 4 * SECOND
# A pause of so many seconds is a rest, which the schedule takes longer for.
RESTS = 1.0
# The patience of the clients of some seeds, in seconds: longer than some of the outages, and shorter than others.
PATIENCE = 0.5
# The suffix of the key of a queue (see `fair`).
QUEUE = b"\0queue"

# A schedule with more events is an endless loop. The longest of 700,000 schedules had 43,000 events: three processes
# polled masters that do not push, while the locks of killed processes lasted 18 s.
MOST_STEPS = 80_000


@dataclass(frozen=True, kw_only=True)
class Result(Outcome):
    """The outcome of a schedule of tasks.

    Attributes:
        steps: how many events there were.
    """

    steps: int


def simulate(seed: int) -> Result:
    """Run the schedule of a seed."""
    return run(draw(seed))


def run(plan: Plan, tracing: bool = False) -> Result:
    """Run a plan."""
    enabled = gc.isenabled()
    # The seed does not decide what the collector finalizes, and when.
    gc.disable()
    try:
        schedule = _Schedule(plan, tracing)
        with taken(schedule.logs):
            return schedule.run()
    finally:
        if enabled:
            gc.enable()


class _Schedule:
    def __init__(self, plan: Plan, tracing: bool) -> None:
        self.plan = plan
        self.world = world = World(plan.seed, tracing)
        fewest = min([len(listed) for listed in plan.lists], default=len(plan.masters))
        self.checker = Checker(world, fewest, plan.trusty, plan.fences_hold(), plan.idle_ns())
        self.masters = [
            Master(world, index, Drifting(0, rate), kind, pushes, self._executed, index not in plan.scriptless)
            for index, (kind, pushes, rate) in enumerate(plan.masters)
        ]
        self.reports = Reports(world, self.masters, self.checker.quorum, plan.trusty)
        self.logs = Logs(world, self.reports)
        self.hosts = [
            TaskHost(
                world,
                number,
                self.masters,
                Drifting(SECOND, rate),
                Drifting(int(ahead * SECOND), 1.0),
                plan.pauses,
                self._killed,
            )
            for number, (rate, ahead, _, _) in enumerate(plan.clients)
        ]
        far = [(int(world.chance.uniform(0.5, 1.5) * plan.far_us * MICROSECOND)) for _ in self.masters]
        for host in self.hosts:
            host.routes = [Route(ns, ns) for ns in far]
        default_ttl = plan.default_ttl or plan.ttl
        for host in self.hosts:
            host.dials_patiently = plan.prompt
            host.default_ttl_ms = round(default_ttl * 1000)
        for host, knows in zip(self.hosts, plan.knows, strict=False):
            old, new = plan.lists
            host.lists = {"old": (old, ()), "new": (new, ()), "both": (old, new)}[knows]
        self.liveness = Liveness(world, plan) if plan.prompt else None
        self.deletions = Deletions()
        # Locks of drop-ins have no groups.
        self.recount = None if plan.foreign else Recount(world)
        # Not drawn, so that each seed draws what it drew before clients had patience.
        patience = PATIENCE if plan.seed % 4 == 1 else 0.0
        patient = partial(SimClient, guard=Guard(max_ttl=plan.ttl), patience=patience)
        kind: Any = SimForeign if plan.foreign else patient
        self.clients = [
            kind(host, wakeups="auto" if pushed else "poll", handoff=Handoff(tenure=tenure), ttl=default_ttl)
            for host, (_, _, pushed, tenure) in zip(self.hosts, plan.clients, strict=True)
        ]
        if plan.known:
            self._mark_all()
        self.readwrite: dict[tuple[int, str, bool, bool, str], Any] = {}
        # The grants that were not released yet, each with its process and its lock object.
        self.held: dict[Grant, tuple[Host, Any]] = {}
        self.alone = self._watch_the_only_master() if plan.alone else None
        # The locks whose loss was reported.
        self.told: list[Any] = []
        # By number: the process of each task that has not ended.
        self.working: dict[int, Host] = {}

    def _watch_the_only_master(self) -> Alone:
        """Have what it tells its clients recorded."""
        alone = self.masters[0].told = Alone(self.world, self.masters[0], self.held)
        for host in self.hosts:
            host.turned = alone.turned
        return alone

    def _mark_all(self) -> None:
        """Put the guard's markers on all masters, as any earlier use of them does."""
        listed = [self.masters[index] for index in self.plan.lists[0]] if self.plan.lists else self.masters
        addresses = tuple(sorted(f"master-{master.index}:6379" for master in listed))
        for master in listed:
            mine = f"master-{master.index}:6379"
            identity = f"{master.info()['run_id']} {master.info()['master_replid']}"
            ttl_ms, default_ms = round(self.plan.ttl * 1000), round((self.plan.default_ttl or self.plan.ttl) * 1000)
            since = EPOCH_MS * 1000 - round(self.plan.marked_ago * 1e6) if self.plan.marked_ago else 0
            marker = Marker(
                identity, since, since, 0, 0, FINAL, True, ttl_ms, False, False, mine, addresses, default_ms
            )
            master.keys.execute([b"SET", MARKER, marker.text(), b"PX", b"%d" % KEPT_MS])

    def run(self) -> Result:
        world, plan = self.world, self.plan
        faults = Faults(world, self.hosts, self.masters)
        for fault in plan.faults:
            faults.plan(fault)
        moves = Moves(world, self.masters, plan.lists, plan.seed) if plan.moves else None
        for move in plan.moves:
            assert moves is not None
            moves.plan(move)
        for number, (client, actions) in enumerate(plan.tasks):
            self.working[number] = self.hosts[client]
            self._start(self.hosts[client], partial(self._work, f"task {number}", client, actions), number)
        with nullcontext() if moves is None else moves.patched():
            world.run(self._span_ns(), self.working)
        for number, host in self.working.items():
            world.violate(f"task {number} of {host.name} never ended")
        # Clients send their pending releases when a master is back.
        world.run(world.now + REST_NS)
        self._look_for_leftovers()
        for host, client in zip(self.hosts, self.clients, strict=True):
            if not host.dead:
                host.closing = True
                self._start(host, client.close)
        world.run(world.now + REST_NS)
        # Where a master may be kept out for long, clients look at it once a second.
        if world.steps > (MOST_STEPS if plan.ttl < 60 else 4 * MOST_STEPS):
            world.violate(f"{world.steps} events: somebody goes round and round")
        self._released_at_last()
        self.checker.judge()
        self.reports.judge(self.checker.grants, self._deleted)
        if self.recount is not None:
            for number, (host, client) in enumerate(zip(self.hosts, self.clients, strict=True)):
                if not host.dead:
                    self.recount.judge(number, {name: it for name, it in client.stats().groups.items() if name})
        if self.alone is not None:
            self.alone.judge()
        if self.liveness is not None:
            self.liveness.judge(self.checker.grants)
        self._clean_up()
        return Result(
            seed=plan.seed,
            wrong=tuple(world.wrong),
            digest=world.digest(),
            grants=len(self.checker.grants),
            steps=world.steps,
            trace=tuple(world.trace),
        )

    def _span_ns(self) -> int:
        """Return for how long the tasks may go on."""
        plan = self.plan
        # A master whose clock is set back keeps its keys longer.
        longer = sum(fault.details[1] for fault in plan.faults if fault.what == "set_back")
        # Clients may rest.
        longer += sum(action.pause for _, actions in plan.tasks for action in actions if action.pause > RESTS)
        # Masters may be kept out for the longest ttl.
        longer += len(plan.faults) * plan.ttl if plan.ttl >= 10 and not plan.prompt else 0
        # Attempts wait for a handover (`drivers.handover.LONGEST_NS`).
        longer += 60 * len(plan.moves)
        # The holders may come one after another.
        longer += sum(action.hold for _, actions in plan.tasks for action in actions)
        if any(action.kind == "given" for _, actions in plan.tasks for action in actions):
            longer += LOST_ATTEMPTS * plan.ttl
        return SPAN_NS + int(longer * SECOND)

    # --- checks --------------------------------------------------------------------------------------------

    def _executed(self, index: int, words: list[bytes], reply: Any) -> None:
        self.checker.executed(self.masters[index], words, reply)
        self.reports.executed(index, words, reply)
        if self.alone is not None:
            self.alone.executed(words, reply)

    def _look_for_leftovers(self) -> None:
        """Check that no token of a living client is left on any master, now that no client holds a lock.

        A token may stay until its ttl in four cases: the master answered a command of the token with an error; it read
        a command on a connection that the client had given up; it is kept out; or it was swapped for another database.
        (The ttl of a queue is longer than all others.)
        """
        tokens = {token: host.name for host in self.hosts if not host.dead for token in host.tokens}
        for master in self.masters:
            if master.swapped or (master.doubted and self.plan.ttl * SECOND > REST_NS):
                continue
            for key in list(master.keys.values):
                master.keys.expire(key)
            for key, value in master.keys.values.items():
                if master.doubted and key.endswith(QUEUE):
                    continue
                values = [value] if isinstance(value, bytes) else [*value, *getattr(value, "values", list)()]
                for found in values:
                    if isinstance(found, bytes) and found in tokens:
                        if (master.index, found) in self.checker.stays:
                            continue
                        self.world.violate(f"{tokens[found]} has left {key!r} on {master.name}")

    # --- the clients' actions ------------------------------------------------------------------------------

    def _start(self, host: TaskHost, work: Callable[[], Any], number: int = -1) -> None:
        def begin() -> None:
            task = host.loop.create_task(work())
            task.add_done_callback(partial(self._ended, host, number))

        host.loop.call_soon(begin)

    def _killed(self, host: Host) -> None:
        for number in [number for number, other in self.working.items() if other is host]:
            del self.working[number]

    def _ended(self, host: TaskHost, number: int, task: asyncio.Task[None]) -> None:
        self.working.pop(number, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.world.violate(f"{host.name}: {told(error)}")

    async def _work(self, name: str, client: int, actions: tuple[Action, ...]) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.set_name(name)
        loop = self.hosts[client].loop
        for action in actions:
            await asyncio.sleep(action.pause)
            timer = None
            if action.cancel is not None:
                timer = loop.call_later(action.cancel, task.cancel)
            try:
                await self._use(name, client, action)
            except asyncio.CancelledError:
                self._say(client, name, "was cancelled")
                task.uncancel()
            except (LockError, ConfigurationError) as error:
                if isinstance(error, QuorumUnavailable):
                    self.reports.unavailable(error)
                self._say(client, name, f"{type(error).__name__}: {error}")
            finally:
                if timer is not None:
                    timer.cancel()

    def _say(self, client: int, name: str, what: str) -> None:
        host = self.hosts[client]
        self.world.note(max(host.local, self.world.now), host.name, f"{name} {what}")

    async def _use(self, name: str, client: int, action: Action) -> None:
        if action.kind == "many":
            await self._use_many(name, client, action)
            return
        if action.kind == DELETE:
            await self._delete(name, client, action)
            return
        lock = self._lock_of(client, action)
        self._say(client, name, f"asks for {action.kind} {' '.join(action.names)}")
        asked = self.hosts[client].local
        if not await self._acquired(client, name, action, lock, asked):
            self._say(client, name, "did not get it")
            return
        parts = lock._locks if action.kind == "multi" else [lock.lock if action.kind == "rlock" else lock]
        pairs = [(self._granted(name, client, action, part, asked), part) for part in parts]
        if action.shown:
            shown_token(lock)
        had_ns = self.hosts[client].clock.read(self.hosts[client].local)
        try:
            await asyncio.sleep(action.hold / 2)
            self._check(client, lock, pairs)
            await self._extend_often(client, name, action, lock, pairs)
            if action.kind == "rlock":
                with self.reports.call("check", self.hosts[client], pairs):
                    await lock.acquire()
                await lock.release()
                if lock.count != 1 or parts[0]._hold.state != HELD:
                    self.world.violate(f"{name} of {self.hosts[client].name} has released the whole of {lock.name}")
            await asyncio.sleep(action.hold / 2)
            self._check(client, lock, pairs)
            if action.renew and not action.watch:
                self._see_the_renewal(client, name, action, lock)
            if action.renew and self.plan.heals and lock.remaining() <= 0:
                self.world.violate(f"{name} of client {client} has lost {lock.name}, whose votes should have healed")
            if action.watch:
                await self._see_the_loss(client, name, lock)
            bounded = action.watch and action.renew and not action.extends and not self.plan.pauses
            if bounded and lock._hold.deadline_ns > had_ns + int(action.ttl * SECOND):
                self.world.violate(f"{name} of client {client} has renewed {lock.name} beyond its max_hold")
            if action.asks:
                await self._ask(client, name, lock, pairs)
        except LockLost as error:
            self._told(client, action, lock, error)
            self._check(client, lock, pairs)
            raise
        finally:
            self._released(client, name, pairs)
            if action.elsewhere is not None and lock.token is not None:
                self._hand_on(name, client, action, lock)
            if action.here:
                await self._release(client, action, lock, pairs)
            self._say(client, name, "has released it")

    def _check(self, client: int, lock: Any, pairs: Pairs) -> None:
        """Check the lock, which takes no time; whether it is lost does not matter to its task."""
        host = self.hosts[client]
        with suppress(LockLost), self.reports.call("check", host, pairs):
            host.at_no_time(lock.check)

    async def _ask(self, client: int, name: str, lock: Any, pairs: Pairs) -> None:
        """Ask the masters whether the lock is held."""
        try:
            with self.reports.call("owned", self.hosts[client], pairs) as calls:
                if not await pairs[0][1].owned():
                    calls.clear()
        except QuorumUnavailable as error:
            self._say(client, name, f"does not know whether it has {lock.name}: {error}")

    async def _release(self, client: int, action: Action, lock: Any, pairs: Pairs) -> None:
        waits = action.wait or action.kind in ("multi", "rlock")
        try:
            with self.reports.call("release", self.hosts[client], pairs, waits):
                if action.leaves:
                    await lock.__aexit__(None, None, None)
                else:
                    await (lock.release() if waits else lock.release(wait=False))
        except LockLost as error:
            self._told(client, action, lock, error)
            raise

    def _told(self, client: int, action: Action, lock: Any, error: BaseException) -> None:
        if self.recount is not None:
            self.recount.tell(client, action, lock, error)

    def _waits(self, client: int, name: str, action: Action, asked: int) -> Any:
        assert self.liveness is not None
        who = self.hosts[client].name
        return self.liveness.begin(who, f"{who} {name}", action.names, action.kind, asked)

    async def _acquired(self, client: int, name: str, action: Action, lock: Any, asked: int) -> bool:
        waits = action.kind in ("plain", "fence", "rlock", "fair", *FOREIGN)
        if waits:
            self.checker.waits(action.names[0], name, asked)
        wait = None if self.liveness is None else self._waits(client, name, action, asked)
        number = len(lock.names) if action.kind == "multi" else 1
        try:
            won = bool(await lock.acquire(timeout=action.timeout))
            if self.recount is not None:
                self.recount.ended(client, action, number if won else 0, 0 if won else number)
            return won
        except BaseException as error:
            if self.recount is not None:
                self.recount.failed(client, action, number, error)
            raise
        finally:
            if wait is not None and self.liveness is not None:
                self.liveness.end(wait, asked, self.hosts[client].local, action.timeout)
            if waits and lock.remaining() <= 0:
                self.checker.leaves(action.names[0], name)

    async def _delete(self, name: str, client: int, action: Action) -> None:
        """Delete a lock by hand, whatever its holder, and report it a little later, as the drop-ins' resets do."""
        host = self.hosts[client]
        self._say(client, name, f"deletes {action.names[0]}")
        found = self.deletions.delete(key_of(action), self.masters, host)
        await asyncio.sleep(action.hold / 10)
        face = self.clients[client]
        head = face._driver.queues.heads.get(key_of(action))
        face.broken(key_of(action))
        if head is not None and head.held(host.clock.read(host.local)):
            self.world.violate(f"{host.name} goes on holding {action.names[0]}, which it has deleted itself")
        for deleted in found:
            deleted.told = host.local

    def _hand_on(self, name: str, client: int, action: Action, lock: Any) -> None:
        """Let another client release a lock by its token, if it can."""
        assert action.elsewhere is not None
        token, other, host = lock.token, self.clients[action.elsewhere], self.hosts[action.elsewhere]
        self._say(client, name, f"leaves its release to {host.name}")
        # The other process may be dead, or its release may fail.
        for master in self.masters:
            self.checker.stays.add((master.index, token))

        async def release() -> None:
            try:
                await other.held_by(lock.name, key_of(action), token, round(action.ttl * 1000)).release()
            except LockError as error:
                self._say(client, name, f"was told by {host.name}: {type(error).__name__}: {error}")

        def arrives() -> None:
            if not host.dead and not host.closing:
                self._start(host, release)

        # If the process was paused, its local time is later than the world's time.
        self.world.at(self.hosts[client].local, arrives)

    async def _extend_often(self, client: int, name: str, action: Action, lock: Any, pairs: Pairs) -> None:
        """Extend the lock as often as planned. A failed or cancelled extension does not prevent the next one."""
        for number, extension in enumerate(action.extends):
            if extension.pause:
                await asyncio.sleep(extension.pause)
            for index, seconds, left in extension.strays:
                for connection in self.hosts[client].connections:
                    if connection.master.index == index:
                        connection.strays = int(seconds * SECOND), left
            try:
                async with asyncio.timeout(extension.patience):
                    await self._extend(client, name, lock, pairs, extension.ttl)
            except (TimeoutError, QuorumUnavailable) as error:
                if isinstance(error, QuorumUnavailable):
                    self.reports.unavailable(error)
                self._say(client, name, f"has not extended it: {type(error).__name__}")
                if isinstance(error, QuorumUnavailable) and number == len(action.extends) - 1:
                    raise

    async def _extend(self, client: int, name: str, lock: Any, pairs: Pairs, ttl: float) -> None:
        """Extend the lock.

        An extension that arrives after the lock has run out does not count, whatever the masters reply.
        """
        host = self.hosts[client]
        self._say(client, name, f"extends it to {ttl:g} s")
        parts = [part for _, part in pairs if not (part._upkeep and part._upkeep.renews)]
        holds = [part._hold for part in parts if not part._hold.extending]
        before = {hold: (hold.lease.asked_ns, hold.deadline_ns) for hold in holds}

        # Called after each step, because a second extension may verify the first.
        def look() -> None:
            for hold, (asked, deadline) in before.items():
                if hold.lease.asked_ns != asked and hold.lease.asked_ns + hold.elapsed_ns >= deadline:
                    self.world.violate(f"{name} of {host.name} has extended {hold.name} when it had run out")
                before[hold] = hold.lease.asked_ns, hold.deadline_ns

        with self.reports.call("extend", host, pairs):
            await Watched(lock.extend(ttl), look)

    async def _see_the_loss(self, client: int, name: str, lock: Any) -> None:
        """Check that the loss of a lock past its deadline was reported, as soon as its process runs again."""
        host, deadline = self.hosts[client], lock._hold.deadline_ns
        if host.clock.read(host.local) > deadline + LATE_NS:
            # The process may have been paused until now.
            await asyncio.sleep(0.001)
            # The loss of a deleted lock is reported by its old deadline.
            if lock not in self.told and not lock._hold.lost_ns:
                self.world.violate(f"{host.name} {name} was not told that it has lost {lock.name}")

    def _see_the_renewal(self, client: int, name: str, action: Action, lock: Any) -> None:
        """Check that a lock is still renewed, if every reply arrives in time: less than half of its ttl has passed."""
        host = self.hosts[client]
        left_ns = lock._hold.deadline_ns - host.clock.read(host.local)
        if self.plan.idle_ns() and not action.extends and left_ns < self.world.renewed_ns(action.ttl, self.plan.far_us):
            self.world.violate(f"{host.name} {name} does not renew {lock.name}, and all masters answer")

    async def _use_many(self, name: str, client: int, action: Action) -> None:
        face = self.clients[client]
        asked = self.hosts[client].local
        wait = None if self.liveness is None else self._waits(client, name, action, asked)
        try:
            locks = await face.acquire_many(action.names, action.ttl, group=group_of(action))
            won = len([lock for lock in locks if lock is not None])
            if self.recount is not None:
                self.recount.ended(client, action, won, len(set(action.names)) - won)
        except BaseException as error:
            if self.recount is not None:
                self.recount.failed(client, action, len(set(action.names)), error)
            raise
        finally:
            if wait is not None and self.liveness is not None:
                self.liveness.end(wait, asked, self.hosts[client].local, 0.0)
                # A single attempt is no wait.
                self.liveness.waits.remove(wait)
        pairs = [(self._granted(name, client, action, lock, asked), lock) for lock in locks if lock is not None]
        try:
            await asyncio.sleep(action.hold)
            for extension in action.extends:
                if extension.pause:
                    await asyncio.sleep(extension.pause)
                with self.reports.call("extend_many", self.hosts[client], pairs) as calls:
                    keep_true(calls, locks, await face.extend_many(locks, extension.ttl))
        finally:
            self._released(client, name, pairs)
            with self.reports.call("release_many", self.hosts[client], pairs, action.wait) as calls:
                keep_true(calls, locks, await face.release_many(locks, wait=action.wait))

    def _lock_of(self, client: int, action: Action) -> Any:
        face, name, ttl = self.clients[client], action.names[0], action.ttl
        if self.plan.foreign:
            # Several holders may have the same chosen token.
            chosen = action.kind == "given"
            return face.foreign_lock(action, self._note_loss if chosen else self._lost)
        options: dict[str, Any] = {"auto_renew": True} if action.renew else {}
        options["group"] = group = group_of(action)
        if action.watch and action.renew:
            options["max_hold"] = ttl
        if action.watch:
            options["on_lost"] = partial(self._report, client, action)
        if action.kind == "multi":
            return face.multi_lock(action.names, ttl, group=group)
        if action.kind == "rlock":
            return face.rlock(name, ttl, group=group)
        if action.kind == "semaphore":
            return face.semaphore(name, PERMITS, ttl, **options)
        if action.kind in ("reader", "writer"):
            which = client, name, action.renew, action.watch, group
            both = self.readwrite.get(which)
            if both is None:
                both = self.readwrite[which] = face.rw_lock(name, ttl, **options)
            return both.read() if action.kind == "reader" else both.write()
        assert action.kind in ("plain", "fence", "fair"), action.kind
        return face.lock(name, ttl, fence=action.kind == "fence", fair=action.kind == "fair", **options)

    def _report(self, client: int, action: Action, lock: Any, reason: str) -> None:
        """Take the report of a loss; `action` is one of the lock's group."""
        self._lost(lock, reason)
        if self.recount is not None:
            self.recount.lost(client, action, lock)

    def _lost(self, lock: Any, reason: str) -> None:
        """Record the report of a loss; check that no quorum has a key that is reported gone."""
        self._note_loss(lock, reason)
        hold: Any = lock._hold
        if reason == KEY_GONE and not self.plan.lists:
            key = hold.kind.watched(hold.key)
            having = [master.index for master in self.masters if master.keys.values.get(key) == hold.token]
            if len(having) >= self.checker.quorum:
                self.world.violate(f"{lock.name} was reported gone, but {having} have it: a quorum")

    def _note_loss(self, lock: Any, reason: str) -> None:
        self.told.append(lock)
        self.reports.reported(lock)

    def _granted(self, name: str, client: int, action: Action, lock: Any, asked: int) -> Grant:
        host = self.hosts[client]
        hold: Hold = lock._hold
        fence = hold.fence if action.kind == "fence" else 0
        self._say(client, name, f"has {hold.name!s} {fence or ''} by {hold.token.decode()}")
        grant = Grant(f"{host.name} {name}", str(hold.name), action.kind, fence, asked, host.local)
        grant.token = hold.token
        # The client may have asked for a chosen token more than once.
        if action.kind != "given":
            grant.gave = frozenset(self.checker.taken(hold.token))
        deleted = self._deleted(grant)
        if deleted is not None and deleted.by is host and 0 <= deleted.told < host.local and action.kind != "given":
            self.world.violate(f"{grant.who} was given {grant.name}, which its own process had deleted")
        self.held[grant] = host, lock
        if self.alone is not None:
            self.alone.begins(grant, host, lock)
        if not hold.lease.hand_offs and hold.lease.since_ns + hold.elapsed_ns >= hold.deadline_ns:
            self.world.violate(f"{grant.who} was given {grant.name} when its validity was over")
        self.checker.granted(grant, hold.token)
        self.checker.leaves(grant.name, name)
        return grant

    def _released(self, client: int, name: str, pairs: Any) -> None:
        host = self.hosts[client]
        self._say(client, name, "releases it")
        for grant, lock in pairs:
            self.held.pop(grant, None)
            self._end(grant, host, lock)
            if grant.end == host.local:
                self.checker.released(grant, host.local)
            elif self.liveness is not None:
                self.liveness.expired.add(grant)
                if lock._hold.lost_ns:
                    self.liveness.spared.add(grant)

    def _released_at_last(self) -> None:
        """End the grants of killed processes, and shorten the grants that were deleted by hand."""
        for grant, (host, lock) in self.held.items():
            self._end(grant, host, lock)
        self.held.clear()
        # Only now: a paused process may have ended its grant before another process deleted the key.
        for grant in self.checker.grants:
            deleted = self._deleted(grant)
            if deleted is not None:
                if self.liveness is not None:
                    self.liveness.spared.discard(grant)
                    if self.deletions.spared(grant.token, grant.gave):
                        self.liveness.missed[grant] = grant.end
                grant.end = max(grant.start, min(grant.end, deleted.at))

    def _end(self, grant: Grant, host: Host, lock: Any) -> None:
        """Record until when a holder believed that it has the lock."""
        grant.end = min(host.local, host.clock.when(lock._hold.deadline_ns))
        if self.alone is not None:
            self.alone.ends(grant, host)

    def _deleted(self, grant: Grant) -> Deleted | None:
        """Return the deletion that took the lock from its holder, if there was one."""
        return self.deletions.of(grant.token, grant.gave, self.checker.quorum)

    def _clean_up(self) -> None:
        """Close what the garbage collector would warn about."""
        for host in self.hosts:
            for task in host.loop.tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    # The errors of a task that is closed here do not matter.
                    with suppress(BaseException):
                        task.get_coro().close()
            host.end()
