"""The construction of a client: the checks of its arguments, its quorum and its driver."""

from __future__ import annotations

import os
import random
import secrets
import socket
import time
from binascii import hexlify
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, NoReturn, Self

from .. import config, impl
from ..errors import ConfigurationError
from ..guard.admission import Admissions
from ..guard.handover import Successor, names_of
from ..guard.marker import MARKER
from ..guard.settings import Guard
from ..guard.shards import ShardAdmissions
from ..health import Health
from ..loss import OnLost, on_lost_of
from ..masters.cluster import map_hosts
from ..masters.listed import NO_HANDOVER, masters_from_env, masters_of, refuse_namesakes
from ..masters.master import Master
from ..options import (
    AsyncPlainOptions,
    Options,
    PlainOptions,
    Wakeups,
    check_group,
    check_options,
    owner_name,
)
from ..quorum.calls import Calls
from ..quorum.hold import Hold
from ..quorum.upkeep import Upkeep
from ..stats import Stats, without_the_present
from ..votes.kinds import ALL, FAIR, FAMILY, FENCED, LATCH, PLAIN, Declaration
from ..votes.label import label_of
from ..votes.units import SECOND
from ..wire.dial import connect
from ..wire.dial.connect import Dialler
from .batch import AnyLock
from .latch import TTL_MS as LATCH_TTL_MS
from .lock import Shared

# At run time `impl` provides the build.
if TYPE_CHECKING:
    from .core import new_locks
else:
    new_locks = impl.current.module("locks.core").new_locks

_CUT = Struct("32s" * 100)

# Not the generator that the application shares, which it may have seeded. Waiters of fair locks and counts of latches
# are random numbers, so a fork of a process that has made a client must draw other ones.
_RANDOM = random.Random()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_RANDOM.seed)

_MakeGuard = Callable[[Callable[[int, int], None]], Any]


