"""Dialling real servers: what a client learns in the handshake, TLS, and diallers that try again."""

from __future__ import annotations

import _thread
import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.exceptions
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hiredis import Reader
from support.dialling import PATIENCE, dialled, master_of, refusal
from support.faces import await_true
from support.masters import SERVERS

from redlatch.errors import ConfigurationError, MasterRefused
from redlatch.masters.listed import masters_of
from redlatch.masters.master import Master
from redlatch.testing import embedded
from redlatch.votes.commands import Release, pack
from redlatch.wire.dial import scripting
from redlatch.wire.dial.connect import LONGEST_PAUSE, SOON, Connection, Dialler, dial

pytestmark = pytest.mark.each_server

PASSWORD = "s3cr3tpw"


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
            assert server.script_exists(*(script.sha.decode() for script in scripting.SCRIPTS)) == [True] * len(
                scripting.SCRIPTS
            )


def test_a_dialled_socket_does_not_block_and_has_nothing_left_to_read(real: str) -> None:
    with dialled(real) as connection:
        assert not connection.sock.getblocking()
        with pytest.raises(BlockingIOError):
            connection.sock.recv(1)


def test_a_connection_has_the_clients_name(real: str) -> None:
    with dialled(real) as connection:
        assert ask(connection, "CLIENT", "GETNAME") == b"redlatch"


@pytest.mark.parametrize("form", ["url", "client"])
def test_a_client_name_of_the_user_is_given(real: str, form: str) -> None:
    url = f"{real}?client_name=shop-1"
    given = url if form == "url" else redis.asyncio.Redis.from_url(url)
    [master] = masters_of(given)
    with contextlib.closing(dial(master, PATIENCE).sock) as sock:
        sock.settimeout(PATIENCE)
        sock.sendall(pack("CLIENT", "GETNAME"))
        assert sock.recv(100) == b"$6\r\nshop-1\r\n"


def test_protocol_2_is_spoken_where_it_is_asked_for(real: str) -> None:
    with dialled(f"{real}/2?protocol=2") as connection:
        assert (connection.traits.protocol, connection.traits.tracking) == (2, False)
        said = ask(connection, "HELLO")
        assert said[said.index(b"proto") + 1] == 2
        assert b" db=2 " in ask(connection, "CLIENT", "INFO")


def test_protocol_2_logs_in(guarded: str) -> None:
    with dialled(f"{guarded}?protocol=2") as connection:
        assert b" user=default " in ask(connection, "CLIENT", "INFO")
    error = refusal(f"{guarded.replace(PASSWORD, 'wr0ngpw')}?protocol=2")
    assert isinstance(error, redis.exceptions.AuthenticationError) and "wr0ngpw" not in str(error)


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


def test_a_master_that_restarts_is_dialled_often_at_first(url: str) -> None:
    """Two of three masters that restarted one second apart cost max_ttl: the first one was dialled too late."""
    tries: list[float] = []

    def refuse(*_: Any) -> Connection:
        tries.append(time.monotonic())
        raise ConnectionRefusedError

    dialler = Dialler([master_of(url)], PATIENCE, lambda *_: None, lambda *_: None, connect=refuse)
    dialler.start(0)
    await_true(lambda: tries and tries[-1] > tries[0] + SOON + 3 * LONGEST_PAUSE)
    dialler.close()
    soon = [at for at in tries if at < tries[0] + SOON]
    # With pauses that double up to a second there are eight at most.
    assert len(soon) > 10
    # Then the pauses grow, so that many clients are no load on a server that stays away.
    assert len(tries) - len(soon) < 10


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
    assert not begun


def test_a_dialler_that_is_hurried_ends_its_pause(url: str) -> None:
    arrived, other = threading.Event(), threading.Event()

    def ready(index: int, connection: Connection) -> None:
        connection.sock.close()
        (arrived if index == 1 else other).set()

    dialler = Dialler([master_of(url)] * 2, PATIENCE, ready, lambda *_: None)
    for index in range(2):
        dialler.start(index, 3600.0)
    await_true(lambda: len(dialler._pauses) == 2)
    dialler.hurry(1)
    assert arrived.wait(PATIENCE)
    assert not other.is_set()
    dialler.close()
    await_true(lambda: not dialler._pauses)


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
