"""Interleave contenders in rounds, and say what the rounds have in common.

Figures of different minutes cannot be compared on a shared machine; figures of one round, taken within a second or two
of each other, can. So every contender is a process that stays connected, a round gives each of them its turn, a ratio
is formed inside one round, and what is reported is the median of the rounds' ratios with the smallest and the largest.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from redlatch.bench.contender import Absent
from redlatch.bench.order import Answer
from redlatch.bench.process import Failed
from redlatch.bench.team import Team

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
        label: how the row is called in the tables.
        contender: "floor", or a name in `contender.REGISTRY`.
        mode: what it is told to do in a round.
        width: callers at once, or locks in one batch, or the depth of the floor's pipeline.
        masters: which of the ground's lists of URLs it locks on.
        processes: how many processes do so at once.
    """

    label: str
    contender: str
    mode: str = "cycle"
    width: int = 1
    masters: str = "all"
    processes: int = 1


class Ratio(NamedTuple):
    """A column of ratios: each row's metric divided by that of the row called `base`.

    "{width}" in `base` stands for the row's own width, "{who}" for what is before the comma in its label.
    """

    heading: str
    metric: str
    base: str

    def base_of(self, entry: Entry) -> str:
        """Return the label of the row that this one is divided by."""
        return self.base.format(width=entry.width, who=entry.label.partition(",")[0])


@dataclass(frozen=True)
class Scenario:
    """Entries that race each other.

    Args:
        name: short, for the JSON and for --only.
        title: for the table.
        entries: in the order of their turns.
        ratios: the ratios to form.
        ground: where it takes place, a name in `grounds.GROUNDS`.
        one_core: pin servers and contenders to one core together.
        rounds: how many are counted.
        spare: how many are thrown away before.
        seconds: how long one turn takes.
        amount: cycles in one turn, instead of `seconds`; 0 for none.
        columns: the metrics that the table shows.
        ranges: whether it shows the smallest and the largest round of them, too.
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
    amount: int = 0
    columns: tuple[str, ...] = METRICS[:4]
    ranges: bool = False

    @property
    def turns(self) -> int:
        """How many turns all rounds have."""
        return len(self.entries) * (self.spare + self.rounds)


@dataclass
class Outcome:
    """What came out of one entry: the answers of its rounds, or why there are none.

    Attributes:
        rounds: the answers.
        failure: why a contender that is here gave none.
        absent: why a contender is not here; nobody's failure.
    """

    entry: Entry
    rounds: list[Answer] = field(default_factory=list)
    failure: str | None = None
    absent: str | None = None

    def out(self) -> bool:
        """Whether it gets no more turns."""
        return bool(self.failure or self.absent)

    def has(self, metric: str) -> bool:
        """Tell whether there is a figure for this metric."""
        return bool(self.rounds) and all(metric in answer for answer in self.rounds)

    def median(self, metric: str) -> float:
        """Return the median of a metric over the rounds."""
        return float(statistics.median(answer[metric] for answer in self.rounds))

    def ratios(self, metric: str, base: Outcome) -> list[float]:
        """Return this entry's metric divided by the base's, round by round; nothing where the base has a round of 0."""
        if not all(other[metric] for other in base.rounds):
            return []
        return [mine[metric] / other[metric] for mine, other in zip(self.rounds, base.rounds, strict=True)]


@contextmanager
def one_core(enabled: bool, pids: Iterable[int]) -> Iterator[None]:
    """Keep these processes, and all that this one starts meanwhile, on one core."""
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
    """A scenario with its processes running; entries of one contender that want as many on the same masters share them.

    Args:
        scenario: what to run.
        urls: lists of URLs by the name that entries use.
        floor: the program of the floor, where there is one.
    """

    def __init__(self, scenario: Scenario, urls: dict[str, list[str]], floor: Path | None) -> None:
        self.scenario = scenario
        self.outcomes = [Outcome(entry) for entry in scenario.entries]
        self._urls = urls
        self._floor = floor
        self._teams: dict[tuple[str, str, int], Team] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Race:
        for outcome in self.outcomes:
            self._attempt(outcome, self._team)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for team in self._teams.values():  # all at once: a client with a sick master takes a second to close
            team.dismiss()
        self._stack.close()

    def each(
        self, amount: str, seconds: float = 0.0, keep: bool = True, done: Callable[[str], object] = lambda label: None
    ) -> None:
        """Give every entry that still runs one turn.

        Args:
            amount: what each is told to do: cycles as "2000", or seconds as "0.5s".
            seconds: how long that takes, at least.
            keep: whether the answers count.
            done: called with a label after its turn.
        """
        for outcome in self.outcomes:
            self._attempt(outcome, lambda entry: self._turn(entry, amount, seconds), keep)
            done(outcome.entry.label)

    def _attempt(self, outcome: Outcome, step: Callable[[Entry], Any], keep: bool = False) -> None:
        """Take one step for an entry that is not out; where it fails, the entry is."""
        if outcome.out():
            return
        try:
            answer = step(outcome.entry)
        except Absent as reason:
            outcome.absent = str(reason)
        except Failed as failure:
            outcome.failure = str(failure)
            self._teams.pop(key_of(outcome.entry)).close()  # the next entry gets a new one
        else:
            if keep:
                outcome.rounds.append(answer)
        if outcome.out():
            outcome.rounds = []

    def _team(self, entry: Entry) -> Team:
        key = key_of(entry)
        if key not in self._teams:
            team = Team(entry.contender, self._urls[entry.masters], self._floor, entry.processes)
            self._teams[key] = team
            self._stack.callback(team.close)
        return self._teams[key]

    def _turn(self, entry: Entry, amount: str, seconds: float) -> Answer:
        answer = self._team(entry).run(f"{entry.mode} {amount} {entry.width}", seconds)
        if answer.get("cycles"):
            answer["cpu_us_per_cycle"] = answer["cpu_s"] / answer["cycles"] * 1e6
        return answer


def key_of(entry: Entry) -> tuple[str, str, int]:
    """Return what entries that share their processes have in common."""
    return entry.contender, entry.masters, entry.processes


def summary(scenario: Scenario, outcomes: list[Outcome]) -> dict[str, Any]:
    """Return a scenario's figures as plain data.

    Args:
        scenario: what was run.
        outcomes: what came out.

    Returns:
        A dict of medians over the rounds and of ratios as {"median", "min", "max"}, with all rounds behind them.
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
    """Return the median of the rounds' ratios, with the smallest and the largest."""
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
