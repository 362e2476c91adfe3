"""The demo from end to end: masters up, a sale without a lock, a sale with it, everything down again."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import redlatch
from redlatch.demo.interrupt import Interruptions, OutOfTime
from redlatch.demo.masters import Masters, open_masters
from redlatch.demo.progress import Display
from redlatch.demo.report import Result
from redlatch.demo.sale import DemoFailed, Order, Sale, count
from redlatch.errors import ConfigurationError, LockError

PROCESSES = 4

# Seconds of a lease: how long everybody waits after the holder was killed, and many times what a purchase takes.
TTL = 1.0

# How many attempts per second all waiting buyers together make on five masters; each pauses for half of the longest
# pause on average. With the client's default, 1000 buyers make 40 000: on two busy cores they took 28 s, with this 5 s.
ATTEMPTS = 8_000
SHORTEST = 0.05  # never less than the client's default, seconds

# Of the time limit, seconds kept for the cleaning up.
RESERVE = 0.5

# How long the masters may take to grant a first lock that nobody else wants, seconds.
FIRST_LOCK = 5.0


def run_demo(stock: int, buyers: int, masters: int, servers: Sequence[str], seconds: float, display: Display) -> Result:
    """Hold both sales and return what came of them, leaving no process, file or key behind.

    Args:
        stock: items for sale in each.
        buyers: people who want one each.
        masters: how many masters to start.
        servers: URLs to lock on instead.
        seconds: the time limit for everything.
        display: who shows it meanwhile.

    Raises:
        DemoFailed: there is no result; the message says why.
        ConfigurationError: `servers` cannot work.
    """
    pause = max(SHORTEST, 2 * buyers / ATTEMPTS * (len(servers) or masters) / 5)
    order = Order(stock, buyers, PROCESSES, f"redlatch-demo:{uuid.uuid4()}", TTL, seconds, pause)
    try:
        with Interruptions(seconds - RESERVE) as interruptions, ExitStack() as cleanup:
            try:
                folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="redlatch-demo-")))
                display.chapter(_preparing(masters, servers))
                fleet = _open(cleanup, masters, servers)
                return _hold_both(order, fleet, folder, display, interruptions)
            finally:
                interruptions.disarm()  # nothing may disturb the cleaning up
    except BrokenPipeError:  # whoever read the progress is gone
        raise
    except (OSError, RuntimeError) as error:  # a full disk, no more processes, a master that does not come back
        raise DemoFailed(f"stopped at: {display.at}: {error}") from error
    except OutOfTime:
        raise DemoFailed(f"not finished within {seconds:g} s (--seconds), stopped at: {display.at}") from None


def _hold_both(order: Order, fleet: Masters, folder: Path, display: Display, interruptions: Interruptions) -> Result:
    """Hold one sale after the other."""
    _try_lock(fleet, order)
    display.chapter("A flash sale without a lock", order.stock)
    without = Sale(order, folder / "without", None, display, interruptions.postponed).run()
    display.chapter(_verdict_without(without.sold, order.stock))
    display.chapter("The same sale with redlatch", order.stock)
    locked = Sale(order, folder / "locked", fleet, display, interruptions.postponed).run()
    return Result(order, without, locked, fleet)


def _open(cleanup: ExitStack, number: int, servers: Sequence[str]) -> Masters:
    """Open the masters; that embedded ones do not start is no fault of an option."""
    try:
        return cleanup.enter_context(open_masters(number, servers))
    except (LockError, RuntimeError, OSError) as error:
        raise DemoFailed(f"the masters do not start: {error}") from error


def _preparing(masters: int, servers: Sequence[str]) -> str:
    if servers:
        return f"Locking on your {count(len(servers), 'server')}"
    return f"Starting {count(masters, 'lock master')}"


def _verdict_without(sold: int, stock: int) -> str:
    if sold > stock:
        return f"  {sold} items sold, {sold - stock} more than there are"
    return f"  {sold} items sold: lucky this time"


def _try_lock(masters: Masters, order: Order) -> None:
    """Lock once before anything else, so that masters that cannot work are reported as such."""
    guard = redlatch.Guard(max_ttl=order.ttl) if masters.own else None  # the user's servers are to keep nothing
    try:
        with redlatch.Client(list(masters.urls), ttl=order.ttl, guard=guard) as client:
            lock = client.lock(order.name, ttl=order.ttl)
            if not lock.acquire(timeout=min(FIRST_LOCK, order.patience)):
                raise DemoFailed(f"the masters did not grant a lock within {FIRST_LOCK:g} s")
            lock.release()
    except ConfigurationError:
        raise
    except (LockError, ImportError) as error:  # ImportError: REDLATCH_IMPL forces what was not built
        raise DemoFailed(f"cannot lock: {error}") from error
