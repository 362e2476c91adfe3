"""Interleave contenders in rounds, and summarise the rounds.

On a shared machine, figures of different minutes cannot be compared. Figures of one round can, because they are taken
within a second or two. So every contender is a process that stays connected, and a round gives each contender one turn.
Each ratio is formed inside one round. The result is the median of the rounds' ratios, with the smallest and the
largest.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple

from bench.contender import Absent
from bench.order import Answer
from bench.process import Failed, Programs
from bench.team import Team

METRICS = (
    "p50_us",
    "p99_us",
    "cycles_per_s",
    "cpu_us_per_cycle",
    "spins_per_s",
    "bytes_per_lock",
    "changes_per_s",
    "fairness",
    "held_share",
    "commands",
    "split_share",
    "attempts_p50",
    "attempts_p99",
)


@dataclass(frozen=True)
class Entry:
    """One row of a scenario.

    Args:
        label: the name of the row in the tables.
        contender: a name in `contender.REGISTRY`, "floor", or a name in `languages.CLIENTS`.
        mode: the mode of its runs; see `contender`. Default "cycle".
        width: the number of callers at once, of locks in one batch, or the depth of the floor's pipeline. Default 1.
        masters: the name of the ground's list of URLs that it locks on. Default "all".
        processes: the number of processes that run at once. Default 1.
    """

    label: str
    contender: str
    mode: str = "cycle"
    width: int = 1
    masters: str = "all"
    processes: int = 1


class Ratio(NamedTuple):
    """A column of ratios: the metric of each row divided by that of the row with the label `base`.

    "{width}" in `base` stands for the row's own width, "{who}" for the part of its label before the comma.
    """

    heading: str
    metric: str
    base: str

    def base_of(self, entry: Entry) -> str:
        """Return the label of the row by which this entry's metric is divided."""
        return self.base.format(width=entry.width, who=entry.label.partition(",")[0])


@dataclass(frozen=True)
class Scenario:
    """Entries that race each other.

    Args:
        name: the short name for the JSON and for --only.
        title: the title of the table.
        entries: the entries in the order of their turns.
        ratios: the ratios to form.
        ground: the masters to race on, a name in `grounds.GROUNDS`.
        one_core: whether to pin servers and contenders to one core together.
        rounds: the number of rounds that count.
        spare: the number of rounds before them that do not count.
        seconds: the length of one turn.
        warm_up: the length of the turns before the first round; these turns do not count.
        amount: the number of cycles in one turn, instead of `seconds`; 0 for no number.
        columns: the metrics that the table shows.
        ranges: whether the table also shows the smallest and the largest round of each metric.
    """

    name: str
    title: str
    entries: tuple[Entry, ...]
    ratios: tuple[Ratio, ...]
    ground: str = "loopback"
    one_core: bool = False
    rounds: int = 5
    spare: int = 1
    seconds: float = 0.25
    warm_up: float = 0.1
    amount: int = 0
    columns: tuple[str, ...] = METRICS[:4]
    ranges: bool = False

    @property
    def turns(self) -> int:
        """The number of turns of all rounds."""
        return len(self.entries) * (self.spare + self.rounds)


@dataclass
class Outcome:
    """The result of one entry: the answers of its rounds, or the reason why there are none.

    Attributes:
        entry: the entry.
        rounds: the answers of its rounds.
        failure: the reason why a contender that is available gave no answer.
        absent: the reason why a contender is not available; this is not a failure.
    """

    entry: Entry
    rounds: list[Answer] = field(default_factory=list)
    failure: str | None = None
    absent: str | None = None

    def out(self) -> bool:
        """Return whether the entry gets no more turns."""
        return bool(self.failure or self.absent)

    def has(self, metric: str) -> bool:
        """Return whether every round has a figure for this metric."""
        return bool(self.rounds) and all(metric in answer for answer in self.rounds)

    def median(self, metric: str) -> float:
        """Return the median of a metric over the rounds."""
        return float(statistics.median(answer[metric] for answer in self.rounds))

    def ratios(self, metric: str, base: Outcome) -> list[float]:
        """Return this entry's metric divided by the base's, round by round; [] if a round of the base has 0."""
        if not all(other[metric] for other in base.rounds):
            return []
        return [mine[metric] / other[metric] for mine, other in zip(self.rounds, base.rounds, strict=True)]


@contextmanager
def one_core(enabled: bool, pids: Iterable[int]) -> Iterator[None]:
    """Pin these processes, this process, and all processes that it starts meanwhile, to one core."""
    if not enabled:
        yield
        return
    before = os.sched_getaffinity(0)
    core = {max(before)}
    everyone = (0, *pids)
    for pid in everyone:
        os.sched_setaffinity(pid, core)
    try:
        yield
    finally:
        for pid in everyone:
            os.sched_setaffinity(pid, before)


