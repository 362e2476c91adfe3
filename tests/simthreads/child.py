"""Runs thread schedules in a child process; PYTHONPATH names the folders of the package and of the tests.

`child.py FIRST LAST TOGETHER THEME [stop] [FILE:FIRST:LAST]` prints one line of JSON per batch (see `farm.Batch`).
`child.py SEED show [small]` prints one schedule.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from hashlib import blake2b
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
    from sim.outcome import patch_of

    from simthreads.drawing import draw
    from simthreads.farm import ANY
    from simthreads.schedule import run

    signal.signal(signal.SIGPROF, _hang)
    for begin in range(first, last, together):
        end = min(begin + together, last)
        grants = points = switches = 0
        digest = blake2b(digest_size=8)
        wrong, crashed = [], []
        for seed in range(begin, end):
            signal.setitimer(signal.ITIMER_PROF, HANGS)
            plan = draw(seed)
            if theme not in (ANY, plan.theme):
                continue
            result = run(plan)
            grants, points, switches = grants + result.grants, points + result.points, switches + result.switches
            digest.update(result.digest.encode())
            if mutant and (crash := result.crash(patch_of(mutant))):
                crashed.append([seed, crash])
            elif result.wrong:
                wrong.append([seed, result.wrong[0]])
                if stop:
                    break
        print(json.dumps([end - begin, grants, points, switches, digest.hexdigest(), wrong, crashed]), flush=True)
        if wrong and stop:
            return


def _hang(number: int, frame: FrameType | None) -> None:
    """End the process in the middle of a schedule."""
    faulthandler.dump_traceback()
    os._exit(1)


def show(seed: int, small: bool) -> int:
    """Print a schedule and the rules that it broke; return 1 if there are any, else 0."""
    from sim.shrink import shrink

    from simthreads.drawing import draw
    from simthreads.schedule import run

    plan = draw(seed)
    if small:
        plan = shrink(plan, run, TRIES)
    result = run(plan, tracing=True)
    print(f"seed {plan.seed}: {plan.theme}, masters {plan.masters}, clients {plan.clients}, {plan.choice}")
    print(f"  {plan.far_us} us away, {plan.tick_ns} ns a point, dialled before: {plan.dialled}")
    for number, (client, uses) in enumerate(plan.tasks):
        for use in uses:
            print(f"  thread {number} of client {client}: {use}")
    for item in (*plan.faults, *plan.interrupts, *([plan.ending] if plan.ending else [])):
        print(f"  {item}")
    print(*result.trace, sep="\n")
    print(f"{result.points} points, {result.switches} switches, digest {result.digest}")
    for wrong in result.wrong:
        print(f"WRONG: {wrong}")
    return int(bool(result.wrong))


if __name__ == "__main__":
    prepare()
    if sys.argv[2] == "show":
        sys.exit(show(int(sys.argv[1]), "small" in sys.argv[3:]))
    flags = sys.argv[5:]
    first, last, together = map(int, sys.argv[1:4])
    main(first, last, together, sys.argv[4], "stop" in flags, next((flag for flag in flags if ":" in flag), ""))
