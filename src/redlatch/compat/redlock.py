"""In place of redlock-py 1.0.8::

    from redlatch.compat.redlock import Redlock     # was: from redlock import Redlock

What differs, for safety:

* A master that is down breaks nothing while a quorum answers; redlock-py raised MultipleRedlockException, and left the
  keys of the lock it had won.
* Every attempt has a fresh token of 128 random bits from the system; redlock-py used one for all retries, and the
  random numbers of a simulation.
* All masters are asked at once, and elapsed time is measured by a clock that nobody sets.
* `retry_count` times `retry_delay` is how long it is waited for, and the release wakes who waits.
* Retries and undoing reach masters that come back; a lost lock is logged when it is unlocked.

The command line of redlock-py has no drop-in.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from typing import Any, NamedTuple

import redis

from ..errors import ConfigurationError, LockError, LockLost, QuorumUnavailable
from ..protocol.key import key_as_it_is
from . import clients, shared

logger = logging.getLogger(__name__)

# Of a lock of another process, whose ttl nobody here knows: it says how long a release may take.
TTL_MS = 10_000

_original = shared.original("redlock")

if _original is None:

    class CannotObtainLock(Exception):
        """Too few servers were given."""

    class MultipleRedlockException(Exception):
        """Several servers failed.

        Args:
            errors: what each had to say.
        """

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
    """A lock that was won.

    Attributes:
        validity: milliseconds for which it may be believed, from when it was won.
        resource: its name.
        key: its token.
    """

    validity: int
    resource: str | bytes
    key: bytes


class Redlock:
    """A lock manager on independent masters.

    Args:
        connection_list: URLs, dicts of keyword arguments for `redis.StrictRedis`, or redis-py clients.
        retry_count, retry_delay: their product is how long `lock` waits, in seconds. Default 3 and 0.2.

    Raises:
        Warning: one cannot be made a client of, or two are the same database of one server.
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
            if all([hasattr(server, "set") for server in self.servers]):  # else `lock` raises AttributeError
                clients.client_of(self.servers)
        except ConfigurationError as error:  # one is named twice
            raise Warning(str(error)) from error
        self.quorum = len(self.servers) // 2 + 1
        self.retry_count = retry_count or self.default_retry_count
        self.retry_delay = retry_delay or self.default_retry_delay

    def lock(self, resource: str | bytes, ttl: int) -> Lock | bool:
        """Acquire a lock.

        Args:
            resource: its name.
            ttl: milliseconds that it lives.

        Returns:
            The lock; False where somebody else has it all the time, or too few masters answer, which is logged.

        Raises:
            ValueError: the ttl is no int, or the name is longer than 512 bytes.
            AttributeError: a server is not a redis-py client.
            ConfigurationError: a master is a replica.
        """
        _check_ttl(ttl)
        for server in self.servers:
            server.set  # noqa: B018 - raises AttributeError, as redlock-py does
        client, key = clients.client_of(self.servers), self._key_of(resource)
        key_as_it_is(key)
        try:
            lease = client.foreign(resource, key, ttl)
        except ConfigurationError as error:  # of such a ttl nothing would be left
            logger.warning("lock %r cannot be had: %s", resource, error)
            return False
        trial = shared.Trial(max(0.0, self.retry_count * self.retry_delay), lambda: self.retry_delay)
        try:
            if not trial.acquire(lease, lambda error: logger.warning("lock %r cannot be had: %s", resource, error)):
                return False
            return Lock(int(lease.remaining() * 1000), resource, shared.shown_token(lease))
        except BaseException as struck:
            shared.let_go(lease, struck)
            raise

    def unlock(self, lock: Lock) -> None:
        """Release a lock; also one that another process has won. What goes wrong is logged, and nothing is raised."""
        try:
            key, token = self._key_of(lock.resource), self._key_of(lock.key)
            clients.client_of(self.servers).held_by(lock.resource, key, token, TTL_MS).release()
        except LockLost as error:
            logger.warning("%s", error)
        except QuorumUnavailable as error:
            logger.exception("Error unlocking resource %s: %s", lock.resource, error)
        except (LockError, redis.RedisError, AttributeError, TypeError):  # the last two: not a client
            logger.exception("Error unlocking resource %s", lock.resource)

    def lock_instance(self, server: Any, resource: str | bytes, val: bytes, ttl: int) -> Any:
        """Set the key on one server."""
        _check_ttl(ttl)
        return server.set(resource, val, nx=True, px=ttl)

    def unlock_instance(self, server: Any, resource: str | bytes, val: bytes) -> None:
        """Delete the key on one server, if it is ours."""
        try:
            server.eval(self.unlock_script, 1, resource, val)
        except Exception:
            logger.exception("Error unlocking resource %s in server %s", resource, server)

    def get_unique_id(self) -> bytes:
        """Return a token."""
        return secrets.token_hex(16).encode()

    def _key_of(self, name: str | bytes) -> bytes:
        return clients.encoder_of(self.servers[0])(name)


def _server_of(connection: Any) -> Any:
    if isinstance(connection, str):
        return redis.StrictRedis.from_url(connection)
    return redis.StrictRedis(**connection) if type(connection) is dict else connection


def _check_ttl(ttl: object) -> None:
    if not isinstance(ttl, int):
        raise ValueError(f"ttl {ttl} is not an integer")
