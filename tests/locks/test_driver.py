"""The seam between locks and drivers: each driver has what the locks call, in both builds."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from redlatch import AsyncClient, Client, impl
from redlatch.locks import driver


def calls_of(protocol: type) -> dict[str, Any]:
    """Return the members of a protocol, with those of its bases."""
    return {
        name: member
        for base in reversed(protocol.__mro__)
        if base.__module__ == driver.__name__
        for name, member in [*vars(base).items(), *base.__annotations__.items()]
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("client", "protocol"), [(Client, driver.ThreadDriver), (AsyncClient, driver.TaskDriver)])
def test_a_driver_has_the_calls_of_its_protocol_with_the_same_arguments(
    implementation: impl.Implementation, client: Any, protocol: type
) -> None:
    made = client("redis://localhost:6379")._driver
    calls = calls_of(protocol)
    assert {"run", "send", "status"} <= set(calls) and len(calls) <= 10
    for name, member in calls.items():
        found = getattr(made, name)
        if inspect.isfunction(member):
            _, *wanted = inspect.signature(member).parameters.values()
            given = inspect.signature(found).parameters.values()
            assert [(each.name, each.default) for each in wanted] == [(each.name, each.default) for each in given], name
