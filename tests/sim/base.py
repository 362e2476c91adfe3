"""What every schedule has, of tasks or of threads: masters and processes, their locks, the oracle and the judgement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from redlatch import LockError
from redlatch.guard.marker import FINAL, MARKER, Marker
from redlatch.quorum.claim import HELD, UNDOING
from redlatch.votes.scripts import KEPT_MS

from .checker import Checker
from .grants import Grant
from .host import Host
from .logs import Logs
from .master import Master
from .network import Route
from .outcome import Outcome
from .parts import PERMITS, Planned, Use
from .reports import Pairs, Reports
from .world import MICROSECOND, World

# The suffix of the key of a queue (see `fair`).
QUEUE = b"\0queue"

# The suffix of the tokens of permits. They stay there until another one takes the slot, or all have ended.
PERMITTED = b"\0rate\0tokens"

H = TypeVar("H", bound=Host)
U = TypeVar("U", bound=Use)


@dataclass(frozen=True)
class Worker(Generic[H]):
    """A task or a thread that uses locks; `client` is the number of its client, and `host` its process."""

    name: str
    client: int
    host: H


@dataclass(frozen=True)
class Held(Generic[H, U]):
    """A lock that was acquired.

    Attributes:
        worker, use: who uses it, and how.
        lock: the lock object; the client, for many locks at once.
        pairs: the grants, each with its own lock object.
    """

    worker: Worker[H]
    use: U
    lock: Any
    pairs: Pairs

    @property
    def host(self) -> H:
        """The process of the holder."""
        return self.worker.host


class BaseSchedule(Generic[H, U]):
    """A schedule of tasks or of threads.

    Attributes:
        readwrite: the locks that readers and writers share.
        held: the grants that were not released yet, each with its process and its lock object.
        told: the locks whose loss was reported.
    """

    def __init__(
        self, plan: Planned[U], world: World, checker: Checker, masters: list[Master], hosts: Sequence[H]
    ) -> None:
        self.plan = plan
        self.world = world
        self.checker = checker
        self.masters = masters
        self.hosts = hosts
        self.reports = Reports(world, masters, checker.quorum, plan.trusty)
        self.logs = Logs(world, self.reports)
        far = [int(world.chance.uniform(0.5, 1.5) * plan.far_us * MICROSECOND) for _ in masters]
        for host in hosts:
            host.routes = [Route(ns, ns) for ns in far]
        self.clients: list[Any] = []
        self.readwrite: dict[tuple[Any, ...], Any] = {}
        self.held: dict[Grant, tuple[H, Any]] = {}
        self.told: list[Any] = []

    def _mark(self, masters: list[Master], default_ttl: float, since_us: int = 0) -> None:
        """Put the guard's markers on masters, as any earlier use of them does."""
        addresses = tuple(sorted(f"master-{master.index}:6379" for master in masters))
        for master in masters:
            mine = f"master-{master.index}:6379"
            ttl_ms, default_ms = round(self.plan.ttl * 1000), round(default_ttl * 1000)
            marker = Marker(
                self._identity(master),
                since_us,
                since_us,
                0,
                0,
                FINAL,
                True,
                ttl_ms,
                False,
                False,
                mine,
                addresses,
                default_ms,
            )
            master.keys.execute([b"SET", MARKER, marker.text(), b"PX", b"%d" % KEPT_MS])

    def _identity(self, master: Master) -> str:
        """Return the identity that a marker has of its master."""
        return f"{master.info()['run_id']} {master.info()['master_replid']}"

    def _say(self, worker: Worker[H], what: str) -> None:
        self.world.note(max(worker.host.local, self.world.now), worker.host.name, f"{worker.name} {what}")

    # --- locks -------------------------------------------------------------------------------------------------

    def _lock_of(self, worker: Worker[H], use: U) -> Any:
        face, name, ttl = self.clients[worker.client], use.names[0], use.ttl
        common = self._options(use)
        if use.kind == "multi":
            return face.multi_lock(use.names, ttl, **common)
        if use.kind == "rlock":
            return face.rlock(name, ttl, **common)
        options: dict[str, Any] = {"auto_renew": True, **common} if use.renew else common
        if use.watch:
            options = options | self._watch_options(worker, use)
        if use.kind == "semaphore":
            return face.semaphore(name, PERMITS, ttl, **options)
        if use.kind in ("reader", "writer"):
            which = worker.client, name, use.renew, use.watch, *common.values()
            both = self.readwrite.get(which)
            if both is None:
                both = self.readwrite[which] = face.rw_lock(name, ttl, **options)
            return both.read() if use.kind == "reader" else both.write()
        assert use.kind in ("plain", "fence", "fair"), use.kind
        return face.lock(name, ttl, fence=use.kind == "fence", fair=use.kind == "fair", **options)

    def _options(self, use: U) -> dict[str, Any]:
        """Return the options of every lock."""
        return {}

    def _watch_options(self, worker: Worker[H], use: U) -> dict[str, Any]:
        """Return the options of a lock that is watched."""
        return {"on_lost": self._lost}

    # --- what holders believe ------------------------------------------------------------------------------------

    def _granted(self, worker: Worker[H], use: U, lock: Any, asked: int) -> Grant:
        host, hold = worker.host, lock._hold
        now = host.local
        # The properties of a hold are calls of the package. An interrupt in one would leave the lock to its ttl.
        lease = hold.lease
        fence, token = lease.fence if use.kind == "fence" else 0, lease.token
        self._say(worker, f"has {hold.name} {fence or ''} by {token.decode()}")
        grant = Grant(f"{host.name} {worker.name}", str(hold.name), use.kind, fence, asked, now)
        grant.token = token
        grant.gave = frozenset(self.checker.taken(token))
        self.held[grant] = host, lock
        self.checker.granted(grant, token)
        self.checker.leaves(grant.name, worker.name)
        return grant

    def _released(self, held: Held[H, U]) -> None:
        """Record that a holder begins to release its locks."""
        self._say(held.worker, "releases it")
        for grant, lock in held.pairs:
            self.held.pop(grant, None)
            self._end(grant, held.host, lock)
            if grant.end == held.host.local:
                self.checker.released(grant, grant.end)
            else:
                self._expired(grant, lock)

    def _expired(self, grant: Grant, lock: Any) -> None:
        """Record that a lock had run out when it was released."""

    def _end(self, grant: Grant, host: H, lock: Any) -> None:
        """Record until when a holder believed that it has the lock."""
        # As in `_granted`, no call of the package: this is what the property `deadline_ns` says.
        hold = lock._hold
        deadline_ns = hold.lease.deadline_ns if HELD <= hold.state < UNDOING else 0
        grant.end = min(host.local, host.clock.when(deadline_ns))

    def _lost(self, lock: Any, reason: str) -> None:
        self.told.append(lock)
        self.reports.reported(lock)

    # --- checks ------------------------------------------------------------------------------------------------

    def _executed(self, index: int, words: list[bytes], reply: Any) -> None:
        self.checker.executed(self.masters[index], words, reply)
        self.reports.executed(index, words, reply)

    def _check(self, held: Held[H, U]) -> None:
        """Check the lock, which takes no time; whether it is lost does not matter to its holder."""
        with suppress(LockError), self.reports.call("check", held.host, held.pairs):
            held.host.at_no_time(held.lock.check)

    def _look_for_leftovers(self, hosts: Iterable[H], masters: Iterable[Master]) -> None:
        """Check that no token of these processes is left on a master, now that no client holds a lock.

        A token may stay until its ttl if the master answered a command of the token with an error, or read a command
        on a connection that the client had given up. (The ttl of a queue is longer than all others.)
        """
        tokens = {token: host.name for host in hosts for token in host.tokens}
        for master in masters:
            for key in list(master.keys.values):
                master.keys.expire(key)
            for key, value in master.keys.values.items():
                if (master.doubted and key.endswith(QUEUE)) or key.endswith(PERMITTED):
                    continue
                values = [value] if isinstance(value, bytes) else [*value, *getattr(value, "values", list)()]
                for found in values:
                    if isinstance(found, bytes) and found in tokens and (master.voter, found) not in self.checker.stays:
                        self.world.violate(f"{tokens[found]} has left {key!r} on {master.name}")

    # --- the judgement -----------------------------------------------------------------------------------------

    def _released_at_last(self) -> None:
        """End the grants of killed processes."""
        for grant, (host, lock) in self.held.items():
            self._end(grant, host, lock)
        self.held.clear()

    def _deleted(self, grant: Grant) -> Any:
        """Return the deletion that took the lock from its holder, if there was one."""
        return None

    def _judge(self) -> None:
        self._released_at_last()
        self.checker.judge()
        self.reports.judge(self.checker.grants, self._deleted)

    def _outcome(self, **counts: int) -> Outcome:
        return Outcome(
            seed=self.plan.seed,
            wrong=tuple(self.world.wrong),
            digest=self.world.digest(),
            grants=len(self.checker.grants),
            counts=counts,
            trace=tuple(self.world.trace),
        )
