"""Blocking conversations with a server."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import redis.exceptions

from redlatch.errors import MasterRefused
from redlatch.votes.commands import pack
from redlatch.wire.dial.conversation import Talk

PATIENCE = 10.0


@pytest.fixture
def ends() -> Iterator[tuple[Talk, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield Talk(near, PATIENCE), far


def test_each_command_has_its_reply(ends: tuple[Talk, socket.socket]) -> None:
    talk, far = ends
    far.sendall(b"+PONG\r\n*2\r\n:1\r\n$1\r\nx\r\n")
    assert talk.ask([pack("PING"), pack("ROLE")]) == [b"PONG", [1, b"x"]]
    assert far.recv(100) == pack("PING") + pack("ROLE")


def test_an_error_is_a_reply(ends: tuple[Talk, socket.socket]) -> None:
    talk, far = ends
    far.sendall(b"-READONLY no\r\n+OK\r\n")
    refused, fine = talk.ask([pack("SET"), pack("GET")])
    assert isinstance(refused, redis.exceptions.ReadOnlyError) and fine == b"OK"


def test_the_error_of_a_login_repeats_no_word_of_it(ends: tuple[Talk, socket.socket]) -> None:
    talk, far = ends
    far.sendall(b"-ERR unknown command 'AUTH', with args beginning with: 'password'\r\n" * 2)
    first, second = talk.ask([pack("AUTH"), pack("PING")], logins=1)
    assert "password" not in f"{first}{second}"


def test_a_closed_connection_is_an_error(ends: tuple[Talk, socket.socket]) -> None:
    talk, far = ends
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError, match="closed"):
        talk.ask([pack("PING")])


def test_the_only_words_of_a_server_that_hangs_up_are_the_cause(ends: tuple[Talk, socket.socket]) -> None:
    talk, far = ends
    far.sendall(b"-ERR max number of clients reached\r\n")
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(redis.exceptions.ResponseError, match="max number of clients"):
        talk.ask([pack("PING"), pack("PING")])


@pytest.mark.parametrize("answer", [b"hello\r\n", b"*99999999\r\n", b"$99999999\r\n"])
def test_what_is_no_answer_to_a_short_question_is_refused(ends: tuple[Talk, socket.socket], answer: bytes) -> None:
    talk, far = ends
    far.sendall(answer)
    with pytest.raises(MasterRefused):
        talk.ask([pack("PING")])


def test_more_than_was_asked_ends_the_connection(ends: tuple[Talk, socket.socket]) -> None:
    talk, far = ends
    far.sendall(b"+PONG\r\n+PONG\r\n")
    with pytest.raises(ConnectionResetError, match="more than"):
        talk.ask([pack("PING")])


def test_a_silent_server_is_waited_for_only_until_the_time_is_over() -> None:
    near, far = socket.socketpair()
    with near, far, pytest.raises(TimeoutError):
        Talk(near, 0.0).ask([pack("PING")])
