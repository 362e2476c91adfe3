"""The leading thread: it drives the sockets for all threads of a client.

A thread that has a ballot tries to take the role of leader. The leader submits what is in the inbox, sends, polls and
counts until its own ballot is decided. Then it leaves and wakes a sleeper to take the role over. A thread that does not
get the role puts its ballot into the inbox, and sleeps until its ballot is decided or it is promoted (see `followers`).
If replies are still missing when all have left, the background thread reads them.

No wake-up is lost:
  * A sleeper enters the queue *before* it tries for the role a last time, and a leader looks at the queue *after* it
    gave the role up. One of the two sees the other. The same holds for the inbox.
  * A leader sets `polling` before it looks at the inbox a last time and polls. A thread that adds to the inbox looks at
    `polling` afterwards, and wakes the poll.

Only the leader takes from `inbox` and `arrivals`. From `sleepers`, `WaitQueues.called` and `Fleet.lost` any thread
takes, so they may become empty after a check.

Ctrl-C may strike between any two bytecodes. The role is taken by `dict.setdefault`, one step that also names the
thread, so that a `finally` gives up just what was taken. If Ctrl-C strikes in that very `finally`, the next one further
up, or the thread's next call, finds that the thread still has the role. The engine marks half-done work as torn, and a
leader that leaves repairs it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from redlatch.drivers.background import BackgroundThread
from redlatch.drivers.connections import Connections
from redlatch.drivers.lifetime import nested
from redlatch.errors import ClientUnusable

from ..quorum.quorum import Quorum
from ..quorum.waiting.queues import WaitQueues
from ..votes.ballot import Ballot
from .sleeper import Sleeper, this_thread
from .wake_chain import WakeChain, Watchers

ROLE = 0

# A thread that has been the only caller for this time keeps the GIL while it waits.
ALONE_NS = 50_000_000


class Leader:
    """The role of the thread that drives the sockets.

    Args:
        watchers: threads to notify when the connections have changed.
        gil_patience_ns: for how long it keeps the GIL while it polls; -1 is as long as replies usually take.

    Attributes:
        role: the ident of the thread that leads, under `ROLE`; empty while none does.
    """

    def __init__(
        self,
        connections: Connections,
        quorum: Quorum,
        chain: WakeChain,
        watchers: Watchers,
        background: BackgroundThread,
        gil_patience_ns: int,
    ) -> None:
        self._connections = connections
        self._lifecycle = connections.lifecycle
        self._queues: WaitQueues = quorum.queues
        self._clock = quorum.clock
        self._chain = chain
        self._watchers = watchers
        self._background = background
        self._gil_patience_ns = gil_patience_ns
        self.fleet: Any = None
        self.role: dict[int, int] = {}
        self.inbox: deque[Ballot] = deque()
        self._arrivals = connections.arrivals
        # Not a list: a leader may wait for a second, and meanwhile each call of another thread leaves its sleeper here.
        self.sleepers: deque[Sleeper] = deque()
        self.polling = False
        self._caller = 0  # the thread that called last
        self._alone_ns = 0  # when that thread begins to count as the only caller; 0 once it does
        self._taken: Ballot | None = None  # another thread's ballot that is being submitted

    def has_role(self) -> bool:
        return self.role.get(ROLE) == this_thread()

    def take_role(self) -> bool:
        me = this_thread()
        return self.role.setdefault(ROLE, me) == me

    def enter(self) -> None:
        me = this_thread()
        if self.role and self.role.get(ROLE) == me:
            self.refuse_nested()
        if me != self._caller:
            self._caller = me
            self._alone_ns = self._clock.now() + ALONE_NS

    def refuse_nested(self) -> None:
        """Refuse a call inside a call of the same thread, or give up the role that an interrupted call has kept.

        A signal handler or a finalizer would count replies that the outer call has read and not counted yet.
        """
        if nested():
            raise ClientUnusable("client: this thread is using it already; no signal handler or finalizer may, too")
        self.leave()

    def send(self, ballots: list[Ballot]) -> None:
        if self._lifecycle.closed or self._lifecycle.forked:
            return
        self.inbox.extend(ballots)
        # Inside a call of the same thread, the outer call sends it.
        if self.role.get(ROLE) != this_thread() or not nested():
            self.serve()

    def lead(self, ballot: Ballot, fresh: Ballot | None) -> bool:
        """Drive the sockets until a ballot is decided or its time is over; return False if the role was not free.

        `fresh` is the ballot if it was not submitted yet, otherwise None.
        """
        me = this_thread()
        try:
            if self.role.setdefault(ROLE, me) == me:
                self._drive(ballot, fresh)
                return True
        finally:
            if self.role.get(ROLE) == me:
                self.leave()
        return False

    # --- the work of the leader --------------------------------------------------------------------

    def _drive(self, ballot: Ballot, fresh: Ballot | None) -> None:
        if not self._lifecycle.usable:  # closed since the caller looked: there are no sockets
            return
        if self._chain.next_asleep() is not None:
            self._chain.rest()
        if fresh is not None:
            if self.inbox:  # a release of this thread may be there, and goes first
                self.inbox.append(fresh)
            else:
                self.fleet.submit(fresh)
        while True:
            self.take_all()
            self.polling = True  # before the check: a thread that decides the ballot after it wakes the poll
            if ballot.decided:
                return
            left = ballot.until_ns - self._clock.now()
            self.await_replies(left)
            if ballot.decided or left <= 0 or not self._lifecycle.usable:
                return

    def await_replies(self, timeout_ns: int) -> None:
        """Count the replies that come before the inbox or arrivals; the caller has set `polling`."""
        fleet = self.fleet
        self._be_patient()
        if self._chain.next_asleep() is not None:
            self._chain.rest()
        elif not self.inbox and not self._arrivals:
            fleet.pump(timeout_ns)
        self.polling = False
        if fleet.decided or fleet.fallen or fleet.changed:
            self._handle_events()

    def _be_patient(self) -> None:
        """Keep the GIL while replies are about to come.

        The wires do so only while another thread computes, which keeps the GIL for 5 ms. With 64 threads of this
        client, patience would halve the rate.
        """
        wires = self.fleet.wires
        if self._alone_ns and self._alone_ns <= self._clock.now():
            self._alone_ns = 0
        if self._alone_ns or self.sleepers or self.inbox:
            wires.gil_patience_ns = 0
        elif self._gil_patience_ns < 0:
            wires.gil_patience_ns = wires.usual_gil_patience_ns()
        else:
            wires.gil_patience_ns = self._gil_patience_ns

    def take_all(self) -> None:
        fleet, inbox = self.fleet, self.inbox
        self._be_patient()
        if self._taken is not None:  # a second interrupt struck in `leave`
            fleet.fail_unsubmitted(self._taken)
            self._taken = None
        while self._arrivals:
            if self._connections.arrive(*self._arrivals[0]):
                self._background.attend_soon()
            if self._queues.watches.connected(fleet):
                # The keys of held locks are not tracked on a new connection.
                self._background.attend_soon()
            self._watchers.notify()
            self._arrivals.popleft()
        if self._lifecycle.undialled:
            self._connections.dial_again()
        while inbox:
            ballot = inbox[0]
            self._taken = ballot  # if an interrupt strikes before it was submitted, `leave` lets it fail
            if ballot.command.releases:  # interrupted here, a release goes out twice rather than never
                fleet.submit(ballot)
                inbox.popleft()
            else:
                inbox.popleft()
                if not self._lifecycle.closing:  # else no call would undo it
                    fleet.submit(ballot)
            self._taken = None
        fleet.flush()
        if fleet.decided or fleet.fallen or fleet.changed:
            self._handle_events()

    def _handle_events(self) -> None:
        fleet = self.fleet
        while fleet.fallen:  # first: votes that became void must not count for the threads that are woken now
            link, sock = fleet.fallen[-1]
            self._queues.watches.notify_all()
            if sock is not None:
                sock.close()
            if self._connections.redial(link):
                self._background.attend_soon()  # leases that stand on void votes are verified
            fleet.fallen.pop()
        if fleet.decided:
            self._chain.wake_owners(fleet.decided)
        while fleet.changed:
            index, key = fleet.changed[-1]
            if self._queues.watches.changed(index, key):
                self._background.attend_soon()
            fleet.changed.pop()
        if self._queues.called:
            self.wake_called()

    # --- handing the role over ---------------------------------------------------------------------

    def leave(self) -> None:
        self.polling = False
        self._chain.resting = None
        try:
            self.fleet.recover()
            if self._taken is not None:
                self.fleet.fail_unsubmitted(self._taken)
                self._taken = None
            if self.fleet.staged:  # a reply asked for a script's text
                self.fleet.flush()
            self._handle_events()
        finally:
            del self.role[ROLE]
            self.promote()
            if self.fleet.unanswered() or self.fleet.lost:
                self._background.read_later()

    def promote(self) -> None:
        while self.sleepers:
            try:
                sleeper = self.sleepers.popleft()
            except IndexError:  # another promoting thread was faster
                break
            if sleeper.asleep and not sleeper.decided:
                sleeper.wake()
                return
        self._chain.wake_next()  # while no thread leads, each passes it on when it leaves
        if self.inbox or self._arrivals:
            self.serve()

    def serve(self) -> None:
        me = this_thread()
        try:
            if self.role.setdefault(ROLE, me) == me:
                self.take_all()
        finally:
            if self.role.get(ROLE) == me:
                self.leave()
        if self.polling:
            self.fleet.wires.wake()

    def read_late_replies(self) -> None:
        """Count late replies. A refused client reads, too: the reason may go."""
        me, lifecycle = this_thread(), self._lifecycle
        try:
            if not (lifecycle.closing or lifecycle.forked) and self.role.setdefault(ROLE, me) == me:
                self.take_all()
                self.polling = True
                self.await_replies(0)
        finally:
            if self.role.get(ROLE) == me:
                self.leave()  # it asks again while replies are missing

    def recover(self) -> None:
        """Repair what an interrupted call has left; if interrupted, this may be repeated."""
        if self._queues.called:
            self.wake_called()
        if self.role.get(ROLE) == this_thread():
            self.leave()
        elif not self.role:  # an interrupt may have struck just where a promotion is passed on
            self.promote()
            self._background.read_later()  # reads for a sleeper that was taken off the queue and not woken

    def wake_leader(self) -> None:
        resting = self._chain.resting
        if resting is not None:
            resting.wake()
        elif self.polling:
            self.fleet.wires.wake()

    def wake_called(self) -> None:
        called = self._queues.called
        while called:  # taken off last, so that an interrupt loses none
            try:
                awaited = called[0]
                waiter = awaited.waiter
                if waiter is not None:  # else its thread is awake and looks itself
                    waiter.wake()
                if self.polling and isinstance(awaited, Ballot):  # the thread that watches a key may poll
                    self.fleet.wires.wake()
                called.remove(awaited)
                if awaited.waiter is not waiter:  # it waits again, and `remove` may have removed a second call
                    awaited.waiter.wake()
            except (IndexError, ValueError):
                pass  # another thread was faster
