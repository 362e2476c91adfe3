"""The end of a client: what it gives back, and the locks that it still holds; and calls inside a call.

A client is closed; or it is forgotten, and the garbage collector finds it; or the process is forked, and the client of
the child owns nothing; or the interpreter ends.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import weakref
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..masters.master import Master
from ..quorum.hold import Hold
from ..quorum.quorum import Quorum
from ..votes.ballot import Ballot
from ..votes.units import MILLISECOND, SECOND, UNBOUNDED, Clock
from ..wire.dial.connect import Connection
from ..wire.engine.net import now_ns
from .arrivals import Arrival, reject
from .lifecycle import Lifecycle

logger = logging.getLogger("redlatch")

# The time for which close() waits for answers to releases that were sent.
DRAIN_NS = SECOND

# The same for a forgotten client, which the garbage collector finds.
FORGOTTEN_NS = 100 * MILLISECOND

# The releases of held locks leave after this time even if the loss was not reported to every holder yet.
REPORT_NS = 100 * MILLISECOND

# A thread that is in a call of a client has frames of these modules. Compiled functions have no frames.
_OUR_FRAMES = (
    "redlatch.client",
    "redlatch.locks.",
    "redlatch.drivers.",
    "redlatch.wire.",
    "redlatch.masters.",
    "redlatch.quorum.",
    "redlatch.guard.",
    "redlatch.votes.",
    "redlatch.sql.",
    "redlatch.celery.kinds",
)

# They call the user's function, which is not a part of their own call.
_DECORATORS = "redlatch.locks.decorate"

_all_connections: weakref.WeakSet[Any] = weakref.WeakSet()
_drivers: weakref.WeakSet[Any] = weakref.WeakSet()


def nested() -> bool:
    """Return whether the stack of this thread is ours, not ours, and ours again: a call inside a call."""
    calls, ours = 0, False
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        was, ours = ours, module.startswith(_OUR_FRAMES) and module != _DECORATORS
        calls += ours and not was
        frame = frame.f_back
    return calls > 1


def await_answers_at_exit(driver: Any) -> None:
    """Have `driver.await_answers(until_ns)` called when the interpreter ends."""
    _drivers.add(driver)


@atexit.register
def _await_answers_of_all() -> None:
    until_ns = now_ns() + DRAIN_NS
    for driver in list(_drivers):
        driver.await_answers(until_ns)


def disown_at_fork(connections: Any) -> None:
    """Have `connections.disown()` called in every forked child."""
    _all_connections.add(connections)


def _disown_all() -> None:
    for connections in list(_all_connections):
        connections.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)


class Resources:
    """The connections of one client and the threads that make them.

    Attributes:
        fleet: before it is made, nothing is shared with a forked child, so the child may use such a client.
        arrivals: what other threads have delivered, until the driver takes it.
        dismiss: closes a socket of a forgotten client.
    """

    _dialler: Any
    _switches: Any
    _masters: list[Master]

    def __init__(self, clock: Clock, lifecycle: Lifecycle | None = None) -> None:
        self.fleet: Any = None
        self.lifecycle = Lifecycle() if lifecycle is None else lifecycle
        self.arrivals: deque[tuple[int, Arrival]] = deque()
        self.dismiss: Callable[[socket.socket], None] = socket.socket.close
        self._waiting: dict[int, Connection] = {}
        self._clock = clock
        self._dialled: list[int] = []
        # The error that kept a master from being dialled, until `connect` raises it.
        self.failure: Exception | None = None
        # Keep the sockets alive: else the garbage collector might finalize them, with a warning, before their owner can
        # close them (see `Wires`). It must not keep this object alive.
        weakref.finalize(self, _reject_all, self._waiting, self.arrivals).atexit = False

    def all_dialled(self) -> bool:
        return len(self._dialled) == len(self._masters)

    def raise_failure(self) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def is_closing(self) -> bool:
        return self.lifecycle.closing

    def retire(self) -> None:
        self.lifecycle.retire()

    def close(self) -> None:
        """Stop dialling and close every socket; harmless when repeated.

        A thread that appends to `arrivals` checks `closed` afterwards, and closes its connection if it is set.
        """
        self.retire()
        self.lifecycle.closed = True
        self._hang_up()

    def _hang_up(self) -> None:
        self._dialler.close()
        self._switches.close()
        _reject_all(self._waiting, self.arrivals)
        if self.fleet is not None:
            self.fleet.wires.close()
            for sock in self._fallen():
                sock.close()

    def _let_wait(self, index: int, connection: Connection) -> None:
        """Keep a connection until the guard decides. If the master was dialled twice, another one may be there."""
        before = self._waiting.get(index)
        if before is not None and before is not connection:
            before.sock.close()
        self._waiting[index] = connection

    def _fallen(self) -> list[socket.socket]:
        fallen, self.fleet.fallen = self.fleet.fallen, []
        return [sock for _, sock in fallen if sock is not None]

    def __del__(self) -> None:
        if hasattr(self, "_switches"):
            if self.fleet is not None and not self.lifecycle.closed and not self.lifecycle.forked:
                self.fleet.await_answers(self._clock.now() + FORGOTTEN_NS)
                there = [self.fleet.wires.detach(link.index) for link in self.fleet.links]
                # Broken ones are not dialled again.
                for sock in [*there, *self._fallen()]:
                    if sock is not None:
                        self.dismiss(sock)
            self.close()

    def disown(self) -> None:
        """Give up what a forked child has. The connections and locks of the parent stay as they are."""
        self.lifecycle.disown()
        # Closes the child's descriptors only; nothing is sent.
        self._hang_up()


def _reject_all(waiting: dict[int, Connection], arrivals: deque[tuple[int, Arrival]]) -> None:
    while waiting:
        waiting.popitem()[1].sock.close()
    for _, arrival in list(arrivals):
        reject(arrival)


class HeldLocks:
    """The locks that a client still holds when it is closed with ``release=True``.

    First all leases of the client come into doubt (`Doubts`), and stay in it. From then on `check` and `remaining` of
    every lock report the loss, no attempt wins, and no waiter of the client gets a lease. Only then may a release
    leave. Otherwise another process could have a lock while its former holder relies on it.
    """

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self.ended = False
        # The token that was released, and its ballot. The token tells a later lease of the same hold.
        self._released: dict[Hold, tuple[bytes, Ballot]] = {}

    def end(self) -> None:
        """Let no lease of the client count any more; harmless when repeated."""
        if not self.ended:
            # First: a caller that finds its lease in doubt then knows the reason.
            self._quorum.released_ns = self._quorum.clock.now()
            self._quorum.doubts.add(UNBOUNDED)
            self.ended = True
        for hold in self._quorum.queues.held():
            hold.lose(self._quorum.released_ns)

    def release(self, send: Callable[[list[Ballot]], object]) -> bool:
        """Send the releases of the locks that are held now; return whether there were any.

        Call it again when all calls have ended: an acquire that had its votes already may have kept its lock since.
        After an interrupt, the next call sends the releases again rather than never.
        """
        if not self.ended:
            return False
        new: dict[Hold, tuple[bytes, Ballot]] = {}
        for hold in self._quorum.queues.held():
            hold.lose(self._quorum.released_ns)
            lease, before = hold.lease, self._released.get(hold)
            release = hold.kind.releasing(hold.key, lease)
            if release is not None and (before is None or before[0] is not lease.token):
                new[hold] = lease.token, self._quorum.ballot(release)
        if new:
            send([ballot for _, ballot in new.values()])
            self._released.update(new)
        return bool(new)

    def report(self) -> None:
        ballots = [ballot for _, ballot in self._released.values()]
        kept = sum([not ballot.decided or ballot.unavailable() for ballot in ballots])
        if kept:
            logger.warning(
                "close(release=True): %d of %d locks may stay until their ttl is over: too few masters have answered",
                kept,
                len(ballots),
            )
