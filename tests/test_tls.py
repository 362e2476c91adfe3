"""TLS, passwords and access rules: the masters that may vote, and the secrets that stay hidden.

Covers rule 11 of `tests/FAULTS.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import datetime
import ipaddress
import logging
import pickle
import socket
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.connection
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from support.faces import PATIENCE, Face, await_true, wins
from support.masters import SERVERS, Farm, Keys
from support.selection import on_one_face

from redlatch import AsyncClient, Client, ConfigurationError, LockError, QuorumUnavailable, impl
from redlatch.testing import Cluster, cluster, embedded, sentinels

LONG = 60.0
PASSWORD = "s3cr3t/p@ss:w%rd"
QUOTED = "s3cr3t%2Fp%40ss%3Aw%25rd"


# --- certificates ----------------------------------------------------------------------------------------


def certify(folder: Any, name: Any, issuer: Any = None, hosts: Any = (), authority: Any = False) -> Any:
    """Write {name}.crt and {name}.key, signed by `issuer` or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key((issuer.key if issuer else key).public_key()),
            critical=False,
        )
    )
    if authority:
        usage = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
        )
        usage |= {"digital_signature": True, "key_cert_sign": True, "crl_sign": True, "decipher_only": False}
        builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
    if hosts:
        names = [
            x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host) for host in hosts
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(issuer.key if issuer else key, hashes.SHA256())
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return SimpleNamespace(subject=subject, key=key)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp("certificates")
    authority = certify(folder, "authority", authority=True)
    certify(folder, "stranger", authority=True)
    certify(folder, "server", authority, hosts=("127.0.0.1",))
    certify(folder, "elsewhere", authority, hosts=("elsewhere.example",))
    client = certify(folder, "client", authority)
    locked = serialization.BestAvailableEncryption(b"s3cr3t-key")
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "locked.key").write_bytes(client.key.private_bytes(pem, pkcs8, locked))
    return folder


def tls_config(folder: Any, certificate: Any = "server", clients: Any = "no") -> dict[str, str]:
    """Return the directives of a server that speaks only TLS."""
    return {
        "port": "0",
        "tls-port": "{port}",
        "tls-cert-file": f"{folder}/{certificate}.crt",
        "tls-key-file": f"{folder}/{certificate}.key",
        "tls-ca-cert-file": f"{folder}/authority.crt",
        "tls-auth-clients": clients,
    }


@pytest.fixture(scope="module")
def tls(certificates: Any) -> Iterator[Any]:
    """Start TLS masters with the given certificate, once for each kind."""
    if SERVERS["redis-on-path"] is None:
        pytest.skip("there is no redis-server on PATH")
    with contextlib.ExitStack() as stack:
        running = {}

        def urls(certificate: Any = "server", clients: Any = "no", password: Any = "") -> Any:
            kind = (certificate, clients, password)
            if kind not in running:
                config = tls_config(certificates, certificate, clients)
                if password:
                    config["requirepass"] = password
                fleet = embedded.masters(3, server=SERVERS["redis-on-path"], config=config)
                running[kind] = stack.enter_context(fleet)
            return list(running[kind])

        yield urls


def with_options(urls: Any, **options: Any) -> Any:
    return [f"{url}?" + "&".join(f"{key}={value}" for key, value in options.items()) for url in urls]


def cycle(client: Any, name: Any) -> None:
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire(timeout=PATIENCE)
    assert not client.lock(name).acquire(blocking=False)
    assert lock.owned()
    assert lock.locked()
    lock.extend()
    lock.release()
    assert not lock.locked()


def addresses(urls: Any) -> Any:
    return {url.partition("://")[2].partition("?")[0].rpartition("@")[2] for url in urls}


# --- TLS -------------------------------------------------------------------------------------------------


def test_masters_of_a_known_authority_grant_locks(connect: Face, tls: Any, certificates: Any, name: str) -> None:
    client = connect(with_options(tls(), ssl_ca_certs=certificates / "authority.crt"))
    for _ in range(10):
        cycle(client, name)


