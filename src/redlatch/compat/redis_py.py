"""The drop-in for `redis.lock.Lock` and `redis.asyncio.lock.Lock`, or as ``lock_class=`` of ``Redis.lock()``.

::

    from redlatch.compat.redis_py import Lock        # was: from redis.lock import Lock
    from redlatch.compat.redis_py import AsyncLock   # was: from redis.asyncio.lock import Lock

Both are subclasses: names, attributes, messages and hooks are redis-py's. docs/migrate-redis-py.md has the differences.

The drop-in uses redis-py's algorithm for connections that are not redis-py's, for clients with their own
`execute_command` (or `set`, `pipeline`, `register_script`...), which may change the key, and for subclasses with their
own `do_acquire` or `do_release`. It runs the Lua scripts of a subclass or instance.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Coroutine
from typing import Any, Literal

import redis
import redis.asyncio.lock
import redis.lock
from redis.exceptions import LockNotOwnedError

from ..errors import ClientForked, ClientUnusable, LockLost, NotOwned, QuorumUnavailable
from ..locks.owner import coroutine_function, named, running_task
from .clients import RENEWED_MS, Home, client_at, home_of
from .shared import let_go, redis_error_of, shown_token

LONGEST_TTL_MS = (1 << 63) - 1

_SCRIPTS = ("LUA_RELEASE_SCRIPT", "LUA_EXTEND_SCRIPT", "LUA_REACQUIRE_SCRIPT")
_has_no_script = frozenset({"lua_release", "lua_extend", "lua_reacquire"}).isdisjoint


class _Local:
    """The acquired lock and its token, with the attributes of redis-py's `local`.

    Until other code reads the token, the lease may be handed off with it. `by_hand` is True if other code has set it.
    """

    lease: Any = None
    by_hand = False
    _token: Any = None

    def note(self, lease: Any) -> None:
        self.lease, self.by_hand, self._token = lease, False, None

    def drop(self, lease: Any) -> None:
        if self.lease is lease:
            self.note(None)

    def mine(self) -> _Local:
        return self

    @property
    def held(self) -> bool:
        return self._token is not None or (self.lease is not None and not self.by_hand)

    @property
    def token(self) -> Any:
        if self.lease is not None and not self.by_hand:
            return shown_token(self.lease)
        return self._token

    @token.setter
    def token(self, token: Any) -> None:
        self._token, self.by_hand = token, True


class _OfThread(threading.local):
    # Each record is freed with its thread or its lock object.

    def __init__(self) -> None:
        self.by_lock: weakref.WeakKeyDictionary[_ThreadLocal, _Local] = weakref.WeakKeyDictionary()


_of_thread = _OfThread()


class _ThreadLocal:
    """The record of each thread for one lock object, with attributes that users set on it.

    All lock objects share one `threading.local`: when one is freed, Python searches every thread for its data.
    """

    def mine(self) -> _Local:
        by_lock = _of_thread.by_lock
        mine = by_lock.get(self)
        if mine is None:
            mine = by_lock[self] = _Local()
        return mine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.mine(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.mine(), name, value)


class _WithLocal:
    _of_each: type[Any]

    def __init__(
        self,
        redis: Any,
        name: str | bytes,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        *more: Any,
        **named: Any,
    ) -> None:
        super().__init__(redis, name, timeout, sleep, blocking, blocking_timeout, False, *more, **named)  # type: ignore[call-arg]
        self.thread_local = bool(thread_local)
        self.local: Any = self._of_each() if thread_local else _Local()


class Lock(_WithLocal, redis.lock.Lock):
    """redis-py's lock for threads: arguments, results and errors are those of `redis.lock.Lock`."""

    _of_each = _ThreadLocal

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        home = _home_unless_hooked(self, Lock)
        if home is None or not _is_pause(self.sleep if sleep is None else sleep):
            return bool(super().acquire(sleep, blocking, blocking_timeout, token))  # type: ignore[arg-type]
        return self._win(home, _seconds_to_wait(self, sleep, blocking, blocking_timeout), token)

    def _win(self, home: Home, timeout: float | None, token: str | bytes | None) -> bool:
        lease = _lease(self, home, None, token)
        try:
            won: bool = lease.acquire(timeout=timeout)
            if won:
                self.local.note(lease)
        except QuorumUnavailable as error:
            raise redis_error_of(error) from error
        except BaseException as struck:
            let_go(lease, struck)
            raise
        return won

    def do_acquire(self, token: str | bytes) -> bool:
        home = home_of(self.redis)
        return bool(super().do_acquire(token)) if home is None else self._win(home, 0.0, token)  # type: ignore[arg-type]

    def owned(self) -> bool:
        """Return True if the server and the local clock say that this object holds the lock."""
        lease = _lease_of(self, None)
        return (lease is None or lease.remaining() > 0) and super().owned()

    def release(self) -> None:
        local = self.local.mine()
        lease = _own_lease(self, local, None)
        if lease is None:
            return super().release()
        local.drop(lease)
        self._release(lease, None)

    def do_release(self, expected_token: Any) -> None:
        """Release the lock that has this token."""
        lease = _lease_of(self, None, expected_token)
        if lease is not None:
            self._release(lease, expected_token)
            self.local.mine().drop(lease)
            return
        try:
            super().do_release(expected_token)
        finally:
            _let_go(self, None, expected_token)
        _end_lease(self, expected_token)

    def _release(self, lease: Any, token: Any) -> None:
        try:
            lease.release()
        except QuorumUnavailable as error:
            raise redis_error_of(error) from error
        except (LockLost, NotOwned, ClientForked) as error:
            raise _not_owned("release", self.name) from error
        except ClientUnusable:
            # A signal handler cannot use the client during a call of its thread. Use redis-py's script.
            super().do_release(shown_token(lease) if token is None else token)
            if lease._upkeep is not None:
                lease._upkeep.end()

    def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        lease = _lease_of(self, None)
        if lease is None:
            return super().do_extend(additional_time, replace_ttl)
        return self._extend_to(lease, _extended(self, lease, additional_time, replace_ttl), "extend")

    def do_reacquire(self) -> Literal[True]:
        lease = _lease_of(self, None)
        return super().do_reacquire() if lease is None else self._extend_to(lease, _ttl_ms(self) / 1000, "reacquire")

    def _extend_to(self, lease: Any, ttl: float, what: str) -> Literal[True]:
        shorter = 0 < ttl < lease.remaining()
        try:
            if ttl > 0:
                lease.extend(ttl)
            else:
                # The server would delete a key without time left.
                lease.release()
        except QuorumUnavailable as error:
            raise redis_error_of(error) from error
        except (LockLost, NotOwned, ClientForked) as error:
            raise _not_owned(what, self.name) from error
        if shorter and not _shorten(self, lease, ttl):
            raise _not_owned(what, self.name)
        return True


