"""Runs schedules on a mutant until a rule breaks; prints which, as JSON. PYTHONPATH names the mutant and `tests`."""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
from functools import partial
from types import FrameType

from redlatch import impl

HANGS = 20  # seconds that no schedule takes


def main(seeds: int, foreign: bool, theme: str, plan: str) -> None:
    """Run schedules of redlatch's locks, with the theme if any, or of the drop-ins; or only the plan of that name."""
    impl.current = impl.load("python")
    from sim.found import load
    from sim.plan import draw, draw_foreign
    from sim.schedule import run

    drawn = draw_foreign if foreign else partial(draw, theme=theme)
    plans = [load()[plan]] if plan else map(drawn, range(seeds))

    seed = 0

    def hang(number: int, frame: FrameType | None) -> None:
        print(json.dumps({"seed": seed, "rule": "it hangs"}), flush=True)
        faulthandler.dump_traceback()
        sys.exit(0)

    signal.signal(signal.SIGALRM, hang)
    for chosen in plans:
        seed = chosen.seed
        signal.alarm(HANGS)
        try:
            wrong = run(chosen).wrong
        except Exception as error:
            wrong = (f"{type(error).__name__}: {error}",)
        if wrong:
            print(json.dumps({"seed": seed, "rule": wrong[0]}))
            return
    print(json.dumps({"seed": -1, "rule": ""}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "foreign", sys.argv[3], sys.argv[4])
