"""The end of a client for threads: `close`, and waiting for replies when the interpreter ends.

`close` waits for the role of leader for a bounded time. A thread that keeps it longer may be using the sockets, so the
background thread closes them once the role is free. At interpreter shutdown a daemon thread may have died with the
role. No other thread runs then, so `close` takes the role over.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from redlatch.drivers.background import BackgroundThread
from redlatch.drivers.connections import Connections
from redlatch.drivers.lifetime import DRAIN_NS, REPORT_NS, HeldLocks, nested
from redlatch.quorum.claim import ASKING, RELEASING, UNDOING, WAITING
from redlatch.quorum.quorum import Quorum
from redlatch.quorum.upkeep_schedule import UpkeepSchedule
from redlatch.votes.units import MILLISECOND

# At run time they are of the driver's build.
if TYPE_CHECKING:
    from redlatch.drivers.leader import Leader
    from redlatch.drivers.wake_chain import WakeChain, Watchers


class Closing:
    def __init__(
        self,
        leader: Leader,
        chain: WakeChain,
        watchers: Watchers,
        connections: Connections,
        background: BackgroundThread,
        quorum: Quorum,
        schedule: UpkeepSchedule,
        held_locks: HeldLocks,
    ) -> None:
        self._leader = leader
        self._chain = chain
        self._watchers = watchers
        self._queues = quorum.queues
        self._connections = connections
        self._lifecycle = connections.lifecycle
        self._background = background
        self._clock = quorum.clock
        self._schedule = schedule
        self._held_locks = held_locks
        self._releases = False
        self._drain_ns = DRAIN_NS
        # `close` could not close the sockets in time; the background thread does.
        self.overdue = False
        self._hung_up = False

    def close(self, release: bool = False, drain_ns: int | None = None) -> None:
        if self._hung_up:
            return
        self._releases = self._releases or release
        self._drain_ns = DRAIN_NS if drain_ns is None else drain_ns
        if self._leader.has_role():
            # The outer call closes it.
            if self._lifecycle.closing and nested():
                return
            self._leader.refuse_nested()
        # If what follows is interrupted.
        drain_ns = 0
        try:
            self._connections.retire()
            self._watchers.notify()
            if self._leader.fleet is not None and not self._lifecycle.forked:
                if release:
                    self._release_held()
                drain_ns = self._await_role()
        finally:
            try:
                self._hang_up(drain_ns)
            except BaseException:
                self._hang_up(0)
                raise
        if self._leader.fleet is not None and not self._lifecycle.forked:
            self._connections.notify_lost()

    def _release_held(self) -> None:
        """End all leases, have the losses reported, and send the releases, even if another thread leads."""
        self._held_locks.end()
        until = self._clock.now() + min(REPORT_NS, self._drain_ns)
        try:
            self._attend()
            while not self._schedule.settled() and self._clock.now() < until and not sys.is_finalizing():
                time.sleep(0.0005)
        finally:
            self._held_locks.release(self._leader.send)

    def _attend(self) -> None:
        try:
            self._background.attend_by(0)
        except RuntimeError:
            # No thread can start at interpreter shutdown.
            pass

    def _hang_up(self, drain_ns: int) -> None:
        """Close the connections, now or in the background thread. This may be repeated."""
        self._connections.retire()
        if self._leader.fleet is None or self._lifecycle.forked:
            self._connections.close()
            self._background.read_later()
        elif self._leader.has_role():
            self._disconnect(drain_ns)
        else:
            self.overdue = True
            self._wake_everybody()
            self._background.read_later()
        self._hung_up = True

    def _await_role(self) -> int:
        """Return how long to wait for answers before closing the sockets."""
        until = self._clock.now() + self._drain_ns
        while not self._leader.take_role() and self._clock.now() < until:
            if sys.is_finalizing():
                # No other thread runs now. A daemon thread has died with the role, perhaps in the middle of an
                # operation, so no replies can be read.
                self._leader.role.clear()
                self._leader.take_role()
                return 0
            # The leader sees that the client is closing, and leaves.
            self._leader.fleet.wires.wake()
            time.sleep(0.0005)
        return self._drain_ns

    def _disconnect(self, drain_ns: int) -> None:
        """Undo what is under way, wait for answers, and close every connection; the caller has the role."""
        leader = self._leader
        try:
            # An earlier call closed them, and was interrupted after that.
            if self._lifecycle.closed:
                return
            # Once more, because an interrupt may have struck before.
            if self._releases:
                self._held_locks.end()
                self._held_locks.release(leader.inbox.extend)
            leader.take_all()
            leader.fleet.abandon()
            self._wake_waiters()
            until = self._clock.now() + drain_ns
            while (owing := leader.fleet.owing()) or self._busy():
                left = until - self._clock.now()
                if left <= 0:
                    break
                leader.polling = True
                leader.await_replies(left if owing else min(left, MILLISECOND))
                leader.take_all()
            self._held_locks.report()
        finally:
            # If an interrupt strikes here, `_hang_up` finds the role and closes again.
            self._connections.close()
            leader.role.clear()
            self._wake_everybody()
            self._background.read_later()
            self._attend()

    def _busy(self) -> bool:
        if self._queues.everybody() or self._asking():
            return True
        # After all calls: each of them either holds its lock now, or has undone its attempt.
        self._held_locks.release(self._leader.inbox.extend)
        return bool(self._leader.inbox)

    def _asking(self) -> bool:
        """Return whether a thread between two steps of a call may still have something to undo or to release.

        A waiter at the head may have been handed a lease that it has not found yet.
        """
        return any([hold.state in (WAITING, ASKING, RELEASING, UNDOING) for hold in self._queues.holds()])

    def _wake_everybody(self) -> None:
        self._chain.wake_all()
        for sleeper in list(self._leader.sleepers):
            sleeper.wake()
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        for awaited in self._queues.everybody():
            if awaited.waiter is not None:
                awaited.waiter.wake()

    def close_late(self) -> None:
        """Close the connections that `close` left open; while another thread leads, wake it and try again later."""
        if not self.overdue or self._lifecycle.closed:
            return
        if self._leader.take_role():
            self._disconnect(self._drain_ns)
        else:
            self._leader.fleet.wires.wake()
            self._background.read_later()

    def await_answers(self, until_ns: int) -> None:
        leader = self._leader
        # `connect` was interrupted, or is still running.
        if leader.fleet is None:
            return
        if self._lifecycle.usable and leader.take_role():
            try:
                leader.take_all()
                leader.fleet.await_answers(until_ns)
            finally:
                leader.leave()
        self._connections.notify_lost()
