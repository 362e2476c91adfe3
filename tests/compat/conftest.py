"""What the tests of the drop-ins share: masters of their own, since the suites of others flush them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from redlatch import embedded


@pytest.fixture
def single_master() -> Iterator[Callable[[], str]]:
    """Start masters that nobody else uses."""
    with contextlib.ExitStack() as stack:

        def start() -> str:
            return stack.enter_context(embedded.masters(1))[0]

        yield start