class _Record(_Local):
    task: weakref.ref[asyncio.Task[Any]] | None = None

    def is_of_another(self, task: asyncio.Task[Any] | None) -> bool:
        owner = None if self.task is None else self.task()
        return owner is not None and owner is not task and not owner.done()


class _TaskLocal:
    """The records of the tasks that have tried to acquire the lock, which share attributes that users set here.

    Other tasks use the last acquired lock, so a task can release a lock that another task acquired for it.
    """

    def __init__(self) -> None:
        self._last = _Record()
        self._of_tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], _Record] | None = None

    def note_for(self, task: asyncio.Task[Any] | None, lease: Any) -> None:
        last = self._last
        if last.task is None and task is not None and self._of_tasks is None and not last.by_hand:
            last.lease, last.task = lease, weakref.ref(task)
            return
        record = _Record()
        record.note(lease)
        record.task = None if task is None else weakref.ref(task)
        if self._of_tasks is None and last.is_of_another(task):
            self._of_tasks = weakref.WeakKeyDictionary()
            if last.task is not None and (owner := last.task()) is not None:
                self._of_tasks[owner] = last
        if self._of_tasks is not None and task is not None:
            self._of_tasks[task] = record
        if lease is not None:
            self._last = record

    def mine(self) -> _Record:
        if self._of_tasks is None:
            return self._last
        task = asyncio.current_task()
        mine = None if task is None else self._of_tasks.get(task)
        if mine is None or not (mine.held or self._last.is_of_another(task)):
            return self._last
        return mine

    @property
    def token(self) -> Any:
        return self.mine().token

    @token.setter
    def token(self, token: Any) -> None:
        self.mine().token = token

    @property
    def lease(self) -> Any:
        return self.mine().lease


