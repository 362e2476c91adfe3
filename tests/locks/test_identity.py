"""The tokens of a client, and the name of its owner."""

from __future__ import annotations

import os
import socket
import time

import pytest

from redlatch.errors import ConfigurationError
from redlatch.locks.identity import draw_tokens, label_of_now, owner_name
from redlatch.votes.label import LONGEST, owner_of


def test_tokens_are_random_and_never_repeat() -> None:
    tokens = [*draw_tokens(), *draw_tokens()]
    assert len(set(tokens)) == len(tokens) == 200
    assert all(len(token) == 32 and bytes.fromhex(token.decode()) for token in tokens)


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


def test_the_label_of_now_has_the_second_and_the_owner() -> None:
    before = int(time.time())
    owner, second = owner_of(draw_tokens()[0] + label_of_now("web-1"))
    assert owner == "web-1"
    assert before <= second <= time.time()
