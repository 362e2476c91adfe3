"""Texts of servers in errors and logs: they contain nothing that a client sent, and no line breaks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redlatch.votes.redaction import LONGEST, redacted, redacted_login, shown
from redlatch.wire.server_traits import described

TOKEN = "0123456789abcdef" * 2
SHA = "8f2d2a3c" * 5


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"ERR unknown command 'SET', with args beginning with: 'n' '{TOKEN}' 'NX' ", "ERR unknown command 'SET'"),
        (f"ERR unknown command `EVALSHA`, with args beginning with: `{SHA}`, `1`, ", "ERR unknown command `EVALSHA`"),
        (f"ERR unknown command 'eval', with args beginning with: {TOKEN}", "ERR unknown command 'eval'"),
        (f"ERR unsupported command SET n {TOKEN}", "ERR unsupported command SET ..."),
        ("NOPERM User lk has no permissions to run the 'eval' command", None),
        ("NOPERM this user has no permissions to run the 'script|load' command or its subcommand", ""),
        ("NOPERM No permissions to access a key", ""),
        ("OOM command not allowed when used memory > 'maxmemory'.", ""),
        ("READONLY You can't write against a read only replica.", ""),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", ""),
        ("ERR max number of clients + cluster connections reached", ""),
        ("LOADING Valkey is loading the dataset in memory", ""),
        (
            f"ERR Error running script (call to f_{SHA}): @user_script:1: Unknown command called from script",
            "ERR Error running script (call to ... Unknown command called from script",
        ),
        ("MOVED 3999 127.0.0.1:6381", "MOVED ..."),
        ("NOVEL error of a server yet to come", "NOVEL error of a server yet to ..."),
        ("", ""),
    ],
)
def test_row_43_an_error_repeats_only_known_words_of_servers(text: str, told: str | None) -> None:
    assert redacted(text) == (text.replace("lk", "...") if told is None else told or text)


@given(
    st.sampled_from(
        ["ERR {}", "ERR unknown command '{}'", "{}", "-{}", "NOPERM '{}' command", "CODE a {} b", "ERR({})"]
    ),
    st.integers(0, 28),
    st.integers(4, 32),
    st.text("'\" ,:.-/|()[]`", max_size=3),
)
def test_row_43_no_part_of_a_token_is_repeated_wherever_it_is_cut(form: str, start: int, size: int, edge: str) -> None:
    part = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"[start : start + size]
    for text in (redacted(form.format(edge + part + edge)), redacted_login(form.format(edge + part + edge))):
        assert part not in text
        assert not any(part[place : place + 4] in text for place in range(len(part) - 3))


@given(st.text(min_size=1))
def test_row_43_a_login_error_repeats_no_password_whatever_it_is(password: str) -> None:
    echo = f"ERR unknown command 'AUTH', with args beginning with: '{password}'"
    assert redacted_login(echo) == "ERR unknown command 'AUTH'"
    assert redacted_login(f"ERR what is {password}") == "ERR (the rest is left out: it may repeat the credentials)"


@pytest.mark.parametrize("password", ["default", "redis", "no password is set", "command", "PASSWORD"])
def test_row_43_a_password_that_is_a_word_of_servers_is_not_repeated(password: str) -> None:
    for text in (f"ERR unknown command 'AUTH', with args beginning with: '{password}'", f"ERR what is {password}"):
        assert password not in redacted_login(text).replace("unknown command", "")


@pytest.mark.parametrize(
    "text",
    [
        "WRONGPASS invalid username-password pair or user is disabled",
        "NOAUTH Authentication required",
        "NOAUTH HELLO must be called with the client already authenticated",
        # redis-py cuts the code off.
        "HELLO must be called with the client already authenticated",
        "ERR max number of clients reached",
        "LOADING Redis is loading the dataset in memory",
    ],
)
def test_the_usual_login_errors_of_servers_are_repeated(text: str) -> None:
    assert redacted_login(f"{text}.") == text


def test_the_answer_to_a_client_without_a_password_is_one_sentence() -> None:
    kept = "NOAUTH HELLO must be called with the client already authenticated"
    rest = "otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select"
    assert redacted(f"{kept}, {rest} the RESP protocol version at the same time") == kept


def test_row_51_a_text_is_made_printable_and_is_cut() -> None:
    forged = "x\r\n2026-01-01 ERROR all is lost\x1b[2J\u202edrawkcab\u2066\x00\ud800\N{HEBREW LETTER ALEF}"
    assert shown(forged) == ("x\\r\\n2026-01-01 ERROR all is lost\\x1b[2J\\u202edrawkcab\\u2066\\x00\\ud800\\u05d0")
    assert shown("\x1b" * 90_000) == "\\x1b" * (LONGEST // 4) + "..."
    assert shown("a" * LONGEST) == "a" * LONGEST


@given(st.text())
def test_row_51_any_text_of_a_server_becomes_one_short_line_of_printable_ascii(text: str) -> None:
    for told in (shown(text), redacted(text), redacted_login(text), described(text.encode("utf-8", "replace"))):
        assert len(told) <= LONGEST + 5 and told.isascii() and (told.isprintable() or not told)
