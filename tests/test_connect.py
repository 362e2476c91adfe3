"""Dialling: what a client learns in the handshake with real servers, and how it treats bad ones."""

from __future__ import annotations

import _thread
import contextlib
import datetime
import ipaddress
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.connection
import redis.exceptions
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hiredis import Reader
from hypothesis import given
from hypothesis import strategies as st
from support.faces import await_true
from support.masters import SERVERS

from redlatch.config import Master, masters_of
from redlatch.errors import ConfigurationError, MasterRefused
from redlatch.guard.handshake import GuardHandshake
from redlatch.guard.marker import MarkerWrite
from redlatch.testing import embedded
from redlatch.votes.commands import BY_SHA, DELEX, DELIFEQ, FULL_TEXT, Release, pack
from redlatch.votes.scripts import MARK
from redlatch.wire import connect
from redlatch.wire.connect import Connection, Dialler, HandshakeExtension, dial
from redlatch.wire.limits import Limits
from redlatch.wire.net import now_ns
from redlatch.wire.traits import Traits, reply_error

PATIENCE = 10.0
PASSWORD = "s3cr3tpw"


def master_of(url: str) -> Master:
    [master] = masters_of(url)
    return master


@contextlib.contextmanager
def dialled(url: str) -> Iterator[Connection]:
    connection = dial(master_of(url), PATIENCE)
    try:
        yield connection
    finally:
        connection.sock.close()


def refusal(url: str, extension: HandshakeExtension | None = None, timeout: float = PATIENCE) -> BaseException:
    """Dial what cannot be reached and return why."""
    with pytest.raises(Exception) as caught:
        dial(master_of(url), timeout, extension=extension).sock.close()
    return caught.value


def ask(connection: Connection, *words: bytes | str | int) -> Any:
    """Send a command on a dialled connection, and return the reply."""
    connection.sock.settimeout(PATIENCE)
    connection.sock.sendall(pack(*words))
    reader = Reader()
    while (reply := reader.gets()) is False:
        reader.feed(connection.sock.recv(65536))
    return reply


# --- real servers ------------------------------------------------------------------------------------


@pytest.fixture
def real(farm: Any, server_kind: str) -> str:
    """The URL of a healthy server of each kind in turn."""
    return str(farm.urls(1, server_kind)[0])


def test_the_handshake_learns_the_servers_identity(real: str) -> None:
    with redis.Redis.from_url(real, retry=None) as server:
        info = server.info("server")
    with dialled(real) as connection:
        traits = connection.traits
    brand = info.get("server_name", "redis")
    assert traits.run_id == info["run_id"] and len(traits.run_id) == 40
    assert traits.server == brand
    assert ".".join(map(str, traits.version)) == str(info[f"{brand}_version"])
    assert traits.role == "master"
    assert traits.protocol == 3


def test_the_handshake_chooses_a_release_that_the_server_knows(real: str, name: str) -> None:
    with redis.Redis.from_url(real, retry=None) as server, dialled(real) as connection:
        server.set(name, "mine")
        connection.sock.settimeout(PATIENCE)
        connection.sock.sendall(Release(name.encode(), b"mine", 0).payload(connection.traits.dialect))
        assert connection.sock.recv(100) == b":1\r\n"
        assert not server.exists(name)


def test_after_the_handshake_every_script_is_loaded(real: str) -> None:
    with redis.Redis.from_url(real, retry=None) as server:
        server.script_flush()
        with dialled(real):
            assert server.script_exists(*(script.sha.decode() for script in connect.SCRIPTS)) == [True] * len(
                connect.SCRIPTS
            )


def test_a_dialled_socket_does_not_block_and_has_nothing_left_to_read(real: str) -> None:
    with dialled(real) as connection:
        assert not connection.sock.getblocking()
        with pytest.raises(BlockingIOError):
            connection.sock.recv(1)


def test_a_connection_has_the_clients_name(real: str) -> None:
    with dialled(real) as connection:
        assert ask(connection, "CLIENT", "GETNAME") == b"redlatch"


