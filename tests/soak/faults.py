"""The faults of the masters and the processes in a soak."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

import redis

from redlatch.testing import embedded

from .crew import Crew


class Trouble:
    """Makes faults, and ends those that last.

    Masters forget one at a time: the next one only when the previous one may vote again.

    Args:
        away: the seconds for which a master that has forgotten is kept out.
    """

    def __init__(self, fleet: embedded.Masters, crew: Crew, chance: random.Random, away: float) -> None:
        self._fleet = fleet
        self._crew = crew
        self._chance = chance
        self._away = away
        # New processes come first.
        self._all_there = time.monotonic() + 2 * away
        self._mends: list[tuple[float, Callable[[], object]]] = []
        self.counts: Counter[str] = Counter()
        self._kinds: tuple[Callable[[int], object], ...] = (
            self.stop_master,
            self.stop_two_masters,
            self.stop_process,
            self.kill_process,
            self.forget_scripts,
            self.cut_connections,
            self.fill,
            self.pause_writes,
            self.replicate,
            self.restart,
            self.flush,
        )

    def strike(self) -> None:
        """Make one fault."""
        kind = self._chance.choice(self._kinds)
        if kind in (self.restart, self.flush, self.replicate):
            if time.monotonic() < self._all_there:
                kind = self.stop_master
            else:
                self._all_there = time.monotonic() + 2.5 * self._away
        self.counts[kind.__name__] += 1
        kind(self._chance.randrange(len(self._fleet.urls)))

    def mend(self, everything: bool = False) -> None:
        """End the faults that have lasted long enough."""
        due = [mend for mend in self._mends if everything or mend[0] <= time.monotonic()]
        self._mends = [mend for mend in self._mends if mend not in due]
        for _, call in due:
            call()

    def _later(self, seconds: float, call: Callable[[], object]) -> None:
        self._mends.append((time.monotonic() + seconds, call))

    def _ask(self, index: int) -> redis.Redis:
        return redis.Redis.from_url(self._fleet.urls[index], retry=None, socket_timeout=5)

    def _try(self, index: int, *words: object) -> None:
        """Send a command to a master; ignore the error of a master that is stopped or down."""
        try:
            with self._ask(index) as server:
                server.execute_command(*words)
        except redis.RedisError as error:
            self.counts[f"({words[0]}: {type(error).__name__})"] += 1

    def _resume(self, index: int) -> None:
        if self._fleet.pids[index] is not None:
            self._fleet.resume(index)

    def stop_master(self, index: int) -> None:
        """Stop a master (SIGSTOP)."""
        self._fleet.pause(index)
        self._later(self._chance.choice((0.05, 0.5, 2.0)), lambda: self._resume(index))

    def stop_two_masters(self, index: int) -> None:
        """Stop two masters (SIGSTOP)."""
        self.stop_master(index)
        self.stop_master((index + 1) % len(self._fleet.urls))

    def stop_process(self, index: int) -> None:
        """Stop a worker (SIGSTOP), sometimes for longer than the ttl of its locks."""
        number = self._crew.stop()
        self._later(self._chance.choice((0.1, 1.0, 3.0)), lambda: self._crew.resume(number))

    def kill_process(self, index: int) -> None:
        """Kill a worker (SIGKILL), and start another one."""
        self._crew.replace()

    def forget_scripts(self, index: int) -> None:
        """Run SCRIPT FLUSH."""
        self._try(index, "SCRIPT", "FLUSH")

    def cut_connections(self, index: int) -> None:
        """Close all connections of one master."""
        self._try(index, "CLIENT", "KILL", "TYPE", "normal")

    def fill(self, index: int) -> None:
        """Keep a master at maxmemory for a while."""
        self._try(index, "CONFIG", "SET", "maxmemory", "1")
        self._later(1.0, lambda: self._try(index, "CONFIG", "SET", "maxmemory", "0"))

    def pause_writes(self, index: int) -> None:
        """Let a master answer no write for a while."""
        self._try(index, "CLIENT", "PAUSE", "700", "WRITE")

    def replicate(self, index: int) -> None:
        """Make a master a replica of another one, and then a master again, with the other's keys."""
        other = self._fleet.urls[(index + 2) % len(self._fleet.urls)]
        self._try(index, "REPLICAOF", "127.0.0.1", other.rpartition(":")[2])
        self._later(1.0, lambda: self._try(index, "REPLICAOF", "NO", "ONE"))

    def restart(self, index: int) -> None:
        """Kill a master (SIGKILL), and restart it empty."""
        self._fleet.kill(index)
        self._later(self._chance.choice((0.0, 0.5)), lambda: self._fleet.start(index))

    def flush(self, index: int) -> None:
        """Run FLUSHALL."""
        self._try(index, "FLUSHALL")
