"""The drop-in for aioredlock 0.7.3, which needs aioredis 1, and so Python 3.11 or less::

    from redlatch.compat.aioredlock import Aioredlock, LockError, Sentinel    # was: from aioredlock import ...

docs/migrate-aioredlock.md has the differences.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import secrets
import ssl
import weakref
from typing import Any
from urllib.parse import parse_qs, urlsplit

import redis
import redis.asyncio
import redis.sentinel

from .. import errors
from ..errors import ConfigurationError, QuorumUnavailable
from . import clients, shared

logger = logging.getLogger("aioredlock.algorithm")

_original = shared.original("aioredlock")

if _original is None:

    class AioredlockError(Exception): ...

    class LockError(AioredlockError): ...

    class LockAcquiringError(LockError): ...

    class LockRuntimeError(LockError): ...

    class SentinelConfigError(Exception): ...

else:
    AioredlockError = _original.errors.AioredlockError  # type: ignore[misc]
    LockError = _original.errors.LockError  # type: ignore[misc]
    LockAcquiringError = _original.errors.LockAcquiringError  # type: ignore[misc]
    LockRuntimeError = _original.errors.LockRuntimeError  # type: ignore[misc]
    SentinelConfigError = _original.sentinel.SentinelConfigError  # type: ignore[misc]

__all__ = [
    "Aioredlock",
    "AioredlockError",
    "Lock",
    "LockAcquiringError",
    "LockError",
    "LockRuntimeError",
    "Sentinel",
    "SentinelConfigError",
]

_TTL_SCRIPT = """if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("ttl",KEYS[1]) end
return redis.error_reply("ERROR")"""

_IGNORED = frozenset({"minsize", "maxsize", "loop", "parser", "encoding"})

# They may open connections in another way, perhaps with their own TLS.
_REFUSED = ("connection_cls", "pool_cls")


class Sentinel:
    """A master that Redis Sentinel monitors.

    Args:
        connection: the sentinels: a dict with host and port, a URL with the master's name in its query, a tuple (host,
            port), or a list of such tuples.
        master: the name of the service.
        ssl_context: True, or an `ssl.SSLContext`.

    Raises:
        SentinelConfigError: the name is missing, or the connection has another form.
    """

    def __init__(
        self,
        connection: Any,
        master: str | None = None,
        password: str | None = None,
        db: int | None = None,
        ssl_context: ssl.SSLContext | bool | None = None,
    ) -> None:
        self.connection, options = _sentinels_of(connection)
        options |= {} if db is None else {"db": db}
        options |= {} if password is None else {"password": password}
        if ssl_context is not None:
            options["ssl"] = ssl.create_default_context() if ssl_context is True else ssl_context
        self.master = master or options.pop("master", None)
        options.pop("master", None)
        if self.master is None:
            raise SentinelConfigError("Master name required for sentinel to be configured")
        self.redis_kwargs = options

    def _settings(self) -> redis.Redis:
        options = _options_of(self.redis_kwargs)
        tls = {name: value for name, value in options.items() if name.startswith("ssl")}
        sentinel = redis.sentinel.Sentinel(self.connection, **tls)
        return sentinel.master_for(self.master, **options)  # type: ignore[no-any-return]


def _sentinels_of(connection: Any) -> tuple[list[Any], dict[str, Any]]:
    if isinstance(connection, dict):
        options = {name: value for name, value in connection.items() if name not in ("host", "port")}
        return [(connection["host"], connection.get("port", 26379))], options
    if isinstance(connection, str) and re.match(r"rediss?://.*:\d+/\d?", connection):
        url = urlsplit(connection)
        number = url.path.strip("/")
        options = {"db": int(number) if number.isdigit() else 0, "password": url.password}
        options |= {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.scheme == "rediss":
            options["ssl"] = _context_of(options.pop("ssl_cert_reqs", None))
        return [(url.hostname, url.port or 6379)], options
    if isinstance(connection, (tuple, list)):
        return [connection] if isinstance(connection, tuple) else connection, {}
    raise SentinelConfigError("Invalid Sentinel Configuration")


def _context_of(verify_mode: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    mode = getattr(ssl, (verify_mode or "").upper(), None)
    if mode is not None:
        context.check_hostname = context.check_hostname and mode is not ssl.CERT_NONE
        context.verify_mode = mode
    return context


def _options_of(given: dict[str, Any]) -> dict[str, Any]:
    """Convert options of aioredis to options of redis-py."""
    for name in _REFUSED:
        if given.get(name) is not None:
            raise ConfigurationError(
                f"{name}: the drop-in opens its connections with redis-py; give a redis-py client instead of the dict"
            )
    options = {name: value for name, value in given.items() if name not in _IGNORED and value is not None}
    if "timeout" in options:
        options["socket_connect_timeout"] = options.pop("timeout")
    if "create_connection_timeout" in options:
        options["socket_connect_timeout"] = options.pop("create_connection_timeout")
    context = options.pop("ssl", None)
    if context:
        options["ssl"] = True
        if isinstance(context, ssl.SSLContext):
            trusted = [ssl.DER_cert_to_PEM_cert(found) for found in context.get_ca_certs(binary_form=True)]
            options |= {
                "ssl_check_hostname": context.check_hostname,
                "ssl_cert_reqs": context.verify_mode.name[5:].lower(),
            }
            options |= {"ssl_ca_data": "".join(trusted)} if trusted else {}
    return options


def _settings_of(connection: Any) -> Any:
    if isinstance(connection, Sentinel):
        return connection._settings()
    if isinstance(connection, dict):
        options = _options_of(connection)
        address = options.pop("address", None)
        if address is not None:
            options["host"], options["port"] = address
        return redis.Redis(**options)
    if isinstance(connection, (tuple, list)):
        host, port = connection
        return redis.Redis(host=host, port=port)
    if isinstance(connection, str):
        shared.check_scheme(connection)
        if connection.startswith(("redis://", "rediss://", "unix://")):
            return redis.Redis.from_url(connection)
        return redis.Redis(unix_socket_path=connection)
    return connection


def _without_password(connection: Any) -> Any:
    if isinstance(connection, dict) and "password" in connection:
        return connection | {"password": "*******"}
    if isinstance(connection, str):
        return re.sub(r"([?&]password=)[^&]*", r"\1*******", re.sub(r"(rediss?://)[^@/]*@", r"\1:*******@", connection))
    return connection


class Lock:
    """An acquired lock.

    Attributes:
        id: its token. Any code that reads it may release the lock with it, even in another process.
        lock_timeout: the ttl in seconds; None if the lock is renewed.
        valid: False once the lock is released, or known to be lost.
    """

    def __init__(
        self,
        lock_manager: Aioredlock,
        resource: str,
        id: str | None,
        lock_timeout: float | None = 10.0,
        valid: bool = False,
    ) -> None:
        self.lock_manager = lock_manager
        self.resource = resource
        self._id = id
        self.lock_timeout = lock_timeout
        self.valid = valid
        self._lease: Any = None

    @property
    def id(self) -> str:
        if self._id is None:
            token = None if self._lease is None else shared.shown_token(self._lease)
            # A released lease may have been handed off with its token, which no code has read.
            self._id = secrets.token_hex(16) if token is None else token.decode()
        return self._id

    @id.setter
    def id(self, id: str) -> None:
        self._id = id

    def _values(self) -> tuple[object, ...]:
        return self.lock_manager, self.resource, self.id, self.lock_timeout, self.valid

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if isinstance(other, Lock) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        names = "lock_manager", "resource", "id", "lock_timeout", "valid"
        told = ", ".join(f"{name}={value!r}" for name, value in zip(names, self._values(), strict=True))
        return f"Lock({told})"

    async def __aenter__(self) -> Lock:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.lock_manager.unlock(self)

    async def extend(self) -> None:
        await self.lock_manager.extend(self)

    async def release(self) -> None:
        await self.lock_manager.unlock(self)

    async def is_locked(self) -> bool:
        return await self.lock_manager.is_locked(self)


class Aioredlock:
    """A lock manager; its methods have the arguments, results and errors of aioredlock's.

    Args:
        redis_connections: for each server a dict of redis-py's options, a tuple (host, port), a URL, the path of a
            unix socket, a `Sentinel` or a redis-py client.
        retry_count, retry_delay_min, retry_delay_max: `lock` waits for `retry_count` - 1 times the longest delay, in
            seconds. Default 3, 0.1 and 0.3.
        internal_lock_timeout: the ttl in seconds of a lock without a timeout, which is renewed. Default 10.
    """

    def __init__(
        self,
        redis_connections: Any = ({"host": "localhost", "port": 6379},),
        retry_count: int = 3,
        retry_delay_min: float = 0.1,
        retry_delay_max: float = 0.3,
        internal_lock_timeout: float = 10.0,
    ) -> None:
        self.redis_connections = redis_connections
        self.retry_count = int(retry_count)
        self.retry_delay_min = float(retry_delay_min)
        self.retry_delay_max = float(retry_delay_max)
        self.internal_lock_timeout = float(internal_lock_timeout)
        if self.retry_count < 1:
            raise ValueError("Retry count must be greater or equal 1.")
        if self.internal_lock_timeout <= 0:
            raise ValueError("Internal lock_timeout must be greater than 0 seconds.")
        if min(self.retry_delay_min, self.retry_delay_max) <= 0:
            raise ValueError("Retry delay must be greater than 0 seconds.")
        self._settings = [_settings_of(connection) for connection in redis_connections]
        self._locks: dict[str, Lock] = {}

    def __repr__(self) -> str:
        return f"Aioredlock(redis_connections={[_without_password(found) for found in self.redis_connections]!r})"

    @property
    def log(self) -> logging.Logger:
        return logger

    def _client(self) -> Any:
        return clients.async_client_of(self._settings)

    def _encoded(self, text: Any) -> bytes:
        return clients.encoder_of(self._settings[0])(text)

    async def lock(self, resource: str, lock_timeout: float | None = None, lock_identifier: str | None = None) -> Lock:
        """Acquire a lock for `lock_timeout` seconds; with None it is renewed until it is released.

        A lock that is already held with `lock_identifier`, its token, is extended.

        Raises:
            LockAcquiringError: another holder has the lock.
            LockRuntimeError: too many servers failed.
        """
        _check(lock_timeout)
        ttl = lock_timeout or self.internal_lock_timeout
        lock = Lock(self, resource, lock_identifier, lock_timeout)
        renewed = lock_timeout is None

        reference = weakref.ref(lock)

        def lost(lease: Any, reason: str) -> None:
            told = reference()
            if told is not None:
                told.valid = False
            logger.warning("lock %r was lost: %s", resource, reason)

        client, key, ttl_ms = self._client(), self._encoded(resource), int(ttl * 1000)
        if lock_identifier is None:
            lock._lease = client.foreign(resource, key, ttl_ms, None, renewed, lost)
            await self._win(lock)
        else:
            token = self._encoded(lock_identifier)
            lock._lease = client.held_by(resource, key, token, ttl_ms, None, renewed, lost)
            if not await self._has_it(lock):
                lock._lease = client.foreign(resource, key, ttl_ms, client.given(token), renewed, lost)
                await self._win(lock)
        lock.valid = True
        self._locks[resource] = lock
        return lock

    async def _win(self, lock: Lock) -> None:
        trial = shared.Trial(
            (self.retry_count - 1) * self.retry_delay_max,
            lambda: random.uniform(self.retry_delay_min, self.retry_delay_max),
        )
        failures: list[QuorumUnavailable] = []
        if not await trial.acquire_async(lock._lease, failures.append):
            if failures:
                logger.error('Can not set lock "%s": %s', lock.resource, failures[-1])
                raise LockRuntimeError(f"Can not set lock: {failures[-1]}") from failures[-1]
            raise LockAcquiringError("Can not set lock")

    async def _has_it(self, lock: Lock) -> bool:
        try:
            await lock._lease.extend()
        except (errors.LockLost, errors.NotOwned, QuorumUnavailable):
            return False
        return True

    async def extend(self, lock: Lock, lock_timeout: float | None = None) -> None:
        """Extend a lock to `lock_timeout` seconds from now (None: its own timeout), or release it if that fails."""
        if not lock.valid:
            raise RuntimeError("Lock is not valid")
        _check(lock_timeout)
        ttl = lock_timeout or lock.lock_timeout or self.internal_lock_timeout
        try:
            await self._lease_of(lock).extend(ttl)
        except errors.ConfigurationError:
            # This is a ValueError, and the lock is still held.
            raise
        except errors.LockError as error:
            try:
                await self.unlock(lock)
            except LockError as failure:
                logger.debug('Can not release the lock "%s": %s', lock.resource, failure)
            raise _failed("Can not set lock", error) from error

    async def unlock(self, lock: Lock) -> None:
        """Release a lock; do nothing if its key is already gone."""
        lock.valid = False
        lease = self._lease_of(lock)
        # A later lock on this name stays in the dict.
        if self._locks.get(lock.resource) is lock:
            del self._locks[lock.resource]
        try:
            await lease.release()
        except (errors.LockLost, errors.NotOwned) as error:
            if await self.is_locked(lock.resource):
                raise _failed("Can not release the lock", error) from error
        except errors.LockError as error:
            raise _failed("Can not release the lock", error) from error

    def _lease_of(self, lock: Lock) -> Any:
        if lock._lease is None or lock._lease._shared is not self._client()._shared:
            # There is none, or it belongs to another event loop.
            key, token = self._encoded(lock.resource), self._encoded(lock.id)
            ttl_ms = int((lock.lock_timeout or self.internal_lock_timeout) * 1000)
            lock._lease = self._client().held_by(lock.resource, key, token, ttl_ms)
        return lock._lease

    async def is_locked(self, resource_or_lock: str | Lock) -> bool:
        """Return True if the lock has any holder."""
        if isinstance(resource_or_lock, Lock):
            resource_or_lock = resource_or_lock.resource
        if not isinstance(resource_or_lock, str):
            raise TypeError(
                f"Argument should be ether aioredlock.Lock instance or string, {type(resource_or_lock)} is given."
            )
        try:
            question = self._client().foreign(
                resource_or_lock, self._encoded(resource_or_lock), int(self.internal_lock_timeout * 1000)
            )
            return bool(await question.locked())
        except errors.LockError as error:
            raise _failed("Can not get lock", error) from error

    async def get_lock(self, resource: str, lock_identifier: str) -> Lock:
        """Return a lock that another manager or process holds with this token."""
        asked = await asyncio.gather(*[self._ttl_on(server, resource, lock_identifier) for server in self._settings])
        told = [ttl for ttl in asked if isinstance(ttl, int)]
        if len(told) <= len(asked) // 2:
            failed = [found for found in asked if isinstance(found, BaseException)]
            broken = [found for found in failed if not isinstance(found, redis.ResponseError)]
            raise (LockRuntimeError if broken else LockAcquiringError)("Can not get lock") from failed[0]
        ttl = min(told)
        return Lock(self, resource, lock_identifier, ttl if ttl > 0 else None, valid=True)

    async def _ttl_on(self, server: Any, resource: str, identifier: str) -> Any:
        loop = asyncio.get_running_loop()
        try:
            if isinstance(server, (redis.asyncio.Redis, redis.asyncio.RedisCluster)):
                return await server.eval(_TTL_SCRIPT, 1, resource, identifier)
            return await loop.run_in_executor(None, server.eval, _TTL_SCRIPT, 1, resource, identifier)
        except (redis.RedisError, OSError) as error:
            return error

    async def get_active_locks(self) -> list[Lock]:
        """Return this manager's locks that are still held."""
        return [lock for lock in list(self._locks.values()) if lock.valid and await lock.is_locked()]

    async def destroy(self) -> None:
        for lock in list(self._locks.values()):
            if lock.valid:
                try:
                    await self.unlock(lock)
                except Exception:
                    logger.exception('Can not unlock "%s"', lock.resource)
        self._locks.clear()


def _check(lock_timeout: float | None) -> None:
    if lock_timeout is not None and lock_timeout <= 0:
        raise ValueError("Lock timeout must be greater than 0 seconds.")


def _failed(text: str, error: errors.LockError) -> Exception:
    lost = isinstance(error, (errors.LockLost, errors.NotOwned, errors.ClientForked))
    return (LockAcquiringError if lost else LockRuntimeError)(f"{text}: {error}")
