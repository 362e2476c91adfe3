"""What a thread does with locks, and the rules for what its calls return."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from sim.base import Held, Worker
from sim.using import UsingSchedule
from sim.world import MILLISECOND, SECOND

from redlatch import ClientUnusable, ConfigurationError, LockError, QuorumUnavailable

from .host import ThreadHost
from .kernel import Kernel, Thread
from .plan import Plan, Use


def finish(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine that is never suspended: its steps block the thread."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("a step was suspended")


class ThreadUses(UsingSchedule[ThreadHost, Use]):
    """The uses of locks by threads.

    Attributes:
        closed: the processes whose client was closed, or that ended or forked.
    """

    plan: Plan
    kernel: Kernel

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.closed: set[ThreadHost] = set()

    def _me(self) -> Thread:
        assert self.kernel.current is not None
        return self.kernel.current

    def _work(self, worker: Worker[ThreadHost], uses: tuple[Use, ...]) -> None:
        host, me = worker.host, self._me()
        for place, use in enumerate(uses):
            if use.pause:
                self.kernel.sleep(int(use.pause * SECOND))
            me.strikes = 0
            me.in_call = place < len(uses) - 1  # no interrupt in the last use, which cleans up after earlier ones
            try:
                finish(self._use(worker, use))
            except KeyboardInterrupt:
                self._say(worker, "was interrupted")
            except QuorumUnavailable as error:
                self._say(worker, f"QuorumUnavailable: {error}")
                self.reports.unavailable(error)
                if self.plan.quiet():
                    self.world.violate(f"{host.name}: {worker.name} has no quorum, and all masters answer: {error}")
            except ClientUnusable as error:
                self._say(worker, f"{type(error).__name__}: {error}")
                if host not in self.closed:
                    self.world.violate(f"{host.name}: {worker.name}: {type(error).__name__}: {error}")
                return
            except (LockError, ConfigurationError) as error:
                self._say(worker, f"{type(error).__name__}: {error}")
            finally:
                me.in_call = me.interrupted = False

    async def _sleep(self, seconds: float) -> None:
        if seconds:
            self.kernel.sleep(int(seconds * SECOND))

    async def _surely(self, call: Callable[..., Any]) -> Any:
        return self._insist(call)

    def _insist(self, release: Any) -> Any:
        """Release, and release again after an interrupt, because the first call may not have begun."""
        try:
            return release()
        except KeyboardInterrupt:
            me = self._me()
            me.in_call = me.interrupted = False
            with suppress(LockError):  # the first call may have released the lock
                release()
            raise

    def _in_time(self, worker: Worker[ThreadHost], what: str, call: Any) -> None:
        """Run a call that needs only replies of the masters, and check that it is short if all masters reply."""
        began = self.kernel.now()
        call()
        took, allowed = self.kernel.now() - began, self.plan.idle_ns()
        late = [ns for end, ns in self.world.stragglers if end > began]
        if allowed and took > allowed + sum(late):
            self.world.violate(
                f"{worker.host.name}: {what} of {worker.name} took {took / MILLISECOND:.3f} ms, and all masters answer"
            )

    async def _extend(self, held: Held[ThreadHost, Use]) -> None:
        if held.use.extend:
            self._say(held.worker, "extends it")
            with self.reports.call("extend", held.host, held.pairs):
                self._in_time(held.worker, "an extension", held.lock.extend)

    async def _extend_many(self, held: Held[ThreadHost, Use], locks: list[Any], *_: float) -> None:
        if held.use.extend:
            await super()._extend_many(held, locks)

    def _named(self, lock: Any) -> str:
        # Its name is a property of the package, with points.
        return "the lock"

    async def _release(self, held: Held[ThreadHost, Use]) -> None:
        try:
            await super()._release(held)
        except LockError:
            if held.use.hold < held.use.ttl and self.plan.quiet():
                raise

    async def _let_go(self, held: Held[ThreadHost, Use], release: Callable[[], Any]) -> None:
        try:
            self._in_time(held.worker, "a release", partial(self._insist, release))
        except QuorumUnavailable:
            if self.plan.theme != "losing":
                raise
            # It may be called again. Both calls are one for the oracle.
            self._say(held.worker, "releases it again")
            release()

    def _parts(self, use: Use, lock: Any) -> list[Any]:
        if use.kind == "rlock":
            return [part for part, _ in lock._held.values()]
        return lock._locks if use.kind == "multi" else [lock]

    def _late_ns(self, stalled_ns: int) -> int:
        # A thread that was preempted waits for others that run.
        return self.kernel.stalled_ns - stalled_ns + 5 * MILLISECOND

    def _stalled_ns(self) -> int:
        return self.kernel.stalled_ns

    # --- checks --------------------------------------------------------------------------------------------

    def _must_renew(self, use: Use) -> bool:
        return self.plan.quiet()

    def _see_the_renewal(self, held: Held[ThreadHost, Use], stalled_ns: int = 0) -> None:
        super()._see_the_renewal(held, self.kernel.stalled_ns)

    async def _see_the_loss(self, held: Held[ThreadHost, Use], stall_ns: int = 0) -> None:
        await super()._see_the_loss(held, self.plan.choice.stall_ns)

    async def _await_report(self, lock: Any) -> None:
        stalled_ns = self.kernel.stalled_ns
        self.kernel.sleep(10 * MILLISECOND + 10 * self.plan.choice.stall_ns)
        if lock not in self.told:  # a stall of the reporting thread may be many times the average
            self.kernel.sleep(self.kernel.stalled_ns - stalled_ns)

    # --- what holders believe ------------------------------------------------------------------------------

    def _released_by(self, host: ThreadHost) -> None:
        """End the grants of a process that forks."""
        for grant in [grant for grant, (other, _) in self.held.items() if other is host]:
            _, lock = self.held.pop(grant)
            self._end(grant, host, lock)
