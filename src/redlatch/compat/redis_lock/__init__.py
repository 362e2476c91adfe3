"""The drop-in for python-redis-lock 4::

    import redlatch.compat.redis_lock as redis_lock     # was: import redis_lock

docs/migrate-python-redis-lock.md has the differences. Waiters of both clients wake each other: a release pushes the
signal list, and the drop-in's waiters learn of every change.
"""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Callable
from os import urandom
from typing import Any

from redis import RedisCluster, StrictRedis

from ...errors import ClientForked, ConfigurationError, LockLost, NotOwned, QuorumUnavailable
from ...masters.clients import CLUSTERS
from ...quorum.kinds.kind import CHOSEN_ONES, NEVER
from ...votes.key import slot_of
from .. import clients, shared

__version__ = "4.0.1"

_original = shared.original("redis_lock")

_acquire_logger = logging.getLogger("redis_lock.acquire")
_release_logger = logging.getLogger("redis_lock.release")

# PEXPIRE and EXPIRE also run before LPUSH, so that a user without the right to them leaves no list without a ttl.
RESET_SCRIPT = """redis.call("del",KEYS[2])
redis.call("pexpire",KEYS[2],ARGV[2])
redis.call("lpush",KEYS[2],1)
redis.call("pexpire",KEYS[2],ARGV[2])
return redis.call("del",KEYS[1])"""

RESET_ALL_SCRIPT = """local locks=redis.call("keys","lock:*")
for _,lock in ipairs(locks) do
local signal="lock-signal:"..string.sub(lock,6)
redis.call("del",signal)
redis.call("expire",signal,1)
redis.call("lpush",signal,1)
redis.call("expire",signal,1)
redis.call("del",lock)
end
return #locks"""

if _original is None:

    class AlreadyAcquired(RuntimeError): ...

    class NotAcquired(RuntimeError): ...

    class AlreadyStarted(RuntimeError): ...

    class TimeoutNotUsable(RuntimeError): ...

    class InvalidTimeout(RuntimeError): ...

    class TimeoutTooLarge(RuntimeError): ...

    class NotExpirable(RuntimeError): ...

else:
    AlreadyAcquired = _original.AlreadyAcquired  # type: ignore[misc]
    NotAcquired = _original.NotAcquired  # type: ignore[misc]
    AlreadyStarted = _original.AlreadyStarted  # type: ignore[misc]
    TimeoutNotUsable = _original.TimeoutNotUsable  # type: ignore[misc]
    InvalidTimeout = _original.InvalidTimeout  # type: ignore[misc]
    TimeoutTooLarge = _original.TimeoutTooLarge  # type: ignore[misc]
    NotExpirable = _original.NotExpirable  # type: ignore[misc]


