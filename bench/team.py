"""The processes of one contender: usually one, and several if they contend for one name.

All processes of a team begin at one moment and share a `Ledger`, and the team merges their answers into one. If two
owners were inside at once during a run, the contender has failed, regardless of its other results.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

import redis

from bench.contender import Absent
from bench.ledger import ENTRIES, SIZE, Ledger
from bench.order import HOT, Answer, fairness, percentiles
from bench.process import Failed, Programs, Racer

# The time until the start of a run, in which all processes read their orders.
HEAD_START_NS = 20_000_000


class Team:
    """A contender's processes.

    Args:
        contender: a name in `programs` or in `contender.REGISTRY`.
        urls: the URLs of the masters.
        programs: the commands of the contenders that are no Python.
        processes: the number of processes. Default 1.
    """

    def __init__(self, contender: str, urls: list[str], programs: Programs, processes: int = 1) -> None:
        with ExitStack() as stack:
            self._file = stack.enter_context(tempfile.TemporaryFile())
            self._file.truncate(SIZE)
            self._ledger = Ledger(self._file.fileno())
            self._racers = []
            for _ in range(processes):
                self._racers.append(Racer(contender, urls, programs, self._file.fileno()))
                stack.callback(self._racers[-1].close)
            self._connected = False
            self._masters = [
                stack.enter_context(redis.Redis.from_url(url, socket_timeout=0.5, retry=None)) for url in urls
            ]
            self._stack = stack.pop_all()

    def run(self, order: str, seconds: float = 0.0) -> Answer:
        """Order one run and return the answer.

        Args:
            order: "MODE AMOUNT WIDTH".
            seconds: the shortest time that the run takes.

        Raises:
            Absent: the contender or its mode is not available here.
            Failed: there is no answer, or two owners held the lock at once.
        """
        if order.split(maxsplit=1)[0] not in HOT:
            return self._racers[0].run(order, seconds)
        return self._contend(order, seconds)

    def _contend(self, order: str, seconds: float) -> Answer:
        """Let all processes contend for one name."""
        # Without a connection, some processes would begin late.
        if not self._connected:
            for racer in self._racers:
                racer.tell("cycle 1 1")
            self._answers(0.0)
            self._connected = True
        self._ledger.clear()
        before = commands(self._masters)
        # All processes of the machine have the same clock.
        start_ns = time.perf_counter_ns() + HEAD_START_NS
        for number, racer in enumerate(self._racers):
            racer.tell(f"{order} {self._file.fileno()} {number} {start_ns}")
        answers = self._answers(seconds)
        asked = commands(self._masters) - before
        return merged(answers, self._ledger.cells[ENTRIES], asked)

    def _answers(self, seconds: float) -> list[Answer]:
        """Return the answers of all processes to the last order. Read all of them before raising Absent."""
        answers, absent = [], None
        for racer in self._racers:
            try:
                answers.append(racer.listen(seconds))
            except Absent as reason:
                absent = reason
        if absent:
            raise absent
        return answers

    def dismiss(self) -> None:
        """Ask the processes to end, without waiting for them."""
        for racer in self._racers:
            racer.dismiss()

    def close(self) -> None:
        """Ask the processes to end, and kill those that do not."""
        self.dismiss()
        self._stack.close()


def commands(masters: Iterable[Any]) -> int:
    """Return the number of commands that the masters have run so far.

    It includes the commands inside scripts, but not INFO, which this function sends. It skips a master that does not
    answer because the race has stopped it.
    """
    infos = []
    for master in masters:
        try:
            infos.append(master.info("commandstats"))
        except redis.TimeoutError:
            continue
    return sum(figures["calls"] for info in infos for command, figures in info.items() if command != "cmdstat_info")


def merged(answers: list[Answer], entries: int, asked: int) -> Answer:
    """Return one answer for all processes.

    Args:
        answers: one answer for each process: see `Order.hot_answer`.
        entries: the number of entries that the owners have counted in the ledger.
        asked: the number of commands that the masters have run.

    Raises:
        Failed: two owners were inside at once.
    """
    total: Callable[[str], Any] = partial(total_of, answers)
    if total("overlaps") or entries != total("cycles"):
        raise Failed(
            f"OVERLAP: {total('overlaps')} times an owner saw another one inside; "
            f"the owners entered {total('cycles')} times, and the ledger has {entries} entries"
        )
    turns = [each["turns"] for each in answers]
    shares = turns[0] if len(turns) == 1 else [sum(each) for each in turns]
    handoffs = sorted(ns for each in answers for ns in each["handoffs_ns"])
    seconds = statistics.mean(each["seconds"] for each in answers)
    figures = {
        "mode": answers[0]["mode"],
        "width": answers[0]["width"],
        "processes": len(answers),
        "cycles": total("cycles"),
        "seconds": seconds,
        "cpu_s": total("cpu_s"),
        "overlaps": 0,
        "cycles_per_s": sum(shares) / seconds,
        "changes_per_s": len(handoffs) / seconds,
        "held_share": total("held_s") / seconds,
        "fairness": fairness(shares),
        "commands": asked / max(1, entries),
    }
    return figures | (percentiles(handoffs) if handoffs else {})


def total_of(answers: list[Answer], figure: str) -> Any:
    """Return the sum of one figure over the answers."""
    return sum(answer[figure] for answer in answers)
