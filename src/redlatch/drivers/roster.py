"""What both drivers share: the fleet, who dials its masters, and whether this client may be used at all."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..config import Master
from ..errors import ClientClosed, ClientForked, ConfigurationError, MasterRefused
from ..protocol.policy import Clock
from ..wire.connect import LONGEST_PAUSE, Connection, Dialler
from ..wire.net import now_ns

# How long close() waits for the answers to releases that are on their way.
DRAIN_NS = 1_000_000_000

# The same for a client that was forgotten, and is found by the garbage collector.
FORGOTTEN_NS = 100_000_000

# Seconds that one connect and one handshake may take, and that a first use waits for the rest of the
# masters once a quorum is there (so that a wrong list is found before the first lock and not after it).
DIAL_TIMEOUT = 2.0
GRACE = 0.25

Outcome = Connection | Exception
Deliver = Callable[[int, Outcome], None]
MakeDialler = Callable[[list[Master], float, Deliver, Deliver, bool], Any]
Muster = Callable[[list[str], int, Clock], Any]

# Where a thread stands while it is in a call of a client; compiled functions have no frames.
_OUR_FRAMES = ("redlatch.client", "redlatch.locks.", "redlatch.drivers.", "redlatch.wire.", "redlatch.protocol.")

logger = logging.getLogger("redlatch")
_alive: weakref.WeakSet[Roster] = weakref.WeakSet()
_drivers: weakref.WeakSet[Any] = weakref.WeakSet()  # connected ones; at exit they linger


class Roster:
    """One client's masters: which are connected, which are dialled, and what is wrong with the list.

    Not safe for two threads at once; the driver calls it in its own turn. Only `deliver` is called from
    the dialling threads.

    Args:
        muster: makes the engine's Fleet of these addresses, this quorum and this clock.
        deliver: takes (index, Connection or exception) from a dialling thread to the driver's turn.
        tracking: whether the masters are to say when a key that was looked at has changed.
        dialler: what dials them.
    """

    def __init__(
        self,
        masters: list[Master],
        quorum: int,
        clock: Clock,
        muster: Muster,
        deliver: Deliver,
        tracking: bool = True,
        dialler: MakeDialler = Dialler,
    ) -> None:
        # Nothing is shared with a child forked off before `muster`, so such a client may be used there.
        self.fleet: Any = None
        self.quorum = quorum
        self.unsettled = set(range(len(masters)))  # masters whose first dialling has no outcome yet
        self.closing = False  # refuses its callers
        self.closed = False  # has no sockets any more
        self.forked = False
        self.usable = True  # what `check` would say, for the hot path
        self._misconfigured: ConfigurationError | None = None
        self._clock = clock
        self._muster = muster
        self._masters = masters
        self._dialled: list[int] = []
        self._down: set[int] = set()  # masters that were told of as being of no use
        self._tracking = tracking
        self._told_of_polling = False
        self._dialler = dialler(masters, DIAL_TIMEOUT, deliver, deliver, tracking)

    def muster(self) -> Any:
        """Make the fleet, nobody connected yet, and return it."""
        self.fleet = self._muster([master.address for master in self._masters], self.quorum, self._clock)
        _alive.add(self)
        return self.fleet

    def start(self) -> None:
        """Begin to dial every master that is not dialled yet; outcomes may be delivered before this returns.

        An interrupt in the middle makes it dial a master twice the next time; `arrive` copes.
        """
        while len(self._dialled) < len(self._masters):
            index = len(self._dialled)
            self._dialler.start(index)
            self._dialled.append(index)

    def is_quorate(self) -> bool:
        """Tell whether a quorum is connected, or every master has been tried, or there is no need any more."""
        return self._connected() >= self.quorum or self.is_complete()

    def is_complete(self) -> bool:
        """Tell whether every master has been tried, or there is no need any more."""
        return not self.unsettled or self.closing

    def is_closing(self) -> bool:
        """Tell whether callers are refused from now on."""
        return self.closing

    def check(self) -> None:
        """Raise what keeps this client from being used here.

        Raises:
            ClientForked, ClientClosed, ConfigurationError: as they say.
        """
        if self.forked:
            raise ClientForked("client: it was connected before this process was forked; make a Client in the child")
        if self.closing:
            raise ClientClosed("client: it is closed")
        if self._misconfigured is not None:
            raise self._misconfigured.with_traceback(None)

    def blame(self, ballot: Any) -> None:
        """Note who was silent on a ballot whose time is over, unless that is because the client was closed."""
        self.check()
        self.fleet.blame(ballot)

    def mourn(self) -> None:
        """Tell of locks that turned out to be lost when they were released without waiting; never in the driver's turn.

        Whoever is told may use the client.
        """
        while self.fleet.lost:
            self.fleet.lost.pop().farewell.tell_lost()

    def arrive(self, index: int, outcome: Outcome) -> None:
        """Take what dialling a master came to: adopt its connection, or note why it has no vote."""
        self._place(index, outcome)
        self.unsettled.discard(index)  # not before: who sees that all were tried must see what came of it, too

    def _place(self, index: int, outcome: Outcome) -> None:
        first = index in self.unsettled
        if isinstance(outcome, Connection):
            if self.closed or self.fleet.links[index].up:  # or dialled twice, after an interrupt
                outcome.sock.close()
                return
            if outcome.sock.fileno() < 0:  # an interrupt struck when it was adopted: its socket is gone
                self._dialler.start(index)
                return
            twin = self._twin(index, outcome.traits.run_id)
            if twin is None:
                self._adopt(index, outcome)
                return
            outcome.sock.close()
            self._dialler.start(index, LONGEST_PAUSE)
            outcome = MasterRefused(
                f"{self._masters[index].address} is the same server as masters[{twin}] "
                f"({self._masters[twin].address}): they have one run_id; a quorum needs independent servers"
            )
        if first and isinstance(outcome, MasterRefused):
            self._misconfigured = ConfigurationError(f"masters[{index}]: {outcome}")
            self.usable = False
        if index not in self._down:  # once, not at every try
            self._down.add(index)
            told = (self._masters[index].address, self._connected(), len(self._masters), self.quorum, outcome)
            logger.warning("master %s cannot be used: %d of %d are connected, %d must agree: %s", *told)
        if not self.fleet.links[index].up:
            self.fleet.fail(index, outcome)

    def _adopt(self, index: int, connection: Connection) -> None:
        link, traits = self.fleet.links[index], connection.traits
        if link.traits is not None and link.traits.run_id != traits.run_id:
            logger.warning("master %s is another server process than before; it may have lost locks", link.address)
        if index in self._down:
            self._down.discard(index)
            logger.warning("master %s is back", link.address)
        if self._tracking and not traits.tracking and not self._told_of_polling:
            self._told_of_polling = True
            logger.warning(
                "master %s does not say when a key changes (CLIENT TRACKING in RESP3): "
                "where a quorum does not, those who wait for a lock poll",
                link.address,
            )
        self.fleet.adopt(index, connection.sock, traits, traits.dialect)

    def _connected(self) -> int:
        return sum(link.up for link in self.fleet.links)

    def _twin(self, index: int, run_id: str) -> int | None:
        for link in self.fleet.links:
            if link.index != index and link.up and link.traits.run_id == run_id:
                return int(link.index)
        return None

    def redial(self, index: int, cause: BaseException | None) -> None:
        """Dial a master whose connection broke."""
        logger.info("connection to master %s broke: %s", self._masters[index].address, cause)
        self._dialler.start(index)

    def retire(self) -> None:
        """Refuse every caller from now on; what is under way may still be undone."""
        self.closing = True
        self.usable = False

    def close(self) -> None:
        """Stop dialling and close every socket; harmless when repeated."""
        self.retire()
        self.closed = True
        self._dialler.close()
        if self.fleet is not None:
            self.fleet.wires.close()

    def __del__(self) -> None:
        if hasattr(self, "_dialler"):
            if self.fleet is not None and not self.closed and not self.forked:
                self.fleet.linger(self._clock.now() + FORGOTTEN_NS)
                for _, sock in self.fleet.fallen:  # what broke at last, and nobody dials again
                    if sock is not None:
                        sock.close()
            self.close()

    def disown(self) -> None:
        """In a forked child: own nothing. The parent's connections stay as they are, its locks too."""
        self.forked = True
        self.usable = False
        self._dialler.close()
        self.fleet.wires.close()  # closes the child's descriptors only; nothing is sent


