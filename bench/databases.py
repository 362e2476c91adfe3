"""python bench/databases.py: redlatch.sql beside sqlalchemy-dlock and a polling advisory lock, on the same server.

Each round runs every contender once, in turn; the medians of the rounds count. Prints a table for docs/databases.md.
The polling lock does what the Ruby gem with_advisory_lock does: it tries, and sleeps 50 to 150 ms in between.
"""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import click
import sqlalchemy as sa
from sqlalchemy_dlock import create_sadlock

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.databases import KINDS

from redlatch import sql

DRIVERS = {"postgresql": "psycopg", "mariadb": "pymysql"}

# The waiters of one process in the count of statements. Peers need a connection for each.
WAITERS, PEER_WAITERS = 1000, 50

statements = [0]
Enter = Callable[[], AbstractContextManager[Any]]


@sa.event.listens_for(sa.engine.Engine, "before_cursor_execute")
def count(*_: object) -> None:
    """Count each statement of this process."""
    statements[0] += 1


class Ours:
    """A client of redlatch.sql, shared by all callers."""

    def __init__(self, url: str, mode: str) -> None:
        self.client = sql.Client(url, mode=mode)
        self.client.connect()
        self.waiters = WAITERS

    def caller(self, name: str) -> Enter:
        """Return what enters the lock."""
        return lambda: self.client.lock(name)

    def close(self) -> None:
        """Close the connection."""
        self.client.close()


class Peer:
    """Locks of which each caller has a connection of its own."""

    def __init__(self, url: str, enter: Callable[[sa.Connection, str], AbstractContextManager[Any]]) -> None:
        self._engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        self._enter = enter
        self._connections: list[sa.Connection] = []
        self.waiters = PEER_WAITERS

    def caller(self, name: str) -> Enter:
        """Return what enters the lock."""
        connection = self._engine.connect()
        self._connections.append(connection)
        return lambda: self._enter(connection, name)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            connection.close()
        self._engine.dispose()


@contextmanager
def polling(connection: sa.Connection, name: str) -> Iterator[None]:
    """Try, and sleep in between."""
    if connection.dialect.name == "postgresql":
        take, leave = "SELECT pg_try_advisory_lock(hashtext(:n))", "SELECT pg_advisory_unlock(hashtext(:n))"
    else:
        take, leave = "SELECT GET_LOCK(:n, 0)", "SELECT RELEASE_LOCK(:n)"
    while not connection.execute(sa.text(take), {"n": name}).scalar():
        time.sleep(random.uniform(0.05, 0.15))
    try:
        yield
    finally:
        connection.execute(sa.text(leave), {"n": name})


def waiting(connection: sa.Connection, name: str) -> AbstractContextManager[Any]:
    """Wait inside the database, with sqlalchemy-dlock. MariaDB knows no wait without an end."""
    timeout = None if connection.dialect.name == "postgresql" else 600
    return create_sadlock(connection, name, contextual_timeout=timeout)


def cycle_ms(contender: Any, name: str, times: int) -> float:
    """Return the median time of one acquire and release."""
    enter, taken = contender.caller(name), []
    for _ in range(times):
        began = time.perf_counter()
        with enter():
            pass
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


def hand_off_ms(holder: Any, waiter: Any, name: str, times: int) -> float:
    """Return the median time from a release to the grant of a waiter with another connection."""
    taken = []
    holds, waits = holder.caller(name), waiter.caller(name)
    for _ in range(times):
        got: list[float] = []

        def wait(got: list[float] = got) -> None:
            with waits():
                got.append(time.perf_counter())

        with holds():
            thread = threading.Thread(target=wait)
            thread.start()
            time.sleep(random.uniform(0.1, 0.2))
            released = time.perf_counter()
        thread.join()
        taken.append(got[0] - released)
    return statistics.median(taken) * 1000


def statements_per_change(contender: Any, name: str) -> float:
    """Return the statements for a change of owner, with many waiters of one process that each take the lock once."""
    callers = [contender.caller(name) for _ in range(contender.waiters)]
    threading.stack_size(256 * 1024)

    def take(enter: Enter) -> None:
        with enter():
            time.sleep(0.001)

    threads = [threading.Thread(target=take, args=(enter,)) for enter in callers]
    before = statements[0]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (statements[0] - before) / len(callers)


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--times", default=100, show_default=True, help="Cycles in each round; a tenth as many hand-offs.")
def main(rounds: int, times: int) -> None:
    """Print the medians of all rounds."""
    for kind, driver in DRIVERS.items():
        with KINDS[kind]() as server:
            url = server.url(driver)
            sql.Client(url).create_table()
            makes: dict[str, Callable[[], Any]] = {
                "redlatch, table": lambda url=url: Ours(url, "table"),
                "redlatch, session": lambda url=url: Ours(url, "session"),
                "sqlalchemy-dlock": lambda url=url: Peer(url, waiting),
                "polling, 50 to 150 ms": lambda url=url: Peer(url, polling),
            }
            figures: dict[str, list[list[float]]] = {name: [[], [], []] for name in makes}
            for round_ in range(rounds):
                for name, make in makes.items():
                    one, other = make(), make()
                    figures[name][0].append(cycle_ms(one, f"cycle{round_}", times))
                    figures[name][1].append(hand_off_ms(one, other, f"hand{round_}", max(3, times // 10)))
                    if round_ == 0:
                        figures[name][2].append(statements_per_change(one, f"many{round_}"))
                    one.close()
                    other.close()
            click.echo(f"\n| {kind} | acquire and release, p50 | hand-off, p50 | statements for a change of owner |")
            click.echo("|---|---|---|---|")
            first = [statistics.median(each) for each in figures["redlatch, table"]]
            for name, each in figures.items():
                cycle, hand, many = [statistics.median(values) for values in each]
                waiters = PEER_WAITERS if "redlatch" not in name else WAITERS
                click.echo(
                    f"| {name} | {cycle:.2f} ms ({cycle / first[0]:.1f} x) | {hand:.1f} ms ({hand / first[1]:.1f} x) | "
                    f"{many:.2f} ({waiters} waiters) |"
                )


if __name__ == "__main__":
    main()
