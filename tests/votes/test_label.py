"""The label of a token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from redlatch.votes.label import label_of, owner_of

RANDOM = b"0123456789abcdef" * 2


@given(owner=st.text(max_size=16), seconds=st.integers(0, 2**32 - 1))
def test_what_a_label_says_is_read_again(owner: str, seconds: int) -> None:
    shown = "".join([character if character.isprintable() else "?" for character in owner])
    assert owner_of(RANDOM + label_of(owner.encode("utf-8", "replace"), seconds)) == (shown, seconds)


def test_a_token_without_a_label_names_nobody() -> None:
    assert owner_of(RANDOM) == ("", 0)
    assert owner_of(b"somebody else's value") == ("", 0)
    assert owner_of(b"") == ("", 0)


def test_a_label_without_a_time_names_its_owner_only() -> None:
    assert owner_of(RANDOM + b":7f1c-of-a-task") == ("7f1c-of-a-task", 0)


def test_a_longer_label_of_another_tool_is_cut() -> None:
    assert owner_of(RANDOM + b":" + b"x" * 1000) == ("x" * 64, 0)


def test_what_a_terminal_would_obey_is_not_shown() -> None:
    assert owner_of(RANDOM + label_of(b"\x1b[31mred\xff", 1)) == ("?[31mred\ufffd", 1)
