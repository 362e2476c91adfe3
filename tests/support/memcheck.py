"""Runs valgrind's Memcheck on a short scenario of the compiled build; no complaint may have our code on its stack."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# CPython 3.11 multiplies a digit that it has not set by 0 when it parses "0", which Memcheck takes for an error. A
# marker has such numbers.
SCENARIO = """
import asyncio, json, sys
json._default_decoder = json.JSONDecoder(parse_int=lambda text: 0 if text == "0" else int(text))
import redlatch
assert redlatch.IMPL == "c"
urls = sys.argv[1:]
with redlatch.Client(urls) as client:
    for number in range(30):
        with client.lock("one", ttl=5, fence=number % 3 == 0, fair=number % 3 == 1) as lock:
            lock.extend()
            assert not client.lock("one").acquire(blocking=False)
    locks = client.acquire_many([f"many-{number}" for number in range(40)])
    assert all(client.extend_many(locks)) and all(client.release_many(locks))
    for make in (client.rlock, client.semaphore, client.fair_lock):
        with make("two", *([2] if make == client.semaphore else [])):
            pass
    try:
        with client.lock("three", ttl=0.05) as lock:
            lock.lost.wait(5)
    except redlatch.LockLost:
        pass
async def main():
    async with redlatch.AsyncClient(urls) as client:
        async def use(name):
            async with client.lock(name):
                await asyncio.sleep(0)
        await asyncio.gather(*(use(f"name-{number % 3}") for number in range(40)))
        waiting = asyncio.ensure_future(client.lock("four").acquire())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
asyncio.run(main())
"""

STACK = re.compile(r"^\s+(at|by) 0x", re.MULTILINE)

# CPython complains while it imports our modules and executes their bodies, also when its collector runs on incomplete
# tuples. That is not ours. A stripped library has no names for its frames, so the caller of the body counts, too.
IMPORTING = re.compile(r"import_find_and_load|__pyx_pymod_exec_|PyModule_ExecDef")

OURS = re.compile(r"redlatch/_c/|__pyx_")


def memcheck(urls: list[str], folder: Path) -> list[str]:
    """Run the scenario; return the complaints that have our code on their stack."""
    log = folder / "memcheck.log"
    command = [
        *("valgrind", "--leak-check=full", "--show-leak-kinds=definite", "--num-callers=30", f"--log-file={log}"),
        *(sys.executable, "-c", SCENARIO, *urls),
    ]
    environment = {"PYTHONMALLOC": "malloc", "PATH": "/usr/bin:/bin", "REDLATCH_IMPL": "c"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    text = log.read_text()
    assert "ERROR SUMMARY" in text
    return ours(text)


def ours(log: str) -> list[str]:
    """Return the complaints in a log that have our code on their stack."""
    text = re.sub(r"^==\d+== ?", "", log, flags=re.MULTILINE)
    complaints = [part for part in text.split("\n\n") if STACK.search(part)]
    return [part for part in complaints if _is_ours(part)]


def _is_ours(complaint: str) -> bool:
    """Return whether our code, and not the body of a module, is among the inner frames of a stack."""
    importing = IMPORTING.search(complaint)
    if importing is None:
        return OURS.search(complaint) is not None
    return importing[0] != "PyModule_ExecDef" and OURS.search(complaint[: importing.start()]) is not None
