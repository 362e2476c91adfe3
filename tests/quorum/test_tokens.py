"""The stock of tokens, and their labels."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from redlatch import impl

SECOND = 1_000_000_000


@pytest.fixture
def tokens_of(implementation: impl.Implementation) -> Callable[..., Any]:
    """Return a function that makes a stock of numbered tokens, drawn three at a time."""

    def make(label: Callable[[], bytes] | None = None) -> Any:
        numbers = itertools.count()
        draw = lambda: [b"%d" % number for number in itertools.islice(numbers, 3)]  # noqa: E731
        return implementation.module("quorum.tokens").Tokens(draw, label)

    return make


def test_no_token_is_taken_twice(tokens_of: Callable[..., Any]) -> None:
    tokens = tokens_of()
    taken = [tokens.take(0) for _ in range(10)] + [tokens.take_plain() for _ in range(10)]
    assert len(set(taken)) == 20


def test_a_client_keeps_its_own_token_which_has_no_label(tokens_of: Callable[..., Any]) -> None:
    tokens = tokens_of(lambda: b":label")
    mine = tokens.client_token()
    assert tokens.client_token() is mine
    assert mine.isdigit()
    assert mine not in [tokens.take_plain() for _ in range(10)]


def test_tokens_of_one_second_share_a_label(tokens_of: Callable[..., Any]) -> None:
    labels = (b":%d" % number for number in itertools.count())
    tokens = tokens_of(lambda: next(labels))
    times = [0, 1, SECOND - 1, SECOND, 2 * SECOND - 1, 5 * SECOND]
    assert [tokens.take(now).partition(b":")[2] for now in times] == [b"0", b"0", b"0", b"1", b"1", b"2"]
    assert b":" not in tokens.take_plain()