def test_a_database_number_is_selected(real: str) -> None:
    with dialled(f"{real}/3") as connection:
        assert b" db=3 " in ask(connection, "CLIENT", "INFO")


def test_a_missing_database_raises_the_servers_own_error(real: str) -> None:
    assert isinstance(refusal(f"{real}/999"), redis.exceptions.ResponseError)


def test_a_server_without_hello_gets_resp2(server: str) -> None:
    config = {"rename-command": 'HELLO ""'}
    with embedded.masters(1, server=server, config=config) as [url], dialled(f"{url}/2") as connection:
        assert connection.traits.protocol == 2
        assert connection.traits.role == "master" and connection.traits.run_id
        assert ask(connection, "GET", "nothing") is None
        assert b" db=2 " in ask(connection, "CLIENT", "INFO")


@pytest.fixture(scope="module", params=["HELLO as ever", "no HELLO"])
def guarded(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server with a password, with or without the command HELLO."""
    config = {"requirepass": PASSWORD}
    if request.param == "no HELLO":
        config["rename-command"] = 'HELLO ""'
    with embedded.masters(1, config=config) as [url]:
        yield url


def test_a_password_is_given(guarded: str) -> None:
    with dialled(guarded) as connection:
        assert ask(connection, "PING") in (b"PONG", "PONG")


def test_a_user_and_a_password_are_given(guarded: str) -> None:
    with dialled(guarded.replace("//:", "//default:")) as connection:
        assert b" user=default " in ask(connection, "CLIENT", "INFO")


def test_a_wrong_password_is_an_authentication_error_that_does_not_show_it(guarded: str) -> None:
    error = refusal(guarded.replace(PASSWORD, "wr0ngpw"))
    assert isinstance(error, redis.exceptions.AuthenticationError)
    assert "WRONGPASS" in str(error) and "wr0ngpw" not in repr(error) + str(error)


def test_no_password_where_one_is_needed_is_an_authentication_error(guarded: str) -> None:
    error = refusal(guarded.replace(f":{PASSWORD}@", ""))
    assert isinstance(error, redis.exceptions.AuthenticationError)
    assert "NOAUTH" in str(error)


def limited(url: str, *rights: str) -> str:
    """Create a user with only these rights, and return the server's URL with it."""
    with redis.Redis.from_url(url, retry=None) as server:
        server.execute_command("ACL", "SETUSER", "lk", "reset", "on", ">s3cr3t-lk", "~*", "-@all", *rights)
    return url.replace("//", "//lk:s3cr3t-lk@")


def test_a_user_with_the_documented_rights_can_connect(server: str) -> None:
    rights = ["+set", "+get", "+del", "+pexpire", "+evalsha", "+eval", "+script|load", "+hello", "+info"]
    with embedded.masters(1, server=server) as [url], dialled(limited(url, *rights)) as connection:
        assert connection.traits.run_id


def test_a_user_without_the_rights_to_load_scripts_and_set_a_name_can_connect(server: str) -> None:
    with (
        embedded.masters(1, server=server) as [url],
        dialled(limited(url, "+set", "+get", "+del", "+eval", "+hello", "+info")) as connection,
    ):
        assert connection.traits.run_id


def test_a_user_without_the_right_to_info_is_refused(server: str) -> None:
    with embedded.masters(1, server=server) as [url]:
        assert isinstance(refusal(limited(url, "+set", "+eval", "+hello")), redis.exceptions.NoPermissionError)


def test_a_replica_is_refused(server: str) -> None:
    with embedded.masters(1, server=server) as [url]:
        with redis.Redis.from_url(url, retry=None) as master:
            master.replicaof("127.0.0.1", 1)
        error = refusal(url)
    assert isinstance(error, MasterRefused)
    assert "slave, not a master" in str(error)


def test_a_unix_socket_is_dialled(tmp_path: Path) -> None:
    with embedded.masters(1, unix=True) as [url], dialled(url) as connection:
        assert connection.sock.family == socket.AF_UNIX
        assert connection.traits.role == "master"


# --- scripted servers --------------------------------------------------------------------------------

Answer = Callable[[list[bytes]], bytes]


@contextlib.contextmanager
def scripted(answer: Answer) -> Iterator[str]:
    """Serve `answer(command)` for every command on one connection after another; yield the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def serve() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                if over.is_set():
                    sock.close()
                    return
                with sock, contextlib.suppress(OSError):
                    reader = Reader()
                    while data := sock.recv(65536):
                        reader.feed(data)
                        while (command := reader.gets()) is not False:
                            reply = answer(command)
                            if reply == b"":
                                raise ConnectionError
                            sock.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        host, port = listener.getsockname()
        try:
            yield f"redis://{host}:{port}"
        finally:
            over.set()
            socket.create_connection((host, port)).close()
            thread.join()


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
            GuardHandshake(b"\0guard", write=MarkerWrite(b"", b"new", 0)),
            [b"INFO persistence", b"EVAL " + MARK.text, b"GET \0guard", b"TIME", b"CONFIG GET"],
        ),
    ],
    ids=["no guard", "guard", "marker to write"],
)
def test_the_whole_introduction_leaves_in_one_round_trip(
    extension: HandshakeExtension | None, given: list[bytes]
) -> None:
    last = [b"CONFIG", b"GET"] if given else [b"INFO", b"memory"]
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
        *[b"SCRIPT LOAD"] * len(connect.SCRIPTS),
        b"INFO server",
        b"INFO replication",
        b"INFO memory",
        *given,
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


@given(st.lists(st.binary(max_size=20), max_size=5), st.integers(1, 8))
def test_strings_are_skipped_whatever_they_contain(texts: list[bytes], size: int) -> None:
    stream = b"".join([b"$%d\r\n%b\r\n" % (len(text), text) for text in [b"\r\n*9999999\r\n", *texts]])
    limits = Limits()
    for start in range(0, len(stream), size):
        limits.check(stream[start : start + size])
    with pytest.raises(MasterRefused):
        limits.check(b"*9999999\r\n")


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
WRITING = GuardHandshake(b"\0guard", write=MarkerWrite(b"", b"new", 0))


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


def test_a_master_that_may_evict_locks_is_recognized() -> None:
    assert Traits({"maxmemory_policy": "volatile-lru", "maxmemory": "1000"}, 3).evicts == "volatile-lru"
    assert not Traits({"maxmemory_policy": "volatile-lru", "maxmemory": "0"}, 3).evicts
    assert not Traits({"maxmemory_policy": "noeviction", "maxmemory": "1000"}, 3).evicts
    assert not Traits({}, 3).evicts


def test_a_server_without_a_role_is_refused() -> None:
    with scripted(lambda command: honest(command, INFO_replication=bulk("connected_slaves:0"))) as url:
        assert isinstance(refusal(url), MasterRefused)


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


def test_row_43_the_error_of_a_sentinel_login_repeats_no_password() -> None:
    master = master_of("redis://127.0.0.1:1")
    said = "unknown command 'AUTH', with args beginning with: 's3cr3t'"
    for kind in (redis.exceptions.ResponseError, redis.exceptions.AuthenticationError):
        master.connect = lambda timeout, kind=kind: (_ for _ in ()).throw(kind(said))  # type: ignore[method-assign,misc]
        with pytest.raises(redis.exceptions.ResponseError) as caught:
            dial(master, PATIENCE)
        assert "s3cr" not in f"{caught.value!r} {caught.value.__cause__!r}"
        assert caught.value.__context__ is None


# --- the calls of redis-py that we rely on -----------------------------------------------------------


@pytest.mark.parametrize("kind", ["Connection", "UnixDomainSocketConnection", "SSLConnection"])
def test_redis_py_has_the_one_call_that_opens_a_socket(kind: str) -> None:
    assert callable(getattr(redis.connection, kind)._connect)


def test_redis_py_opens_a_socket_and_sends_nothing_on_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with master_of("redis://:s3cr3t@{}:{}/3".format(*listener.getsockname())).connect(PATIENCE):
            far, _ = listener.accept()
            with far:
                far.setblocking(False)
                with pytest.raises(BlockingIOError):
                    far.recv(1)


# --- TLS ---------------------------------------------------------------------------------------------


def certify(folder: Path, name: str, address: str) -> dict[str, str]:
    """Write a self-signed certificate for `address`; return the server's directives for it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return {
        "port": "0",
        "tls-port": "{port}",
        "tls-cert-file": f"{folder}/cert.pem",
        "tls-key-file": f"{folder}/key.pem",
        "tls-ca-cert-file": f"{folder}/cert.pem",
        "tls-auth-clients": "no",
    }


