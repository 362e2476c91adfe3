"""What a task does with locks, and the rules for what its calls return."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from redlatch import ConfigurationError, LockError, LockLost, QuorumUnavailable
from redlatch.loss import KEY_GONE
from redlatch.quorum.claim import HELD

from .alone import Alone
from .base import Held, Worker
from .grants import Grant
from .host import Host
from .liveness import Liveness
from .outcome import told
from .plan import Action, Plan
from .recount import Recount, group_of
from .task_host import TaskHost
from .using import UsingSchedule
from .world import SECOND


class TaskUses(UsingSchedule[TaskHost, Action]):
    """The uses of locks by tasks.

    Attributes:
        recount: a second count of what the clients count, if they count.
        liveness: the rule of liveness, if it holds.
        alone: the rule for a single master, if it holds.
        working: by number, the process of each task that has not ended.
    """

    EXIT = "__aexit__"
    plan: Plan
    recount: Recount | None
    liveness: Liveness | None
    alone: Alone | None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.working: dict[int, TaskHost] = {}

    def _start(self, host: TaskHost, work: Callable[[], Any], number: int = -1) -> None:
        def begin() -> None:
            task = host.loop.create_task(work())
            task.add_done_callback(partial(self._ended, host, number))

        host.loop.call_soon(begin)

    def _killed(self, host: Host) -> None:
        for number in [number for number, other in self.working.items() if other is host]:
            del self.working[number]

    def _ended(self, host: TaskHost, number: int, task: asyncio.Task[None]) -> None:
        self.working.pop(number, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.world.violate(f"{host.name}: {told(error)}")

    async def _work(self, worker: Worker[TaskHost], actions: tuple[Action, ...]) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.set_name(worker.name)
        for action in actions:
            await asyncio.sleep(action.pause)
            timer = None
            if action.cancel is not None:
                timer = worker.host.loop.call_later(action.cancel, task.cancel)
            try:
                await self._use(worker, action)
            except asyncio.CancelledError:
                self._say(worker, "was cancelled")
                task.uncancel()
            except (LockError, ConfigurationError) as error:
                if isinstance(error, QuorumUnavailable):
                    self.reports.unavailable(error)
                self._say(worker, f"{type(error).__name__}: {error}")
            finally:
                if timer is not None:
                    timer.cancel()

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _call(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        return await call(*args, **named)

    @contextmanager
    def _counted(self, worker: Worker[TaskHost], action: Action, asked: int) -> Iterator[list[Any]]:
        wait, won, number = None, list[Any](), len(set(action.names))
        timeout = 0.0 if action.kind == "many" else action.timeout
        if self.liveness is not None:
            who = worker.host.name
            wait = self.liveness.begin(who, f"{who} {worker.name}", action.names, action.kind, asked)
        try:
            yield won
            if self.recount is not None:
                self.recount.ended(worker.client, action, len(won), number - len(won))
        except BaseException as error:
            if self.recount is not None:
                self.recount.failed(worker.client, action, number, error)
            raise
        finally:
            if wait is not None and self.liveness is not None:
                self.liveness.end(wait, asked, worker.host.local, timeout)
                # A single attempt is no wait.
                if action.kind == "many":
                    self.liveness.waits.remove(wait)

    def _gave_up(self, lock: Any) -> bool:
        return bool(lock.remaining() <= 0)

    async def _extend(self, held: Held[TaskHost, Action]) -> None:
        """Extend the lock as often as planned. A failed or cancelled extension does not prevent the next one."""
        extends = held.use.extends
        for number, extension in enumerate(extends):
            if extension.pause:
                await asyncio.sleep(extension.pause)
            for index, seconds, left in extension.strays:
                for connection in held.host.connections_to(index):
                    connection.strays = int(seconds * SECOND), left
            try:
                async with asyncio.timeout(extension.patience):
                    await self._extend_to(held, extension.ttl)
            except (TimeoutError, QuorumUnavailable) as error:
                if isinstance(error, QuorumUnavailable):
                    self.reports.unavailable(error)
                self._say(held.worker, f"has not extended it: {type(error).__name__}")
                if isinstance(error, QuorumUnavailable) and number == len(extends) - 1:
                    raise

    async def _extend_to(self, held: Held[TaskHost, Action], ttl: float) -> None:
        """Extend the lock.

        An extension that arrives after the lock has run out does not count, whatever the masters reply.
        """
        who = f"{held.worker.name} of {held.host.name}"
        self._say(held.worker, f"extends it to {ttl:g} s")
        parts = [part for _, part in held.pairs if not (part._upkeep and part._upkeep.renews)]
        holds = [part._hold for part in parts if not part._hold.extending]
        before = {hold: (hold.lease.asked_ns, hold.deadline_ns) for hold in holds}

        # Called after each step, because a second extension may verify the first.
        def look() -> None:
            for hold, (asked, deadline) in before.items():
                if hold.lease.asked_ns != asked and hold.lease.asked_ns + hold.elapsed_ns >= deadline:
                    self.world.violate(f"{who} has extended {hold.name} when it had run out")
                before[hold] = hold.lease.asked_ns, hold.deadline_ns

        with self.reports.call("extend", held.host, held.pairs):
            await watched(held.lock.extend(ttl), look)

    async def _extend_many(self, held: Held[TaskHost, Action], locks: list[Any], *_: float) -> None:
        for extension in held.use.extends:
            if extension.pause:
                await asyncio.sleep(extension.pause)
            await super()._extend_many(held, locks, extension.ttl)

    async def _enter_again(self, held: Held[TaskHost, Action]) -> None:
        await super()._enter_again(held)
        if held.lock.count != 1 or held.pairs[0][1]._hold.state != HELD:
            who = f"{held.worker.name} of {held.host.name}"
            self.world.violate(f"{who} has released the whole of {held.lock.name}")

    # --- checks --------------------------------------------------------------------------------------------

    def _executed(self, index: int, words: list[bytes], reply: Any) -> None:
        super()._executed(index, words, reply)
        if self.alone is not None:
            self.alone.executed(words, reply)

    async def _look(self, held: Held[TaskHost, Action]) -> None:
        action, lock = held.use, held.lock
        who = f"{held.worker.name} of client {held.worker.client}"
        if action.renew and self.plan.heals and lock.remaining() <= 0:
            self.world.violate(f"{who} has lost {lock.name}, whose votes should have healed")
        await super()._look(held)
        if action.watch and action.renew and not action.extends and not self.plan.pauses:
            had_ns = held.host.clock.read(held.pairs[0][0].start)
            if lock._hold.deadline_ns > had_ns + int(action.ttl * SECOND):
                self.world.violate(f"{who} has renewed {lock.name} beyond its max_hold")

    def _must_renew(self, action: Action) -> bool:
        return bool(self.plan.idle_ns()) and not action.watch and not action.extends

    async def _await_report(self, lock: Any) -> None:
        # The process may have been paused until now.
        await asyncio.sleep(0.001)

    def _hears(self, held: Held[TaskHost, Action], error: LockLost) -> None:
        if self.recount is not None:
            self.recount.lost(held.worker.client, held.use, held.lock)

    # --- locks, and what holders believe -------------------------------------------------------------------

    def _parts(self, action: Action, lock: Any) -> list[Any]:
        return lock._locks if action.kind == "multi" else [lock.lock if action.kind == "rlock" else lock]

    def _options(self, action: Action) -> dict[str, Any]:
        return {"group": group_of(action)}

    def _watch_options(self, worker: Worker[TaskHost], action: Action) -> dict[str, Any]:
        longest = {"max_hold": action.ttl} if action.renew else {}
        return {"on_lost": partial(self._report, worker.client, action), **longest}

    def _report(self, client: int, action: Action, lock: Any, reason: str) -> None:
        """Take the report of a loss; `action` is one of the lock's group."""
        self._lost(lock, reason)
        if self.recount is not None:
            self.recount.lost(client, action, lock)

    def _lost(self, lock: Any, reason: str) -> None:
        """Record the report of a loss; check that no quorum has a key that is reported gone."""
        super()._lost(lock, reason)
        hold: Any = lock._hold
        if reason == KEY_GONE and not self.plan.lists:
            key = hold.kind.watched(hold.key)
            having = [master.index for master in self.masters if master.keys.values.get(key) == hold.token]
            if len(having) >= self.checker.quorum:
                self.world.violate(f"{lock.name} was reported gone, but {having} have it: a quorum")

    def _granted(self, worker: Worker[TaskHost], action: Action, lock: Any, asked: int) -> Grant:
        host, hold = worker.host, lock._hold
        grant = super()._granted(worker, action, lock, asked)
        if self.alone is not None:
            self.alone.begins(grant, host, lock)
        if not hold.lease.hand_offs and hold.lease.since_ns + hold.elapsed_ns >= hold.deadline_ns:
            self.world.violate(f"{grant.who} was given {grant.name} when its validity was over")
        return grant

    def _expired(self, grant: Grant, lock: Any) -> None:
        if self.liveness is not None:
            self.liveness.expired.add(grant)
            if lock._hold.lost_ns:
                self.liveness.spared.add(grant)

    def _end(self, grant: Grant, host: TaskHost, lock: Any) -> None:
        super()._end(grant, host, lock)
        if self.alone is not None:
            self.alone.ends(grant, host)


@types.coroutine
def watched(coroutine: Coroutine[Any, Any, Any], look: Callable[[], None]) -> Generator[Any, Any, Any]:
    """Await a coroutine; call `look` whenever it waits for something, and when it has ended."""
    step = partial(coroutine.send, None)
    while True:
        try:
            awaited = step()
        except StopIteration as end:
            return end.value
        finally:
            look()
        try:
            yield awaited
        except BaseException as error:
            # The coroutine handles its own cancellation.
            step = partial(coroutine.throw, error)
        else:
            step = partial(coroutine.send, None)
