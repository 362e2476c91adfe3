"""The tests' own proxy: without these tests, a proxy that makes no faults would let every fault test pass."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import pytest
import redis
from hiredis import Reader
from support.faces import await_true, in_thread
from support.masters import Keys
from support.proxy import Proxy, end_of

from redlatch.votes.commands import pack


def ask(proxy: Proxy) -> redis.Redis:
    return redis.Redis.from_url(proxy.url, socket_timeout=10, retry=None)


def test_a_proxy_passes_and_counts_commands(url: str, proxies: Callable[[list[str]], list[Proxy]], name: str) -> None:
    (proxy,) = proxies([url])
    with ask(proxy) as server:
        assert server.set(name, "x", px=60_000)
        assert server.get(name) == b"x"
    assert (proxy.count("SET", name), proxy.count("GET", name), proxy.count("DEL")) == (1, 1, 0)


def test_a_shut_gate_holds_replies_until_it_is_opened(
    url: str, proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    (proxy,) = proxies([url])
    with ask(proxy) as server:
        server.ping()
        proxy.replies.clear()
        answer = in_thread(server.set, name, "x", None, 60_000)
        await_true(lambda: bool(keys([url], name)))
        assert not answer.done()
        proxy.replies.set()
        assert answer.result(10)
        server.delete(name)


def test_a_shut_gate_holds_requests(
    url: str, proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    (proxy,) = proxies([url])
    with ask(proxy) as server:
        server.ping()
        proxy.requests.clear()
        answer = in_thread(server.set, name, "x", None, 60_000)
        await_true(lambda: proxy.count("SET", name) == 1)
        assert not keys([url], name)
        proxy.requests.set()
        assert answer.result(10)
        server.delete(name)


def test_a_reply_can_be_spoilt_or_cut_off(url: str, proxies: Callable[[list[str]], list[Proxy]], name: str) -> None:
    (proxy,) = proxies([url])
    with ask(proxy) as server:
        proxy.spoil = lambda command, reply: b":7\r\n" if command[0] == b"GET" else reply
        assert server.get(name) == 7
        proxy.spoil = lambda command, reply: None if command[0] == b"GET" else reply
        with pytest.raises(redis.ConnectionError):
            server.get(name)


@pytest.mark.parametrize("abrupt", [False, True])
def test_a_cut_ends_connections(abrupt: bool, url: str, proxies: Callable[[list[str]], list[Proxy]]) -> None:
    (proxy,) = proxies([url])
    with socket.create_connection(("127.0.0.1", proxy.port), 10) as client:
        client.sendall(b"*1\r\n$4\r\nPING\r\n")
        assert client.recv(64) == b"+PONG\r\n"
        proxy.cut(abrupt)
        with pytest.raises(ConnectionResetError) if abrupt else contextlib.nullcontext():
            assert client.recv(64) == b""


def test_crumbs_add_up_to_the_same_replies(url: str, proxies: Callable[[list[str]], list[Proxy]], name: str) -> None:
    (proxy,) = proxies([url])
    proxy.crumbs = True
    with ask(proxy) as server:
        assert server.set(name, "x", px=60_000)
        assert server.get(name) == b"x"


def test_pushes_can_be_held_and_sent_after_later_replies(
    url: str, proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    (proxy,) = proxies([url])
    reader = Reader()

    def tell(*words: str) -> object:
        client.sendall(pack(*words))
        while (message := reader.gets()) is False:
            reader.feed(client.recv(65536))
        return message

    with socket.create_connection(("127.0.0.1", proxy.port), 10) as client, ask(proxy) as other:
        tell("HELLO", "3")
        assert tell("CLIENT", "TRACKING", "ON") == b"OK"
        proxy.deaf = True
        tell("GET", name)
        other.set(name, "x", px=60_000)
        await_true(lambda: proxy.pushes)
        assert tell("PING") == b"PONG"
        proxy.deliver()
        reader.feed(client.recv(65536))
        assert reader.gets() == [b"invalidate", [name.encode()]]
        other.delete(name)


@pytest.mark.parametrize(
    "message", [b"+OK\r\n", b"$3\r\nabc\r\n", b"$-1\r\n", b"*2\r\n:1\r\n$1\r\na\r\n", b"%1\r\n+a\r\n*0\r\n", b"_\r\n"]
)
def test_the_end_of_a_message_is_found_and_not_too_early(message: bytes) -> None:
    assert end_of(message + b"+more") == len(message)
    assert [end_of(message[:cut]) for cut in range(len(message))] == [None] * len(message)


def test_an_answer_instead_of_the_masters_takes_its_place_among_the_replies(
    url: str, proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    (proxy,) = proxies([url])
    proxy.instead = lambda command: b"-TRYAGAIN\r\n" if command[0] == b"SET" else None
    with socket.create_connection(("127.0.0.1", proxy.port), 10) as sock:
        sock.sendall(pack(b"ECHO", b"a") + pack(b"SET", name, b"x", b"PX", 60_000) + pack(b"ECHO", b"b"))
        reader, replies = Reader(), list[object]()
        while len(replies) < 3:
            reader.feed(sock.recv(4096))
            while (reply := reader.gets()) is not False:
                replies.append(reply)
    assert [str(reply) for reply in replies] == ["b'a'", "TRYAGAIN", "b'b'"]
    assert not keys([url], name)
