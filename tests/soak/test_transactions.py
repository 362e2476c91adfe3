"""A short race of workers that count in a database; for the long one: `python -m tests.soak.transactions`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.databases import Server
from support.transactions import DATABASES, DRIVERS

from soak.transactions import LEVELS, LIBRARIES, Plan, race, share

# For each race, over all its processes.
UPDATES = 400


@pytest.mark.slow("many workers count in a database")
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("database", "level"), [(database, level) for database in DATABASES for level in LEVELS if database != "sqlite"]
)
def test_no_count_is_lost(
    databases: Callable[[str], Server], three: list[str], library: str, database: str, level: str
) -> None:
    server = databases(database)
    driver = DRIVERS["asyncio" if library == "asyncio" else "threads"][database]
    plan = Plan(library, "ours", server.url(driver), level, tuple(three), names=2, workers=8, updates=UPDATES)
    figures = race(plan, server.url(DRIVERS["threads"][database]), processes=2)
    # At REPEATABLE READ, PostgreSQL would refuse a transaction that began before the lock.
    assert (figures["committed"], figures["lost"], figures["refused"]) == (UPDATES, 0, 0)


@pytest.mark.slow("many workers count in a database")
@pytest.mark.parametrize("library", LIBRARIES)
def test_no_count_is_lost_in_sqlite(three: list[str], tmp_path: Path, library: str) -> None:
    urls = [f"sqlite+{DRIVERS[face]['sqlite']}:///{tmp_path}/counts" for face in ("threads", "asyncio")]
    plan = Plan(library, "ours", urls[library == "asyncio"], "", tuple(three), names=2, workers=4, updates=UPDATES // 4)
    figures = race(plan, urls[0], processes=2)
    assert (figures["committed"], figures["lost"]) == (UPDATES // 4, 0)


@pytest.mark.slow("many workers count in a database")
def test_the_race_finds_what_a_lock_inside_the_transaction_loses(
    databases: Callable[[str], Server], three: list[str]
) -> None:
    url = databases("postgresql").url("psycopg")
    plan = Plan("threads", "inside", url, "READ COMMITTED", tuple(three), names=1, workers=8, updates=UPDATES)
    # About one count in seven is lost.
    assert race(plan, url, processes=2)["lost"] > 0


def test_updates_are_shared_evenly() -> None:
    assert share(10, 4) == [3, 3, 2, 2]
    assert share(2, 3) == [1, 1, 0]
