"""Count the instructions of a cycle under callgrind, and hold them to the budget in bench/instructions.json.

    python bench/instructions.py [--update]

Times jitter, instructions do not: a change that costs 5 % of them fails here, on a busy machine too. What is counted
is the client's process alone, all of it in user space, with real masters beside it. Each scenario runs with two numbers
of cycles, and the difference counts, so that what starting costs drops out; thousands, since what starting costs varies
by millions of instructions. The larger number runs three times and the smallest count is taken: a thread that polls
between two replies of one round, because the machine is busy, does up to a tenth more. A scenario that the budget does
not know (it is kept by Python version and architecture) is printed and passes; --update writes what was counted.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from redlatch import embedded

BUDGET = Path(__file__).with_name("instructions.json")
TOLERANCE = 0.05
MASTERS = 5

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

# Name, program, and the two numbers of cycles.
SCENARIOS = [
    ("one thread", ONE_THREAD, 200, 5200),
    ("asyncio, 50 tasks", TASKS, 500, 6500),
    ("asyncio, batches of 50", BATCH, 500, 6500),
]


def count_instructions(program, cycles, urls, folder):
    """Run a program under callgrind and return how many instructions its process executed."""
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/callgrind.out"]
    environment = os.environ | {"REDLATCH_IMPL": "c", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [*command, sys.executable, "-c", program, str(cycles), *urls],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    counted = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not counted:
        raise SystemExit(f"callgrind failed:\n{done.stdout}{done.stderr}")
    return int(counted[1])


def machine_key():
    """Return what a budget is kept by: what the compiler and the interpreter make of the same text differs."""
    return f"{platform.python_implementation()} {'.'.join(platform.python_version_tuple()[:2])} {platform.machine()}"


def main(arguments):
    """Count every scenario; the status is 1 when one is over its budget."""
    if not shutil.which("valgrind"):
        print("valgrind is not installed: no instructions are counted (Debian: apt install valgrind)")
        return 0
    budgets = json.loads(BUDGET.read_text()) if BUDGET.exists() else {}
    known = budgets.setdefault(machine_key(), {})
    over = False
    with embedded.masters(MASTERS) as urls, tempfile.TemporaryDirectory() as folder:
        for name, program, few, many in SCENARIOS:
            first, *more = (count_instructions(program, cycles, urls, folder) for cycles in (few, many, many, many))
            second = min(more)
            counted = round((second - first) / (many - few))
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
        print(f"over the budget by more than {TOLERANCE:.0%}; if it is worth it: make instructions UPDATE=--update")
    return int(over)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
