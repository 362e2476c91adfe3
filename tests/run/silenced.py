"""Many runs whose masters fall silent: `python -m tests.run.silenced --times 1000`.

Each round starts some runs of `redlatch run` on five masters, stops three of the masters at a random moment, and looks
when each program has last done something. A program that is alive when its ttl is over fails the round.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.faces import PATIENCE, await_true
from support.runs import alive, beat, beating, now, start

from redlatch.testing import embedded

TTL = 1.0
SECOND = 1_000_000_000

# Runs of one round.
AT_ONCE = 10

# How long the runs go on before the masters are stopped, in seconds: several renewals.
LONGEST = 1.0


def silence(folder: Path, chance: random.Random) -> list[float]:
    """Make one round; return for each program how long before the end of its ttl it was dead, in seconds."""
    fleet = embedded.masters(5)
    with fleet:
        paths = [folder / str(number) for number in range(AT_ONCE)]
        options = ["--ttl", str(TTL)]
        runs = [start(fleet.urls, *options, path.name, *beating(path, *deaf(chance))) for path in paths]
        pids = [beat(path)[0] for path in paths]
        time.sleep(chance.uniform(0, LONGEST))
        for index in chance.sample(range(5), 3):
            fleet.pause(index)
        over = now() + int(TTL * SECOND)
        for pid in pids:
            await_true(lambda pid=pid: not alive(pid))  # type: ignore[misc]
        left = [(over - beat(path)[1]) / SECOND for path in paths]
        for run in runs:
            run.communicate(timeout=PATIENCE)
        assert [run.returncode for run in runs] == [75] * AT_ONCE
    for path in paths:
        path.unlink()
    return left


def deaf(chance: random.Random) -> list[str]:
    """Return the option of a program that ignores SIGTERM, for every second one."""
    return ["deaf"] if chance.random() < 0.5 else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    left: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        while len(left) < options.times:
            left += silence(Path(folder), chance)
            print(f"{len(left)} runs; the latest death was {min(left):.3f} s before the end of the ttl", flush=True)
            if min(left) <= 0:
                sys.exit("a program was alive when its ttl was over")


if __name__ == "__main__":
    main()
