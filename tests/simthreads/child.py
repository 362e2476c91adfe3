"""Runs thread schedules in a child process; PYTHONPATH names the folders of the package and of the tests.

`child.py FIRST LAST TOGETHER THEME [stop] [FILE:FIRST:LAST]` prints one line of JSON per batch (see `sim.batches`).
`child.py SEED show [small]` prints one schedule.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from types import FrameType

# A smaller plan is a different schedule, so this many seeds are tried for each one.
TRIES = 20

HANGS = 60  # seconds of processor time; every schedule takes much less


def prepare() -> None:
    """Import the pure build with gates from now on."""
    from simthreads import instrument

    gates = instrument.load_gates()
    from simthreads import fakes

    instrument.install(gates, fakes.all_of(gates))


def main(first: int, last: int, together: int, theme: str, stop: bool, mutant: str) -> None:
    """Run the schedules of the seeds from `first` to `last` that have the theme; "any" is every theme.

    Args:
        stop: whether to end at the first schedule that breaks a rule.
        mutant: the lines that are those of a mutant, as FILE:FIRST:LAST. A schedule in which it crashes breaks no rule.
    """
    from sim.batches import gather
    from sim.outcome import Outcome, patch_of

    from simthreads.drawing import draw
    from simthreads.farm import ANY
    from simthreads.schedule import run

    def results(seeds: range) -> Iterator[Outcome]:
        for plan in map(draw, seeds):
            signal.setitimer(signal.ITIMER_PROF, HANGS)
            if theme in (ANY, plan.theme):
                yield run(plan)

    signal.signal(signal.SIGPROF, _hang)
    for begin in range(first, last, together):
        seeds = range(begin, min(begin + together, last))
        batch = gather(len(seeds), results(seeds), patch_of(mutant) if mutant else None, stop)
        print(json.dumps(asdict(batch)), flush=True)
        if batch.wrong and stop:
            return


def _hang(number: int, frame: FrameType | None) -> None:
    """End the process in the middle of a schedule."""
    faulthandler.dump_traceback()
    os._exit(1)


def show(seed: int, small: bool) -> bool:
    """Print a schedule and the rules that it breaks; return whether it breaks any."""
    from sim import shrink

    from simthreads.drawing import draw
    from simthreads.schedule import run

    return shrink.show(draw(seed), run, small, TRIES)


if __name__ == "__main__":
    prepare()
    if sys.argv[2] == "show":
        sys.exit(show(int(sys.argv[1]), "small" in sys.argv[3:]))
    flags = sys.argv[5:]
    first, last, together = map(int, sys.argv[1:4])
    main(first, last, together, sys.argv[4], "stop" in flags, next((flag for flag in flags if ":" in flag), ""))
