"""Helpers of several drop-ins."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
import time
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import redis
import redis.asyncio
import redis.utils

from ..errors import ConfigurationError, LockError, QuorumUnavailable
from ..locks.lock import note_failure
from ..masters.clients import CLUSTERS, check_pool, cluster_of_client, pool_of_nodes
from ..masters.settings import is_of_redis_py, telling
from ..quorum.claim import HELD, RELEASING, UNCONFIRMED
from ..votes.units import SECOND
from ..wire.engine.net import now_ns

logger = logging.getLogger("redlatch")

# Seconds for a single server without a socket_timeout: there is no other master to ask.
SOCKET_TIMEOUT = 5.0

# The originals that only drop-ins have imported, for their exceptions.
brought_in: set[str] = set()


def original(name: str) -> ModuleType | None:
    """Import the original, or return None."""
    known = name in sys.modules
    try:
        found = importlib.import_module(name)
    except Exception as error:
        # For example, aioredlock may be installed and not support this Python.
        logger.debug("%s cannot be imported, so its drop-in defines the exceptions itself: %s", name, error)
        return None
    if not known:
        brought_in.add(name)
    return found


def packing(pool: Any) -> Callable[[Any], bytes]:
    encode = pool.get_encoder().encode
    utf_8 = redis.utils.HIREDIS_AVAILABLE

    def packed(word: Any) -> bytes:
        if utf_8 and isinstance(word, str):
            return word.encode()
        # With hiredis, redis-py always encodes text as UTF-8. `encode` returns a memoryview unchanged.
        return bytes(encode(word))

    return packed


def check_scheme(url: str) -> None:
    # The error does not repeat the URL, which may have a password.
    if "://" in url and not url.startswith(("redis://", "rediss://", "unix://")):
        raise ConfigurationError(
            "a URL must begin with redis://, rediss:// or unix://; give a redis.RedisCluster for a cluster, and a "
            "client of master_for() for Sentinel"
        )


def refusal_of(pool: Any) -> str:
    """Return why the drop-ins cannot use this pool or client of a cluster, or ""."""
    if isinstance(pool, CLUSTERS):
        try:
            cluster_of_client(pool, type(pool).__name__)
        except ConfigurationError as error:
            return str(error)
        return ""
    if not is_of_redis_py(pool.connection_class):
        return f"{pool.connection_class.__qualname__} is no class of redis-py"
    try:
        check_pool(pool, "connection_pool")
    except ConfigurationError as error:
        return str(error)
    return ""


def options_of(pool: Any) -> dict[str, Any]:
    """Return the arguments of the connections of a pool or client of a cluster."""
    if not isinstance(pool, CLUSTERS):
        return pool.connection_kwargs  # type: ignore[no-any-return]
    options = pool_of_nodes(pool, "").connection_kwargs
    return {name: value for name, value in options.items() if name not in ("host", "port")}


def identity_of(pool: Any) -> tuple[object, ...]:
    given = {name: value for name, value in options_of(pool).items() if value is not None}
    # The defaults of TLS options depend on the class.
    tls = {name: value for name, value in given.items() if name.startswith("ssl")}
    timeout = {"socket_timeout": given.get("socket_timeout", SOCKET_TIMEOUT)}
    options = [
        (name, value if value.__hash__ else repr(value))
        for name, value in sorted((telling(given) | tls | timeout).items())
    ]
    if isinstance(pool, CLUSTERS):
        cluster = cluster_of_client(pool, "")
        return (cluster._kind.__name__, cluster.address, cluster.reached, *options)
    sentinel = getattr(pool, "service_name", None), getattr(pool, "sentinel_manager", None)
    return (pool.connection_class.__name__, *sentinel, *options)


def redis_errors_of(error: LockError) -> list[redis.RedisError]:
    causes = error.causes if isinstance(error, QuorumUnavailable) else {}
    return [_as_redis_has_it(address, cause) for address, cause in causes.items()]


def redis_error_of(error: QuorumUnavailable) -> redis.RedisError:
    cause = next(iter(redis_errors_of(error)), None)
    return redis.ConnectionError(str(error)) if cause is None or isinstance(cause, LockError) else cause


def _as_redis_has_it(address: str, cause: BaseException) -> redis.RedisError:
    if isinstance(cause, redis.RedisError):
        return cause
    if address.startswith("["):
        address = address[1:].replace("]:", ":")
    if isinstance(cause, TimeoutError):
        return redis.TimeoutError(f"Timeout reading from {address}: {cause}")
    if not isinstance(cause, OSError) or cause.errno is None:
        return redis.ConnectionError(str(cause))
    if isinstance(cause, (BrokenPipeError, ConnectionAbortedError, ConnectionResetError)):
        return redis.ConnectionError(f"Error while reading from {address} : {cause.args}")
    return redis.ConnectionError(f"Error {cause.errno} connecting to {address}. {cause.strerror}.")


def shown_token(lease: Any) -> Any:
    """Return a lock's token and mark it as shown; None if the lock is not held, or if the parent process holds it."""
    hold, shared = lease._hold, lease._shared
    show(shared, hold)
    token = hold.token
    held = hold.state in (HELD, RELEASING, UNCONFIRMED) and not shared.driver.status.forked
    return token if held else None


