"""Blocking conversations with a server."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import redis.exceptions

from redlatch.errors import MasterRefused
from redlatch.votes.commands import pack
from redlatch.wire.dial.conversation import Conversation

PATIENCE = 10.0
Ends = tuple[Conversation, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    near, far = socket.socketpair()
    with near, far:
        yield Conversation(near, PATIENCE), far


def test_each_command_has_its_reply(ends: Ends) -> None:
    conversation, far = ends
    far.sendall(b"+PONG\r\n*2\r\n:1\r\n$1\r\nx\r\n")
    assert conversation.ask([pack("PING"), pack("ROLE")]) == [b"PONG", [1, b"x"]]
    assert far.recv(100) == pack("PING") + pack("ROLE")


def test_an_error_is_a_reply(ends: Ends) -> None:
    conversation, far = ends
    far.sendall(b"-READONLY no\r\n+OK\r\n")
    refused, fine = conversation.ask([pack("SET"), pack("GET")])
    assert isinstance(refused, redis.exceptions.ReadOnlyError) and fine == b"OK"


def test_the_error_of_a_login_repeats_no_word_of_it(ends: Ends) -> None:
    conversation, far = ends
    far.sendall(b"-ERR unknown command 'AUTH', with args beginning with: 'password'\r\n" * 2)
    first, second = conversation.ask([pack("AUTH"), pack("PING")], logins=1)
    assert "password" not in f"{first}{second}"


def test_a_closed_connection_is_an_error(ends: Ends) -> None:
    conversation, far = ends
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError, match="closed"):
        conversation.ask([pack("PING")])


def test_the_only_words_of_a_server_that_hangs_up_are_the_cause(ends: Ends) -> None:
    conversation, far = ends
    far.sendall(b"-ERR max number of clients reached\r\n")
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(redis.exceptions.ResponseError, match="max number of clients"):
        conversation.ask([pack("PING"), pack("PING")])


@pytest.mark.parametrize("answer", [b"hello\r\n", b"*99999999\r\n", b"$99999999\r\n"])
def test_what_is_no_answer_to_a_short_question_is_refused(ends: Ends, answer: bytes) -> None:
    conversation, far = ends
    far.sendall(answer)
    with pytest.raises(MasterRefused):
        conversation.ask([pack("PING")])


def test_more_than_was_asked_ends_the_connection(ends: Ends) -> None:
    conversation, far = ends
    far.sendall(b"+PONG\r\n+PONG\r\n")
    with pytest.raises(ConnectionResetError, match="more than"):
        conversation.ask([pack("PING")])


def test_a_silent_server_is_waited_for_only_until_the_time_is_over() -> None:
    near, far = socket.socketpair()
    with near, far, pytest.raises(TimeoutError):
        Conversation(near, 0.0).ask([pack("PING")])