def weakly(driver: Any) -> Deliver:
    """Deliver to a driver while it lives: a dialling thread alone does not keep a client alive."""
    reference = weakref.ref(driver)

    def deliver(index: int, outcome: Outcome) -> None:
        driver = reference()
        if driver is not None:
            driver.deliver(index, outcome)
        elif isinstance(outcome, Connection):
            outcome.sock.close()

    return deliver


def tell_all(lost: list[tuple[Any, str]]) -> None:
    """Tell of locks that are lost, each with the reason: all are marked before anybody is called."""
    for lock, reason in lost:
        lock.mark_lost(reason)
    for lock, reason in lost:
        lock.tell_lost(reason)


def nested() -> bool:
    """Tell whether a call of a client stands inside another one on this thread's stack: ours, not ours, ours again."""
    calls, ours = 0, False
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        was, ours = ours, str(frame.f_globals.get("__name__")).startswith(_OUR_FRAMES)
        calls += ours and not was
        frame = frame.f_back
    return calls > 1


def linger_at_exit(driver: Any) -> None:
    """Have `driver.linger(until_ns)` called when the interpreter ends, unless it is gone by then."""
    _drivers.add(driver)


@atexit.register
def _linger_all() -> None:
    until_ns = now_ns() + DRAIN_NS  # for all together
    for driver in list(_drivers):
        driver.linger(until_ns)


def _disown_all() -> None:
    for roster in list(_alive):
        roster.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
