"""The fixture of this folder: each face in turn, on each build."""

from __future__ import annotations

import pytest

from redlatch import impl
from testing.both import FACES, Both


@pytest.fixture(params=FACES)
def both(request: pytest.FixtureRequest, implementation: impl.Implementation) -> Both:
    """Return each face in turn, on each build."""
    return Both(request.param)
