"""Locks on many names: all of them are held, or none."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NoReturn, Self

from ..config import timeout_of
from ..errors import ConfigurationError, LockBusy, LockError, LockLost, LockTimeout
from ..protocol.effects import Steps
from ..protocol.hold import FREE, HELD
from ..protocol.policy import SECOND
from .batch import Batch
from .lock import BaseLock, Shared, note_failure
from .options import several


def distinct(names: object) -> list[Any]:
    """Return the names, each once, in the order in which everybody asks for them.

    Raises:
        ConfigurationError: there are none.
        TypeError: they are one str, or no iterable.
    """
    listed = several("names", names)
    for name in listed:
        if not isinstance(name, (str, bytes)):
            raise TypeError(f"names: each must be str or bytes, not {type(name).__name__}")
    if not listed:
        raise ConfigurationError("names: at least one is needed")
    by_key = {name.encode(errors="surrogatepass") if isinstance(name, str) else name: name for name in reversed(listed)}
    return [by_key[key] for key in sorted(by_key)]


class BaseMultiLock:
    """The part that both faces share.

    Args:
        shared: what all locks of the client have in common.
        locks: one for each name.
        timeout: seconds that ``with`` and `acquire` wait by default; None is for ever.
    """

    def __init__(self, shared: Shared, locks: list[Any], timeout: float | None) -> None:
        self._shared = shared
        self._locks: list[BaseLock] = locks
        self._timeout = timeout

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__}: it cannot be copied or pickled; it is one holder's, in one process")

    def __repr__(self) -> str:
        left = self.remaining()
        return f"<{type(self).__name__} {self.names!r} {f'held for {left:.3f} s more' if left else 'not held'}>"

    @property
    def names(self) -> list[str | bytes]:
        """The names, each once."""
        return [lock.name for lock in self._locks]

    def remaining(self) -> float:
        """Return the seconds of validity that are left for all names, 0.0 when there is none; no I/O."""
        return min([lock.remaining() for lock in self._locks])

    def check(self) -> None:
        """Raise unless all names may still be believed to be held; no I/O.

        Raises:
            LockLost: the validity is over for one of them.
            NotOwned: they were never acquired, or are released.
        """
        for lock in self._locks:
            lock.check()

    def _acquiring(self, batch: Batch[Any], timeout: float | None) -> Steps:
        policy = self._shared.policy
        give_up = None if timeout is None else policy.clock.now() + int(timeout * SECOND) if timeout else 0
        driver = self._shared.driver
        holds = [lock._hold for lock in self._locks]
        steps: Steps = driver.batch.acquire_all(
            policy, driver.lines, holds, batch._ticket, self._locks[0]._ttl_ms, give_up
        )
        return steps

    def _timeout_of(self, blocking: bool, timeout: float | None) -> float | None:
        return self._timeout if timeout is None and blocking is True else timeout_of(timeout, blocking)

    def _all_held(self) -> bool:
        return all([lock._hold.state == HELD for lock in self._locks])

    def _left_to_release(self) -> bool:
        return any([lock._hold.state != FREE for lock in self._locks])

    def _judge(self, batch: Batch[Any], verdicts: list[bool], what: str) -> None:
        """Raise where a name had been lost."""
        lost = [lock.name for lock, verdict in zip(self._locks, verdicts, strict=True) if not verdict]
        if len(lost) == len(self._locks) and batch._errors:
            raise batch._errors[0]
        if lost:
            raise LockLost(f"{lost!r} of {self.names!r} had been lost before they were {what}", name=lost[0])

    def _not_won(self) -> LockError:
        waited = self._timeout or 0.0
        if not waited:
            return LockBusy(f"one of {self.names!r} is held by somebody else", name=self.names[0])
        return LockTimeout(
            f"not all of {self.names!r} could be had in the {waited} s of its timeout",
            name=self.names[0],
            elapsed=waited,
        )


class MultiLock(BaseMultiLock):
    """A lock on many names for threads; made by `Client.multi_lock`. One object is one holder at a time."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock on all names; as `Lock.acquire`."""
        seconds = self._timeout_of(blocking, timeout)
        batch = Batch(self._shared, self._locks)
        try:
            self._shared.driver.run(self._acquiring(batch, seconds))
            won = self._all_held()
            if won:
                batch.care()
            return won
        except BaseException:
            try:  # not in a function, as in `Lock.acquire`
                batch.undo()
            except BaseException:
                batch.undo()
                raise
            raise

    def release(self, wait: bool = True) -> None:
        """Release all names; as `Lock.release`.

        Raises:
            LockLost: one of them had been lost before; the others are released.
        """
        claims: list[tuple[Any, object]] = []
        try:
            claims += self._claims()
            batch = Batch(self._shared, self._locks)
            self._shared.driver.run(batch.releasing(wait))
        except BaseException as error:
            try:  # not in a function, as in `Lock.acquire`
                self._insist(claims, error)
            except BaseException:
                self._insist(claims, error)
                raise
            raise
        self._judge(batch, batch.verdicts(), "released")

    def extend(self, ttl: float | None = None) -> None:
        """Let the lock live `ttl` seconds from now on, on all names; a shorter `ttl` works as in `Lock.extend`.

        Raises:
            LockLost: one of them is lost.
        """
        batch = Batch(self._shared, self._locks)
        try:
            self._shared.driver.run(batch.extending(ttl))
        finally:
            batch.go_on()
        self._judge(batch, batch.verdicts(), "extended")

    def __enter__(self) -> Self:
        if not self.acquire():
            raise self._not_won()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        claims: list[tuple[Any, object]] = []
        try:
            claims += self._claims()
            if self._left_to_release():
                self.release(self._shared.wait_release)
        except LockError as failure:
            if error is None:
                raise
            note_failure(error, failure)
        except BaseException as interrupt:  # it may have struck before `release` began its work
            try:  # not in a function, as in `Lock.acquire`
                self._insist(claims, interrupt)
            except BaseException:
                self._insist(claims, interrupt)
                raise
            raise

    def _claims(self) -> list[tuple[Any, object]]:
        """Return each name's hold and the ticket of its current claim."""
        return [(lock._hold, lock._hold.ticket) for lock in self._locks]

    def _insist(self, claims: list[tuple[Any, object]], error: BaseException) -> None:
        """Complete the release of every name after an interrupt. If interrupted, this may be repeated.

        Not `Batch.insist`: there may be no batch yet.

        Args:
            claims: empty if the interrupt came before it was filled; then the current claims count.
            error: what ended the release.
        """
        for hold, ticket in claims or self._claims():
            self._shared.driver.insist(hold, ticket, error)


