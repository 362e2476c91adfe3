"""Dialling: how a client treats masters that answer correctly, wrongly, too much or not at all."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis.exceptions
from hiredis import Reader
from support.dialling import PATIENCE, dialled, master_of, refusal
from support.scripted import scripted

from redlatch.errors import MasterRefused
from redlatch.guard.handshake import GuardHandshake
from redlatch.guard.marker import MarkerWrite
from redlatch.votes.commands import pack
from redlatch.votes.scripts import MARK
from redlatch.wire.dial import scripting
from redlatch.wire.dial.connect import HandshakeExtension, dial
from redlatch.wire.engine.net import now_ns

PASSWORD = "s3cr3tpw"


def bulk(*lines: str) -> bytes:
    text = "".join(f"{line}\r\n" for line in lines).encode()
    return b"$%d\r\n%b\r\n" % (len(text), text)


def honest(command: list[bytes], **changes: bytes) -> bytes:
    """Answer the handshake as a server does, except for the `changes` by a command's first or second word."""
    word = command[0].decode()
    about = command[1].decode() if len(command) > 1 else ""
    for key in (f"{word}_{about}", word):
        if key in changes:
            return changes[key]
    if word == "INFO" and about == "server":
        return bulk("# Server", "redis_version:7.2.4", "run_id:" + "a" * 40)
    if word == "INFO" and about == "replication":
        return bulk("# Replication", "role:master")
    if word == "INFO":
        return bulk("# Something else")
    if word == "TIME":
        return b"*2\r\n$10\r\n1800000000\r\n$2\r\n17\r\n"
    if word == "GET":
        return b"_\r\n"
    return b"%0\r\n" if word == "HELLO" else b"+OK\r\n"


def honest_with(**changes: bytes) -> Callable[[list[bytes]], bytes]:
    """Return a server that answers correctly except for the changes."""
    return lambda command: honest(command, **changes)


def test_the_scripted_server_is_accepted_while_it_answers_correctly() -> None:
    with scripted(honest) as url, dialled(url) as connection:
        assert connection.traits.version == (7, 2, 4)


@pytest.mark.parametrize(
    ("extension", "given"),
    [
        (None, []),
        (GuardHandshake(b"\0guard"), [b"INFO persistence", b"GET \0guard", b"TIME", b"CONFIG GET"]),
        (
            GuardHandshake(b"\0guard", write=MarkerWrite(b"", b"new", 7, 0)),
            [b"INFO persistence", b"EVAL " + MARK.text, b"GET \0guard", b"TIME", b"CONFIG GET"],
        ),
    ],
    ids=["no guard", "guard", "marker to write"],
)
def test_the_whole_introduction_leaves_in_one_round_trip(
    extension: HandshakeExtension | None, given: list[bytes]
) -> None:
    last = [b"CONFIG", b"GET"] if given else [b"EVAL", b"return 1"]
    persistence = len(given[:1])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        failures: list[BaseException] = []

        def client() -> None:
            failures.append(refusal("redis://{}:{}/1".format(*listener.getsockname()), extension))

        thread = threading.Thread(target=client)
        thread.start()
        sock, _ = listener.accept()
        with sock:
            sock.settimeout(PATIENCE)
            reader, words = Reader(), []
            while last not in words:
                reader.feed(sock.recv(65536))
                while (command := reader.gets()) is not False:
                    words.append(command[:2])
        thread.join()
    assert [b" ".join(each) for each in words] == [
        b"HELLO 3",
        b"SELECT 1",
        b"CLIENT SETNAME",
        b"CLIENT TRACKING",
        b"CLIENT CACHING",
        b"INFO server",
        b"INFO replication",
        b"INFO cluster",
        b"INFO memory",
        *given[:persistence],
        *[b"SCRIPT LOAD"] * len(scripting.SCRIPTS),
        b"EVAL return 1",
        *given[persistence:],
    ]
    assert isinstance(failures[0], ConnectionResetError)


@pytest.mark.parametrize("at", ["HELLO", "SCRIPT", "INFO_server"])
def test_a_server_that_loads_its_data_is_no_master_yet(at: str) -> None:
    loading = b"-LOADING the dataset is in memory soon\r\n"
    with scripted(lambda command: honest(command, **{at: loading})) as url:
        assert isinstance(refusal(url), redis.exceptions.BusyLoadingError)


