"""The time limit of every test: when it expires, the process writes the stacks of all its threads and exits.

pytest-timeout provides the limit (pyproject.toml, ``@pytest.mark.timeout``, ``--timeout``). Its methods to enforce it
do not suit these tests. The signal method uses SIGALRM, which tests use themselves. The thread method cannot run while
another thread holds the GIL, and its output is lost in a worker of xdist. So `faulthandler` enforces the limit.
"""

from __future__ import annotations

import faulthandler
import os
from typing import Any

import pytest

_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    # pytest redirects it to a file while a test runs.
    config.stash[_stderr] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_stderr])
    del config.stash[_stderr]


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    # The command line chose this method, so the run continues after a timeout.
    if settings.method == "signal":
        return None
    faulthandler.dump_traceback_later(settings.timeout, exit=True, file=item.config.stash[_stderr])
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    faulthandler.cancel_dump_traceback_later()
    return None
