"""A fixture of all tests of simulated tasks."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_garbage() -> Iterator[None]:
    """Collect the clients of a schedule here, some of them killed, and not in a test that looks at garbage."""
    yield
    gc.collect()