def test_locks_pass_through_tls_without_scripts(connect: Face, tls: Any, certificates: Any, name: str) -> None:
    client = connect(with_options(tls(), ssl_ca_certs=certificates / "authority.crt"), scripts="watch")
    for _ in range(5):
        cycle(client, name)
    names = [f"{name}-{number}" for number in range(100)]
    locks = client.acquire_many(names)
    assert all(client.extend_many(locks, LONG / 2))
    assert all(client.release_many(locks))


def test_many_locks_at_once_pass_through_tls(
    implementation: impl.Implementation, tls: Any, certificates: Any, name: str
) -> None:
    urls = with_options(tls(), ssl_ca_certs=certificates / "authority.crt")

    async def main() -> None:
        async def work(number: Any) -> None:
            for _ in range(5):
                async with client.lock(f"{name}-{number}", ttl=LONG):
                    pass

        async with AsyncClient(urls) as client:
            await asyncio.gather(*(work(number) for number in range(300)))

    asyncio.run(main())


@on_one_face("asyncio")
@pytest.mark.parametrize("implementation", [impl.current.name], indirect=True)
def test_a_group_whose_sentinels_speak_tls_fails_over(connect: Face, certificates: Any, name: str) -> None:
    server = SERVERS["redis-on-path"]
    if server is None:
        pytest.skip("there is no redis-server on PATH")
    config = tls_config(certificates) | {"tls-replication": "yes"}
    groups = sentinels(server=server, config=config, sentinel_config=config)
    with groups as urls:
        client = connect(with_options(urls, ssl_ca_certs=certificates / "authority.crt"))
        cycle(client, name)
        await_true(lambda: client.health().ready)
        former = groups.failover(0)
        groups.await_other(0, former)
        await_true(lambda: wins(client.lock(f"{name} another")))
        stranger = connect(with_options(urls, ssl_ca_certs=certificates / "stranger.crt"))
        with pytest.raises(QuorumUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            stranger.lock(name).acquire()


def test_a_cluster_that_speaks_tls_moves_its_slots_and_fails_over(certificates: Any) -> None:
    server = SERVERS["redis-on-path"]
    if server is None:
        pytest.skip("there is no redis-server on PATH")
    fleet = cluster(server=server, config=tls_config(certificates) | {"requirepass": PASSWORD})
    with fleet:
        assert fleet.url.startswith(f"rediss+cluster://:{QUOTED}@127.0.0.1:")
        name = fleet.name_in(0)
        options = {"ssl_ca_certs": str(certificates / "authority.crt"), "decode_responses": True}
        host, port = fleet.address(0).split(":")
        with redis.RedisCluster(host, int(port), ssl=True, password=PASSWORD, **options) as client:  # type: ignore[arg-type]
            client.set(name, "value")
            fleet.move(name, 1)
            fleet.fail_over(1)
            assert client.get(name) == "value"
        fleet.clear()


@on_one_face("asyncio")
@pytest.mark.parametrize("implementation", [impl.current.name], indirect=True)
def test_nodes_of_a_cluster_get_the_tls_and_the_password_of_the_seeds(
    connect: Face, certificates: Any, name: str
) -> None:
    server = SERVERS["redis-on-path"]
    if server is None:
        pytest.skip("there is no redis-server on PATH")
    fleet = cluster(server=server, config=tls_config(certificates) | {"requirepass": PASSWORD})
    with fleet:
        seed = f"rediss+cluster://:{QUOTED}@{fleet.address(fleet.primary(2))}"
        [url] = with_options([seed], ssl_ca_certs=certificates / "authority.crt")
        client = connect(url, patience=PATIENCE, guard=None)
        for shard in range(3):
            cycle(client, fleet.name_in(shard, name))
        moved = fleet.name_in(0, f"{name} moved")
        fleet.move(moved, 1)
        cycle(client, moved)
        fleet.fail_over(1)
        cycle(client, moved)
        [stranger] = with_options([seed], ssl_ca_certs=certificates / "stranger.crt")
        with pytest.raises(ConfigurationError, match="CERTIFICATE_VERIFY_FAILED"):
            connect(stranger).connect()


def test_masters_of_an_unknown_authority_have_no_vote(connect: Face, tls: Any, certificates: Any, name: str) -> None:
    urls = with_options(tls(), ssl_ca_certs=certificates / "stranger.crt")
    with pytest.raises(QuorumUnavailable) as caught:
        connect(urls).lock(name).acquire()
    assert set(caught.value.causes) == addresses(urls)
    assert all("CERTIFICATE_VERIFY_FAILED" in str(cause) for cause in caught.value.causes.values())


def test_masters_are_verified_by_default(connect: Face, tls: Any, name: str) -> None:
    with pytest.raises(QuorumUnavailable) as caught:
        connect(tls()).lock(name).acquire()
    assert all("CERTIFICATE_VERIFY_FAILED" in str(cause) for cause in caught.value.causes.values())


def test_a_certificate_for_another_host_is_refused(connect: Face, tls: Any, certificates: Any, name: str) -> None:
    urls = with_options(tls("elsewhere"), ssl_ca_certs=certificates / "authority.crt")
    with pytest.raises(QuorumUnavailable) as caught:
        connect(urls).lock(name).acquire()
    assert set(caught.value.causes) == addresses(urls)
    assert all("IP address mismatch" in str(cause) for cause in caught.value.causes.values())


def test_verification_is_turned_off_only_by_an_explicit_option(connect: Face, tls: Any, name: str) -> None:
    urls = with_options(tls("elsewhere"), ssl_cert_reqs="none", ssl_check_hostname="False")
    cycle(connect(urls), name)


def test_a_master_that_wants_a_certificate_gets_the_clients(
    connect: Face, tls: Any, certificates: Any, name: str
) -> None:
    options = {"ssl_ca_certs": certificates / "authority.crt"}
    pair = {"ssl_certfile": certificates / "client.crt", "ssl_keyfile": certificates / "client.key"}
    cycle(connect(with_options(tls(clients="yes"), **options, **pair)), name)


def test_a_master_that_wants_a_certificate_refuses_a_client_without(
    connect: Face, tls: Any, certificates: Any, name: str
) -> None:
    urls = with_options(tls(clients="yes"), ssl_ca_certs=certificates / "authority.crt")
    with pytest.raises(QuorumUnavailable) as caught:
        connect(urls).lock(name).acquire()
    assert set(caught.value.causes) == addresses(urls)


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
@pytest.mark.parametrize("kind", ["url", "client"])
def test_a_missing_tls_file_is_refused_with_its_option_and_path(
    connect: Face, certificates: Any, kind: str, option: str
) -> None:
    files = {"ssl_certfile": certificates / "client.crt", "ssl_keyfile": certificates / "client.key"}
    files[option] = "/nowhere/at-all.pem"
    [url] = with_options(["rediss://s3cr3t-user:s3cr3t-pw@127.0.0.1:1"], **files)
    with pytest.raises(ConfigurationError) as caught:
        connect(["redis://127.0.0.1:2", redis.Redis.from_url(url) if kind == "client" else url])
    text = f"masters[1]: {option}='/nowhere/at-all.pem' cannot be read: No such file or directory"
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"ssl_ca_certs": "client.key"}, ["ssl_ca_certs"]),
        ({"ssl_ca_certs": "authority.crt", "ssl_certfile": "client.key"}, ["ssl_certfile"]),
        ({"ssl_certfile": "client.crt", "ssl_keyfile": "server.key"}, ["ssl_certfile", "ssl_keyfile"]),
        ({"ssl_certfile": "client.crt", "ssl_keyfile": "locked.key"}, ["ssl_certfile", "ssl_keyfile"]),
        ({"ssl_certfile": "client.crt", "ssl_keyfile": "locked.key", "ssl_password": "wr0ng"}, ["ssl_keyfile"]),
    ],
)
def test_an_unusable_tls_file_is_refused_with_its_option_and_path(
    connect: Face, certificates: Any, files: Any, named: Any
) -> None:
    paths = {option: name if option == "ssl_password" else certificates / name for option, name in files.items()}
    with pytest.raises(ConfigurationError) as caught:
        connect(with_options(["rediss://127.0.0.1:1"], **paths))
    assert all(f"{option}='{paths[option]}'" in str(caught.value) for option in named)
    assert "cannot be used" in str(caught.value) and "wr0ng" not in str(caught.value)
    assert ("ssl_ca_certs" in str(caught.value)) == (named == ["ssl_ca_certs"])


