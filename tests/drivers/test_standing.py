"""The fields that say whether a client may be used."""

from __future__ import annotations

from typing import Any

import pytest

from redlatch import impl


@pytest.fixture
def standing(implementation: impl.Implementation) -> Any:
    return implementation.module("drivers.standing").Standing()


def test_a_new_client_may_be_used(standing: Any) -> None:
    assert standing.usable
    assert not (standing.closing or standing.closed or standing.forked or standing.undialled)


def test_a_client_that_retires_takes_no_new_calls_but_has_its_sockets(standing: Any) -> None:
    standing.retire()
    assert (standing.usable, standing.closing, standing.closed, standing.forked) == (False, True, False, False)


def test_the_client_of_a_forked_child_is_not_closed(standing: Any) -> None:
    standing.disown()
    assert (standing.usable, standing.closing, standing.closed, standing.forked) == (False, False, False, True)


def test_it_has_no_other_fields(standing: Any) -> None:
    with pytest.raises(AttributeError):
        standing.open = True
