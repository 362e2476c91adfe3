"""The bytes of every command, read back by a real parser, and the vote that each reply is."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hiredis import Reader
from hypothesis import given
from hypothesis import strategies as st
from support.builds import implementation_named

from redlatch import impl
from redlatch.votes import scripts

FULL_TEXT, BY_SHA, DELIFEQ, DELEX = DIALECTS = range(4)
HOSTILE = b"a\r\n*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$1\r\ny\r\n"

raw = st.binary(min_size=1, max_size=600) | st.just(HOSTILE)
dialects = st.sampled_from(DIALECTS)


@pytest.fixture(params=["c", "python"], scope="module")
def commands(request: pytest.FixtureRequest) -> ModuleType:
    """The module in each build in turn; it keeps no state between tests."""
    return implementation_named(request.param).module("votes.commands")


def words(payload: bytes) -> list[bytes]:
    """Parse a payload that must be exactly one command."""
    reader = Reader()
    reader.feed(payload)
    command = reader.gets()
    assert reader.gets() is False, "there is a second command behind it"
    assert not reader.has_data()
    assert isinstance(command, list) and all(isinstance(word, bytes) for word in command)
    return command


def called(script: scripts.Script, dialect: int) -> list[bytes]:
    keys = b"%d" % script.keys
    return [b"EVAL", script.text, keys] if dialect == FULL_TEXT else [b"EVALSHA", script.sha, keys]


@given(key=raw, token=raw, ttl_ms=st.integers(1, 100 * 365 * 86_400_000), dialect=dialects)
def test_acquire_is_one_set_with_nx_and_a_ttl(
    commands: ModuleType, key: bytes, token: bytes, ttl_ms: int, dialect: int
) -> None:
    command = commands.Acquire(key, token, 5, ttl_ms)
    assert words(command.payload(dialect)) == [b"SET", key, token, b"NX", b"PX", b"%d" % ttl_ms]


@given(key=raw, token=raw)
def test_release_is_delifeq_where_the_server_has_it(commands: ModuleType, key: bytes, token: bytes) -> None:
    assert words(commands.Release(key, token, 5).payload(DELIFEQ)) == [b"DELIFEQ", key, token]


@given(key=raw, token=raw)
def test_release_is_delex_where_the_server_has_it(commands: ModuleType, key: bytes, token: bytes) -> None:
    assert words(commands.Release(key, token, 5).payload(DELEX)) == [b"DELEX", key, b"IFEQ", token]


@given(key=raw, token=raw, dialect=st.sampled_from([FULL_TEXT, BY_SHA]))
def test_release_is_the_script_elsewhere(commands: ModuleType, key: bytes, token: bytes, dialect: int) -> None:
    assert words(commands.Release(key, token, 5).payload(dialect)) == [*called(scripts.RELEASE, dialect), key, token]


@given(key=raw, token=raw, ttl_ms=st.integers(1, 10**12), dialect=dialects)
def test_extend_is_the_script_in_every_dialect(
    commands: ModuleType, key: bytes, token: bytes, ttl_ms: int, dialect: int
) -> None:
    command = commands.Extend(key, token, 5, ttl_ms)
    assert words(command.payload(dialect)) == [*called(scripts.EXTEND, dialect), key, token, b"%d" % ttl_ms]


@given(key=raw, token=raw, dialect=dialects)
def test_owned_is_the_script_in_every_dialect(commands: ModuleType, key: bytes, token: bytes, dialect: int) -> None:
    assert words(commands.Owned(key, token, 5).payload(dialect)) == [*called(scripts.OWNED, dialect), key, token]


@given(key=raw, dialect=dialects)
def test_locked_is_the_script_in_every_dialect_and_names_no_token(
    commands: ModuleType, key: bytes, dialect: int
) -> None:
    assert words(commands.Locked(key, b"", 0).payload(dialect)) == [*called(scripts.LOCKED, dialect), key]


@pytest.mark.parametrize("numbered", [False, True])
@given(key=raw, dialect=dialects)
def test_the_question_for_the_holder_names_the_counter_only_of_a_numbered_lock(
    commands: ModuleType, numbered: bool, key: bytes, dialect: int
) -> None:
    counter = key + b"\0fence" if numbered else key
    asked = words(commands.AskHolder(key, counter).payload(dialect))
    assert asked == [*called(scripts.HOLDER, dialect), key, counter]


def test_the_answer_about_the_holder_is_read_whole_or_not_at_all(commands: ModuleType) -> None:
    assert commands.read_holder(b"9999 17 a token: of words") == (b"a token: of words", 9999, 17)
    assert commands.read_holder(b"-1 0 ") == (b"", -1, 0)
    for malformed in (b"", b"9999", b"9999 0", b"x 0 token", b"1 x token", b"1 -2 token", b"-- 0 token"):
        assert commands.read_holder(malformed) is None, malformed


@given(parts=st.lists(st.binary(max_size=50) | st.just(HOSTILE), min_size=1, max_size=8))
def test_no_word_can_inject_another(commands: ModuleType, parts: list[bytes]) -> None:
    assert words(commands.pack(*parts)) == parts


def test_words_may_be_text_and_numbers_too(commands: ModuleType) -> None:
    assert words(commands.pack("HELLO", 3, b"x", "ü")) == [b"HELLO", b"3", b"x", "ü".encode()]


def made(commands: ModuleType) -> dict[str, Any]:
    key, token = b"the-key", b"the-token"
    return {
        "Acquire": commands.Acquire(key, token, 77, 1000),
        "Release": commands.Release(key, token, 77),
        "Extend": commands.Extend(key, token, 77, 1000),
        "Owned": commands.Owned(key, token, 77),
        "Locked": commands.Locked(key, token, 77),
    }


@pytest.mark.parametrize(
    ("name", "yes", "no"),
    [("Acquire", b"OK", None), ("Release", 1, 0), ("Extend", 1, 0), ("Owned", 1, 0), ("Locked", 1, 0)],
)
def test_the_replies_that_are_votes(commands: ModuleType, name: str, yes: object, no: object) -> None:
    command = made(commands)[name]
    assert (command.yes, command.no) == (yes, no)


def test_only_a_release_must_not_be_forgotten(commands: ModuleType) -> None:
    assert {name for name, command in made(commands).items() if command.releases} == {"Release"}


def test_a_command_knows_its_key_its_token_and_since_when_the_token_is_known(commands: ModuleType) -> None:
    for command in made(commands).values():
        assert (command.key, command.token, command.since_ns) == (b"the-key", b"the-token", 77)


def test_the_repr_of_a_command_does_not_show_the_token(commands: ModuleType) -> None:
    for name, command in made(commands).items():
        assert name in repr(command) and "the-key" in repr(command)
        assert "the-token" not in repr(command)


def test_a_command_without_words_cannot_be_sent(commands: ModuleType) -> None:
    with pytest.raises(NotImplementedError):
        commands.Command(b"k", b"t", 0).payload(FULL_TEXT)


def test_the_full_text_is_dialect_0_as_the_engine_has_it(commands: ModuleType) -> None:
    assert (commands.FULL_TEXT, commands.BY_SHA, commands.DELIFEQ, commands.DELEX) == tuple(DIALECTS)
    engine = impl.load("c" if commands.__name__.startswith("redlatch._c") else "python").module("wire.engine.fleet")
    assert engine.FULL_TEXT == commands.FULL_TEXT
