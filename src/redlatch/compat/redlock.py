"""The drop-in for redlock-py 1.0.8::

    from redlatch.compat.redlock import Redlock     # was: from redlock import Redlock

docs/migrate-redlock-py.md has the differences.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from typing import Any, NamedTuple

import redis

from ..errors import ConfigurationError, LockError, LockLost, QuorumUnavailable
from ..votes.key import key_as_it_is
from . import clients, shared

logger = logging.getLogger(__name__)

# The assumed ttl of another process's lock. It limits the length of a release.
TTL_MS = 10_000

_original = shared.original("redlock")

if _original is None:

    class CannotObtainLock(Exception): ...

    class MultipleRedlockException(Exception):
        def __init__(self, errors: list[Exception], *args: object) -> None:
            super().__init__(*args)
            self.errors = errors

        def __str__(self) -> str:
            return " :: ".join(str(error) for error in self.errors)

        def __repr__(self) -> str:
            return str(self)

else:
    CannotObtainLock = _original.CannotObtainLock  # type: ignore[misc]
    MultipleRedlockException = _original.MultipleRedlockException  # type: ignore[misc]


class Lock(NamedTuple):
    """An acquired lock; `validity` is in milliseconds from when it was acquired, and `key` is the token."""

    validity: int
    resource: str | bytes
    key: bytes


class Redlock:
    """A lock manager on independent masters.

    Args:
        connection_list: URLs, dicts of keyword arguments for `redis.StrictRedis`, or redis-py clients.
        retry_count, retry_delay: `lock` waits for their product, in seconds. Default 3 and 0.2.

    Raises:
        Warning: an element cannot be turned into a client, or two are the same database of one server.
        CannotObtainLock: the list is empty.
    """

    default_retry_count = 3
    default_retry_delay = 0.2
    clock_drift_factor = 0.01
    unlock_script = """
    if redis.call("get",KEYS[1]) == ARGV[1] then
        return redis.call("del",KEYS[1])
    else
        return 0
    end"""

    def __init__(
        self, connection_list: Iterable[Any], retry_count: int | None = None, retry_delay: float | None = None
    ) -> None:
        try:
            self.servers = [_server_of(connection) for connection in connection_list]
        except Exception as error:
            raise Warning(str(error)) from error
        if not self.servers:
            raise CannotObtainLock("Failed to connect to the majority of redis servers")
        try:
            # For an element without `set`, `lock` raises AttributeError.
            if all([hasattr(server, "set") for server in self.servers]):
                clients.client_of(self.servers)
        except ConfigurationError as error:
            raise Warning(str(error)) from error
        self.quorum = len(self.servers) // 2 + 1
        self.retry_count = retry_count or self.default_retry_count
        self.retry_delay = retry_delay or self.default_retry_delay

    def lock(self, resource: str | bytes, ttl: int) -> Lock | bool:
        """Acquire a lock for `ttl` milliseconds.

        Returns:
            The lock. False if another holder has it during the whole wait, or if too few masters answer, which is
            logged.

        Raises:
            ValueError: the ttl is not an int, or the name is longer than 512 bytes.
            ConfigurationError: a master is a replica.
        """
        _check_ttl(ttl)
        for server in self.servers:
            server.set  # noqa: B018 - raises AttributeError, as redlock-py does
        client, key = clients.client_of(self.servers), self._key_of(resource)
        key_as_it_is(key)
        try:
            lease = client.foreign(resource, key, ttl)
        except ConfigurationError as error:
            # The ttl leaves no validity.
            logger.warning("lock %r cannot be acquired: %s", resource, error)
            return False
        trial = shared.Trial(max(0.0, self.retry_count * self.retry_delay), lambda: self.retry_delay)
        try:
            if not trial.acquire(
                lease, lambda error: logger.warning("lock %r cannot be acquired: %s", resource, error)
            ):
                return False
            return Lock(int(lease.remaining() * 1000), resource, shared.shown_token(lease))
        except BaseException as struck:
            shared.let_go(lease, struck)
            raise

    def unlock(self, lock: Lock) -> None:
        """Release a lock, even of another process. Failures are logged, and no exception is raised."""
        try:
            key, token = self._key_of(lock.resource), self._key_of(lock.key)
            clients.client_of(self.servers).held_by(lock.resource, key, token, TTL_MS).release()
        except LockLost as error:
            logger.warning("%s", error)
        except QuorumUnavailable as error:
            logger.exception("Error unlocking resource %s: %s", lock.resource, error)
        except (LockError, redis.RedisError, AttributeError, TypeError):
            logger.exception("Error unlocking resource %s", lock.resource)

    def lock_instance(self, server: Any, resource: str | bytes, val: bytes, ttl: int) -> Any:
        _check_ttl(ttl)
        return server.set(resource, val, nx=True, px=ttl)

    def unlock_instance(self, server: Any, resource: str | bytes, val: bytes) -> None:
        try:
            server.eval(self.unlock_script, 1, resource, val)
        except Exception:
            logger.exception("Error unlocking resource %s in server %s", resource, server)

    def get_unique_id(self) -> bytes:
        return secrets.token_hex(16).encode()

    def _key_of(self, name: str | bytes) -> bytes:
        return clients.encoder_of(self.servers[0])(name)


def _server_of(connection: Any) -> Any:
    if isinstance(connection, str):
        shared.check_scheme(connection)
        return redis.StrictRedis.from_url(connection)
    return redis.StrictRedis(**connection) if type(connection) is dict else connection


def _check_ttl(ttl: object) -> None:
    if not isinstance(ttl, int):
        raise ValueError(f"ttl {ttl} is not an integer")
