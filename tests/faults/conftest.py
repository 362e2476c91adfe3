"""Fixtures of the fault tests: masters that they may break."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redlatch.testing import embedded

from .clocks import compile_library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that sets clocks."""
    return compile_library(tmp_path_factory.mktemp("clock"))


@pytest.fixture
def fleet() -> Iterator[Callable[..., embedded.Masters]]:
    """Start masters that the test may break."""
    with contextlib.ExitStack() as stack:

        def start(count: int = 3, **options: Any) -> embedded.Masters:
            fleet = embedded.masters(count, **options)
            stack.enter_context(fleet)
            return fleet

        yield start
