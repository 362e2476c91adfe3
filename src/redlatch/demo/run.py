"""The whole demo: start the masters, hold a sale without a lock and one with it, and clean up."""

from __future__ import annotations

import signal
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import redlatch
from redlatch.demo.fleet import Fleet, count, open_cluster, open_masters
from redlatch.demo.progress import Display
from redlatch.demo.report import Result
from redlatch.demo.sale import DemoFailed, Order, Sale
from redlatch.errors import ConfigurationError, LockError

PROCESSES = 4

TTL = 1.0

# Attempts per second of all waiting buyers together on five masters. With the client's default pause, 1000 buyers make
# 40,000: on two busy cores the sale took 28 s, and with this limit 5 s.
ATTEMPTS = 8_000

SHORTEST = 0.05

# For the cleanup, in seconds.
RESERVE = 0.5

FIRST_LOCK = 5.0

_BY_HAND = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class OutOfTime(Exception): ...


class Stopped(KeyboardInterrupt):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


class Interruptions:
    """A context manager in which a signal raises Stopped and the time limit raises OutOfTime.

    Only the first signal counts: a second Ctrl-C must not stop the cleanup.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._before: dict[signal.Signals, Any] = {}
        self._postponing = False
        self._missed: BaseException | None = None

    def __enter__(self) -> Interruptions:
        for number in (*_BY_HAND, signal.SIGALRM):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                # The program was started with nohup.
                continue
            self._before[number] = signal.signal(number, self._first)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        return self

    def disarm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in _BY_HAND:
            signal.signal(number, signal.SIG_IGN)

    def _first(self, number: int, frame: FrameType | None) -> None:
        self.disarm()
        error = OutOfTime() if number == signal.SIGALRM else Stopped(number)
        if not self._postponing:
            raise error
        self._missed = error

    @contextmanager
    def postponed(self) -> Iterator[None]:
        """Postpone the exception to the end of the block, which starts or ends processes."""
        self._postponing = True
        try:
            yield
        finally:
            self._postponing = False
        missed, self._missed = self._missed, None
        if missed is not None:
            raise missed

    def __exit__(self, *_: object) -> None:
        self.disarm()
        for number, handler in self._before.items():
            signal.signal(number, handler)


def run_demo(
    stock: int, buyers: int, masters: int, servers: Sequence[str], seconds: float, display: Display, cluster: bool
) -> Result:
    """Hold both sales and return their results, leaving no process, file or key behind."""
    pause = max(SHORTEST, 2 * buyers / ATTEMPTS * (len(servers) or masters) / 5)
    order = Order(stock, buyers, PROCESSES, f"redlatch-demo:{uuid.uuid4()}", TTL, seconds, pause)
    try:
        with Interruptions(seconds - RESERVE) as interruptions, ExitStack() as cleanup:
            try:
                folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="redlatch-demo-")))
                display.chapter(_preparing(masters, servers, cluster))
                opening = open_cluster(order.name) if cluster else open_masters(masters, servers)
                fleet = _open(cleanup, opening)
                return _hold_both(order, fleet, folder, display, interruptions)
            finally:
                interruptions.disarm()
    except BrokenPipeError:
        # The reader of the progress output is gone.
        raise
    except (OSError, RuntimeError) as error:
        raise DemoFailed(f"stopped at: {display.at}: {error}") from error
    except OutOfTime:
        raise DemoFailed(f"not finished within {seconds:g} s (--seconds), stopped at: {display.at}") from None


def _hold_both(order: Order, fleet: Fleet, folder: Path, display: Display, interruptions: Interruptions) -> Result:
    _try_lock(fleet, order)
    display.chapter("A flash sale without a lock", order.stock)
    without = Sale(order, folder / "without", None, display, interruptions.postponed).run()
    display.chapter(_verdict_without(without.sold, order.stock))
    display.chapter("The same sale with redlatch", order.stock)
    locked = Sale(order, folder / "locked", fleet, display, interruptions.postponed).run()
    return Result(order, without, locked, fleet)


def _open(cleanup: ExitStack, opening: AbstractContextManager[Fleet]) -> Fleet:
    # No option is wrong if embedded masters do not start.
    try:
        return cleanup.enter_context(opening)
    except (LockError, RuntimeError, OSError) as error:
        raise DemoFailed(f"the masters do not start: {error}") from error


def _preparing(masters: int, servers: Sequence[str], cluster: bool) -> str:
    if cluster:
        return "Starting a cluster"
    if servers:
        return f"Locking on your {count(len(servers), 'server')}"
    return f"Starting {count(masters, 'lock master')}"


def _verdict_without(sold: int, stock: int) -> str:
    if sold > stock:
        return f"  {sold} items sold, {sold - stock} more than the stock"
    return f"  {sold} items sold: not oversold this time, by luck"


def _try_lock(masters: Fleet, order: Order) -> None:
    # A guard would leave its markers on the user's servers.
    guard = redlatch.Guard(max_ttl=order.ttl) if masters.own else None
    try:
        with redlatch.Client(list(masters.urls), ttl=order.ttl, guard=guard) as client:
            lock = client.lock(order.name, ttl=order.ttl)
            if not lock.acquire(timeout=min(FIRST_LOCK, order.patience)):
                raise DemoFailed(f"the masters did not grant a lock within {FIRST_LOCK:g} s")
            lock.release()
    except ConfigurationError:
        raise
    except (LockError, ImportError) as error:
        # REDLATCH_IMPL may force a build that does not exist.
        raise DemoFailed(f"cannot lock: {error}") from error
