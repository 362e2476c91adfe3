"""Rows 43 and 51: servers whose replies repeat secrets, and servers whose replies could forge log lines."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.faces import PATIENCE, Face, ask
from support.masters import SERVERS
from support.proxy import Proxy
from support.secrecy import Scanner
from support.selection import on_one_face

from redlatch import LockError, QuorumUnavailable
from redlatch.guard.marker import FINAL, Marker
from redlatch.masters.listed import masters_of
from redlatch.testing import embedded
from redlatch.votes.commands import pack
from redlatch.wire.dial.connect import dial

pytestmark = pytest.mark.one_loop

USER, PASSWORD = "s3cr3t-user", "s3cr3t-pw"


def without(*commands: Any, **config: Any) -> Any:
    """Return the configuration of a server that does not know some commands."""
    return config | {"rename-command": [f'{command} ""' for command in commands]}


def answer_of(url: Any, *words: Any) -> Any:
    """Return the raw reply of a server to a command."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), PATIENCE) as sock:
        sock.sendall(pack(*words))
        return sock.recv(4096)


def error_of(call: Any, *args: Any, **named: Any) -> Any:
    with pytest.raises(QuorumUnavailable) as caught:
        call(*args, **named)
    return caught.value


@pytest.fixture(autouse=True)
def nothing_leaks(secrecy: Scanner, caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """Search everything that a test logs or raises for secrets."""
    caplog.set_level(logging.DEBUG, "redlatch")
    before = len(secrecy.leaks)
    yield
    leaks = secrecy.leaks[before:]
    del secrecy.leaks[before:]
    assert not leaks


@pytest.mark.parametrize("login", [f"{USER}:{PASSWORD}", f":{PASSWORD}"], ids=["user and password", "password"])
def test_row_43_a_server_without_auth_repeats_no_credentials(
    login: str, connect: Face, server: str, name: str, caplog: pytest.LogCaptureFixture, secrecy: Scanner
) -> None:
    config = without("HELLO", "AUTH", user=f"{USER} on >{PASSWORD} ~* +@all")
    with embedded.masters(1, server=server, config=config) as [url]:
        url = f"redis://{login}@{url.rpartition('/')[2].rpartition('@')[2]}"
        # The server itself repeats the password.
        assert PASSWORD.encode() in answer_of(url, "AUTH", USER, PASSWORD)
        error = error_of(connect(url, guard=None).lock(name).acquire, blocking=False)
        [cause] = error.causes.values()
        assert "ERR unknown command 'AUTH'" in str(cause).replace("`", "'")
        assert "unknown command" in caplog.text
        with pytest.raises(Exception) as dialled:
            dial(masters_of(url)[0], PATIENCE)
        secrecy.look(f"{dialled.value!r} {dialled.value} {dialled.value.__context__!r}", "dial")
        assert "s3cr" not in caplog.text


def test_row_43_a_server_without_hello_is_used_and_repeats_no_credentials(
    connect: Face, server: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = without("HELLO", user=f"{USER} on >{PASSWORD} ~* +@all", requirepass=PASSWORD)
    with embedded.masters(1, server=server, config=config) as [url]:
        lock = connect(f"redis://{USER}:{PASSWORD}@{url.rpartition('/')[2].rpartition('@')[2]}").lock(name)
        assert lock.acquire(timeout=PATIENCE)
        lock.release()
    assert "s3cr" not in caplog.text


@pytest.mark.parametrize("fence", [False, True], ids=["SET", "EVALSHA"])
def test_row_43_a_server_without_the_commands_that_acquire_repeats_no_token(
    fence: bool, connect: Face, server: str, name: str, secrecy: Scanner
) -> None:
    # With WATCH it would lock without scripts.
    gone = ("EVAL", "EVALSHA", "WATCH") if fence else ("SET",)
    with embedded.masters(1, server=server, config=without(*gone)) as [url]:
        client = connect(url, guard=None)
        error = error_of(client.lock(name, fence=fence).acquire, blocking=False)
        [cause] = error.causes.values()
        assert f"unknown command '{gone[0]}'" in str(cause).replace("`", "'")


def test_row_43_a_server_without_scripts_repeats_no_token_of_a_held_lock(connect: Face, server: str, name: str) -> None:
    gone = ["EVAL", "EVALSHA", "WATCH", *(["DELIFEQ"] if server == SERVERS["valkey"] else [])]
    with embedded.masters(1, server=server, config=without(*gone)) as [url]:
        lock = connect(url, guard=None).lock(name)
        assert lock.acquire(blocking=False)
        for call in (lock.extend, lock.owned, lock.release):
            [cause] = error_of(call).causes.values()
            assert "unknown command 'EVAL'" in str(cause).replace("`", "'")


def test_row_43_an_error_still_names_a_missing_right(connect: Face, server: str, name: str) -> None:
    with embedded.masters(1, server=server) as [url]:
        with ask(url) as admin:
            admin.execute_command("ACL", "SETUSER", USER, "on", f">{PASSWORD}", "~*", "+@all", "-set")
        client = connect(url.replace("//", f"//{USER}:{PASSWORD}@"), guard=None)
        [cause] = error_of(client.lock(name).acquire, blocking=False).causes.values()
        assert "NOPERM" in str(cause) and "no permissions to run the 'set' command" in str(cause)


def test_row_43_an_error_of_a_script_repeats_none_of_its_arguments(connect: Face, server: str, name: str) -> None:
    """The key has a type that makes the release script fail."""
    with embedded.masters(1, server=server) as [url]:
        lock = connect(url).lock(name)
        assert lock.acquire(blocking=False)
        with ask(url) as other:
            other.delete(name)
            other.lpush(name, "x")
        [cause] = error_of(lock.release).causes.values()
        assert "WRONGTYPE" in str(cause) or "wrong kind of value" in str(cause)


# --- row 51: text that other parties wrote ----------------------------------------------------------------

FORGED = "x\n2026-11-22 CRITICAL all is lost\x1b[2J\u202edrawkcab"


def lines_of(caplog: Any) -> Any:
    """Return the messages that redlatch logged, without tracebacks."""
    return [record.getMessage() for record in caplog.records if record.name == "redlatch"]


def assert_harmless(texts: Any) -> None:
    for text in texts:
        assert text.isascii() and text.isprintable() and len(text) < 3000, text[:500]


@on_one_face("asyncio")
@pytest.mark.parametrize("size", [1, 1500], ids=["short", "long"])
def test_row_51_a_forged_marker_forges_no_line_of_a_log(
    size: int, connect: Face, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with embedded.masters(3) as urls:
        for place, url in enumerate(urls):
            others = [FORGED * size, *(["y"] * (place + 2))]
            marker = Marker("r", 1, 1, 0, 0, FINAL, True, 60000, False, False, FORGED, tuple(others), 10000)
            with ask(url) as server:
                server.set("\0guard", marker.text())
        client = connect(urls)
        with pytest.raises(LockError) as caught:
            client.lock(name).acquire(blocking=False)
    assert "masters for " in caplog.text
    assert_harmless([str(caught.value), *lines_of(caplog)])


def forging(field: Any, words: Any) -> Any:
    """Return a spoiler that replaces one field in replies to INFO."""

    def spoil(command: Any, reply: Any) -> Any:
        if command[:1] == (b"INFO",) and field in reply:
            _, _, rest = reply.partition(b"\r\n")
            lines = [
                field + words if line.startswith(field) else line for line in rest.removesuffix(b"\r\n").split(b"\r\n")
            ]
            text = b"\r\n".join(lines)
            return b"$%d\r\n%b\r\n" % (len(text), text)
        return reply

    return spoil


@pytest.mark.parametrize("field", ["role", "maxmemory_policy", "redis_version", "run_id"])
def test_row_51_a_field_of_info_forges_no_line_of_a_log(
    field: str,
    connect: Face,
    url: str,
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = FORGED.replace("\n", " ").encode() + b"\x00\x07" * 2000
    [proxy] = proxies([url])
    proxy.spoil = forging(field.encode() + b":", words + b"\r\nmaxmemory:100")
    texts = []
    try:
        connect(proxy.url, guard=None).lock(name).acquire(blocking=False)
    except LockError as error:
        texts = [str(error), *map(str, error.causes.values())]
    assert texts or field != "role"
    assert "eviction" in caplog.text or field != "maxmemory_policy"
    assert_harmless([*texts, *lines_of(caplog)])


@pytest.mark.parametrize("word", [b"HELLO", b"SET"])
def test_row_51_an_error_forges_no_line_of_a_log(
    word: bytes,
    connect: Face,
    url: str,
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    [proxy] = proxies([url])
    reply = b"-ODD " + FORGED.replace("\n", "\x0b").encode() * 500 + b"\r\n"
    proxy.spoil = lambda command, real: reply if command[0] == word else real
    error = error_of(connect(proxy.url, guard=None).lock(name).acquire, blocking=False)
    assert "ODD" in str(error)
    assert_harmless([str(error), *map(str, error.causes.values()), *lines_of(caplog)])