def test_a_key_with_a_password_is_accepted_with_the_password(connect: Face, certificates: Any) -> None:
    pair = {"ssl_certfile": certificates / "client.crt", "ssl_keyfile": certificates / "locked.key"}
    connect(with_options(["rediss://127.0.0.1:1"], ssl_password="s3cr3t-key", **pair))


def test_a_plain_url_to_a_tls_port_is_unavailable_and_no_hang(connect: Face, tls: Any, name: str) -> None:
    urls = [url.replace("rediss:", "redis:") for url in tls()]
    with pytest.raises((QuorumUnavailable, ConfigurationError)):
        connect(urls).lock(name).acquire()


@on_one_face("threads")
def test_a_tls_url_to_a_plain_port_is_unavailable_and_no_hang(connect: Face, farm: Farm, name: str) -> None:
    urls = [url.replace("redis:", "rediss:") for url in farm.urls(3)]
    with pytest.raises(QuorumUnavailable) as caught:
        connect(urls).lock(name).acquire()
    assert set(caught.value.causes) == addresses(urls)


def test_settings_of_a_redis_py_client_are_verified_too(
    implementation: impl.Implementation, tls: Any, certificates: Any, name: str
) -> None:
    def clients(authority: Any) -> Any:
        return [
            redis.Redis.from_url(url, ssl_ca_certs=str(certificates / authority), ssl_check_hostname=True)
            for url in tls()
        ]

    with Client(clients("authority.crt")) as client:
        cycle(client, name)
    with pytest.raises(ConfigurationError, match="give ssl_ca_certs"), Client(clients("stranger.crt")):
        raise AssertionError("it connected")


