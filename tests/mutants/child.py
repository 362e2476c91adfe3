"""Runs schedules on a mutant until a rule breaks; prints which, as JSON. PYTHONPATH names the mutant and `tests`.

A schedule in which the code of the mutant crashes is left out: the mutant must break a rule by what it does.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
from functools import partial
from types import FrameType

from redlatch import impl

HANGS = 20  # seconds of processor time that no schedule takes


def main(seeds: int, foreign: bool, theme: str, plan: str, lines: str) -> None:
    """Run schedules of redlatch's locks, with the theme if any, or of the drop-ins; or only the plan of that name.

    Args:
        lines: those of the mutant, as FILE:FIRST:LAST.
    """
    impl.current = impl.load("python")
    from sim.drawing import draw, draw_foreign
    from sim.found import load
    from sim.outcome import patch_of, told
    from sim.schedule import run

    drawn = draw_foreign if foreign else partial(draw, theme=theme)
    plans = [load()[plan]] if plan else map(drawn, range(seeds))

    seed, crashes, crash = 0, 0, ""

    def tell(found: int, rule: str) -> None:
        print(json.dumps({"seed": found, "rule": rule, "crashes": crashes, "crash": crash}), flush=True)

    def hang(number: int, frame: FrameType | None) -> None:
        tell(seed, "it hangs")
        faulthandler.dump_traceback()
        sys.exit(0)

    signal.signal(signal.SIGPROF, hang)
    for chosen in plans:
        seed = chosen.seed
        signal.setitimer(signal.ITIMER_PROF, HANGS)
        try:
            result = run(chosen)
            crashed, wrong = result.crash(patch_of(lines)), result.wrong
        except Exception as error:
            crashed, wrong = told(error), ()
        if crashed:
            crashes, crash = crashes + 1, crash or crashed
        elif wrong:
            tell(seed, wrong[0])
            return
    tell(-1, "")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "foreign", sys.argv[3], sys.argv[4], sys.argv[5])
