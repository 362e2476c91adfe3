"""Let a thread wait for its ballot: as the leader, or asleep behind it (see `leader`).

Threads in a queue only sleep: another thread of this client wakes them, or their time ends.
"""

from __future__ import annotations

from redlatch.drivers.background import BackgroundThread
from redlatch.drivers.connections import Connections
from redlatch.quorum.upkeep_schedule import LONGEST_NS

from ..quorum.waiting.queues import QueueEntry
from ..votes.ballot import Ballot, last_open
from ..votes.units import Clock
from .leader import Leader
from .sleeper import Sleeper
from .wake_chain import WakeChain

# A sleeper whose time is over lets the leader read the sockets once more. After a pause of the whole process the
# answers may be there, unread.
_LAST_LOOK_NS = 50_000_000


class Followers:
    def __init__(
        self, leader: Leader, chain: WakeChain, connections: Connections, background: BackgroundThread, clock: Clock
    ) -> None:
        self._leader = leader
        self._chain = chain
        self._connections = connections
        self._lifecycle = connections.lifecycle
        self._background = background
        self._clock = clock

    def ask(self, ballot: Ballot) -> None:
        if not self._leader.lead(ballot, ballot):
            ballot.waiter = sleeper = Sleeper()
            try:
                self._leader.inbox.append(ballot)
                self.wait_for(ballot, sleeper)
            except BaseException:
                self._withdraw(sleeper)
                raise
        if not ballot.decided:
            self._connections.record_silent(ballot)

    def await_all(self, ballots: list[Ballot]) -> None:
        """Wait for many ballots, the last one first: replies come in order, so when it is decided, usually all are."""
        # Ballots whose time was over by then have had their last look.
        late_ns = 0
        place = len(ballots)
        while (place := last_open(ballots, place, late_ns)) >= 0:
            ballot = ballots[place]
            ballot.waiter = sleeper = Sleeper()
            try:
                self.wait_for(ballot, sleeper)
            except BaseException:
                self._withdraw(sleeper)
                raise
            if not ballot.decided:
                late_ns = self._clock.now()
        if last_open(ballots, len(ballots), 0) >= 0:
            self._connections.record_all_silent(ballots)

    def await_entry(self, entry: QueueEntry) -> None:
        entry.waiter = sleeper = Sleeper()
        self._background.attend_by(self._clock.now() + LONGEST_NS)
        try:
            while not entry.decided and self._lifecycle.usable:
                left = entry.until_ns - self._clock.now()
                if left <= 0:
                    break
                self._sleep(sleeper, left)
        except BaseException:
            self._withdraw(sleeper)
            raise
        if not self._lifecycle.usable:
            self._connections.check()

    def wait_for(self, ballot: Ballot, sleeper: Sleeper) -> None:
        try:
            self._sleep_or_lead(ballot, sleeper)
        finally:
            # Pass on a promotion that came while this thread was leaving. `asleep` comes first, so that either a leader
            # that leaves sees it, or this thread sees that there is no leader any more.
            sleeper.asleep = False
            if not self._leader.role:
                self._leader.promote()

    def _sleep_or_lead(self, ballot: Ballot, sleeper: Sleeper) -> None:
        last_look = False
        while not ballot.decided and self._lifecycle.usable:
            self._leader.sleepers.append(sleeper)
            if self._leader.lead(ballot, None):
                return
            left = ballot.until_ns - self._clock.now()
            if left <= 0 and last_look:
                return
            last_look = left <= 0
            self._sleep(sleeper, _LAST_LOOK_NS if last_look else left)

    def _sleep(self, sleeper: Sleeper, timeout_ns: int) -> None:
        """Sleep; before that, wake the next thread of a chain, or have the leader take what is in the inbox."""
        other = self._chain.next_if_mine() if self._chain.ready else None
        if not self._chain.ready:
            self._leader.wake_leader()
        sleeper.sleep(timeout_ns, other)
        # Before the caller looks at `decided` again, so that no verdict is missed.
        sleeper.asleep = True

    def _withdraw(self, sleeper: Sleeper) -> None:
        """Wake the thread that an interrupted one would have woken."""
        sleeper.asleep = False
        self._chain.wake_next()
