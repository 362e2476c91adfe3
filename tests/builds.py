"""Which implementations of redlatch there are here: the pure one always, the compiled one where it was built."""

from __future__ import annotations

import os

from redlatch import impl


def builds() -> list[impl.Implementation]:
    """Return them, the pure one first; the compiled one must be there where REDLATCH_BUILD_EXT=1 says so."""
    found = [impl.load("python")]
    try:
        found.append(impl.load("c"))
    except ImportError:
        if os.environ.get("REDLATCH_BUILD_EXT") == "1":
            raise
    return found