class AsyncMultiLock(BaseMultiLock):
    """A lock on many names for asyncio tasks; made by `AsyncClient.multi_lock`. One object is one holder at a time."""

    async def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock on all names; as `AsyncLock.acquire`."""
        seconds = self._timeout_of(blocking, timeout)
        batch = Batch(self._shared, self._locks)
        try:
            await self._shared.driver.run(self._acquiring(batch, seconds))
            won = self._all_held()
            if won:
                batch.care()
            return won
        except BaseException:
            batch.undo()
            raise

    async def release(self, wait: bool = True) -> None:
        """Release all names; as `AsyncLock.release`.

        Raises:
            LockLost: one of them had been lost before; the others are released.
        """
        batch = Batch(self._shared, self._locks)
        try:
            await self._shared.driver.run(batch.releasing(wait))
        except BaseException as error:
            batch.insist(error)
            raise
        self._judge(batch, batch.verdicts(), "released")

    async def extend(self, ttl: float | None = None) -> None:
        """Let the lock live `ttl` seconds from now on, on all names; a shorter `ttl` works as in `AsyncLock.extend`.

        Raises:
            LockLost: one of them is lost.
        """
        batch = Batch(self._shared, self._locks)
        try:
            await self._shared.driver.run(batch.extending(ttl))
        finally:
            batch.go_on()
        self._judge(batch, batch.verdicts(), "extended")

    async def __aenter__(self) -> Self:
        if not await self.acquire():
            raise self._not_won()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._left_to_release():
            return
        try:
            await self.release(self._shared.wait_release)
        except LockError as failure:
            if error is None:
                raise
            note_failure(error, failure)
