"""What a handshake learns about a server, how its errors are described, and the limits for its replies."""

from __future__ import annotations

import pytest
import redis.exceptions
from hypothesis import given
from hypothesis import strategies as st

from redlatch.errors import MasterRefused
from redlatch.votes.commands import BY_SHA, DELEX, DELIFEQ, FULL_TEXT
from redlatch.wire.server_traits import Limits, Traits, described, reply_error

TOKEN = "0123456789abcdef" * 2


def test_a_master_that_may_evict_locks_is_recognized() -> None:
    assert Traits({"maxmemory_policy": "volatile-lru", "maxmemory": "1000"}, 3).evicts == "volatile-lru"
    assert not Traits({"maxmemory_policy": "volatile-lru", "maxmemory": "0"}, 3).evicts
    assert not Traits({"maxmemory_policy": "noeviction", "maxmemory": "1000"}, 3).evicts
    assert not Traits({}, 3).evicts


@pytest.mark.parametrize(
    ("info", "version", "dialect"),
    [
        ({"redis_version": "6.2.14"}, (6, 2, 14), BY_SHA),
        ({"redis_version": "7.4.0"}, (7, 4, 0), BY_SHA),
        ({"redis_version": "8.3.9"}, (8, 3, 9), BY_SHA),
        ({"redis_version": "8.4.0"}, (8, 4, 0), DELEX),
        ({"redis_version": "10.0.0"}, (10, 0, 0), DELEX),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "8.1.0"}, (8, 1, 0), BY_SHA),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.0.0"}, (9, 0, 0), DELIFEQ),
        ({"redis_version": "255.255.255"}, (255, 255, 255), DELEX),
        ({"redis_version": "7.x-rc1"}, (7,), BY_SHA),
        ({"redis_version": "nonsense"}, (), BY_SHA),
        ({}, (), BY_SHA),
    ],
)
def test_the_version_decides_which_release_is_used(
    info: dict[str, str], version: tuple[int, ...], dialect: int
) -> None:
    traits = Traits(info, 3)
    assert (traits.version, traits.dialect) == (version, dialect)


@pytest.mark.parametrize(
    ("text", "lacks", "goes_on_with"),
    [
        ("NOSCRIPT No matching script", True, DELIFEQ),
        ("ERR unknown command 'DELIFEQ'", True, BY_SHA),
        ("NOPERM no permissions", True, BY_SHA),
        ("OOM command not allowed", False, BY_SHA),
        ("ERR syntax error", False, BY_SHA),
        ("WRONGTYPE Operation against a key", False, BY_SHA),
    ],
)
def test_the_error_decides_whether_the_full_text_is_sent(text: str, lacks: bool, goes_on_with: int) -> None:
    traits, error = Traits({}, 3), reply_error(text)
    assert traits.lacks(error) is lacks
    assert traits.downgrade(error, FULL_TEXT) == FULL_TEXT
    assert traits.downgrade(error, DELIFEQ) == goes_on_with


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("NOAUTH x", redis.exceptions.AuthenticationError),
        ("WRONGPASS x", redis.exceptions.AuthenticationError),
        ("NOPERM x", redis.exceptions.NoPermissionError),
        ("LOADING x", redis.exceptions.BusyLoadingError),
        ("READONLY x", redis.exceptions.ReadOnlyError),
        ("OOM x", redis.exceptions.OutOfMemoryError),
        ("NOSCRIPT x", redis.exceptions.NoScriptError),
        ("ERR x", redis.exceptions.ResponseError),
        ("", redis.exceptions.ResponseError),
    ],
)
def test_an_error_reply_becomes_redis_pys_exception(text: str, kind: type) -> None:
    error = reply_error(text)
    assert type(error) is kind
    # "x" is not among the words that are known to contain no secret.
    assert str(error) == text.replace("x", "...")


def test_a_login_error_repeats_fewer_words_than_other_errors() -> None:
    assert str(reply_error("ERR no default user")) == "ERR no default user"
    assert "default" not in str(reply_error("ERR no default user", login=True))


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (7, "7"),
        (None, "None"),
        (1.5, "1.5"),
        ([1], "list"),
        (b"QUEUED", "'QUEUED'"),
        (b"$32", "'$32'"),
        (b"$32\r\n" + TOKEN.encode(), "'$32'"),
        (bytearray(TOKEN[:19].encode()), "'...'"),
        (b"+" + b"f" * 32, "'...'"),
    ],
)
def test_row_43_an_unexpected_reply_is_described_without_its_text(reply: object, told: str) -> None:
    assert described(reply) == told


@given(st.lists(st.binary(max_size=20), max_size=5), st.integers(1, 8))
def test_strings_are_skipped_whatever_they_contain(texts: list[bytes], size: int) -> None:
    stream = b"".join([b"$%d\r\n%b\r\n" % (len(text), text) for text in [b"\r\n*9999999\r\n", *texts]])
    limits = Limits()
    for start in range(0, len(stream), size):
        limits.check(stream[start : start + size])
    with pytest.raises(MasterRefused):
        limits.check(b"*9999999\r\n")