@contextlib.contextmanager
def tls_server(folder: Path, address: str) -> Iterator[str]:
    """Start a server that speaks only TLS, with a certificate for `address`; skip if no server here can."""
    config = certify(folder, "redlatch test", address)
    for server in filter(None, SERVERS.values()):
        fleet = embedded.masters(1, server=server, config=config)
        try:
            [url] = fleet.__enter__()
            break
        except ConfigurationError:
            # This server was built without TLS.
            pass
    else:
        pytest.skip("no server here speaks TLS")
    try:
        yield url
    finally:
        fleet.__exit__()


def test_tls_works_if_the_certificate_is_trusted(tmp_path: Path) -> None:
    with tls_server(tmp_path, "127.0.0.1") as url:
        with dialled(f"{url}?ssl_ca_certs={tmp_path}/cert.pem") as connection:
            assert isinstance(connection.sock, ssl.SSLSocket)
            assert connection.traits.role == "master"


def test_a_certificate_of_an_unknown_authority_is_refused(tmp_path: Path) -> None:
    with tls_server(tmp_path, "127.0.0.1") as url:
        assert "CERTIFICATE_VERIFY_FAILED" in str(refusal(url))


def test_a_certificate_of_another_host_is_refused(tmp_path: Path) -> None:
    with tls_server(tmp_path, "192.0.2.1") as url:
        assert "IP address mismatch" in str(refusal(f"{url}?ssl_ca_certs={tmp_path}/cert.pem"))


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


