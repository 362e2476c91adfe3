"""The implementations of redlatch: always the pure one, and the compiled one if it was built."""

from __future__ import annotations

import os

import pytest

from redlatch import impl


def builds() -> list[impl.Implementation]:
    """Return them, the pure one first. REDLATCH_BUILD_EXT=1 makes the compiled one required."""
    found = [impl.load("python")]
    try:
        found.append(impl.load("c"))
    except ImportError:
        if os.environ.get("REDLATCH_BUILD_EXT") == "1":
            raise
    return found


def implementation_named(name: str) -> impl.Implementation:
    """Load one implementation. Skip the test if the compiled one was not built.

    REDLATCH_BUILD_EXT=1 makes the compiled one required.
    """
    try:
        return impl.load(name)
    except ImportError:
        if os.environ.get("REDLATCH_BUILD_EXT") == "1":
            raise
        pytest.skip("the compiled implementation was not built")
