"""Which lists of masters are refused, and with what words."""

from __future__ import annotations

from typing import Any

import pytest

from redlatch.drivers.refusals import refuse_list, refuse_twin, twin_of
from redlatch.errors import MasterRefused
from redlatch.masters.listed import masters_of

MASTERS = masters_of(["redis://one", "redis://two", "redis://three"])


@pytest.mark.parametrize(
    ("known", "twin"), [({}, None), ({0: "a"}, 0), ({0: "b", 2: "a"}, 2), ({1: "a"}, None), ({0: "b"}, None)]
)
def test_two_masters_with_one_run_id_are_one_server(known: dict[int, str], twin: int | None) -> None:
    assert twin_of(1, "a", known, MASTERS) == twin


def test_two_databases_of_one_server_are_two_masters_where_that_is_wanted() -> None:
    masters = masters_of(["redis://one/1", "redis://one/2", "redis://two/2"], by_db=True)
    assert twin_of(0, "a", {1: "a"}, masters) is None
    assert twin_of(1, "a", {2: "a"}, masters) == 2


def test_a_twin_is_named() -> None:
    assert str(refuse_twin(1, 0, MASTERS)).startswith("two:6379 is the same server as masters[0] (one:6379)")


def test_the_error_of_a_list_names_the_master_once() -> None:
    assert str(refuse_list(1, MasterRefused("two:6379 is a replica"), MASTERS)) == "masters[1]: two:6379 is a replica"
    assert str(refuse_list(1, MasterRefused("no"), MASTERS)) == "masters[1] (two:6379): no"


class Named:
    """A master that is no element of a list."""

    address, listed_as = "postgresql://db/shop", "database"


def test_a_master_that_is_no_element_of_a_list_is_named_as_it_wishes() -> None:
    masters: list[Any] = [Named()]
    assert str(refuse_list(0, MasterRefused("no"), masters)) == "database (postgresql://db/shop): no"
    refused = MasterRefused("postgresql://db/shop has no table")
    assert str(refuse_list(0, refused, masters)) == "database: postgresql://db/shop has no table"
