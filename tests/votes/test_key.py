"""The key of a lock: which names and prefixes are accepted, and the bytes that they become."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot
from support.builds import implementation_named

from redlatch import ConfigurationError, impl
from redlatch.votes.kinds import ALL


@pytest.fixture(params=["c", "python"], scope="module")
def keys(request: pytest.FixtureRequest) -> ModuleType:
    """The module in each build in turn; it keeps no state between tests."""
    return implementation_named(request.param).module("votes.key")


@pytest.mark.parametrize(
    ("prefix", "name", "key"),
    [
        (b"", "a", b"a"),
        (b"", b"\xff\r\n", b"\xff\r\n"),
        (b"locks:", "größe", b"locks:gr\xc3\xb6\xc3\x9fe"),
        (b"locks:", b"x" * 506, b"locks:" + b"x" * 506),
        (b"", "ß" * 256, b"\xc3\x9f" * 256),
    ],
)
def test_a_key_is_the_prefix_and_the_bytes_of_the_name(keys: ModuleType, prefix: bytes, name: Any, key: bytes) -> None:
    assert keys.key_of(prefix, name) == key


@pytest.mark.parametrize(
    ("prefix", "name", "why"),
    [
        (b"locks:", "", "it is empty"),
        (b"", b"", "it is empty"),
        (b"", "a\0b", "contains a NUL"),
        (b"", b"a\0", "contains a NUL"),
        (b"", "\ud800", "UTF-8"),
        (b"", "x" * 513, "513 bytes"),
        (b"", "ß" * 257, "514 bytes"),
        (b"locks:", "x" * 507, "513 bytes"),
    ],
)
def test_a_name_that_cannot_be_a_key_is_refused_and_the_error_has_it(
    keys: ModuleType, prefix: bytes, name: Any, why: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^name: .*{why}") as caught:
        keys.key_of(prefix, name)
    assert caught.value.name == name


@pytest.mark.parametrize("name", [None, 7, bytearray(b"x"), ["x"]])
def test_a_name_is_str_or_bytes(keys: ModuleType, name: Any) -> None:
    with pytest.raises(TypeError, match=f"^name: .*{type(name).__name__}"):
        keys.key_of(b"", name)


SUFFIXES = sorted({suffix for kind in ALL for suffix in kind.suffixes if suffix})

# Bytes that decide about hash tags, and others.
NAMES = st.lists(st.sampled_from([b"{", b"}", b"a", b"7"]), min_size=1, max_size=8).map(b"".join)


@given(name=NAMES, suffix=st.sampled_from(SUFFIXES))
def test_a_derived_key_is_in_the_slot_of_the_lock_or_refused(keys: ModuleType, name: bytes, suffix: bytes) -> None:
    try:
        derived = keys.derived_key(name, suffix)
    except ConfigurationError as error:
        assert not keys.may_have_others(name)
        assert b"}" in name
        assert str(error).startswith("name: only a plain lock")
        return
    assert keys.may_have_others(name)
    assert key_slot(derived) == key_slot(name)
    assert len(derived) <= len(name) + keys.MAX_SUFFIX
    # A condition of a lock with derived keys has keys that derive from those.
    again = keys.derived_key(derived, suffix)
    assert key_slot(again) == key_slot(name)
    for each in (derived, again):
        with pytest.raises(ConfigurationError):
            keys.key_of(b"", each)
        assert keys.name_of(each)[0] == name
        assert keys.name_of(each)[1]


@given(names=st.sets(NAMES, min_size=2, max_size=2), suffix=st.sampled_from(SUFFIXES))
def test_no_derived_key_belongs_to_two_names(keys: ModuleType, names: set[bytes], suffix: bytes) -> None:
    derived = {keys.derived_key(name, suffix) for name in names if keys.may_have_others(name)}
    assert len(derived) == sum([keys.may_have_others(name) for name in names])


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (b"stock:7", (b"stock:7", b"")),
        (b"{stock:7}\0queue", (b"stock:7", b"\0queue")),
        (b"stock{7}\0\0queue", (b"stock{7}", b"\0queue")),
        # The keys of others.
        (b"\0guard", (b"\0guard", b"")),
        (b"{a}:b\0c", (b"{a}:b\0c", b"")),
    ],
)
def test_the_name_of_a_key_is_found(keys: ModuleType, key: bytes, found: tuple[bytes, bytes]) -> None:
    assert keys.name_of(key) == found


def test_the_longest_key_of_the_family_can_be_put_into_a_command(
    keys: ModuleType, implementation: impl.Implementation
) -> None:
    key = b"x" * (keys.MAX_BYTES + keys.MAX_SUFFIX)
    command = implementation.module("votes.commands").Acquire(key, b"token", 0, 1000)
    assert b"$576\r\n" + key in command.payload(0)


@pytest.mark.parametrize("key", [b"", b"\0", b"x" * 512])
def test_a_key_of_another_client_is_taken_as_it_is(keys: ModuleType, key: bytes) -> None:
    keys.key_as_it_is(key)


def test_a_key_of_another_client_that_is_too_long_is_refused(keys: ModuleType) -> None:
    with pytest.raises(ConfigurationError, match=r"^token: .* 512 bytes, not 513"):
        keys.key_as_it_is(b"x" * 513, "token")


@pytest.mark.parametrize(
    ("prefix", "raw"), [("", b""), ("ß:", b"\xc3\x9f:"), (b"\xff", b"\xff"), ("x" * 511, b"x" * 511)]
)
def test_a_prefix_may_be_str_or_bytes_and_leaves_room_for_a_name(keys: ModuleType, prefix: Any, raw: bytes) -> None:
    assert keys.prefix_of(prefix) == raw
    keys.key_of(raw, "x")


@pytest.mark.parametrize("prefix", ["x" * 512, "ß" * 256, b"a\0", "\udfff"])
def test_a_prefix_that_cannot_begin_a_key_is_refused(keys: ModuleType, prefix: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^prefix: "):
        keys.prefix_of(prefix)


@pytest.mark.parametrize("prefix", [None, 7, bytearray(b"x")])
def test_a_prefix_is_str_or_bytes(keys: ModuleType, prefix: Any) -> None:
    with pytest.raises(TypeError, match=f"^prefix: .*{type(prefix).__name__}"):
        keys.prefix_of(prefix)
