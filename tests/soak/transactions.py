"""python -m tests.soak.transactions: many workers count in a database, and no count may be lost.

Each worker reads a counter, adds one and writes it back, in a transaction of its own. The lock round the transaction
must make that safe. Two ways are compared:

* "ours": `redlatch.sqlalchemy.hold` or `redlatch.django.atomic`.
* "inside": the lock is acquired and released inside the transaction, as in many articles. The next holder reads before
  the COMMIT, and a count is lost.

At REPEATABLE READ, PostgreSQL refuses such a transaction instead. Transactions that the database refuses, and those
that have no lock, for example because the machine stood still, are counted apart and tried again.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.databases import server_of
from support.transactions import DATABASES, DRIVERS

from redlatch import AsyncClient, Client, LockError
from redlatch.sqlalchemy import hold
from redlatch.testing import masters

LIBRARIES = ("threads", "asyncio", "django")
LEVELS = ("READ COMMITTED", "REPEATABLE READ")

READ = text("SELECT value FROM counts WHERE name = :name")
WRITE = text("UPDATE counts SET value = :value WHERE name = :name")


@dataclass(frozen=True)
class Plan:
    """What one process does.

    Attributes:
        library: one of `LIBRARIES`.
        way: "ours" or "inside".
        url: the database, with its driver.
        level: the isolation level; "" for the only one of SQLite.
        lock_urls: the masters of the locks.
        names: the number of counters.
        workers: the number of threads or tasks.
        updates: how often they count, all together.
    """

    library: str
    way: str
    url: str
    level: str
    lock_urls: tuple[str, ...]
    names: int
    workers: int
    updates: int


@dataclass
class Tally:
    """What workers have done: transactions that committed, that the database refused, and that had no lock."""

    committed: int = 0
    refused: int = 0
    unlocked: int = 0

    def add(self, other: Tally) -> None:
        self.committed += other.committed
        self.refused += other.refused
        self.unlocked += other.unlocked

    @contextmanager
    def counting(self, refusals: type[Exception]) -> Iterator[None]:
        """Count one transaction, and go on whatever has become of it."""
        try:
            yield
        except refusals:
            self.refused += 1
        except LockError:
            self.unlocked += 1
        else:
            self.committed += 1


def share(total: int, parts: int) -> list[int]:
    """Divide a number into parts that differ by at most one."""
    return [total // parts + (index < total % parts) for index in range(parts)]


def work(plan: Plan) -> Tally:
    """Run the workers of one process."""
    if plan.library == "asyncio":
        return asyncio.run(_work_async(plan))
    count, refusals = _django(plan) if plan.library == "django" else _sqlalchemy(plan)
    tally, lock = Tally(), threading.Lock()

    def worker(updates: int) -> None:
        own = Tally()
        while own.committed < updates:
            with own.counting(refusals):
                count(f"counter-{own.committed % plan.names}")
        with lock:
            tally.add(own)

    with ThreadPoolExecutor(plan.workers) as pool:
        list(pool.map(worker, share(plan.updates, plan.workers)))
    return tally


def _engine_options(plan: Plan) -> dict[str, Any]:
    options: dict[str, Any] = {"pool_size": plan.workers, "max_overflow": 0}
    if plan.level:
        options["isolation_level"] = plan.level
    else:
        options["connect_args"] = {"timeout": 600}
    return options


def _sqlalchemy(plan: Plan) -> tuple[Callable[[str], None], type[Exception]]:
    """Return a function that counts once, and the error by which the database refuses a transaction."""
    engine = create_engine(plan.url, **_engine_options(plan))
    client = Client(plan.lock_urls)

    def step(session: Session, name: str) -> None:
        value = session.scalar(READ, {"name": name})
        session.execute(WRITE, {"name": name, "value": value + 1})

    def ours(session: Session, name: str) -> None:
        with session.begin():
            hold(session, client.lock(name))
            step(session, name)

    def inside(session: Session, name: str) -> None:
        with session.begin(), client.lock(name):
            step(session, name)

    chosen = ours if plan.way == "ours" else inside

    def count(name: str) -> None:
        with Session(engine) as session:
            chosen(session, name)

    return count, DBAPIError


def _django(plan: Plan) -> tuple[Callable[[str], None], type[Exception]]:
    """Return the same for Django."""
    from django.db import Error, connections, transaction
    from support.django_databases import add_database

    from redlatch.django import atomic

    options: dict[str, Any] = {}
    if plan.url.startswith("sqlite"):
        options = {"timeout": 600}
    elif plan.url.startswith("mysql"):
        options = {"isolation_level": plan.level.lower()}
    else:
        import psycopg

        options = {"isolation_level": psycopg.IsolationLevel[plan.level.replace(" ", "_")]}
    add_database("counts", plan.url, options)
    client = Client(plan.lock_urls)

    def step(name: str) -> None:
        with connections["counts"].cursor() as cursor:
            cursor.execute("SELECT value FROM counts WHERE name = %s", [name])
            (value,) = cursor.fetchone()
            cursor.execute("UPDATE counts SET value = %s WHERE name = %s", [value + 1, name])

    def count(name: str) -> None:
        if plan.way == "ours":
            with atomic(client.lock(name), using="counts"):
                step(name)
        else:
            with transaction.atomic(using="counts"), client.lock(name):
                step(name)

    return count, Error


async def _work_async(plan: Plan) -> Tally:
    engine = create_async_engine(plan.url, **_engine_options(plan))
    tally = Tally()

    async def step(session: AsyncSession, name: str) -> None:
        value = await session.scalar(READ, {"name": name})
        await session.execute(WRITE, {"name": name, "value": value + 1})

    async def count(client: AsyncClient, name: str) -> None:
        async with AsyncSession(engine) as session, session.begin():
            if plan.way == "ours":
                await hold(session, client.lock(name))
                await step(session, name)
            else:
                async with client.lock(name):
                    await step(session, name)

    async def worker(client: AsyncClient, updates: int) -> None:
        own = Tally()
        while own.committed < updates:
            with own.counting(DBAPIError):
                await count(client, f"counter-{own.committed % plan.names}")
        tally.add(own)

    async with AsyncClient(plan.lock_urls) as client, asyncio.TaskGroup() as group:
        for updates in share(plan.updates, plan.workers):
            group.create_task(worker(client, updates))
    await engine.dispose()
    return tally


def race(plan: Plan, admin_url: str, processes: int) -> dict[str, Any]:
    """Count in several processes, and compare the counters with the commits.

    Args:
        plan: what all processes together do.
        admin_url: the database, with a sync driver.
        processes: how many there are.

    Returns:
        The figures: "lost" is the number of commits that are not in the counters.
    """
    admin = create_engine(admin_url)
    with admin.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS counts"))
        connection.execute(text("CREATE TABLE counts (name VARCHAR(40) PRIMARY KEY, value BIGINT NOT NULL)"))
        rows = [{"name": f"counter-{index}"} for index in range(plan.names)]
        connection.execute(text("INSERT INTO counts VALUES (:name, 0)"), rows)
    shares = zip(share(plan.updates, processes), share(plan.workers, processes), strict=True)
    plans = [Plan(**asdict(plan) | {"updates": updates, "workers": workers}) for updates, workers in shares]
    tally, began = Tally(), time.monotonic()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for part in pool.map(work, plans):
            tally.add(part)
    seconds = time.monotonic() - began
    with admin.begin() as connection:
        counted = int(connection.scalar(text("SELECT SUM(value) FROM counts")) or 0)
    admin.dispose()
    return {
        "library": plan.library,
        "database": plan.url.partition(":")[0],
        "level": plan.level,
        "way": plan.way,
        "workers": plan.workers,
        "committed": tally.committed,
        "lost": tally.committed - counted,
        "refused": tally.refused,
        "unlocked": tally.unlocked,
        "seconds": round(seconds, 1),
    }


@click.command()
@click.option("--updates", default=100_000, show_default=True, help="Of our way; the other one makes a tenth.")
@click.option("--workers", default=32, show_default=True, help="Threads or tasks, over all processes.")
@click.option("--processes", default=4, show_default=True)
@click.option("--names", default=8, show_default=True, help="Counters, each with its lock.")
@click.option("--library", "libraries", multiple=True, type=click.Choice(LIBRARIES), help="Default: all.")
@click.option("--database", "databases", multiple=True, type=click.Choice(DATABASES), help="Default: all.")
@click.option("--level", "levels", multiple=True, type=click.Choice(LEVELS), help="Default: both.")
def main(
    updates: int,
    workers: int,
    processes: int,
    names: int,
    libraries: tuple[str, ...],
    databases: tuple[str, ...],
    levels: tuple[str, ...],
) -> None:
    """Print one line of figures for each race; fail if our way loses a count."""
    wrong = False
    with ExitStack() as stack:
        lock_urls = tuple(stack.enter_context(masters(3)))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for database in databases or DATABASES:
            server = None if database == "sqlite" else stack.enter_context(server_of(database))
            for library in libraries or LIBRARIES:
                driver = DRIVERS["asyncio" if library == "asyncio" else "threads"][database]
                url, admin_url = [
                    f"sqlite+{name}:///{folder}/counts" if server is None else server.url(name)
                    for name in (driver, DRIVERS["threads"][database])
                ]
                for level in ("",) if server is None else levels or LEVELS:
                    for way, count in (("ours", updates), ("inside", updates // 10)):
                        plan = Plan(library, way, url, level, lock_urls, names, workers, count)
                        figures = race(plan, admin_url, processes)
                        click.echo(json.dumps(figures))
                        wrong |= way == "ours" and figures["lost"] != 0
    sys.exit(wrong)


if __name__ == "__main__":
    main()
