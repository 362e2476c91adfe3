"""Bytes to replies and pushes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hiredis import ProtocolError, Reader

from redlatch import impl

KEY = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nkey\r\n"
ALL = b">2\r\n$10\r\ninvalidate\r\n_\r\n"


@pytest.fixture
def replies(implementation: impl.Implementation) -> ModuleType:
    return implementation.module("wire.engine.replies")


def reader(replies: ModuleType) -> Any:
    return Reader(notEnoughData=replies.NOTHING)


@pytest.mark.parametrize(("line", "reply"), [(b"+PONG\r", b"PONG"), (b":-2\r", -2), (b"_\r", None), (b"#t\r", True)])
def test_a_line_is_a_reply(replies: ModuleType, line: bytes, reply: object) -> None:
    assert replies.parse_line(reader(replies), line) == reply


@pytest.mark.parametrize("line", [b"$5\r", b"*2\r", b"%1\r", b"~3\r", b"what\r", b"+no end"])
def test_a_line_with_a_length_or_of_no_type_is_no_reply(replies: ModuleType, line: bytes) -> None:
    assert type(replies.parse_line(reader(replies), line)) is bytearray


def test_what_the_parser_refuses_is_an_exception(replies: ModuleType) -> None:
    with pytest.raises(ProtocolError):
        replies.parse_line(reader(replies), b":many\r")


@pytest.mark.parametrize(("push", "key"), [(KEY, b"key"), (ALL, None), (ALL.replace(b"_", b"*-1"), None)])
def test_a_push_names_a_key_or_all_keys_once_it_is_complete(
    replies: ModuleType, push: bytes, key: bytes | None
) -> None:
    assert replies.read_push(b":1\r\n" + push + b":0\r\n", 4) == (4 + len(push), key)
    for cut in range(1, len(push)):
        assert replies.read_push(b":1\r\n" + push[:cut], 4) == (4, None)


@pytest.mark.parametrize(
    "push",
    [
        KEY.replace(b"invalidate", b"invalidata"),
        KEY.replace(b"$3\r\nkey", b"$2\r\nkey"),
        KEY.replace(b"$3", b"$999"),
        KEY.replace(b"*1", b"*2"),
    ],
)
def test_any_other_push_is_refused(replies: ModuleType, push: bytes) -> None:
    assert replies.read_push(push, 0) is None


def test_bytes_without_an_end_of_line_begin_a_reply_unless_they_are_too_many(replies: ModuleType) -> None:
    assert replies.begins_line(b"-ERR") and replies.begins_line(b"+" + b"x" * (replies.MAX_LINE - 1))
    assert not replies.begins_line(b"hello") and not replies.begins_line(b"+" + b"x" * replies.MAX_LINE)
