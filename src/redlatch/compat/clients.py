"""The clients behind the drop-ins: one for the same servers, however many locks and redis-py clients name them.

Of the redis-py clients that drop-ins are given the settings are taken over. A client of ours lives as long as a
connection pool of redis-py that names its first server.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from .. import impl
from ..aio import AsyncClient
from ..client import Client
from ..config import masters_of, ttl_ms_of
from ..locks.factory import BaseClient
from ..protocol.hold import HELD
from ..protocol.key import key_as_it_is
from ..protocol.policy import Policy
from .lease import AsyncLease, Lease
from .overrides import override_of
from .shared import packing, show

logger = logging.getLogger("redlatch")

# Seconds that a single server may take for its answer, where the redis-py client does not say: a quorum of one has
# nobody else to ask.
PATIENCE = 5.0

# Of a lock that the original would keep for ever: it is renewed for as long as its holder lives.
RENEWED_MS = 30_000

# What of the options of a connection says which server it is, and as whom; beside all that begin with "ssl". And what
# redis-py takes where they are not given.
_TELLING = frozenset({"host", "port", "path", "db", "username", "password", "credential_provider", "socket_timeout"})
_DEFAULTS = {"host": "localhost", "port": 6379, "db": 0, "socket_timeout": PATIENCE}


class Foreign(BaseClient):
    """What a client of either face can do with locks as other clients write them: on any key, with any token."""

    _masters_of = staticmethod(partial(masters_of, by_db=True))  # as those of the originals may be

    def _policy_of(self, **numbers: Any) -> Policy:
        return super()._policy_of(hearsay=False, **numbers)  # users delete keys by hand

    _lock_of: type[Any]

    settled = False  # whether pottery's drop-in has called `connect`

    def __init__(self, *args: Any, **options: Any) -> None:
        self._kinds = impl.for_clients().module("protocol.foreign")
        super().__init__(*args, **options)

    def foreign(
        self,
        name: Any,
        key: bytes,
        ttl_ms: int,
        kind: Any = None,
        auto_renew: bool = False,
        on_lost: Callable[[Any, str], object] | None = None,
    ) -> Any:
        """Make a lock on a key.

        Args:
            name: for messages.
            kind: what `given` or `signalled` returned; None is a plain lock with fresh tokens.
            auto_renew, on_lost: as for `Client.lock`.

        Raises:
            ConfigurationError: the key is too long, no key lives so long, or there is no validity in the ttl.
        """
        lock = self._around(self._hold_on(name, key, kind), ttl_ms)
        if auto_renew or on_lost is not None:
            self._cared_for(lock, auto_renew=auto_renew, on_lost=on_lost)
        return lock

    def held_by(
        self,
        name: Any,
        key: bytes,
        token: bytes,
        ttl_ms: int,
        kind: Any = None,
        auto_renew: bool = False,
        on_lost: Callable[[Any, str], object] | None = None,
    ) -> Any:
        """Make a lock that is held by this token already: here, or by whoever has passed the token on.

        Args:
            auto_renew, on_lost: as for `foreign`, from its first extension on.

        Raises:
            ConfigurationError: as of `foreign`, and where the token is too long.
        """
        lock = self.held_here(key, token, ttl_ms)
        if lock is None:
            key_as_it_is(token, "token")
            hold = self._hold_on(name, key, kind)
            hold.borrow(token)
            lock = self._around(hold, ttl_ms)
        if auto_renew or on_lost is not None:
            self._cared_for(lock, auto_renew=auto_renew, on_lost=on_lost)
            lock._begin_care()
        return lock

    def held_here(self, key: bytes, token: bytes, ttl_ms: int) -> Any:
        """Return the lock that is held by this token and was acquired by this client; None where there is none."""
        hold = self._head(key)
        if hold is None or hold.token != token:
            return None
        show(hold, self._driver)
        return self._around(hold, ttl_ms)

    def broken(self, key: bytes) -> None:
        """Take note that a key was deleted, whoever had it: its holder here has lost it, and others may ask."""
        self._driver.lines.lose(key, self._policy.clock.now())
        hold = self._head(key)
        if hold is not None:
            self._driver.leave_line(hold)

    def keys_held(self, prefix: bytes) -> list[bytes]:
        """Return the keys with this prefix that somebody holds, or asks for, here."""
        return [key for key in list(self._driver.lines.heads) if key.startswith(prefix)]

    def given(self, token: bytes) -> Any:
        """Return the kind of lock that has this token."""
        return self._kinds.Given(token)

    def signalled(self, token: bytes, once: bool, signal: bytes, signal_ms: int) -> Any:
        """Return the kind of lock whose release pushes an element on a list (`protocol.foreign.Signalled`)."""
        return self._kinds.Signalled(token, once, signal, signal_ms)

    def _head(self, key: bytes) -> Any:
        hold = self._driver.lines.heads.get(key)
        return hold if hold is not None and hold.state == HELD else None

    def _hold_on(self, name: Any, key: bytes, kind: Any) -> Any:
        key_as_it_is(key)
        return self._hold_of(name, key, self._plain if kind is None else kind)

    def _around(self, hold: Any, ttl_ms: int) -> Any:
        if ttl_ms != self._last_ttl[1]:
            policy = self._policy
            self._last_ttl = None, ttl_ms_of(ttl_ms / 1000, policy.drift_factor, policy.max_ttl_ms)
        return self._lock_of(self._shared, hold, ttl_ms, None)


class ThreadsClient(Foreign, Client):
    """The client behind the drop-ins for threads."""

    _lock_of = Lease


class LoopClient(Foreign, AsyncClient):
    """The client behind the drop-ins for asyncio."""

    _lock_of = AsyncLease

    def abandon(self) -> None:
        """Close every connection: its event loop is closed."""
        self._driver.abandon()


class Server:
    """One server, as redis-py's connection pools name it; lives as long as one of them.

    Attributes:
        clients: those for which it is the first server, by their event loop (or None) and their other servers.
        number: by which servers stand in one order, whatever the order in which they were named.
    """

    __slots__ = ("__weakref__", "clients", "number")

    def __init__(self, number: int) -> None:
        self.clients: dict[tuple[Any, ...], Any] = {}
        self.number = number


class Home:
    """What is known of one connection pool of redis-py.

    Attributes:
        server: which one it is of; None where it is not taken over (see `home_of`).
        encode: makes bytes of keys and values, as the client's connections do.
        latest: what it got last, where it was asked for alone: for which event loop (or None), and the client.
    """

    __slots__ = ("__weakref__", "encode", "latest", "server")

    def __init__(self, server: Server | None, encode: Callable[[Any], bytes]) -> None:
        self.server = server
        self.encode = encode
        self.latest: tuple[Any, Any] | None = None


class Registry:
    """The servers of this process."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.RLock()  # a signal's handler may come while a client is made
        self._homes: weakref.WeakKeyDictionary[Any, Home] = weakref.WeakKeyDictionary()
        self._by_identity: weakref.WeakValueDictionary[tuple[object, ...], Server] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()
        # Which pool was asked for last, and its home; as weak as `_homes`, which looking into costs twice as much.
        self._latest: tuple[Callable[[], Any], Callable[[], Any]] = (lambda: None), (lambda: None)

    def home_of(self, pool: Any) -> Home:
        """Return what is known of a pool."""
        asked, its_home = self._latest  # read once: another thread may ask for another one
        home: Home | None = its_home() if asked() is pool else None
        if home is None:
            home = self._homes.get(pool) or self._settle(pool)
            self._latest = weakref.ref(pool), weakref.ref(home)
        return home

    def _settle(self, pool: Any) -> Home:
        ours = str(pool.connection_class.__module__).partition(".")[0] == "redis"
        with self._one_at_a_time:
            server = self._by_identity.setdefault(_identity(pool), Server(next(self._numbers))) if ours else None
            home = self._homes[pool] = Home(server, packing(pool))
        return home

    def client_of(self, servers: Iterable[Any], loop: asyncio.AbstractEventLoop | None) -> Any:
        """Return the client for these servers, a new one if need be.

        Args:
            servers: redis-py clients, in any order.
            loop: of the `LoopClient`; None asks for a `ThreadsClient`.
        """
        pairs = sorted([(self._server_of(server), server) for server in servers], key=lambda pair: pair[0].number)
        first, *others = [server for server, _ in pairs]
        key = (loop, *others)
        client = first.clients.get(key)
        if client is None:
            with self._one_at_a_time:
                client = first.clients.get(key) or _new_client(loop, [named for _, named in pairs])
                for old in [old for old in first.clients if old[0] is not None and old[0].is_closed()]:
                    first.clients.pop(old).abandon()
                client = first.clients.setdefault(key, client)
        return client

    def _server_of(self, server: Any) -> Server:
        pool = getattr(server, "connection_pool", None)
        found = None if pool is None else self.home_of(pool).server
        if found is None:
            raise TypeError(
                f"a redis-py client of one server is needed, with redis-py's own connections, not {server!r}"
            )
        override = override_of(server)
        if override:
            raise TypeError(
                f"a redis-py client that sends commands unchanged is needed: {override} may change keys, and the "
                "drop-in does not call it. Give a plain redis.Redis and the whole key, or keep the original lock "
                "client for this lock"
            )
        return found


