"""python -m tests.soak.databases --server postgresql: eight processes take one row in turn, for five minutes.

Half of them have asyncio, and each driver of the server is used. Every grant is written with its times (CLOCK_BOOTTIME)
and its fence. No two may overlap, and fences must only go up.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from sim.grants import Grant, certain, fences_back, overlaps
from support.databases import KINDS

from redlatch import LockError, sql
from redlatch.wire.engine.net import now_ns

DRIVERS = {"postgresql": ("psycopg", "asyncpg"), "mariadb": ("pymysql", "asyncmy")}
NAME = "row"

# Some holders keep the lock longer than its ttl, so that it expires.
TTL, LONG_SHARE = 1.0, 0.01

over = threading.Event()


def write(lock: Any, who: str, asked: int, start: int) -> None:
    """Write one grant: it ends now, or at its deadline if that is earlier."""
    end = min(now_ns(), lock.deadline_ns)
    sys.stdout.write(json.dumps({"who": who, "asked": asked, "start": start, "end": end, "fence": lock.fence}) + "\n")
    sys.stdout.flush()


def rest() -> float:
    """Return how long to hold the lock, in seconds."""
    return TTL * 1.3 if random.random() < LONG_SHARE else random.choice((0.0, 0.001, 0.005))


def work(url: str, who: str) -> None:
    """Take the row again and again, with a client for threads."""
    with sql.Client(url, ttl=TTL) as client:
        while not over.is_set():
            lock, asked = client.lock(NAME, fence=True), now_ns()
            try:
                if lock.acquire(timeout=5.0):
                    start = now_ns()
                    time.sleep(rest())
                    write(lock, who, asked, start)
                    lock.release()
            except LockError:
                time.sleep(0.01)


async def work_soon(url: str, who: str) -> None:
    """Take the row again and again, with a client for asyncio."""
    async with sql.AsyncClient(url, ttl=TTL) as client:
        while not over.is_set():
            lock, asked = client.lock(NAME, fence=True), now_ns()
            try:
                if await lock.acquire(timeout=5.0):
                    start = now_ns()
                    await asyncio.sleep(rest())
                    write(lock, who, asked, start)
                    await lock.release()
            except LockError:
                await asyncio.sleep(0.01)


def be_worker(url: str, number: int) -> None:
    """Work until standard input ends."""

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    if number % 2:
        asyncio.run(work_soon(url, f"p{number}"))
    else:
        work(url, f"p{number}")


def run(server: str, minutes: float, processes: int) -> tuple[dict[str, Any], list[str]]:
    """Run the processes; return figures and the broken rules."""
    with KINDS[server]() as running:
        urls = [running.url(driver) for driver in DRIVERS[server]]
        sql.Client(urls[0]).create_table()
        commands = [
            # Each driver, with each face.
            [sys.executable, __file__, "--worker", str(number), "--url", urls[number // 2 % len(urls)]]
            for number in range(processes)
        ]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        crew = [subprocess.Popen(command, **pipes) for command in commands]
        lines: list[str] = []
        # Each has begun when it has had the row once.
        firsts = [worker.stdout.readline() for worker in crew if worker.stdout is not None]
        readers = [threading.Thread(target=lambda worker=worker: lines.extend(worker.stdout)) for worker in crew]
        for reader in readers:
            reader.start()
        time.sleep(minutes * 60)
        for worker in crew:
            assert worker.stdin is not None
            worker.stdin.close()
        for reader in readers:
            reader.join()
        codes = [worker.wait() for worker in crew]
    grants = certain([Grant(name=NAME, kind="fence", **json.loads(line)) for line in [*firsts, *lines]]).get(NAME, [])
    double, back = list(overlaps(grants, 1)), list(fences_back(grants, True))
    figures = {
        "server": server,
        "minutes": minutes,
        "processes": processes,
        "grants": len(grants),
        "by process": {who: sum([grant.who == who for grant in grants]) for who in sorted({g.who for g in grants})},
        "overlaps": len(double),
        "fence regressions": len(back),
        "exit codes": codes,
    }
    return figures, double + back + ([] if not any(codes) else [f"a process failed: {codes}"])


@click.command()
@click.option("--server", type=click.Choice(list(DRIVERS)), default="postgresql", show_default=True)
@click.option("--minutes", default=5.0, show_default=True)
@click.option("--processes", default=8, show_default=True)
@click.option("--worker", type=int, hidden=True)
@click.option("--url", hidden=True)
def main(server: str, minutes: float, processes: int, worker: int | None, url: str) -> None:
    """Print the figures; fail if two holders overlap or a fence goes back."""
    if worker is not None:
        be_worker(url, worker)
        return
    figures, wrong = run(server, minutes, processes)
    click.echo(json.dumps(figures, indent=2))
    for each in wrong[:20]:
        click.echo(f"WRONG: {each}", err=True)
    sys.exit(bool(wrong) or not figures["grants"])


if __name__ == "__main__":
    main()
