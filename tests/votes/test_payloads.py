"""The commands that are written twice: in both builds they are what a real parser reads, and the same bytes."""

from __future__ import annotations

import pytest
from hiredis import Reader
from hypothesis import given
from hypothesis import strategies as st
from support.builds import implementation_named

from redlatch.votes import payloads

raw = st.binary(max_size=1200)
ttls = st.integers(1, (1 << 62) - 1)


@pytest.fixture(params=["c", "python"], scope="module")
def module(request: pytest.FixtureRequest) -> object:
    return implementation_named(request.param).module("votes.payloads")


def words(payload: bytes) -> object:
    """Parse a payload that must be exactly one command."""
    reader = Reader()
    reader.feed(payload)
    command = reader.gets()
    assert not reader.has_data()
    return command


@given(key=raw, token=raw, many=st.lists(ttls, min_size=1, max_size=4))
def test_set_names_its_own_ttl_whatever_came_before(module: object, key: bytes, token: bytes, many: list[int]) -> None:
    for ttl_ms in many:
        made = module.set_nx(key, token, ttl_ms)  # type: ignore[attr-defined]
        assert words(made) == [b"SET", key, token, b"NX", b"PX", b"%d" % ttl_ms]
        assert made == payloads.set_nx(key, token, ttl_ms)


@given(key=raw, token=raw)
def test_the_commands_that_compare_and_delete(module: object, key: bytes, token: bytes) -> None:
    made = module.delifeq(key, token), module.delex(key, token)  # type: ignore[attr-defined]
    assert [words(each) for each in made] == [[b"DELIFEQ", key, token], [b"DELEX", key, b"IFEQ", token]]
    assert made == (payloads.delifeq(key, token), payloads.delex(key, token))


@given(arguments=st.lists(raw, min_size=1, max_size=5))
def test_strings_have_their_lengths_before_them(module: object, arguments: list[bytes]) -> None:
    made = module.strings(b"*%d\r\n$4\r\nEVAL\r\n" % (1 + len(arguments)), arguments)  # type: ignore[attr-defined]
    assert words(made) == [b"EVAL", *arguments]


@given(number=st.integers(0, (1 << 64) - 1))
def test_digits_are_decimal(module: object, number: int) -> None:
    assert module.digits(number) == b"%d" % number  # type: ignore[attr-defined]


@pytest.mark.parametrize("wrong", [None, "text", 7])
def test_anything_but_bytes_is_refused(wrong: object) -> None:
    module = implementation_named("c").module("votes.payloads")
    for call in (module.delifeq, module.delex):
        with pytest.raises(TypeError):
            call(wrong, b"token")
        with pytest.raises(TypeError):
            call(b"key", wrong)
    with pytest.raises(TypeError):
        module.strings(b"*2\r\n", [b"key", wrong])
    with pytest.raises(TypeError):
        module.strings(wrong, [b"key"])
    with pytest.raises(TypeError):
        module.digits(str(wrong))


@given(first=raw, second=raw)
def test_two_strings_are_joined(module: object, first: bytes, second: bytes) -> None:
    assert module.joined(first, second) == first + second  # type: ignore[attr-defined]
