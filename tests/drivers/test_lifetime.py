"""Re-entrant calls: which frames tell that a thread is in a call of a client."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from support.faces import PATIENCE

import redlatch
from redlatch.drivers.background import run_aside
from redlatch.drivers.lifetime import _OUR_FRAMES, nested

ABOVE = ("_c", "celery", "compat", "demo", "django", "metrics", "operate", "run", "testing", "transactions")
# A finalizer may run while a function of these packages is on the stack of a thread that drives the sockets.
DRIVEN = ("drivers", "guard", "locks", "masters", "quorum", "sql", "votes", "wire")


def test_every_package_below_a_client_counts_as_its_call() -> None:
    packages = {path.parent.name for path in Path(redlatch.__file__).parent.glob("*/__init__.py")}
    assert packages >= set(DRIVEN)
    # Of the other packages, none is on the stack below a driver.
    assert packages - set(DRIVEN) == set(ABOVE)
    assert all(f"redlatch.{package}.".startswith(_OUR_FRAMES) for package in DRIVEN)


def test_a_call_in_a_thread_that_runs_aside_is_nested() -> None:
    found: list[bool] = []
    done = threading.Event()

    def finalizer(*_: Any) -> None:
        found.append(nested())
        done.set()

    assert not nested()
    assert run_aside("test", finalizer)
    assert done.wait(PATIENCE)
    assert found == [True]
