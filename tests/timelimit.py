"""The time limit of every test: when it is over, the process writes the stacks of all its threads, and ends.

pytest-timeout knows the limit (pyproject.toml, ``@pytest.mark.timeout``, ``--timeout``). Its own ways to enforce it do
not suit here: a signal is SIGALRM, which tests use themselves. A thread cannot run where somebody holds the GIL, and
what it writes in a worker of xdist is lost. So the watchdog of `faulthandler` does it.
"""

from __future__ import annotations

import faulthandler
import os
from typing import Any

import pytest

_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.dup(2)  # while a test runs, pytest has a file there


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_stderr])
    del config.stash[_stderr]


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    if settings.method == "signal":  # chosen by hand, to see the rest of the run
        return None
    faulthandler.dump_traceback_later(settings.timeout, exit=True, file=item.config.stash[_stderr])
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    faulthandler.cancel_dump_traceback_later()
    return None