# --- dialling again ----------------------------------------------------------------------------------


def test_a_dialler_tries_until_the_master_is_there(url: str) -> None:
    failures: list[Exception] = []
    arrived = threading.Event()
    found: list[Connection] = []

    class Late(Master):
        """A master that cannot be reached twice."""

        def connect(self, timeout: float) -> socket.socket:
            if len(failures) < 2:
                raise ConnectionRefusedError("not yet")
            return super().connect(timeout)

    def ready(index: int, connection: Connection) -> None:
        found.append(connection)
        arrived.set()

    master = master_of(url)
    master.__class__ = Late
    dialler = Dialler([master], PATIENCE, ready, lambda index, error: failures.append(error))
    dialler.start(0)
    assert arrived.wait(PATIENCE)
    dialler.close()
    found[0].sock.close()
    assert [str(error) for error in failures] == ["not yet"] * 2


def test_a_dialler_that_is_closed_begins_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []
    begin = _thread.start_new_thread

    def note(function: Callable[..., object], *rest: Any) -> int:
        begun.append(function)
        return begin(function, *rest)

    monkeypatch.setattr(_thread, "start_new_thread", note)
    dialler = Dialler([master_of(url)], PATIENCE, lambda *_: None, lambda *_: None)
    dialler.close()
    dialler.close()
    dialler.start(0)
    assert dialler._run not in begun


def test_a_dialler_that_is_closed_during_a_pause_ends(url: str) -> None:
    tried = threading.Event()

    def failed(index: int, error: Exception) -> None:
        tried.set()

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dialler = Dialler([master_of("redis://{}:{}".format(*nobody.getsockname()))], 1.0, lambda *_: None, failed)
        dialler.start(0)
        assert tried.wait(PATIENCE)
        # One for each thread.
        assert len(dialler._pauses) == 1
        dialler.close()
        await_true(lambda: not dialler._pauses)