class Lock:
    """python-redis-lock's lock; arguments, results and errors are python-redis-lock's.

    Args:
        redis_client: a redis-py client of one server or one cluster.
        name: the name; the key is "lock:" and the name. On a cluster it needs a hash tag, such as "{report}".
        expire: the ttl in whole seconds. With None or 0 the lock is renewed until it is released. Default None.
        id: the id of the holder, which is the value of the key. Default None: a fresh id for each acquire.
        auto_renewal: if True, the lock is renewed until it is released. Default False.
        signal_expire: the ttl in milliseconds of the signal to waiters. Default 1000.
    """

    def __init__(
        self,
        redis_client: Any,
        name: str,
        expire: float | str | None = None,
        id: str | bytes | None = None,
        auto_renewal: bool = False,
        strict: bool = True,
        signal_expire: int = 1000,
        blocking: bool = True,
    ) -> None:
        if strict and not isinstance(redis_client, (StrictRedis, RedisCluster)):
            raise ValueError(
                "redis_client must be instance of StrictRedis. Use strict=False if you know what you're doing."
            )
        if auto_renewal and expire is None:
            raise ValueError("Expire may not be None when auto_renewal is set")
        self._client = redis_client
        self._expire = _seconds(expire)
        self._signal_expire = signal_expire
        self._chosen = id is not None
        self._id = None if id is None else _id_of(id)
        self._name = "lock:" + name
        self._signal = "lock-signal:" + name
        self._check_slots(name)
        self._lock_renewal_interval = float(self._expire) * 2 / 3 if auto_renewal and self._expire else None
        self.blocking = blocking
        self._lock_renewal_thread = None
        self._lease: Any = None
        self._asking: Any = None
        self._tried = False

    def _check_slots(self, name: str) -> None:
        if isinstance(self._client, CLUSTERS):
            encode = self._client.get_encoder().encode
            if len({slot_of(bytes(encode(key))) for key in (self._name, self._signal)}) > 1:
                raise ConfigurationError(
                    f"name: on a cluster, the key {self._name!r} and the list {self._signal!r} must be in one slot; "
                    f"write a hash tag: {'{' + name + '}'!r}"
                )

    @property
    def id(self) -> str:
        """The id of the holder, or of this object's next acquire."""
        lease = self._lease
        token = None if lease is None or self._chosen else shared.shown_token(lease)
        if token is not None:
            self._id = token.decode("ascii", "replace")
        elif self._id is None:
            self._id, asking = _fresh_id(), self._asking
            if asking is not None:
                asking.promise(self._token)
        return self._id

    @property
    def _held(self) -> bool:
        return self.id == self.get_owner_id()

    def get_owner_id(self) -> str | None:
        """Return the holder's id, from the server."""
        owner = self._client.get(self._name)
        if owner is not None:
            # The caller may release with this id, so mark it as shown.
            self._ours.held_here(self._key, clients.encoder_of(self._client)(owner), self._ttl_ms)
        return owner.decode("ascii", "replace") if isinstance(owner, bytes) else owner

    def acquire(self, blocking: bool = True, timeout: float | str | None = None) -> bool:
        """Acquire the lock within `timeout` whole seconds (None or 0: no limit), or with one attempt if not `blocking`.

        Raises:
            AlreadyAcquired: this object, or another one with its id, holds the lock.
            TimeoutNotUsable, InvalidTimeout, TimeoutTooLarge: a timeout without blocking, below 0, or above `expire`.
        """
        _acquire_logger.debug("Acquiring Lock(%r) ...", self._name)
        if (self._chosen or (self._lease is not None and self._lease.remaining() > 0)) and self._held:
            raise AlreadyAcquired("Already acquired from this Lock instance.")
        seconds = self._seconds_to_wait(blocking, timeout)
        if self._tried and not self._chosen:
            self._id = None
        self._tried = True
        renewed = self._lock_renewal_interval is not None or self._expire is None
        client = self._ours
        self._asking = kind = self._kind(client)
        lease = client.foreign(self._name, self._key, self._ttl_ms, kind, renewed)
        try:
            won = bool(lease.acquire(timeout=seconds))
            if won:
                self._lease = lease
        except QuorumUnavailable as error:
            raise shared.redis_error_of(error) from error
        except BaseException as struck:
            shared.let_go(lease, struck)
            raise
        finally:
            self._asking = None
        if won:
            _acquire_logger.info("Acquired Lock(%r).", self._name)
        elif not blocking:
            _acquire_logger.warning("Failed to acquire Lock(%r).", self._name)
        return won

    def _seconds_to_wait(self, blocking: bool, timeout: float | str | None) -> float | None:
        if not blocking:
            if timeout is not None:
                raise TimeoutNotUsable("Timeout cannot be used if blocking=False")
            return 0.0
        seconds = int(timeout) if timeout else 0
        if seconds < 0:
            raise InvalidTimeout(f"Timeout ({seconds}) cannot be less than or equal to 0")
        if self._expire and self._lock_renewal_interval is None and seconds > self._expire:
            raise TimeoutTooLarge(f"Timeout ({seconds}) cannot be greater than expire ({self._expire})")
        return float(seconds) if seconds else None

    def extend(self, expire: float | str | None = None) -> None:
        """Extend the lock to `expire` seconds from now, even if it was acquired elsewhere with the same id.

        Raises:
            NotAcquired: the lock is not held, or was lost.
            NotExpirable: the lock has no `expire`.
        """
        seconds = _seconds(expire) or self._expire
        if seconds is None:
            raise TypeError(
                "To extend a lock 'expire' must be provided as an argument to extend() method or at "
                "initialization time."
            )
        lease = self._lease
        if lease is not None and self._expire is None:
            raise NotExpirable(f"Lock {self._name} has no assigned expiration time")
        refused = f"Lock {self._name} is not acquired or it already expired."
        if lease is None and self._client.ttl(self._name) == -1:
            if not self._held:
                raise NotAcquired(refused)
            raise NotExpirable(f"Lock {self._name} has no assigned expiration time")
        self._do(lambda held: held.extend(float(seconds)), refused)

    def release(self) -> None:
        """Release the lock, even if it was acquired elsewhere with the same id.

        Raises:
            NotAcquired: the lock is not held, or was lost.
            redis.ConnectionError, redis.TimeoutError: the server does not answer; call the method again.
        """
        _release_logger.debug("Releasing Lock(%r).", self._name)
        lease = self._lease
        self._do(lambda held: held.release(), f"Lock({self._name}) is not acquired or it already expired.")
        if self._lease is lease:
            self._lease = None

    def _do(self, what: Callable[[Any], None], refused: str) -> None:
        held = lease = self._lease
        if held is None:
            # No code can have acquired the lock without an id.
            if self._id is None:
                raise NotAcquired(refused)
            client = self._ours
            held = client.held_by(self._name, self._key, self._token, self._ttl_ms, self._kind(client))
        try:
            what(held)
        except (LockLost, NotOwned, ClientForked) as error:
            if self._lease is lease:
                self._lease = None
            raise NotAcquired(refused) from error
        except QuorumUnavailable as error:
            raise shared.redis_error_of(error) from error

    @property
    def _ours(self) -> Any:
        home = clients.home_of(self._client)
        return clients.client_of([self._client]) if home is None else clients.client_at(home, self._client, None)

    @property
    def _key(self) -> bytes:
        return clients.encoder_of(self._client)(self._name)

    @property
    def _token(self) -> bytes:
        seen = self._id
        return b"" if seen is None else clients.encoder_of(self._client)(seen)

    @property
    def _ttl_ms(self) -> int:
        return clients.RENEWED_MS if self._expire is None else self._expire * 1000

    def _kind(self, client: Any) -> Any:
        signal, token = clients.encoder_of(self._client)(self._signal), self._token
        kind = client.signalled(token, not self._chosen, signal, int(self._signal_expire))
        kind.hand_off_group = NEVER if token else CHOSEN_ONES
        return kind

    def locked(self) -> bool:
        return bool(self._client.exists(self._name) == 1)

    def reset(self) -> None:
        """Delete the lock, even if another client holds it, and wake a waiter."""
        self._client.eval(RESET_SCRIPT, 2, self._name, self._signal, self.id, self._signal_expire)
        self._ours.broken(self._key)

    def __enter__(self) -> Lock:
        if not self.acquire(blocking=self.blocking):
            if self.blocking:
                raise AssertionError(f"Lock({self._name}) wasn't acquired, but blocking=True was used!")
            raise NotAcquired(f"Lock({self._name}) is not acquired or it already expired.")
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def reset_all(redis_client: Any) -> None:
    """Delete all locks, even if other clients hold them, and wake the waiters.

    Raises:
        ConfigurationError: `redis_client` is the client of a cluster.
    """
    if isinstance(redis_client, CLUSTERS):
        raise ConfigurationError("reset_all: its script sees one node of a cluster; call reset() of each lock instead")
    redis_client.eval(RESET_ALL_SCRIPT, 0)
    client = clients.client_of([redis_client])
    for key in client.keys_held(b"lock:"):
        client.broken(key)


def _seconds(expire: float | str | None) -> int | None:
    if not expire:
        return None
    seconds = int(expire)
    if seconds < 0:
        raise ValueError("A negative expire is not acceptable.")
    return seconds or None


def _fresh_id() -> str:
    return b64encode(urandom(18)).decode("ascii")


def _id_of(id: object) -> str:
    if isinstance(id, bytes):
        try:
            return id.decode("ascii")
        except UnicodeDecodeError:
            return b64encode(id).decode("ascii")
    if isinstance(id, str):
        return id
    raise TypeError(f"Incorrect type for `id`. Must be bytes/str not {type(id)}.")
