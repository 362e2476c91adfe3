"""How a task or a thread uses a lock, step by step.

The steps are written once, as coroutines. A task awaits them. A thread runs them to their end at once, because no step
suspends the coroutine: each one blocks the thread instead (see `simthreads.thread_uses`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

from redlatch import LockLost, QuorumUnavailable

from .base import BaseSchedule, H, Held, U, Worker
from .grants import Permitted
from .outcome import LATE_NS
from .parts import PERMIT, PERMITS
from .reports import keep_true
from .world import SECOND


class UsingSchedule(BaseSchedule[H, U]):
    """A schedule with everything that its tasks or threads do with a lock."""

    # How a ``with`` ends.
    EXIT: ClassVar = "__exit__"

    # --- what differs between tasks and threads ----------------------------------------------------------------

    async def _sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def _call(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call the package; return its result."""
        return call(*args, **named)

    async def _surely(self, call: Callable[..., Any]) -> Any:
        """Call the package to release a lock."""
        return await self._call(call)

    def _counted(self, worker: Worker[H], use: U, asked: int) -> AbstractContextManager[list[Any]]:
        """Record that a lock is acquired. The list gets an item for each name that was acquired."""
        return nullcontext([])

    def _gave_up(self, lock: Any) -> bool:
        """Return whether nobody waits for a lock any more after its acquire."""
        return True

    def _late_ns(self, stalled_ns: int) -> int:
        """Return how long ago a call may have ended that returns only now.

        Args:
            stalled_ns: how long threads had stalled before the call.
        """
        return 0

    def _stalled_ns(self) -> int:
        return 0

    async def _extend(self, held: Held[H, U]) -> None:
        raise NotImplementedError

    def _must_renew(self, use: U) -> bool:
        """Return whether a lock must still be renewed: every reply arrives in time."""
        raise NotImplementedError

    async def _await_report(self, lock: Any) -> None:
        """Give the process time to report a loss."""
        raise NotImplementedError

    def _parts(self, use: U, lock: Any) -> Iterable[Any]:
        """Return the locks of which a lock consists."""
        raise NotImplementedError

    def _hears(self, held: Held[H, U], error: LockLost) -> None:
        """Record that an error told a holder of a loss."""

    # --- one use of a lock -----------------------------------------------------------------------------------

    async def _use(self, worker: Worker[H], use: U) -> None:
        """Acquire a lock, hold it, and release it."""
        if use.kind == "many":
            await self._use_many(worker, use)
            return
        if use.kind == PERMIT:
            await self._use_permit(worker, use)
            return
        lock = self._lock_of(worker, use)
        self._say(worker, f"asks for {use.kind} {' '.join(use.names)}")
        asked = worker.host.local
        if not await self._acquired(worker, use, lock, asked):
            self._say(worker, "did not get it")
            return
        # No call of the package from here to the `try`: an interrupt in it would be the user's to deal with.
        pairs = [(self._granted(worker, use, part, asked), part) for part in self._parts(use, lock)]
        held = Held(worker, use, lock, pairs)
        try:
            await self._sleep(use.hold / 2)
            self._check(held)
            await self._extend(held)
            if use.kind == "rlock":
                await self._enter_again(held)
            await self._sleep(use.hold / 2)
            self._check(held)
            await self._look(held)
            if use.asks:
                await self._ask(held)
        except LockLost as error:
            self._hears(held, error)
            self._check(held)
            raise
        finally:
            self._released(held)
            await self._release(held)
            self._say(worker, "has released it")

    async def _use_permit(self, worker: Worker[H], use: U) -> None:
        """Acquire a permit of a rate limit, and hold it as long as it lasts: nothing releases it."""
        limit = self.clients[worker.client].rate_limit(use.names[0], PERMITS, use.ttl)
        self._say(worker, f"asks for a permit of {use.names[0]}")
        stalled_ns = self._stalled_ns()
        if await self._call(limit.acquire, timeout=use.timeout):
            now, late_ns = worker.host.local, self._late_ns(stalled_ns)
            self._say(worker, f"has a permit of {use.names[0]}")
            who, period_ns = f"{worker.host.name} {worker.name}", int(use.ttl * SECOND)
            self.checker.permitted(use.names[0], Permitted(who, period_ns, now - late_ns, now))
        else:
            self._say(worker, "did not get it")

    async def _use_many(self, worker: Worker[H], use: U) -> None:
        """Acquire many locks at once, hold those that were free, and release them."""
        face, asked = self.clients[worker.client], worker.host.local
        locks = await self._acquired_many(worker, use, asked)
        pairs = [(self._granted(worker, use, lock, asked), lock) for lock in locks if lock is not None]
        held = Held(worker, use, face, pairs)
        try:
            await self._sleep(use.hold)
            await self._extend_many(held, locks)
        finally:
            self._released(held)
            with self.reports.call("release_many", worker.host, pairs, use.wait) as calls:
                released = await self._surely(partial(face.release_many, locks, wait=use.wait))
                keep_true(calls, locks, released)

    async def _acquired(self, worker: Worker[H], use: U, lock: Any, asked: int) -> bool:
        waits = use.kind in ("plain", "fence", "rlock", "fair", "given", "signalled")
        if waits:
            self.checker.waits(use.names[0], worker.name, asked)
        try:
            with self._counted(worker, use, asked) as won:
                if await self._call(lock.acquire, timeout=use.timeout):
                    won += set(use.names)
            return bool(won)
        finally:
            if waits and self._gave_up(lock):
                self.checker.leaves(use.names[0], worker.name)

    async def _acquired_many(self, worker: Worker[H], use: U, asked: int) -> list[Any]:
        with self._counted(worker, use, asked) as won:
            acquire = self.clients[worker.client].acquire_many
            locks: list[Any] = await self._call(acquire, use.names, use.ttl, **self._options(use))
            won += [lock for lock in locks if lock is not None]
        return locks

    async def _extend_many(self, held: Held[H, U], locks: list[Any], *ttl: float) -> None:
        with self.reports.call("extend_many", held.host, held.pairs) as calls:
            keep_true(calls, locks, await self._call(held.lock.extend_many, locks, *ttl))

    async def _enter_again(self, held: Held[H, U]) -> None:
        """Acquire a re-entrant lock once more, and release it once."""
        with self.reports.call("check", held.host, held.pairs):
            await self._call(held.lock.acquire)
        await self._surely(held.lock.release)

    async def _ask(self, held: Held[H, U]) -> None:
        try:
            with self.reports.call("owned", held.host, held.pairs) as calls:
                if not await self._call(held.pairs[0][1].owned):
                    calls.clear()
        except QuorumUnavailable as error:
            self._say(held.worker, f"does not know whether it has {self._named(held.lock)}: {error}")

    def _named(self, lock: Any) -> str:
        return str(lock.name)

    async def _release(self, held: Held[H, U]) -> None:
        lock, waits = held.lock, held.use.waits
        release = lock.release if waits else partial(lock.release, wait=False)
        if held.use.leaves:
            release = partial(getattr(lock, self.EXIT), None, None, None)
        try:
            with self.reports.call("release", held.host, held.pairs, waits):
                await self._let_go(held, release)
        except LockLost as error:
            self._hears(held, error)
            raise

    async def _let_go(self, held: Held[H, U], release: Callable[[], Any]) -> None:
        await self._surely(release)

    # --- checks ----------------------------------------------------------------------------------------------

    async def _look(self, held: Held[H, U]) -> None:
        """Check at the end of a hold that the lock is renewed, or that its loss was reported."""
        if held.use.renew:
            self._see_the_renewal(held)
        if held.use.watch:
            await self._see_the_loss(held)

    def _see_the_renewal(self, held: Held[H, U], stalled_ns: int = 0) -> None:
        """Check that less than half of a renewed lock's ttl has passed; threads may have stalled."""
        host = held.host
        left_ns = held.lock._hold.deadline_ns - host.clock.read(host.local)
        if self._must_renew(held.use) and left_ns < self.world.renewed_ns(held.use.ttl, self.plan.far_us) - stalled_ns:
            who = f"{host.name} {held.worker.name}"
            self.world.violate(f"{who} does not renew {held.lock.name}, and all masters answer")

    async def _see_the_loss(self, held: Held[H, U], stall_ns: int = 0) -> None:
        """Check that the loss of a lock past its deadline was reported, as soon as its process runs again."""
        host, lock = held.host, held.lock
        if host.clock.read(host.local) > lock._hold.deadline_ns + LATE_NS + stall_ns:
            await self._await_report(lock)
            # The loss of a deleted lock is reported by its old deadline.
            if lock not in self.told and not lock._hold.lost_ns:
                self.world.violate(f"{host.name} {held.worker.name} was not told that it has lost {lock.name}")