class Rotating(redis.SSLConnection):
    """Row 65: a class of the user, which reads its certificates for each connection."""

    folder: Any = None

    def _connect(self) -> Any:
        self.certfile, self.keyfile = str(self.folder / "client.crt"), str(self.folder / "client.key")
        self.ca_certs = str(self.folder / "authority.crt")
        return super()._connect()  # type: ignore[no-untyped-call]


def with_class(kind: type, urls: Any) -> Any:
    options = [redis.connection.parse_url(url) for url in urls]
    pools = [redis.ConnectionPool(**(each | {"connection_class": kind})) for each in options]
    return [redis.Redis(connection_pool=pool) for pool in pools]


def test_row_65_a_connection_class_of_the_user_brings_its_certificates(
    connect: Face, tls: Any, certificates: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rotating, "folder", certificates)
    cycle(connect(with_class(Rotating, tls(clients="yes", password=PASSWORD))), name)


def test_row_65_no_password_leaves_without_the_tls_of_the_clients_class(
    connect: Face, certificates: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener speaks no TLS: it shows what would go over the line in the clear."""
    monkeypatch.setattr(Rotating, "folder", certificates)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = connect(with_class(Rotating, ["redis://:s3cr3t@{}:{}".format(*listener.getsockname())]))
        lock = client.lock(name).start("acquire", timeout=0.2)
        far, _ = listener.accept()
        with far:
            far.settimeout(PATIENCE)
            first = far.recv(65536)
        assert first[:1] == b"\x16" and b"s3cr3t" not in first
        with pytest.raises((QuorumUnavailable, LockError)):
            lock.result(PATIENCE)


def test_celerys_name_of_no_check_turns_verification_off(connect: Face, tls: Any, name: str) -> None:
    cycle(connect(with_options(tls("elsewhere"), ssl_cert_reqs="CERT_NONE")), name)


def test_celerys_name_of_the_check_verifies(connect: Face, tls: Any, certificates: Any, name: str) -> None:
    cycle(
        connect(with_options(tls(), ssl_cert_reqs="CERT_REQUIRED", ssl_ca_certs=certificates / "authority.crt")), name
    )
    with pytest.raises(QuorumUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        connect(with_options(tls(), ssl_cert_reqs="CERT_REQUIRED")).lock(name).acquire()


# --- secrets ---------------------------------------------------------------------------------------------


def everything_said(error: Any) -> Any:
    """Return everything that an exception shows when it is printed, logged or pickled."""
    shown = [repr(error), str(error), *traceback.format_exception(error), repr(error.__dict__)]
    shown += [repr(cause) + str(cause) for cause in getattr(error, "causes", {}).values()]
    with contextlib.suppress(TypeError, AttributeError, pickle.PicklingError):
        shown.append(pickle.dumps(error).decode("latin-1"))
    return "\n".join(shown)


def is_told(text: Any) -> Any:
    return PASSWORD in text or QUOTED in text or "s3cr3t" in text


def test_a_password_over_tls_logs_in(connect: Face, tls: Any, certificates: Any, name: str) -> None:
    urls = tls(password=PASSWORD)
    assert QUOTED in urls[0]
    cycle(connect(with_options(urls, ssl_ca_certs=certificates / "authority.crt")), name)


def test_a_wrong_password_is_reported_without_the_password(
    connect: Face, fleet_with_password: Any, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.DEBUG)
    urls = [url.replace(QUOTED, f"{QUOTED}x") for url in fleet_with_password]
    client = connect(urls)
    lock = client.lock(name)
    with pytest.raises(QuorumUnavailable) as caught:
        lock.acquire()
    assert all(isinstance(cause, redis.AuthenticationError) for cause in caught.value.causes.values())
    assert not is_told(everything_said(caught.value))
    assert not is_told(caplog.text)


@pytest.fixture(scope="module")
def fleet_with_password() -> Iterator[Any]:
    with embedded.masters(3, config={"requirepass": PASSWORD}) as urls:
        yield urls


def test_no_repr_log_copy_or_pickle_has_the_password_or_the_token(
    connect: Face, fleet_with_password: Any, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.DEBUG)
    client = connect(fleet_with_password)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    token = lock.token.decode()
    shown = [repr(client.raw), str(client.raw), repr(lock.raw), str(lock.raw), caplog.text]
    for thing in (client.raw, lock.raw):
        for how in (pickle.dumps, copy.copy, copy.deepcopy):
            with contextlib.suppress(TypeError, AttributeError, LockError):
                shown.append(repr(how(thing)))
    lock.release()
    assert not is_told("".join(shown))
    assert token not in "".join(shown)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{QUOTED}@127.0.0.1:notaport",
        f"redis://user:{QUOTED}@127.0.0.1:1/notadb",
        f"http://user:{QUOTED}@127.0.0.1:1",
        f"user:{QUOTED}@127.0.0.1",
        f"redis://user:{QUOTED}@[::1",
        f"redis://user:{PASSWORD}@127.0.0.1:99999999",
        f"redis://user:{QUOTED}@127.0.0.1:1?socket_timeout=soon",
        f"redis://127.0.0.1:1?password={QUOTED}&health_check_interval=never",
    ],
)
def test_a_malformed_url_is_refused_without_its_password(url: str, implementation: impl.Implementation) -> None:
    try:
        client = Client([url])
        client.lock("x").acquire(blocking=False)
    except Exception as error:
        assert not is_told(everything_said(error))
    else:
        pytest.fail("it was accepted")


# --- access rules ----------------------------------------------------------------------------------------

# The rights that docs/operations.md lists, for plain locks. Commands that a server does not know are left out for it.
RULES = (
    "on >s3cr3t-lk resetkeys ~lock* resetchannels -@all +set +get +del +pexpire +pttl +evalsha +eval +script|load +ping"
)
RULES += " +hello +time +info +client|setname"


@pytest.fixture
def restricted(server: str) -> Iterator[Any]:
    """Start masters with a restricted user; return its URLs and a function that changes its rules."""
    with embedded.masters(3, server=server) as urls:

        def rule(*rules: Any) -> None:
            for url in urls:
                with redis.Redis.from_url(url, socket_timeout=PATIENCE) as admin:
                    admin.execute_command("ACL", "SETUSER", "lk", *rules)

        try:
            rule("reset", *RULES.split())
        except redis.ResponseError:
            # Redis 6.2 writes subcommands the same way, but knows fewer of them.
            rule("reset", *[word for word in RULES.split() if "|" not in word], "+script", "+client")
        yield SimpleNamespace(urls=[url.replace("://", "://lk:s3cr3t-lk@") for url in urls], admin=urls, rule=rule)


def test_a_user_with_the_least_rights_can_do_everything(connect: Face, restricted: Any, name: str, keys: Keys) -> None:
    cycle(connect(restricted.urls, prefix="lock"), name.removeprefix("lock"))
    await_true(lambda: not keys(restricted.admin, name))


def test_a_native_release_is_used_if_allowed_and_replaced_otherwise(
    connect: Face, restricted: Any, name: str, keys: Keys
) -> None:
    try:
        restricted.rule("+delifeq")
    except redis.ResponseError:
        pytest.skip("this server has no DELIFEQ")
    cycle(connect(restricted.urls, prefix="lock"), name.removeprefix("lock"))
    with redis.Redis.from_url(restricted.admin[0]) as admin:
        assert "cmdstat_delifeq" in admin.info("commandstats")
    restricted.rule("-delifeq")
    cycle(connect(restricted.urls, prefix="lock"), name.removeprefix("lock"))
    await_true(lambda: not keys(restricted.admin, name))


def test_a_user_without_the_right_to_release_gets_an_error_and_the_key_expires(
    connect: Face, restricted: Any, name: str, keys: Keys
) -> None:
    client = connect(restricted.urls, prefix="lock", attempt_timeout=PATIENCE)
    client.connect()
    restricted.rule("-del", "-eval", "-evalsha")
    lock = client.lock(name.removeprefix("lock"), ttl=1.0)
    assert lock.acquire(timeout=PATIENCE)
    with pytest.raises(QuorumUnavailable) as caught:
        lock.release()
    assert all("permission" in str(cause) for cause in caught.value.causes.values())
    await_true(lambda: not keys(restricted.admin, name))


def test_keys_outside_of_the_users_rules_are_refused_with_a_cause(connect: Face, restricted: Any) -> None:
    with pytest.raises(QuorumUnavailable) as caught:
        connect(restricted.urls, guard=None).lock("elsewhere").acquire()
    assert len(caught.value.causes) >= 2
    assert "s3cr3t" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="the guard needs the rights"):
        connect(restricted.urls).lock("elsewhere").acquire()


# --- clusters --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nodes(certificates: Any) -> Iterator[Cluster]:
    """A cluster that speaks only TLS and needs a password."""
    if SERVERS["redis-on-path"] is None:
        pytest.skip("there is no redis-server on PATH")
    config = tls_config(certificates) | {"requirepass": PASSWORD}
    made = cluster(3, replicas=0, server=SERVERS["redis-on-path"], config=config)
    with made:
        yield made


def cycle_on_all(client: Any, name: str) -> None:
    for number in range(12):
        cycle(client, f"{name}-{number}")


def test_the_nodes_of_a_cluster_have_the_options_of_its_url(
    connect: Face, nodes: Cluster, certificates: Any, name: str
) -> None:
    assert nodes.url.startswith("rediss+cluster://")
    cycle_on_all(connect(f"{nodes.url}?ssl_ca_certs={certificates}/authority.crt"), name)


@pytest.mark.parametrize("module", [redis, redis.asyncio])
def test_the_nodes_of_a_cluster_have_the_options_of_a_redis_py_client(
    connect: Face, nodes: Cluster, certificates: Any, name: str, module: Any
) -> None:
    host, _, port = nodes.address(0).rpartition(":")
    options = {"ssl": True, "ssl_ca_certs": f"{certificates}/authority.crt", "password": PASSWORD}
    client = module.RedisCluster(host=host, port=int(port), **options)
    try:
        cycle_on_all(connect(client), name)
    finally:
        if module is redis:
            client.close()


@pytest.mark.parametrize(
    ("scheme", "ca", "why"),
    [
        ("rediss", "stranger", "certificate verify failed"),
        ("redis", None, "closed the connection|Connection reset"),
    ],
)
def test_a_cluster_whose_certificate_is_not_trusted_or_without_tls_is_not_used(
    connect: Face, nodes: Cluster, certificates: Any, name: str, scheme: str, ca: str | None, why: str
) -> None:
    url = nodes.url.replace("rediss", scheme) + (f"?ssl_ca_certs={certificates}/{ca}.crt" if ca else "")
    with pytest.raises((QuorumUnavailable, ConfigurationError), match=why) as caught:
        connect(url).lock(name).acquire(blocking=False)
    assert PASSWORD not in str(caught.value)
