"""The redlatch clients behind the drop-ins. All locks and redis-py clients for the same servers share one client.

It lives as long as a connection pool of redis-py for its first server. A redis-py client of a cluster has no pool, and
stands for itself.
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
from ..aio import AsyncClient, AsyncLock
from ..client import Client, Lock
from ..config import ttl_ms_of
from ..locks.factory import BaseClient
from ..loss import Loss
from ..masters.clients import CLUSTERS
from ..masters.listed import masters_of
from ..options import Options
from ..quorum.calls import Calls
from ..quorum.claim import HELD
from ..votes.key import key_as_it_is
from .shared import SOCKET_TIMEOUT, identity_of, options_of, override_of, packing, refusal_of, show

logger = logging.getLogger("redlatch")

# The ttl of a lock that the original would keep without one. The lock is renewed while its holder lives.
RENEWED_MS = 30_000


class _Forgotten:
    __slots__ = ()
    _hold: Any

    def __del__(self) -> None:
        hold = self._hold
        if hold.state == HELD and not hold.token_exposed:
            _forget(self, hold)


class Lease(_Forgotten, Lock):
    """A lock whose object may be dropped while it is held. Waiters of this process then ask the masters."""

    __slots__ = ()


class AsyncLease(_Forgotten, AsyncLock):
    __slots__ = ()


def _forget(lease: Any, hold: Any) -> None:
    """Forget a held lock whose object was collected. No code has read its token, so no code can release it.

    The garbage collector may call this in any thread, so it wakes no waiters: those in the queue try again anyway.
    """
    hold.token_exposed = True
    queues = lease._shared.quorum.queues
    if queues.heads.get(hold.key) is hold and hold.key not in queues.by_key:
        queues.heads.pop(hold.key, None)


class Foreign(BaseClient):
    # Two masters may be databases of one server, and tokens have no label, as in the originals.
    _masters_of = staticmethod(partial(masters_of, by_db=True))
    _labels = False
    _lock_of: type[Any]

    def _quorum_of(self, **numbers: Any) -> Calls:
        # Users delete keys by hand, so a local holder proves nothing.
        return super()._quorum_of(trust_local_holder=False, **numbers)

    settled = False

    def _open(self, options: Options) -> None:
        self._kinds = impl.for_clients().module("quorum.kinds.foreign")
        super()._open(options)

    def foreign(
        self,
        name: Any,
        key: bytes,
        ttl_ms: int,
        kind: Any = None,
        auto_renew: bool = False,
        on_lost: Callable[[Any, Loss], object] | None = None,
    ) -> Any:
        """Make a lock on a key; without a `kind`, it is a plain lock with fresh tokens."""
        lock = self._around(self._hold_on(name, key, kind), ttl_ms)
        if auto_renew or on_lost is not None:
            self._add_upkeep(lock, auto_renew=auto_renew, on_lost=on_lost)
        return lock

    def held_by(
        self,
        name: Any,
        key: bytes,
        token: bytes,
        ttl_ms: int,
        kind: Any = None,
        auto_renew: bool = False,
        on_lost: Callable[[Any, Loss], object] | None = None,
    ) -> Any:
        """Make a lock that is already held with this token, by this client or by another process.

        Its upkeep begins at the first extension.
        """
        lock = self.held_here(key, token, ttl_ms)
        if lock is None:
            key_as_it_is(token, "token")
            hold = self._hold_on(name, key, kind)
            hold.borrow(token)
            lock = self._around(hold, ttl_ms)
        if auto_renew or on_lost is not None:
            self._add_upkeep(lock, auto_renew=auto_renew, on_lost=on_lost)
            lock._begin_upkeep()
        return lock

    def held_here(self, key: bytes, token: bytes, ttl_ms: int) -> Any:
        hold = self._head(key)
        if hold is None or hold.token != token:
            return None
        show(self._shared, hold)
        return self._around(hold, ttl_ms)

    def broken(self, key: bytes) -> None:
        """Record that a key was deleted: its holder here has lost it, and local waiters may try again."""
        self._quorum.queues.note_deletion(key, self._quorum.clock.now())
        hold = self._head(key)
        if hold is not None:
            self._quorum.leave_queue(self._driver, hold)

    def keys_held(self, prefix: bytes) -> list[bytes]:
        return [key for key in list(self._quorum.queues.heads) if key.startswith(prefix)]

    def given(self, token: bytes) -> Any:
        return self._kinds.Given(token)

    def signalled(self, token: bytes, once: bool, signal: bytes, signal_ms: int) -> Any:
        return self._kinds.Signalled(token, once, signal, signal_ms)

    def _head(self, key: bytes) -> Any:
        hold = self._quorum.queues.heads.get(key)
        return hold if hold is not None and hold.state == HELD else None

    def _hold_on(self, name: Any, key: bytes, kind: Any) -> Any:
        key_as_it_is(key)
        return self._hold_of(name, key, self._plain if kind is None else kind)

    def _around(self, hold: Any, ttl_ms: int) -> Any:
        if ttl_ms != self._last_ttl[1]:
            quorum = self._quorum
            self._last_ttl = None, ttl_ms_of(ttl_ms / 1000, quorum.drift_factor, quorum.max_ttl_ms)
        return self._lock_of(self._shared, hold, ttl_ms, None)


class ThreadsClient(Foreign, Client):
    _lock_of = Lease


class LoopClient(Foreign, AsyncClient):
    _lock_of = AsyncLease

    def abandon(self) -> None:
        self._driver.drop()


class Server:
    __slots__ = ("__weakref__", "clients", "number")

    def __init__(self, number: int) -> None:
        self.clients: dict[tuple[Any, ...], Any] = {}
        self.number = number


class Home:
    """The data of one connection pool or client of a cluster; `refusal` says why the drop-ins do not support it."""

    __slots__ = ("__weakref__", "encode", "latest", "refusal", "server")

    def __init__(self, server: Server | None, encode: Callable[[Any], bytes], refusal: str = "") -> None:
        self.server = server
        self.refusal = refusal
        self.encode = encode
        self.latest: tuple[Any, Any] | None = None


class Registry:
    def __init__(self) -> None:
        # Re-entrant: a signal handler may run while its thread makes a client.
        self._one_at_a_time = threading.RLock()
        self._homes: weakref.WeakKeyDictionary[Any, Home] = weakref.WeakKeyDictionary()
        self._by_identity: weakref.WeakValueDictionary[tuple[object, ...], Server] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()
        # The last pool of `home_of` and its home: a lookup in `_homes` costs twice as much.
        self._latest: tuple[Callable[[], Any], Callable[[], Any]] = (lambda: None), (lambda: None)

    def home_of(self, pool: Any) -> Home:
        # Read it only once: another thread may replace it.
        asked, its_home = self._latest
        home: Home | None = its_home() if asked() is pool else None
        if home is None:
            home = self._homes.get(pool) or self._settle(pool)
            self._latest = weakref.ref(pool), weakref.ref(home)
        return home

    def _settle(self, pool: Any) -> Home:
        refusal = refusal_of(pool)
        with self._one_at_a_time:
            known, new = self._by_identity, Server(next(self._numbers))
            server = None if refusal else known.setdefault(identity_of(pool), new)
            home = self._homes[pool] = Home(server, packing(pool), refusal)
        return home

    def client_of(self, servers: Iterable[Any], loop: asyncio.AbstractEventLoop | None) -> Any:
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
        pool = pool_of(server)
        home = None if pool is None else self.home_of(pool)
        if home is None or home.server is None:
            why = f": {home.refusal}" if home is not None else ""
            raise TypeError(
                f"a redis-py client of one server or one cluster is needed, with redis-py's own connections, not "
                f"{server!r}{why}"
            )
        override = override_of(server)
        if override:
            raise TypeError(
                f"a redis-py client that sends commands unchanged is needed: {override} may change keys, and the "
                "drop-in does not call it. Give a plain redis.Redis and the whole key, or keep the original lock "
                "client for this lock"
            )
        return home.server


def _new_client(loop: asyncio.AbstractEventLoop | None, servers: list[Any]) -> Any:
    attempt_timeout = None
    if len(servers) == 1:
        attempt_timeout = options_of(pool_of(servers[0])).get("socket_timeout") or SOCKET_TIMEOUT
    make = ThreadsClient if loop is None else LoopClient
    client = make(servers, guard=None, attempt_timeout=attempt_timeout)
    for address, count in Counter(client._quorum.masters).items():
        if count > 1:
            logger.warning("%d of the masters are databases of %s, so they fail together", count, address)
    return client


_registry = [Registry()]


def _begin_anew() -> None:
    _registry[0] = Registry()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def pool_of(server: Any) -> Any:
    pool = getattr(server, "connection_pool", None)
    return server if pool is None and isinstance(server, CLUSTERS) else pool


def home_of(server: Any) -> Home | None:
    """Return the `Home` of a redis-py client of one server or one cluster.

    Return None for connections of another package (fakeredis), and for a client that changes commands.
    """
    pool = pool_of(server)
    home = None if pool is None else _registry[0].home_of(pool)
    return None if home is None or home.server is None or override_of(server) else home


def encoder_of(server: Any) -> Callable[[Any], bytes]:
    return _registry[0].home_of(pool_of(server)).encode


def client_of(servers: Iterable[Any]) -> ThreadsClient:
    client: ThreadsClient = _registry[0].client_of(servers, None)
    return client


def async_client_of(servers: Iterable[Any]) -> LoopClient:
    client: LoopClient = _registry[0].client_of(servers, asyncio.get_running_loop())
    return client


def client_at(home: Home, server: Any, loop: asyncio.AbstractEventLoop | None) -> Any:
    # Read it only once: another thread may replace it with the client of its own loop.
    latest = home.latest
    if latest is None or latest[0] is not loop:
        home.latest = latest = loop, _registry[0].client_of([server], loop)
    return latest[1]