def _new_client(loop: asyncio.AbstractEventLoop | None, servers: list[Any]) -> Any:
    patience = None  # of a quorum: what suits the ttl
    if len(servers) == 1:
        patience = servers[0].connection_pool.connection_kwargs.get("socket_timeout") or PATIENCE
    make = ThreadsClient if loop is None else LoopClient
    client = make(servers, guard=None, attempt_timeout=patience)
    for address, count in Counter(client._policy.masters).items():
        if count > 1:
            logger.warning("%d of the masters are databases of %s: they fail together", count, address)
    return client


def _identity(pool: Any) -> tuple[object, ...]:
    """Return what tells one server, or one user of it, from another."""
    given = {name: value for name, value in pool.connection_kwargs.items() if value is not None}
    options = [
        (name, value if value.__hash__ else repr(value))
        for name, value in sorted((_DEFAULTS | given).items())
        if name in _TELLING or name.startswith("ssl")
    ]
    sentinel = getattr(pool, "service_name", None), getattr(pool, "sentinel_manager", None)
    return (pool.connection_class.__name__, *sentinel, *options)


_registry = [Registry()]


def _begin_anew() -> None:
    """In a forked child: what the parent has made is not ours."""
    _registry[0] = Registry()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def home_of(server: Any) -> Home | None:
    """Return the `Home` of a redis-py client that the drop-in supports: one server, and redis-py's own connections.

    None for a cluster, for a client with connections of another package (fakeredis), and for one that changes commands.
    """
    pool = getattr(server, "connection_pool", None)
    home = None if pool is None else _registry[0].home_of(pool)
    return None if home is None or home.server is None or override_of(server) else home


def encoder_of(server: Any) -> Callable[[Any], bytes]:
    """Return what a redis-py client makes bytes of keys and values with."""
    return _registry[0].home_of(server.connection_pool).encode


def client_of(servers: Iterable[Any]) -> ThreadsClient:
    """Return this process's client for the servers of these redis-py clients.

    Raises:
        TypeError: one is no redis-py client of one server, with redis-py's own connections.
        ConfigurationError: two are of the same server and database.
    """
    client: ThreadsClient = _registry[0].client_of(servers, None)
    return client


def async_client_of(servers: Iterable[Any]) -> LoopClient:
    """Return the running loop's client for the servers of these redis-py clients; as `client_of`."""
    client: LoopClient = _registry[0].client_of(servers, asyncio.get_running_loop())
    return client


def client_at(home: Home, server: Any, loop: asyncio.AbstractEventLoop | None) -> Any:
    """Return the client for one server alone: of this process, or of an event loop."""
    latest = home.latest  # read once: another thread may have a loop of its own
    if latest is None or latest[0] is not loop:
        home.latest = latest = loop, _registry[0].client_of([server], loop)
    return latest[1]
