"""Fixtures of the fault tests: a library that sets clocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from .clocks import compile_library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that sets clocks."""
    return compile_library(tmp_path_factory.mktemp("clock"))