class BaseClient:
    # Tokens name the owner, unless it is stored beside the token.
    _labels = True

    def _open(self, options: Options) -> None:
        self._awaits = options.awaits
        # The options that a lock may have.
        self._options: dict[str, Any] = (AsyncPlainOptions if self._awaits else PlainOptions).__annotations__
        self._ttl_ms = options.ttl_ms
        self._last_ttl: tuple[object, int] = options.ttl, options.ttl_ms
        self._timeout = options.timeout
        self._prefix = options.key_prefix
        self._owner = owner_name(options.owner)
        # All clients on a host share the marker.
        self._marks_as = options.owner or socket.gethostname()
        self._label = partial(label_of_now, options.owner)
        self._scripts = options.scripts
        self._synced = options.replicas != 0
        self._masters = self._masters_of(options.masters)
        map_hosts(self._masters, options.host_map)
        implementation = self._implementation()
        self._key_of: Callable[[bytes, object], bytes] = implementation.module("votes.key").key_of
        self._hold_of: type[Hold] = implementation.module("quorum.hold").Hold
        self._hold_named: Callable[[bytes, Any, Any], Hold] = implementation.module("quorum.hold").hold_on
        self._plain: Any = implementation.module("quorum.kinds.plain").PLAIN
        self._kind_of = {each: implementation.kind(each.home) for each in ALL if each.home}
        self._quorum = self._quorum_of(masters=tuple(master.address for master in self._masters), options=options)
        self._driver = self._driver_of("aio" if self._awaits else "threads")(
            self._masters,
            self._quorum,
            self._wakeups(options.wakeups) == "auto",
            self._dialler,
            self._admissions_of(self._masters, options.guard),
            self._successor_of(options.next, options.guard),
            **options.of_driver,
        )
        self._driver.schedule.expect_to_run(options.heartbeat_ns)
        self._shared: Shared[Any] = Shared(
            self._driver, self._quorum, options.wait_release, options.on_lost, self._no_scripts()
        )
        if self._awaits:
            self._driver.stands_for(self._shared)

    def _wakeups(self, wakeups: Wakeups) -> Wakeups:
        return wakeups

    # A simulation replaces masters, connections, time and random numbers by overriding `_masters_of`, `_dialler` and
    # `_quorum_of`. Clients in memory override `_implementation` and `_driver_of`, too: their driver waits in virtual
    # time.

    _implementation: Callable[[], impl.Implementation] = staticmethod(impl.for_clients)

    def _driver_of(self, name: str) -> Callable[..., Any]:
        driver: Callable[..., Any] = self._implementation().module(f"drivers.{name}").Driver
        return driver

    _keys_of: Callable[[Declaration, bytes], list[bytes]] = staticmethod(Declaration.keys_of)

    _masters_of: Callable[[object], list[Master]] = staticmethod(masters_of)

    @property
    def _dialler(self) -> Callable[..., Any]:
        return partial(Dialler, connect=partial(connect.dial, scripts=self._scripts, synced=self._synced))

    def _quorum_of(self, **given: Any) -> Calls:
        calls, policy, quorums = [
            self._implementation().module(f"quorum.{name}") for name in ("calls", "policy", "quorum")
        ]
        quorum: Calls = calls.Calls(
            clock=impl.current.module("wire.engine.net").BootClock(),
            random=_RANDOM.random,
            tokens=quorums.Tokens(draw_tokens, self._label if self._owner and self._labels else None),
            fences=policy.Fences(wall_us),
            **given,
        )
        return quorum

    def _admissions_of(self, masters: list[Master], guard: Guard | None) -> _MakeGuard | None:
        quorum = self._quorum
        if guard is None:
            return None
        if masters[0].is_cluster:
            return partial(ShardAdmissions, guard, self._prefix, partial(self._shard_guard, guard))
        names = tuple(master.name for master in masters)
        key, ttl_ms = self._prefix + MARKER, self._ttl_ms
        fences = quorum.fences
        return partial(
            Admissions,
            names,
            guard,
            key,
            ttl_ms,
            quorum.drift_factor,
            fences.now,
            quorum.random,
            fences.mark,
            owner=self._marks_as,
            synced=self._synced,
        )

    def _shard_guard(
        self, guard: Guard, name: str, key: bytes, clock_set_back: Callable[[int, int], None]
    ) -> Admissions:
        quorum, fences = self._quorum, self._quorum.fences
        return Admissions(
            (name,),
            guard,
            key,
            self._ttl_ms,
            quorum.drift_factor,
            fences.now,
            quorum.random,
            fences.mark,
            clock_set_back,
            owner=self._marks_as,
            synced=self._synced,
        )

    def _successor_of(self, masters: object, guard: Guard | None) -> Successor | None:
        if masters is None:
            return None
        new = self._masters_of(masters)
        if any([master.is_cluster for master in [*self._masters, *new]]):
            raise ConfigurationError(f"next: {NO_HANDOVER}")
        make_guard = self._admissions_of(new, guard)
        if make_guard is None:
            raise ConfigurationError("next: a handover needs a guard, but guard=None was given")
        refuse_namesakes(self._masters, new, "next")
        previous, names = (names_of(tuple(master.name for master in masters)) for masters in (self._masters, new))
        if names == previous:
            raise ConfigurationError("next: these are the masters that the client has already")
        return Successor(new, make_guard, self._prefix + MARKER, previous, names)

    @classmethod
    def from_env(cls, **options: Any) -> Self:
        """Make a client of the masters that the environment names, for services that are configured by it.

        REDLATCH_MASTERS has their URLs, with commas or spaces between them. REDLATCH_OWNER is the `owner`, if it is
        set.

        Args:
            options: the other arguments of the client; they win over the environment.

        Raises:
            ConfigurationError: REDLATCH_MASTERS is not set or malformed, or an argument is invalid.
        """
        make: Callable[..., Self] = cls
        return make(masters_from_env(), **{"owner": os.environ.get("REDLATCH_OWNER"), **options})

    def health(self) -> Health:
        """Return what this client knows of its masters now; no I/O.

        It says for each master whether it votes, and if not, why and until when. Before the first use no master is
        connected. With threads the client looks at its connections in calls only, so an unused one learns of changes
        late.
        """
        health: Health = self._driver.status.health()
        return health

    def stats(self) -> Stats:
        """Return the figures of this client: what became of its acquires and locks, and its masters; no I/O.

        They are counted in this process, from when the client is made. `redlatch.metrics` exports them.
        """
        stats: Stats = self._driver.status.stats()
        return without_the_present(stats) if self._driver.status.forked else stats

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__}: it cannot be copied or pickled; make one per process")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._quorum.masters)} ({self._driver.status.state})>"

    def _locks_on(
        self, kind: type[AnyLock], names: Iterable[str | bytes], ttl: float | None, group: str | None = None
    ) -> list[AnyLock | None]:
        # The type of the list allows None, for `Batch`.
        ttl_ms = self._ttl_ms if ttl is None else self._ttl_of(ttl)
        given = config.several("names", names)
        locks = new_locks(kind, self._shared, self._hold_named, self._prefix, given, self._plain, ttl_ms)
        for lock in locks if group is not None else ():
            self._join(group, lock)
        return locks

    def _new(
        self,
        lock_of: type[AnyLock],
        name: str | bytes,
        ttl: float | None,
        options: Mapping[str, Any],
        declared: Declaration | None = None,
        make: Callable[[list[bytes]], Any] | None = None,
    ) -> AnyLock:
        """Make a lock; `make` returns its kind for its keys, and None calls the class of the kind with them."""
        given = dict(options)
        check_options(given, self._options)
        fenced, fair = given.pop("fence", False), given.pop("fair", False)
        if fenced and (fair or declared is not None):
            raise ConfigurationError("fence: only plain locks have fences")
        if fair and declared is not None:
            raise ConfigurationError("fair: only lock(), rlock() and locked() take it")
        declared = declared or (FENCED if fenced else FAIR if fair else PLAIN)
        if declared.needs_scripts:
            self._need_scripts()
        key, chosen = self._key_of(self._prefix, name), self._plain
        if declared is not PLAIN or make is not None:
            keys = self._keys_of(declared, key)
            key, chosen = keys[0], (make or self._kind_of[declared])(keys)
        timeout = self._timeout_of(given.pop("timeout", None))
        ttl_ms = self._ttl_ms if ttl is None else self._ttl_of(ttl)
        lock = lock_of(self._shared, self._hold_of(name, key, chosen), ttl_ms, timeout)
        self._join(given.pop("group", None), lock)
        if given or self._shared.on_lost is not None:
            self._add_upkeep(lock, **given)
        return lock

    def _join(self, group: str | None, lock: AnyLock) -> None:
        if group is not None:
            check_group(group)
            lock._hold.figures = self._quorum.groups.named(group)

    def _no_scripts(self) -> str:
        if self._scripts == "watch":
            return f"scripts: {FAMILY} need scripts, but this client was made with scripts='watch'"
        return ""

    def _need_scripts(self) -> None:
        if self._shared.no_scripts:
            raise ConfigurationError(self._shared.no_scripts)

    def _add_upkeep(
        self,
        lock: AnyLock,
        auto_renew: bool = False,
        max_hold: float | None = None,
        on_lost: OnLost | None = None,
        cancel_on_loss: bool = False,
    ) -> None:
        on_lost = on_lost_of(on_lost, self._awaits)
        seconds = config.seconds_of("max_hold", max_hold)
        if seconds is not None and not auto_renew:
            raise ConfigurationError("max_hold: it limits auto_renew=True, so give both")
        if not (auto_renew or cancel_on_loss) and on_lost is None and self._shared.on_lost is None:
            return
        max_hold_ns = None if seconds is None else int(seconds * SECOND)
        asked = cancel_on_loss or on_lost is not None or self._shared.on_lost is not None
        lock._upkeep = Upkeep(lock, lock._hold, lock._ttl_ms, auto_renew, max_hold_ns, on_lost, cancel_on_loss, asked)

    def _latch_hold(self, name: str | bytes) -> Hold:
        self._need_scripts()
        return self._hold_of(name, LATCH.keys_of(self._key_of(self._prefix, name))[0], self._plain)

    def _latch_ttl(self, ttl: object) -> int:
        return min(LATCH_TTL_MS, self._quorum.max_ttl_ms) if ttl is None else self._ttl_of(ttl)

    def _timeout_of(self, timeout: object) -> float | None:
        return self._timeout if timeout is None else config.seconds_of("timeout", timeout)

    def _ttl_of(self, ttl: object) -> int:
        known, ttl_ms = self._last_ttl
        # Most services pass the same object in every call.
        if ttl is not known:
            ttl_ms = config.ttl_ms_of(ttl, self._quorum.drift_factor, self._quorum.max_ttl_ms)
            self._last_ttl = ttl, ttl_ms
        return ttl_ms


def draw_tokens() -> list[bytes]:
    """Return 100 tokens: 128 random bits each, from the system, in hexadecimal.

    After an acquire the client cannot be used in a forked child, so two processes never share tokens.
    """
    return list(_CUT.unpack(hexlify(secrets.token_bytes(_CUT.size // 2))))


def label_of_now(owner: str | None) -> bytes:
    # The process may be a fork of the one that made the client.
    return label_of(owner_name(owner).encode(), wall_us() // 1_000_000)


def wall_us() -> int:
    # Tests may freeze `time.time`, but not the clocks of masters.
    return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1000
