"""The implementations of redlatch: always the pure one, and the compiled one if it was built."""

from __future__ import annotations

import os

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