class Race:
    """A scenario with its running processes.

    Entries share their processes if they have the same contender, masters and number of processes.

    Args:
        scenario: the scenario to run.
        urls: the lists of URLs, by the names that entries use.
        programs: the commands of the contenders that are no Python.
    """

    def __init__(self, scenario: Scenario, urls: dict[str, list[str]], programs: Programs) -> None:
        self.scenario = scenario
        self.outcomes = [Outcome(entry) for entry in scenario.entries]
        self._urls = urls
        self._programs = programs
        self._teams: dict[tuple[str, str, int], Team] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Race:
        for outcome in self.outcomes:
            self._attempt(outcome, self._team)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Dismiss all teams before closing any: a client with a sick master takes a second to close.
        for team in self._teams.values():
            team.dismiss()
        self._stack.close()

    def each(
        self, amount: str, seconds: float = 0.0, keep: bool = True, done: Callable[[str], object] = lambda label: None
    ) -> None:
        """Give every entry that still runs one turn.

        Args:
            amount: the length of a turn: cycles as "2000", or seconds as "0.5s".
            seconds: the shortest time that a turn takes.
            keep: whether the answers count.
            done: called with the label of each entry after its turn.
        """
        for outcome in self.outcomes:
            self._attempt(outcome, lambda entry: self._turn(entry, amount, seconds), keep)
            done(outcome.entry.label)

    def _attempt(self, outcome: Outcome, step: Callable[[Entry], Any], keep: bool = False) -> None:
        """Take one step for an entry that is not out; a failure puts the entry out."""
        if outcome.out():
            return
        try:
            answer = step(outcome.entry)
        except Absent as reason:
            outcome.absent = str(reason)
        except Failed as failure:
            outcome.failure = str(failure)
            # The next entry with this key gets a new team.
            self._teams.pop(key_of(outcome.entry)).close()
        else:
            if keep:
                outcome.rounds.append(answer)
        if outcome.out():
            outcome.rounds = []

    def _team(self, entry: Entry) -> Team:
        key = key_of(entry)
        if key not in self._teams:
            team = Team(entry.contender, self._urls[entry.masters], self._programs, entry.processes)
            self._teams[key] = team
            self._stack.callback(team.close)
        return self._teams[key]

    def _turn(self, entry: Entry, amount: str, seconds: float) -> Answer:
        answer = self._team(entry).run(f"{entry.mode} {amount} {entry.width}", seconds)
        if answer.get("cycles"):
            answer["cpu_us_per_cycle"] = answer["cpu_s"] / answer["cycles"] * 1e6
        return answer


def key_of(entry: Entry) -> tuple[str, str, int]:
    """Return the key of a team: entries with the same key share their processes."""
    return entry.contender, entry.masters, entry.processes


def summary(scenario: Scenario, outcomes: list[Outcome]) -> dict[str, Any]:
    """Return a scenario's figures as plain data.

    Args:
        scenario: the scenario.
        outcomes: the results of its entries.

    Returns:
        A dict with the medians over the rounds, the ratios as {"median", "min", "max"}, and all rounds.
    """
    by_label = {outcome.entry.label: outcome for outcome in outcomes}
    return {
        "name": scenario.name,
        "title": scenario.title,
        "columns": list(scenario.columns),
        "ranges": scenario.ranges,
        "headings": [ratio.heading for ratio in scenario.ratios],
        "rows": [_row(scenario, outcome, by_label) for outcome in outcomes],
    }


def _row(scenario: Scenario, outcome: Outcome, by_label: dict[str, Outcome]) -> dict[str, Any]:
    entry = outcome.entry
    row = {
        "label": entry.label,
        "contender": entry.contender,
        "mode": entry.mode,
        "width": entry.width,
        "processes": entry.processes,
        "failure": outcome.failure,
        "absent": outcome.absent,
    }
    if not outcome.rounds:
        return row
    row |= {metric: outcome.median(metric) for metric in METRICS if outcome.has(metric)}
    row["ratios"] = ratios = {}
    for ratio in scenario.ratios:
        base = by_label.get(ratio.base_of(entry))
        if base and base.has(ratio.metric) and outcome.has(ratio.metric):
            if found := outcome.ratios(ratio.metric, base):
                ratios[ratio.heading] = spread(found) | {"base": base is outcome}
    return row | {"rounds": outcome.rounds}


def spread(ratios: list[float]) -> dict[str, Any]:
    """Return the median, the smallest and the largest of the rounds' ratios."""
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
