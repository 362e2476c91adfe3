"""The options of clients, and the checks of arguments that several calls share."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from typing import Any
from unittest.mock import create_autospec

import pytest

import redlatch
from redlatch import ConfigurationError, sql
from redlatch.config import check_count, distinct, several
from redlatch.options import ClientOptions, owner_name
from redlatch.votes.label import LONGEST

CLIENTS = [redlatch.Client, redlatch.AsyncClient, sql.Client, sql.AsyncClient]


@pytest.mark.parametrize("client", CLIENTS)
def test_an_argument_that_does_not_exist_is_an_error_of_the_client(client: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{client.__name__}\.__init__\(\) got an unexpected keyword argument 'tll'"):
        client("redis://a", tll=1)
    with pytest.raises(TypeError, match=rf"^{client.__name__}\.__init__\(\) missing 1 required positional argument"):
        client()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_shows_its_options_with_their_defaults(client: Any) -> None:
    parameters = inspect.signature(client).parameters
    shown = {name: each.default for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}
    assert {"ttl": 10.0, "timeout": None, "on_lost": None, "refuse_late": False}.items() <= shown.items()
    assert not [each for each in parameters.values() if each.kind is each.VAR_KEYWORD]
    create_autospec(client)("redis://a", ttl=1)
    with pytest.raises(TypeError):
        create_autospec(client)("redis://a", tll=1)


def test_options_are_frozen_and_their_repr_has_no_password() -> None:
    options = ClientOptions("redis://:s3cr3t@a")
    assert "s3cr3t" not in repr(options)
    with pytest.raises(FrozenInstanceError):
        options.ttl = 5.0  # type: ignore[misc]


@pytest.mark.parametrize("given", [[1, 2], (1, 2), {1: "a", 2: "b"}, iter([1, 2]), range(1, 3)])
def test_any_iterable_becomes_a_list(given: Any) -> None:
    assert several("locks", given) == [1, 2]


def test_the_list_is_a_new_one() -> None:
    given = [1]
    assert several("locks", given) is not given


@pytest.mark.parametrize("given", ["name", b"name", 7, None, object()])
def test_one_name_or_no_iterable_is_refused_by_the_name_of_the_argument(given: Any) -> None:
    with pytest.raises(TypeError, match=f"^names: an iterable of names is needed, not {type(given).__name__}"):
        several("names", given)


def test_what_was_read_before_an_interrupt_is_in_the_list_of_the_caller() -> None:
    def names() -> Iterator[str]:
        yield "a"
        yield "b"
        raise KeyboardInterrupt

    drawn: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        several("names", names(), drawn)
    assert drawn == ["a", "b"]


@pytest.mark.parametrize("permits", [1, 1_000_000])
def test_a_semaphore_has_one_to_a_million_permits(permits: int) -> None:
    check_count("permits", permits, 1_000_000)


@pytest.mark.parametrize("permits", [0, -1, 1_000_001])
def test_any_other_number_of_permits_is_refused(permits: int) -> None:
    with pytest.raises(ConfigurationError, match=r"^permits: "):
        check_count("permits", permits, 1_000_000)


@pytest.mark.parametrize("permits", [True, 1.0, "1", None])
def test_permits_are_a_whole_number(permits: Any) -> None:
    with pytest.raises(TypeError, match=f"^permits: .*{type(permits).__name__}"):
        check_count("permits", permits, 1_000_000)


def test_every_client_asks_for_the_names_in_one_order() -> None:
    assert distinct(["b", "a", b"c"]) == distinct([b"c", "a", "b"]) == ["a", "b", b"c"]
    # The order is that of the keys, not that of the characters.
    assert distinct(["\U00010000", "\uffff"]) == ["\uffff", "\U00010000"]


def test_two_spellings_of_one_name_are_one_and_the_first_counts() -> None:
    assert distinct(["a", b"a", "a"]) == ["a"]
    assert distinct([b"a", "a"]) == [b"a"]


@pytest.mark.parametrize(
    ("names", "kind"), [([], ConfigurationError), ("ab", TypeError), (["a", 7], TypeError), (None, TypeError)]
)
def test_names_that_cannot_work_are_refused(names: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^names: "):
        distinct(names)


def test_an_owner_without_a_name_is_its_host_and_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert owner_name(None) == f"{socket.gethostname()}:{os.getpid()}"
    monkeypatch.setattr(socket, "gethostname", lambda: "ü" * 100)
    shortened = owner_name(None)
    assert len(shortened.encode()) <= LONGEST
    assert shortened.endswith(f":{os.getpid()}") and shortened.startswith("üü")


def test_a_name_is_taken_as_it_is_or_refused() -> None:
    assert owner_name("") == ""
    assert owner_name("x" * LONGEST) == "x" * LONGEST
    for wrong in ("x" * (LONGEST + 1), "a\nb", "\u202e", "\ud800"):
        with pytest.raises(ConfigurationError, match="can be printed"):
            owner_name(wrong)
