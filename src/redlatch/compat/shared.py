"""Helpers of all drop-ins: exceptions of the originals and of redis-py, encoding, and timeouts without a quorum."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import redis
import redis.utils

from ..errors import LockError, QuorumUnavailable
from ..locks.lock import note_failure
from ..protocol.hold import HELD, RELEASING, SETTLING

logger = logging.getLogger("redlatch")

# The originals that were imported for their exceptions, and by nobody else before.
brought_in: set[str] = set()


def original(name: str) -> ModuleType | None:
    """Import the client that is stood in for, so that its own exceptions can be raised; None where it is not there."""
    known = name in sys.modules
    try:
        found = importlib.import_module(name)
    except Exception as error:  # also one that is there, but not for this Python, as aioredlock is
        logger.debug("%s cannot be imported, its errors are ours: %s", name, error)
        return None
    if not known:
        brought_in.add(name)
    return found


def packing(pool: Any) -> Callable[[Any], bytes]:
    """Return a function that encodes one argument of a command; with hiredis, text is always encoded as UTF-8."""
    encode = pool.get_encoder().encode
    utf_8 = redis.utils.HIREDIS_AVAILABLE

    def packed(word: Any) -> bytes:
        if utf_8 and isinstance(word, str):
            return word.encode()
        return bytes(encode(word))  # `encode` returns a memoryview unchanged

    return packed


def redis_errors_of(error: LockError) -> list[redis.RedisError]:
    """Return why masters failed, as errors of redis-py."""
    causes = error.causes if isinstance(error, QuorumUnavailable) else {}
    return [_as_redis_has_it(address, cause) for address, cause in causes.items()]


def redis_error_of(error: QuorumUnavailable) -> redis.RedisError:
    """Return what redis-py raises where its one server cannot be asked."""
    cause = next(iter(redis_errors_of(error)), None)
    return redis.ConnectionError(str(error)) if cause is None or isinstance(cause, LockError) else cause


def _as_redis_has_it(address: str, cause: BaseException) -> redis.RedisError:
    """Return redis-py's error for a cause, with the server's address as in redis-py's messages."""
    if isinstance(cause, redis.RedisError):
        return cause
    if address.startswith("["):  # IPv6
        address = address[1:].replace("]:", ":")
    if isinstance(cause, TimeoutError):
        return redis.TimeoutError(f"Timeout reading from {address}: {cause}")
    if not isinstance(cause, OSError) or cause.errno is None:  # redlatch's own text, which names the server
        return redis.ConnectionError(str(cause))
    if isinstance(cause, (BrokenPipeError, ConnectionAbortedError, ConnectionResetError)):
        return redis.ConnectionError(f"Error while reading from {address} : {cause.args}")
    return redis.ConnectionError(f"Error {cause.errno} connecting to {address}. {cause.strerror}.")


def shown_token(lease: Any) -> Any:
    """Return the token of a lock, for somebody who may release it elsewhere.

    Returns:
        None where nothing is held, or it is held by the parent process.
    """
    hold, driver = lease._hold, lease._shared.driver
    show(hold, driver)
    token = hold.token
    held = hold.state in (HELD, RELEASING, SETTLING) and not driver.forked
    return token if held else None


def show(hold: Any, driver: Any) -> None:
    """Take note that a token is known: its lock is not passed on, and who waits here waits for its key."""
    hold.shown = True  # before its token is read: who passes it on looks at this last
    if hold.key in driver.lines.lines and not driver.forked:
        driver.leave_line(hold)


def let_go(lease: Any, struck: BaseException) -> None:
    """Release what was won, and could not be handed to the caller: something struck in between, which is raised."""
    if lease.token is not None:
        try:
            lease.release(wait=False)
        except LockError as failure:
            note_failure(struck, failure)


class Trial:
    """For how long an acquire is tried, also where no quorum answers: that may change.

    Args:
        timeout: seconds; None is for ever.
        pause: gives the seconds before it is tried again.
    """

    def __init__(self, timeout: float | None, pause: Callable[[], float]) -> None:
        self._give_up = None if timeout is None else time.monotonic() + timeout
        self._pause = pause

    def left(self) -> float | None:
        """Return the seconds that are left; None is for ever."""
        return None if self._give_up is None else max(0.0, self._give_up - time.monotonic())

    def pause(self) -> float | None:
        """Return the seconds to wait; None where it is over before."""
        seconds = self._pause()
        return None if self._give_up is not None and time.monotonic() + seconds >= self._give_up else seconds

    def acquire(self, lease: Any, failed: Callable[[QuorumUnavailable], object]) -> bool:
        """Acquire; `failed` is told when no quorum answers, and may raise."""
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
        """The same for asyncio."""
        while True:
            try:
                return bool(await lease.acquire(timeout=self.left()))
            except QuorumUnavailable as error:
                failed(error)
            seconds = self.pause()
            if seconds is None:
                return False
            await asyncio.sleep(seconds)