def test_an_unknown_error_to_hello_is_that_error() -> None:
    with scripted(lambda command: honest(command, HELLO=b"-NOPERM not for you\r\n")) as url:
        assert isinstance(refusal(url), redis.exceptions.NoPermissionError)


@pytest.mark.parametrize("hello", [b"-NOPROTO unsupported protocol version\r\n", b"-ERR unknown command 'HELLO'\r\n"])
def test_hello_that_is_refused_is_followed_by_resp2(hello: bytes) -> None:
    with scripted(lambda command: honest(command, HELLO=hello)) as url, dialled(url) as connection:
        assert connection.traits.protocol == 2


@pytest.mark.parametrize(
    "garbage",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\1\2\3\r\n", b"$-7\r\n", b":x\r\n"],
)
def test_garbage_is_refused_as_no_answer_of_a_server(garbage: bytes) -> None:
    with scripted(lambda command: garbage) as url:
        error = refusal(url)
    assert isinstance(error, MasterRefused)
    assert "no RESP" in str(error)


def test_a_server_that_closes_is_a_broken_connection() -> None:
    with scripted(lambda command: b"") as url:
        assert isinstance(refusal(url), ConnectionError)


def test_a_silent_server_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert isinstance(refusal("redis://{}:{}".format(*listener.getsockname()), timeout=0.05), TimeoutError)


def test_a_flood_of_bytes_is_refused() -> None:
    flood = b"+" + b"x" * 400_000
    with scripted(lambda command: flood) as url:
        error = refusal(url)
    assert isinstance(error, MasterRefused)
    assert "131072 bytes" in str(error)


@pytest.mark.parametrize("kind", [b"*", b"%", b"~", b">", b"|", b"$", b"=", b"!"])
@pytest.mark.parametrize("number", [b"1000000000", b"4294967295", b"9" * 30, b"200000"])
def test_no_memory_is_reserved_for_an_announced_length(kind: bytes, number: bytes) -> None:
    with scripted(lambda command: kind + number + b"\r\n") as url:
        # The first thread of a process uses as much memory as this test allows.
        refusal(url)
        before = virtual_bytes()
        error = refusal(url)
    assert isinstance(error, MasterRefused)
    assert "in answer to the handshake" in str(error)
    assert virtual_bytes() - before < 64 << 20


def virtual_bytes() -> int:
    """Return the most virtual memory that this process ever had; 0 on systems that do not report it."""
    if sys.platform != "linux":
        return 0
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmPeak")]
    return int(line.split()[1]) << 10


def test_repeatedly_announced_elements_are_counted_together() -> None:
    with scripted(lambda command: b"*200\r\n" * 100) as url:
        assert "4096 elements" in str(refusal(url))


def test_a_port_without_a_listener_is_a_refused_connection() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        error = refusal("redis://{}:{}".format(*nobody.getsockname()))
    assert isinstance(error, (ConnectionRefusedError, redis.exceptions.ConnectionError))


@pytest.mark.parametrize("info", [b":5\r\n", b"*0\r\n", b"_\r\n", b"#t\r\n"])
def test_an_info_that_is_no_text_is_refused(info: bytes) -> None:
    with scripted(lambda command: honest(command, INFO_server=info)) as url:
        error = refusal(url)
    assert isinstance(error, MasterRefused)
    assert "answered INFO with" in str(error)


def test_a_server_without_a_run_id_is_refused() -> None:
    with scripted(lambda command: honest(command, INFO_server=bulk("redis_version:7.2.4"))) as url:
        error = refusal(url)
    assert isinstance(error, MasterRefused)
    assert "run_id" in str(error)


READING = GuardHandshake(b"\0guard")
WRITING = GuardHandshake(b"\0guard", write=MarkerWrite(b"", b"new", 7, 0))


