"""One sale: start the buyer processes, handle their events, and kill a master and a buyer process on the way.

With a lock, the demo kills a master when half the stock is sold, and the process that holds the lock when two fifths
are left. A new process takes over those of its buyers that have not bought. On a cluster the slot of the lock moves
before that, when a quarter is sold.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from redlatch.demo.fleet import Fleet, count
from redlatch.demo.process import BuyerProcess, Event, Face, Inbox, Kind, Plan
from redlatch.demo.progress import Display
from redlatch.demo.shop import Shop

TICK = 0.02


class DemoFailed(Exception): ...


@dataclass(frozen=True)
class Order:
    """The size and terms of a sale; a buyer gives up after `patience` seconds."""

    stock: int
    buyers: int
    processes: int
    name: str
    ttl: float
    patience: float
    longest_pause: float

    @property
    def doomed_at(self) -> int:
        return max(1, self.stock * 2 // 5)

    def shares(self) -> list[tuple[int, ...]]:
        count = min(self.processes, self.buyers)
        return [tuple(range(first, self.buyers, count)) for first in range(count)]


@dataclass
class Tally:
    """The result of a sale. `halted` is the time without a sale because the lock's holder was dead."""

    stock: int
    sold: int = 0
    left: int = 0
    seconds: float = 0.0
    halted: float = 0.0
    impl: str = ""
    lost_leases: int = 0
    unanswered: int = 0
    waits: list[float] = field(default_factory=list)
    history: list[tuple[float, str]] = field(default_factory=list)

    @property
    def oversold(self) -> int:
        return max(0, self.sold - self.stock)


class Sale:
    """One sale; without masters it has no lock. Signals raise no exception inside `undisturbed`."""

    def __init__(
        self,
        order: Order,
        folder: Path,
        masters: Fleet | None,
        display: Display,
        undisturbed: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._order = order
        self._folder = folder
        self._masters = masters
        self._display = display
        self._undisturbed = undisturbed
        self._shop = Shop.open(folder, order.stock)
        self._inbox: Inbox = queue.SimpleQueue()
        self._processes: list[BuyerProcess] = []
        self._waiting = 0
        self._began = 0.0
        self._halted = 0.0
        self._tally = Tally(order.stock)

    def run(self) -> Tally:
        try:
            doomed_at = self._order.doomed_at if self._masters else 0
            for number, share in enumerate(self._order.shares()):
                self._start(share, Face.ASYNCIO if number % 2 else Face.THREADS, doomed_at)
            self._waiting = len(self._processes)
            while not all(process.finished for process in self._processes):
                self._step()
            self._tally.seconds = self._clock()
            while self._masters and self._masters.away:
                self._masters.bring_back_when_due(self._tell)
                time.sleep(TICK)
            self._tally.sold = len(self._shop.sales())
            self._tally.left = self._shop.left()
            return self._tally
        finally:
            with self._undisturbed():
                for process in self._processes:
                    process.kill()
                self._shop.close()

    def _start(self, buyers: tuple[int, ...], face: Face, doomed_at: int) -> None:
        order = self._order
        urls = self._masters.urls if self._masters else ()
        plan = Plan(
            folder=str(self._folder),
            face=face,
            buyers=buyers,
            urls=urls,
            name=order.name,
            ttl=order.ttl,
            patience=order.patience,
            longest_pause=order.longest_pause,
            doomed_at=doomed_at,
            guarded=self._masters is not None and self._masters.own,
            waits=self._masters is not None and self._masters.fails_over,
        )
        with self._undisturbed():
            self._processes.append(BuyerProcess(plan, self._inbox, self._folder / "stderr"))

    def _step(self) -> None:
        try:
            process, event = self._inbox.get(timeout=TICK)
        except queue.Empty:
            pass
        else:
            self._handle(process, event)
        if self._masters:
            self._masters.bring_back_when_due(self._tell)

    def _handle(self, process: BuyerProcess, event: Event | None) -> None:
        tally = self._tally
        if event is None:
            if not process.finished:
                raise DemoFailed(f"buyer process {process.pid} ended unexpectedly{self._last_words()}")
            return
        if event.wait is not None:
            tally.waits.append(event.wait)
        match event.kind:
            case Kind.READY:
                tally.impl = event.text
                self._ready(process)
            case Kind.BOUGHT:
                self._bought()
            case Kind.DOOMED:
                self._accident()
                self._kill_holder(process)
            case Kind.LOST:
                tally.lost_leases += 1
            case Kind.UNANSWERED:
                tally.unanswered += 1
            case Kind.FAILED:
                raise DemoFailed(event.text)
            case Kind.DONE:
                process.finished = True

    def _ready(self, process: BuyerProcess) -> None:
        # A process that replaces a killed one starts at once.
        if self._began:
            process.open_door()
            return
        self._waiting -= 1
        if self._waiting:
            return
        self._began = time.perf_counter()
        order = self._order
        self._tell(f"{order.buyers} buyers in {len(self._processes)} processes want {count(order.stock, 'item')}")
        for each in self._processes:
            each.open_door()

    def _bought(self) -> None:
        self._tally.sold += 1
        self._display.sold(self._tally.sold)
        if not self._masters:
            return
        # An item that was sold before the kill, and arrives late, does not end the halt.
        if self._halted and self._tally.sold > self._order.stock - self._order.doomed_at:
            self._tally.halted = time.perf_counter() - self._halted
            took = f"{self._tally.halted:.2f} s"
            # On a cluster, the promotion of the replica may have taken longer than the lease.
            on = f", {took} later" if self._masters.fails_over else f": the killed buyer's lease ran out after {took}"
            self._tell(f"the sale goes on{on}")
            self._halted = 0.0
        if self._tally.sold >= self._order.stock // 4:
            self._masters.move(self._tell)
        if self._tally.sold >= self._order.stock // 2:
            self._accident()
        if self._tally.sold == self._order.stock:
            self._tell("sold out: the buyers that still wait find no item left")

    def _accident(self) -> None:
        if self._masters:
            self._masters.kill_one(self._tell)

    def _kill_holder(self, process: BuyerProcess) -> None:
        process.kill()
        self._halted = time.perf_counter()
        self._tell(f"buyer process {process.pid} killed (SIGKILL) while holding the lock")
        sold_to = set(self._shop.sales())
        others = tuple(buyer for buyer in process.plan.buyers if buyer not in sold_to)
        self._start(others, process.plan.face, doomed_at=0)
        those = "its buyer that has" if len(others) == 1 else f"its {len(others)} buyers that have"
        self._tell(f"process {self._processes[-1].pid} takes over {those} not bought")

    def _tell(self, what: str) -> None:
        seconds = self._clock()
        self._tally.history.append((seconds, what))
        self._display.happened(seconds, what)

    def _clock(self) -> float:
        return time.perf_counter() - self._began

    def _last_words(self) -> str:
        lines = (self._folder / "stderr").read_text(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""
