"""The fields that say whether a client may be used."""

from __future__ import annotations

from typing import Any

import pytest

from redlatch import impl


@pytest.fixture
def lifecycle(implementation: impl.Implementation) -> Any:
    return implementation.module("drivers.lifecycle").Lifecycle()


def test_a_new_client_may_be_used(lifecycle: Any) -> None:
    assert lifecycle.usable
    assert not (lifecycle.closing or lifecycle.closed or lifecycle.forked or lifecycle.undialled)


def test_a_client_that_retires_takes_no_new_calls_but_has_its_sockets(lifecycle: Any) -> None:
    lifecycle.retire()
    assert (lifecycle.usable, lifecycle.closing, lifecycle.closed, lifecycle.forked) == (False, True, False, False)


def test_the_client_of_a_forked_child_is_not_closed(lifecycle: Any) -> None:
    lifecycle.disown()
    assert (lifecycle.usable, lifecycle.closing, lifecycle.closed, lifecycle.forked) == (False, False, False, True)


def test_it_has_no_other_fields(lifecycle: Any) -> None:
    with pytest.raises(AttributeError):
        lifecycle.open = True
