"""Threads that sleep, and the order in which they wake.

Where many ballots are decided at once, their threads are woken one by one. Each wakes the next one when it goes to
sleep again with its next command in the inbox. The last one wakes the leader, which then has the commands of all to
send. If all woke at once, they would meet at the GIL, where each has to sleep and be woken a second time. For 64
threads that costs as much again as all the rest.

A thread that leaves passes the chain on at once if no thread leads. A leader wakes all others if none was woken for a
moment: threads that do not come back wait for something else while they hold their locks.

Any thread takes from `ready`, so it may become empty after a check.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..votes.ballot import Ballot
from ..votes.units import Clock
from .sleeper import Sleeper, this_thread

# More threads than FEW are woken one by one. If none was woken for STUCK_NS, or they took SLOW_NS each, they do more
# than to release their locks. Then all are woken at once, for APART_NS.
FEW = 3
STUCK_NS = 500_000
SLOW_NS = 100_000
APART_NS = 100_000_000


class WakeChain:
    """Wakes the threads of decided ballots.

    `resting` is the leader, while it sleeps because others are woken one by one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # A list, because its truth costs least.
        self.ready: list[Sleeper] = []
        self.resting: Sleeper | None = None
        # Until then all are woken at once.
        self._apart_ns = 0
        # The start of the chain, the number of threads that it has woken, when it woke the last one, and that one's
        # ident.
        self._begun_ns = self._passed = 0
        self._passed_ns = 0
        self._waker: object = 0

    def wake_owners(self, decided: list[Ballot]) -> None:
        idle = self.next_asleep() is None
        # Taken off last, so that an interrupt loses none.
        while decided:
            sleeper = decided[-1].waiter
            sleeper.decided = True
            self.ready.append(sleeper)
            decided.pop()
        now = self._clock.now()
        if len(self.ready) <= FEW or now < self._apart_ns:
            self.wake_all()
        elif idle:
            self._begun_ns = now
            self._passed = 0
            self.wake_next()

    def next_asleep(self) -> Sleeper | None:
        """Return the next thread to wake. It leaves the queue when it is found awake: an interrupt does not lose it."""
        while self.ready:
            try:
                sleeper = self.ready[0]
                if sleeper.asleep:
                    return sleeper
                self.ready.remove(sleeper)
            except (IndexError, ValueError):
                # Another thread was faster.
                pass
        return None

    def _next_ready(self) -> Sleeper | None:
        """Return the next thread to be woken, and make it responsible for waking its successor."""
        sleeper = self.next_asleep()
        if sleeper is not None:
            self._passed_ns = self._clock.now()
            self._passed += 1
            self._waker = sleeper.thread
        return sleeper

    def next_if_mine(self) -> Sleeper | None:
        return self._next_ready() if self._waker == this_thread() else None

    def wake_next(self) -> None:
        sleeper = self._next_ready()
        if sleeper is not None:
            sleeper.wake()

    def wake_all(self) -> None:
        while self.ready:
            self.wake_next()

    def rest(self) -> None:
        """Sleep while threads are woken one by one: a leader that polls would meet each of them at the GIL."""
        self.resting = resting = Sleeper()
        try:
            resting.sleep(STUCK_NS, self.next_if_mine())
            while self.ready:
                resting.asleep = True
                now = self._clock.now()
                slow = now - self._begun_ns > STUCK_NS + SLOW_NS * self._passed
                if slow or now - self._passed_ns >= STUCK_NS:
                    self._apart_ns = now + APART_NS
                    self.wake_all()
                else:
                    resting.sleep(STUCK_NS)
            if self._passed_ns - self._begun_ns > SLOW_NS * self._passed:
                self._apart_ns = self._clock.now() + APART_NS
        finally:
            self.resting = None


class Watchers:
    """Threads that wait until the connections of a client have changed.

    They do not wait on a threading.Event, because an interrupt inside its `set` or `wait` leaves its lock taken
    indefinitely. Each thread appends and removes a sleeper of its own.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sleepers: deque[Sleeper] = deque()

    def notify(self) -> None:
        for sleeper in list(self._sleepers):
            sleeper.wake()

    def wait(self, done: Callable[[], bool], until_ns: int) -> None:
        sleeper = Sleeper()
        self._sleepers.append(sleeper)
        try:
            while not done() and until_ns > self._clock.now():
                sleeper.sleep(until_ns - self._clock.now())
                sleeper.asleep = True
        finally:
            self._sleepers.remove(sleeper)