class AsyncLock(_WithLocal, redis.asyncio.lock.Lock):
    """redis-py's lock for asyncio: arguments, results and errors are those of `redis.asyncio.lock.Lock`."""

    _of_each = _TaskLocal

    @coroutine_function
    def acquire(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, token: str | bytes | None = None
    ) -> Coroutine[Any, Any, bool]:
        """Acquire the lock. The task that makes this call gets it, even if another task runs the coroutine."""
        return self._acquire_for(running_task(), blocking, blocking_timeout, token)

    @named("AsyncLock.acquire")
    async def _acquire_for(
        self,
        task: asyncio.Task[Any] | None,
        blocking: bool | None,
        blocking_timeout: float | None,
        token: str | bytes | None,
    ) -> bool:
        home = _home_unless_hooked(self, AsyncLock)
        if home is None or not _is_pause(self.sleep):
            return bool(await super().acquire(blocking, blocking_timeout, token))
        return await self._win(home, _seconds_to_wait(self, None, blocking, blocking_timeout), token, task)

    async def _win(
        self, home: Home, timeout: float | None, token: str | bytes | None, task: asyncio.Task[Any] | None
    ) -> bool:
        lease = _lease(self, home, asyncio.get_running_loop(), token)
        won = False
        try:
            won = bool(await lease.acquire(timeout=timeout))
        except QuorumUnavailable as error:
            raise redis_error_of(error) from error
        finally:
            # Do this even for a cancelled task: it has tried, so it must not release another task's lock.
            if isinstance(self.local, _TaskLocal):
                caller = task if task is not None and not task.done() else running_task()
                self.local.note_for(caller, lease if won else None)
            elif won:
                self.local.note(lease)
        return won

    async def do_acquire(self, token: str | bytes) -> bool:
        home = home_of(self.redis)
        return bool(await super().do_acquire(token)) if home is None else await self._win(home, 0.0, token, None)

    async def owned(self) -> bool:
        """Return True if the server and the local clock say that this object holds the lock."""
        lease = _lease_of(self, asyncio.get_running_loop())
        return (lease is None or lease.remaining() > 0) and await super().owned()

    async def release(self) -> None:
        """Release the lock. A cancelled release may be called again."""
        local = self.local.mine()
        lease = _own_lease(self, local, asyncio.get_running_loop())
        if lease is None:
            return await super().release()
        await self._release(lease, local)

    async def do_release(self, expected_token: Any) -> None:
        loop = asyncio.get_running_loop()
        lease = _lease_of(self, loop, expected_token)
        if lease is not None:
            return await self._release(lease, self.local.mine())
        try:
            await super().do_release(expected_token)
        finally:
            _let_go(self, loop, expected_token)
        _end_lease(self, expected_token)

    async def _release(self, lease: Any, local: _Local) -> None:
        try:
            await lease.release()
        except QuorumUnavailable as error:
            raise redis_error_of(error) from error
        except (LockLost, NotOwned, ClientForked) as error:
            local.drop(lease)
            raise _not_owned("release", None) from error
        local.drop(lease)

    def do_extend(self, additional_time: float, replace_ttl: bool) -> Awaitable[Literal[True]]:  # type: ignore[override]
        lease = _lease_of(self, asyncio.get_running_loop())
        if lease is None:
            return super().do_extend(additional_time, replace_ttl)
        return self._extend_to(lease, _extended(self, lease, additional_time, replace_ttl), "extend")

    def do_reacquire(self) -> Awaitable[Literal[True]]:  # type: ignore[override]
        lease = _lease_of(self, asyncio.get_running_loop())
        return super().do_reacquire() if lease is None else self._extend_to(lease, _ttl_ms(self) / 1000, "reacquire")

    async def _extend_to(self, lease: Any, ttl: float, what: str) -> Literal[True]:
        shorter = 0 < ttl < lease.remaining()
        try:
            if ttl > 0:
                await lease.extend(ttl)
            else:
                # As in `Lock`.
                await lease.release()
        except QuorumUnavailable as error:
            raise redis_error_of(error) from error
        except (LockLost, NotOwned, ClientForked) as error:
            raise _not_owned(what, None) from error
        if shorter and not await _shorten(self, lease, ttl):
            raise _not_owned(what, None)
        return True


def _home_unless_hooked(lock: Any, face: type[Any]) -> Home | None:
    kind = type(lock)
    hooked = kind is not face and (kind.do_acquire, kind.do_release) != (face.do_acquire, face.do_release)
    return None if hooked else home_of(lock.redis)


def _is_pause(sleep: Any) -> bool:
    return isinstance(sleep, (int, float)) and sleep >= 0


def _seconds_to_wait(
    lock: Any, sleep: float | None, blocking: bool | None, blocking_timeout: float | None
) -> float | None:
    """Return 0 if redis-py would not sleep even once; None for no limit."""
    sleep = lock.sleep if sleep is None else sleep
    if not (lock.blocking if blocking is None else blocking):
        return 0.0
    timeout = lock.blocking_timeout if blocking_timeout is None else blocking_timeout
    if timeout is None:
        return None
    return 0.0 if timeout < sleep else float(timeout)


