"""Count the instructions of a cycle under callgrind and compare them with the budget in bench/instructions.json.

    python bench/instructions.py [--update]

Times vary on a busy machine; instructions do not. A change that costs 5 % more instructions fails here. The script
counts all user-space instructions of the client's process, which talks to real masters. Each scenario runs with two
numbers of cycles and uses the difference, so that the start of the process does not count. An uncounted run goes first,
because the first client of a list of masters has more to do. Each scenario runs on one core, and its client only while
no master wants that core (SCHED_IDLE), so that all replies of a round are there when the client polls; else a poll
between two of them would cost up to a tenth more. Each number runs three times; of the starts the median counts,
because a start may vary both ways, and of the cycles the smallest. The budget is stored by Python version and
architecture. A scenario without a budget is printed and passes; --update stores the new counts.
"""

import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from redlatch.testing import embedded

BUDGET = Path(__file__).with_name("instructions.json")
TOLERANCE = 0.05
MASTERS = 5
RUNS = 3

ONE_THREAD = """
import sys, redlatch
count, urls = int(sys.argv[1]), sys.argv[2:]
client = redlatch.Client(urls)
client.connect()
for number in range(count):
    lock = client.lock("sku:4711")
    assert lock.acquire(blocking=False)
    lock.release()
client.close()
"""

TASKS = """
import asyncio, sys, redlatch
count, urls = int(sys.argv[1]), sys.argv[2:]
async def work(client, name, times):
    for number in range(times):
        lock = client.lock(name)
        assert await lock.acquire(blocking=False)
        await lock.release()
async def main():
    async with redlatch.AsyncClient(urls) as client:
        await asyncio.gather(*(work(client, f"sku:{task}", count // 50) for task in range(50)))
asyncio.run(main())
"""

BATCH = """
import asyncio, sys, redlatch
count, urls = int(sys.argv[1]), sys.argv[2:]
names = [f"sku:{number}" for number in range(50)]
async def main():
    async with redlatch.AsyncClient(urls) as client:
        for number in range(count // 50):
            locks = await client.acquire_many(names)
            assert all(locks) and all(await client.release_many(locks))
asyncio.run(main())
"""

# The name, the program, and the two numbers of cycles.
SCENARIOS = [
    ("one thread", ONE_THREAD, 200, 5200),
    ("asyncio, 50 tasks", TASKS, 500, 6500),
    ("asyncio, batches of 50", BATCH, 500, 6500),
]


def run(program, cycles, urls, wrapper=()):
    """Run a program, perhaps under another one; return what it has written to stderr."""
    done = subprocess.run(
        [*wrapper, sys.executable, "-c", program, str(cycles), *urls],
        env=os.environ | {"REDLATCH_IMPL": "c", "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the program failed:\n{done.stdout}{done.stderr}")
    return done.stderr


def count_instructions(program, cycles, urls, folder):
    """Run a program under callgrind and return the number of instructions of its process."""
    # The processor is for the masters first.
    wrapper = ["chrt", "--idle", "0", "valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/callgrind.out"]
    said = run(program, cycles, urls, wrapper)
    counted = re.search(r"Collected : (\d+)", said)
    if not counted:
        raise SystemExit(f"callgrind has counted nothing:\n{said}")
    return int(counted[1])


def machine_key():
    """Return the key of a budget: other compilers and interpreters execute other numbers of instructions."""
    return f"{platform.python_implementation()} {'.'.join(platform.python_version_tuple()[:2])} {platform.machine()}"


def count_best(program, few, cycles, best):
    """Run a program several times on masters of its own; return the best number of instructions of its process."""
    with embedded.masters(MASTERS) as urls, tempfile.TemporaryDirectory() as folder:
        run(program, few, urls)
        return best([count_instructions(program, cycles, urls, folder) for _ in range(RUNS)])


def main(arguments):
    """Count every scenario; return 1 if one exceeds its budget, else 0."""
    if not shutil.which("valgrind"):
        print("valgrind is not installed, so no instructions are counted (Debian: apt install valgrind)")
        return 0
    budgets = json.loads(BUDGET.read_text()) if BUDGET.exists() else {}
    known = budgets.setdefault(machine_key(), {})
    over = False
    cores = list(os.sched_getaffinity(0))
    with ThreadPoolExecutor(len(cores), initializer=lambda: os.sched_setaffinity(0, {cores.pop()})) as pool:
        counts = [
            (
                pool.submit(count_best, program, few, many, min),
                pool.submit(count_best, program, few, few, statistics.median),
            )
            for _, program, few, many in SCENARIOS
        ]
        for (name, _, few, many), (second, first) in zip(SCENARIOS, counts, strict=True):
            counted = round((second.result() - first.result()) / (many - few))
            budget = known.get(name)
            verdict = "no budget for this Python" if budget is None else f"{counted / budget - 1:+.1%} of {budget:,}"
            print(f"{name}, N={MASTERS}: {counted:,} instructions a cycle ({verdict})", flush=True)
            over |= budget is not None and counted > budget * (1 + TOLERANCE)
            if "--update" in arguments:
                known[name] = counted
    if "--update" in arguments:
        BUDGET.write_text(json.dumps(budgets, indent=2) + "\n")
        return 0
    if over:
        print(f"over the budget by more than {TOLERANCE:.0%}; to accept this: make instructions UPDATE=--update")
    return int(over)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
