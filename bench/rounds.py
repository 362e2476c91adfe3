"""Interleave contenders in rounds, and say what the rounds have in common.

Figures of different minutes cannot be compared on a shared machine; figures of one round, taken within a second or two
of each other, can. So every contender is a process that stays connected, a round gives each of them its turn, a ratio
is formed inside one round, and what is reported is the median of the rounds' ratios with the smallest and the largest.
"""

import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
WARM_UP = "0.2s"  # before the first round, which is not counted either
PATIENCE_SECONDS = 30  # on top of what an order takes; a contender silent for longer hangs


class Failed(Exception):
    """A contender ended or hung; the message is the end of what it wrote on stderr."""


@dataclass(frozen=True)
class Entry:
    """One row of a scenario.

    Args:
        label: how the row is called in the tables.
        contender: "floor", or a name in `contenders.REGISTRY`.
        mode: what it is told to do in a round.
        width: callers at once, or the depth of the floor's pipeline.
        masters: which of the scenario's lists of URLs it locks on.
    """

    label: str
    contender: str
    mode: str = "cycle"
    width: int = 1
    masters: str = "all"


@dataclass(frozen=True)
class Scenario:
    """Entries that race each other.

    Args:
        name: short, for the JSON and for --only.
        title: for the table.
        entries: in the order of their turns.
        ratios: (heading, metric, label of the entry to divide by) for each ratio.
        one_core: pin servers and contenders to one core together.
    """

    name: str
    title: str
    entries: tuple[Entry, ...]
    ratios: tuple[tuple[str, str, str], ...]
    one_core: bool = False


@dataclass
class Outcome:
    """What came out of one entry: the answers of its rounds, or why there are none."""

    entry: Entry
    rounds: list[dict] = field(default_factory=list)
    failure: str | None = None

    def median(self, metric):
        """Return the median of a metric over the rounds."""
        return statistics.median(answer[metric] for answer in self.rounds)

    def ratios(self, metric, base):
        """Return this entry's metric divided by the base's, round by round."""
        return [mine[metric] / other[metric] for mine, other in zip(self.rounds, base.rounds, strict=True)]


class Racer:
    """A contender's process.

    Args:
        entry: what it is.
        urls: the masters.
    """

    def __init__(self, entry, urls):
        if entry.contender == "floor":
            command = [str(HERE / "floor"), "--stdin", *urls]
        else:
            command = [sys.executable, str(HERE / "contenders.py"), entry.contender, *urls]
        self.entry = entry
        self._errors = tempfile.TemporaryFile()
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors, bufsize=0)
        self.pid = self._process.pid

    def run(self, amount, seconds=0.0):
        """Order one run and return the answer.

        Args:
            amount: cycles as "2000", or seconds as "0.5s".
            seconds: how long that takes, at least.

        Raises:
            Failed: there is no answer.
        """
        try:
            self._process.stdin.write(f"{self.entry.mode} {amount} {self.entry.width}\n".encode())
        except BrokenPipeError:
            raise Failed(self._last_words()) from None
        if not select.select([self._process.stdout], [], [], seconds + PATIENCE_SECONDS)[0]:
            raise Failed("no answer")
        line = self._process.stdout.readline()
        if not line:
            raise Failed(self._last_words())
        return json.loads(line)

    def _last_words(self):
        self._process.wait(PATIENCE_SECONDS)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"ended with status {self._process.returncode}"

    def close(self):
        """End the process: politely, then not."""
        self._process.stdin.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


@contextmanager
def one_core(enabled, pids):
    """Keep these processes, and all that this one starts meanwhile, on one core."""
    if not enabled:
        yield
        return
    before = os.sched_getaffinity(0)
    core = {max(before)}
    for pid in (0, *pids):
        os.sched_setaffinity(pid, core)
    try:
        yield
    finally:
        for pid in (0, *pids):
            os.sched_setaffinity(pid, before)


class Race:
    """A scenario with its processes running.

    Args:
        scenario: what to run.
        urls: lists of URLs by the name that entries use.
    """

    def __init__(self, scenario, urls):
        self.scenario = scenario
        self.outcomes = [Outcome(entry) for entry in scenario.entries]
        self._urls = urls
        self._racers = {}
        self._stack = ExitStack()

    def __enter__(self):
        for outcome in self.outcomes:
            racer = Racer(outcome.entry, self._urls[outcome.entry.masters])
            self._stack.callback(racer.close)
            self._racers[outcome.entry.label] = racer
        self.each(WARM_UP, keep=False)
        return self

    def __exit__(self, *exception):
        self._stack.close()

    def each(self, amount, seconds=0.0, keep=True, done=lambda label: None):
        """Give every entry that still runs one turn.

        Args:
            amount: what each is told to do.
            seconds: how long that takes, at least.
            keep: whether the answers count.
            done: called with a label after its turn.
        """
        for outcome in self.outcomes:
            if not outcome.failure:
                try:
                    answer = self._racers[outcome.entry.label].run(amount, seconds)
                except Failed as failure:
                    outcome.failure, outcome.rounds = str(failure), []
                else:
                    if keep:
                        outcome.rounds.append(answer)
            done(outcome.entry.label)


def summary(scenario, outcomes):
    """Return a scenario's figures as plain data.

    Args:
        scenario: what was run.
        outcomes: what came out.

    Returns:
        A dict of medians over the rounds and of ratios as {"median", "min", "max"}, with all rounds behind them.
    """
    by_label = {outcome.entry.label: outcome for outcome in outcomes}
    rows = []
    for outcome in outcomes:
        row = {"label": outcome.entry.label, "contender": outcome.entry.contender, "failure": outcome.failure}
        if not outcome.failure:
            row |= {metric: outcome.median(metric) for metric in ("p50_us", "p99_us", "cycles_per_s")}
            row["cpu_us_per_cycle"] = statistics.median(a["cpu_s"] / a["cycles"] * 1e6 for a in outcome.rounds)
            row["ratios"] = {
                heading: _spread(outcome.ratios(metric, by_label[base]))
                for heading, metric, base in scenario.ratios
                if not by_label[base].failure
            }
            row["rounds"] = outcome.rounds
        rows.append(row)
    headings = [heading for heading, _, _ in scenario.ratios]
    return {"name": scenario.name, "title": scenario.title, "headings": headings, "rows": rows}


def _spread(ratios):
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