def _ttl_ms(lock: Any) -> int:
    ttl_ms = int(lock.timeout * 1000) if lock.timeout else RENEWED_MS
    if ttl_ms < 1:
        raise redis.ResponseError("invalid expire time in 'set' command")
    if ttl_ms > LONGEST_TTL_MS:
        raise redis.ResponseError("value is not an integer or out of range")
    return ttl_ms


def _lease(lock: Any, home: Home, loop: asyncio.AbstractEventLoop | None, token: str | bytes | None) -> Any:
    client = client_at(home, lock.redis, loop)
    kind = None if token is None else client.given(lock.redis.get_encoder().encode(token))
    return client.foreign(lock.name, home.encode(lock.name), _ttl_ms(lock), kind, not lock.timeout)


def _own_lease(lock: Any, local: _Local, loop: asyncio.AbstractEventLoop | None) -> Any:
    """Return this object's lock, if it can be released without reading the token."""
    lease = local.lease
    if lease is None or local.by_hand or _is_scripted(lock):
        return None
    return lease if _is_of(lease, loop) else None


def _is_scripted(lock: Any) -> bool:
    """Return True if the lock has scripts of its own for redis-py's algorithm, as in RedBeat."""
    if not _has_no_script(vars(lock)):
        return True
    kind = type(lock)
    if kind is Lock or kind is AsyncLock:
        return False
    face = Lock if isinstance(lock, Lock) else AsyncLock
    return any([getattr(kind, script) != getattr(face, script) for script in _SCRIPTS])


def _is_of(lease: Any, loop: asyncio.AbstractEventLoop | None) -> bool:
    driver = lease._shared.driver
    return loop is None or driver.home is loop or driver.status.forked


def _lease_of(lock: Any, loop: asyncio.AbstractEventLoop | None, token: bytes | None = None) -> Any:
    """Return the lock that any object of this process holds with a token (None: the lock's own).

    Return None if another process acquired it, or if redis-py's scripts must be used.
    """
    local = lock.local.mine()
    if token is None:
        lease = _own_lease(lock, local, loop)
        if lease is not None:
            return lease
        token = local.token
    home = None if token is None or _is_scripted(lock) else home_of(lock.redis)
    if home is None:
        return None
    client, lease, key = client_at(home, lock.redis, loop), local.lease, home.encode(lock.name)
    mine = lease is not None and lease._hold.token == token
    if mine and _is_of(lease, loop):
        return lease
    if mine:
        return client.held_by(lock.name, key, token, _ttl_ms(lock))
    return client.held_here(key, token, _ttl_ms(lock))


def _let_go(lock: Any, loop: asyncio.AbstractEventLoop | None, token: bytes) -> None:
    """Let the waiters of this process try again after redis-py's script has released the lock."""
    home = home_of(lock.redis)
    if home is not None:
        client, key = client_at(home, lock.redis, loop), home.encode(lock.name)
        if client.held_here(key, token, _ttl_ms(lock)) is not None:
            client.broken(key)


def _end_lease(lock: Any, token: bytes) -> None:
    """Stop the renewal after redis-py's script has released the lock, and report no loss."""
    local = lock.local.mine()
    lease = local.lease
    if lease is not None and lease._hold.token == token:
        local.drop(lease)
        if lease._upkeep is not None:
            lease._upkeep.end()


def _extended(lock: Any, lease: Any, additional_time: float, replace_ttl: bool) -> float:
    additional_ms = int(additional_time * 1000)
    if not lock.timeout:
        raise _not_owned("extend", lock.name)
    if replace_ttl:
        return additional_ms / 1000
    left_ns = int(lease.remaining() * 1e9)
    return (int(lease._shared.quorum.ttl_ms_for(left_ns)) + additional_ms) / 1000


def _shorten(lock: Any, lease: Any, ttl: float) -> Any:
    """Call redis-py's script, because our own extension never shortens the key.

    The token counts as shown: after a hand-off, a late copy of this command could shorten the next holder's key.
    """
    return lock.lua_extend(keys=[lock.name], args=[shown_token(lease), round(ttl * 1000), "1"], client=lock.redis)


def _not_owned(what: str, name: Any) -> LockNotOwnedError:
    return LockNotOwnedError(f"Cannot {what} a lock that's no longer owned", lock_name=name)
