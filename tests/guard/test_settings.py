"""The options of the guard."""

from __future__ import annotations

from typing import Any

import pytest

from redlatch import ConfigurationError, Guard


@pytest.mark.parametrize("max_ttl", [0, -1, float("nan"), float("inf"), 0.0001, 8 * 86_400])
def test_a_longest_ttl_that_cannot_work_is_refused(max_ttl: Any) -> None:
    with pytest.raises(ConfigurationError, match="guard: a max_ttl"):
        Guard(max_ttl=max_ttl)


@pytest.mark.parametrize(("name", "value"), [("max_ttl", "60"), ("max_ttl", True), ("trust_persistence", 1)])
def test_an_option_of_the_wrong_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"guard: {name}"):
        Guard(**{name: value})