def test_the_guard_gets_the_identity_the_marker_and_the_clock_of_the_master() -> None:
    marked = honest_with(GET=b"$6\r\nmarker\r\n", INFO_persistence=bulk("aof_enabled:1"))
    with scripted(marked) as url:
        before = now_ns()
        connection = dial(master_of(url), PATIENCE, extension=READING)
        after = now_ns()
        connection.sock.close()
    seen = connection.traits.report
    assert seen is not None
    assert (seen.run_id, seen.marker, seen.server_us) == ("a" * 40, b"marker", 1_800_000_000_000_017)
    assert seen.persists
    assert before < seen.sent_ns < seen.came_ns < after


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        ("GET", b":5\r\n"),
        ("GET", b"*0\r\n"),
        ("TIME", b"+OK\r\n"),
        ("TIME", b"*1\r\n:5\r\n"),
        ("TIME", b"*2\r\n+a\r\n+b\r\n"),
        ("TIME", b"_\r\n"),
    ],
)
def test_a_reply_that_is_no_marker_or_no_time_is_refused(command: str, reply: bytes) -> None:
    with scripted(honest_with(**{command: reply})) as url:
        assert isinstance(refusal(url, READING), MasterRefused)


@pytest.mark.parametrize(("extension", "what"), [(READING, "GET"), (READING, "TIME"), (WRITING, "EVAL")])
def test_a_user_without_the_rights_that_the_guard_needs_is_told_so(extension: GuardHandshake, what: str) -> None:
    with scripted(honest_with(**{what: b"-NOPERM no permission\r\n"})) as url:
        error = refusal(url, extension)
    assert isinstance(error, MasterRefused)
    assert all(word in str(error) for word in ("GET and EVAL", "TIME", "guard=None", "no permission"))


class Ping:
    """An extension that has nothing to do with the guard."""

    info_sections = (b"clients",)

    def commands(self) -> list[bytes]:
        return [pack(b"PING")]

    def read(self, replies: list[Any]) -> Any:
        return replies

    def report(self, found: Any, info: Mapping[str, str], sent_ns: int, came_ns: int) -> Any:
        return found, info["connected_clients"], info["role"], sent_ns < came_ns

    def repeated(self) -> Ping:
        return self


def test_an_extension_gets_the_replies_to_its_commands_and_the_fields_of_info() -> None:
    with scripted(honest_with(PING=b":7\r\n", INFO_clients=bulk("connected_clients:1"))) as url:
        connection = dial(master_of(url), PATIENCE, extension=Ping())
        connection.sock.close()
    assert connection.traits.report == ([7], "1", "master", True)


@pytest.mark.parametrize("place", ["GET", "TIME"])
def test_a_flush_during_the_handshake_restarts_it(place: str) -> None:
    push = b">2\r\n$10\r\ninvalidate\r\n_\r\n"
    honestly = {"GET": b"_\r\n" + push, "TIME": honest([b"TIME"]) + push}
    with scripted(honest_with(**{place: honestly[place]})) as url:
        assert isinstance(refusal(url, READING), ConnectionResetError)


def test_a_marker_that_cannot_be_written_is_a_cause() -> None:
    with scripted(honest_with(EVAL=b"-OOM command not allowed\r\n")) as url:
        assert isinstance(refusal(url, WRITING), redis.exceptions.OutOfMemoryError)


def test_a_server_without_a_role_is_refused() -> None:
    with scripted(lambda command: honest(command, INFO_replication=bulk("connected_slaves:0"))) as url:
        assert isinstance(refusal(url), MasterRefused)


def test_row_43_the_error_of_a_sentinel_login_repeats_no_password() -> None:
    said = f"-ERR unknown command 'AUTH', with args beginning with: '{PASSWORD}'\r\n".encode()
    with scripted(lambda command: said) as url:
        host = url.removeprefix("redis://")
        error = refusal(f"redis+sentinel://{host}/group?sentinel_password={PASSWORD}")
    assert "unknown command" in str(error)
    assert PASSWORD[:4] not in f"{error!r} {error.__cause__!r} {error.__context__!r}"


def test_a_tls_url_sends_nothing_in_plain_text() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        failures: list[BaseException] = []
        url = "rediss://:{}@{}:{}".format(PASSWORD, *listener.getsockname())
        thread = threading.Thread(target=lambda: failures.append(refusal(url)))
        thread.start()
        sock, _ = listener.accept()
        with sock:
            sock.settimeout(PATIENCE)
            first = sock.recv(65536)
            sock.sendall(b"-ERR what is this\r\n")
        thread.join()
    # A handshake record of TLS.
    assert first[:2] == b"\x16\x03"
    assert PASSWORD.encode() not in first
    assert isinstance(failures[0], (OSError, redis.exceptions.ConnectionError))