def show(shared: Any, hold: Any) -> None:
    """Mark a token as shown: any code that has it may release the lock.

    So its lease is not handed off, and local waiters wait for the key on the masters.
    """
    # Set it before the token is read: a thread that hands the lease off checks this flag last.
    hold.token_exposed = True
    if hold.key in shared.quorum.queues.by_key and not shared.driver.status.forked:
        shared.quorum.leave_queue(shared.driver, hold)


def let_go(lease: Any, struck: BaseException) -> None:
    """Release a lock that was acquired but cannot be returned, because of the exception `struck`."""
    if lease.token is not None:
        try:
            lease.release(wait=False)
        except LockError as failure:
            note_failure(struck, failure)


class Trial:
    """Repeats an acquire until its timeout, even if no quorum answers, because masters may come back."""

    def __init__(self, timeout: float | None, pause: Callable[[], float]) -> None:
        self._give_up = None if timeout is None else now_ns() / SECOND + timeout
        self._pause = pause

    def left(self) -> float | None:
        return None if self._give_up is None else max(0.0, self._give_up - now_ns() / SECOND)

    def pause(self) -> float | None:
        seconds = self._pause()
        return None if self._give_up is not None and now_ns() / SECOND + seconds >= self._give_up else seconds

    def acquire(self, lease: Any, failed: Callable[[QuorumUnavailable], object]) -> bool:
        """Return True if the lock was acquired. Call `failed`, which may raise, if no quorum answers."""
        while True:
            try:
                return bool(lease.acquire(timeout=self.left()))
            except QuorumUnavailable as error:
                failed(error)
            seconds = self.pause()
            if seconds is None:
                return False
            time.sleep(seconds)

    async def acquire_async(self, lease: Any, failed: Callable[[QuorumUnavailable], object]) -> bool:
        while True:
            try:
                return bool(await lease.acquire(timeout=self.left()))
            except QuorumUnavailable as error:
                failed(error)
            seconds = self.pause()
            if seconds is None:
                return False
            await asyncio.sleep(seconds)


# The methods that the originals call.
_CALLED = frozenset(
    {
        "__getattribute__",
        "_execute_command",
        "_send_command_parse_response",
        "eval",
        "evalsha",
        "execute_command",
        "get",
        "get_encoder",
        "parse_response",
        "pipeline",
        "register_script",
        "script_load",
        "set",
        "transaction",
    }
)

_KINDS = (redis.Redis, redis.asyncio.Redis, *CLUSTERS)

_PLAIN = frozenset(base for kind in _KINDS for base in kind.__mro__)

_INSTRUMENTATION = frozenset({"opentelemetry", "sentry_sdk"})

_THREADS, _ASYNCIO = redis.Redis, redis.asyncio.Redis
_changes_nothing = _CALLED.isdisjoint

_known: weakref.WeakKeyDictionary[type[Any], str] = weakref.WeakKeyDictionary()


def override_of(client: Any) -> str:
    kind = type(client)
    if kind is not _THREADS and kind is not _ASYNCIO:
        found = _known.get(kind)
        if found is None:
            found = _known[kind] = _override_of(kind)
        if found:
            return found
    own = client.__dict__
    return "" if _changes_nothing(own) else _override_in(client, own)


def _override_of(kind: type[Any]) -> str:
    if not issubclass(kind, _KINDS):
        return f"{kind.__qualname__}, which is not a class of redis-py"
    for base in kind.__mro__:
        if base not in _PLAIN:
            for name in sorted(_CALLED.intersection(vars(base))):
                return f"{base.__qualname__}.{name}"
    return ""


def _override_in(client: Any, own: dict[str, Any]) -> str:
    for name in sorted(_CALLED.intersection(own)):
        if not _is_instrumented(client, name, own[name]):
            return f"its attribute {name}"
    return ""


def _is_instrumented(client: Any, name: str, attribute: Any) -> bool:
    """Return True if an attribute is the client's own method, perhaps in a wrapper of instrumentation."""
    while _tool_of(attribute) in _INSTRUMENTATION:
        attribute = getattr(attribute, "__wrapped__", None)
    return getattr(attribute, "__self__", None) is client and getattr(attribute, "__name__", "") == name


def _tool_of(attribute: Any) -> str:
    """Return the package of a wrapper. wrapt's wrappers have the module of the wrapped function."""
    made_by = getattr(attribute, "_self_wrapper", attribute)
    return str(getattr(made_by, "__module__", "")).partition(".")[0]
