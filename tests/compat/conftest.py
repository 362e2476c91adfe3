"""Fixtures of the drop-ins' tests: masters of their own, because the suites of the originals flush them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from redlatch.testing import embedded


@pytest.fixture
def single_master() -> Iterator[Callable[[], str]]:
    """Start masters that no other test uses."""
    with contextlib.ExitStack() as stack:

        def start() -> str:
            return stack.enter_context(embedded.masters(1))[0]

        yield start
