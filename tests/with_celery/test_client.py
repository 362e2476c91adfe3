"""The client of an app: its settings, and one for each process."""

from __future__ import annotations

import os
import ssl
from typing import Any

import pytest
import redis
from celery import Celery

from redlatch import ClientClosed, ConfigurationError, Guard, QuorumUnavailable
from redlatch.celery.client import MAX_TTL, client_of, new_client
from redlatch.testing import cluster


def app_with(**settings: Any) -> Celery:
    app = Celery("settings", broker=settings.pop("broker", "redis://10.0.0.9"))
    app.conf.update(settings)
    return app


def test_the_settings_name_the_masters_and_the_options() -> None:
    masters = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]
    client = new_client(app_with(redlatch_masters=masters, redlatch_options={"ttl": 5.0, "prefix": "p:"}))
    assert "10.0.0.1:6379, 10.0.0.2:6379, 10.0.0.3:6379" in repr(client)
    assert client.lock("x").ttl == 5.0


def test_the_settings_may_have_djangos_names() -> None:
    app = Celery("settings")
    app.config_from_object(
        {"CELERY_BROKER_URL": "memory://", "CELERY_REDLATCH_MASTERS": "redis://10.0.0.1"}, namespace="CELERY"
    )
    assert "10.0.0.1:6379" in repr(new_client(app))


def test_the_broker_is_the_master_by_default_if_it_is_one_server() -> None:
    assert "10.0.0.9:6379" in repr(new_client(app_with()))


@pytest.mark.parametrize("scheme", ["redis", "rediss", "valkey"])
@pytest.mark.parametrize("tls", [True, {"ssl_cert_reqs": ssl.CERT_OPTIONAL, "ssl_ciphers": "ECDHE"}])
def test_row_65_the_tls_of_the_broker_is_that_of_the_locks(scheme: str, tls: Any) -> None:
    """Celery speaks TLS with such a broker, whatever the scheme: redlatch sent the password in the clear."""
    client = new_client(app_with(broker=f"{scheme}://me:secret@10.0.0.9/3", broker_use_ssl=tls))
    [master] = client._masters
    assert master._kind is redis.SSLConnection
    assert (master.name, master.credentials()) == ("10.0.0.9:6379/3", ("me", "secret"))
    if tls is not True:
        assert master._options["ssl_cert_reqs"] == ssl.CERT_OPTIONAL and master._options["ssl_ciphers"] == "ECDHE"


@pytest.mark.parametrize(
    ("broker", "tls", "why"),
    [
        ("unix:///run/a.sock", True, "redlatch_masters: set it; broker_use_ssl does not fit"),
        ("redis://:secret@host:port", True, "redlatch_masters: broker_url is malformed"),
        ("redis://:secret@host", {"certfile": "/x"}, "no connection has the option 'certfile'"),
    ],
)
def test_a_tls_setting_that_cannot_be_used_is_refused(broker: str, tls: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        new_client(app_with(broker=broker, broker_use_ssl=tls))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("broker", ["memory://", "amqp://u:secret@h", "redis://a;redis://b", "sentinel://a:26379"])
def test_another_broker_is_no_master(broker: str) -> None:
    with pytest.raises(ConfigurationError, match="redlatch_masters: set it to the URLs") as raised:
        new_client(app_with(broker=broker))
    assert "secret" not in str(raised.value)


def test_options_that_are_no_dict_are_refused() -> None:
    with pytest.raises(TypeError, match="redlatch_options: a dict of options"):
        new_client(app_with(redlatch_options=["ttl"]))


def test_a_client_without_scripts_is_refused_before_a_task_is_published() -> None:
    client = new_client(app_with(redlatch_options={"scripts": "watch"}))
    with pytest.raises(ConfigurationError, match="redlatch_options: a Singleton needs scripts"):
        client.labelled("a", 1.0, "queued:1")


def test_the_guard_limits_the_ttl() -> None:
    assert new_client(app_with()).longest(10_000.0) == MAX_TTL
    assert new_client(app_with()).longest(5.0) == 5.0
    assert new_client(app_with(redlatch_options={"guard": Guard(max_ttl=60.0)})).longest(10_000.0) == 60.0
    assert new_client(app_with(redlatch_options={"guard": None})).longest(10_000.0) == 10_000.0


def test_locks_that_are_over_can_be_ended_but_not_through_a_closed_client(three: list[str], name: str) -> None:
    client = new_client(app_with(redlatch_masters=three))
    client.free(name, "0" * 32)
    client.end(name, "queued:1")
    client.close()
    with pytest.raises(ClientClosed):
        client.free(name, "0" * 32)
    with pytest.raises(ClientClosed):
        client.end(name, "queued:1")


def test_an_app_has_one_client_in_each_process(three: list[str], name: str) -> None:
    app = app_with(redlatch_masters=three)
    client = client_of(app)
    assert client_of(app) is client
    assert client_of(app_with(redlatch_masters=three)) is not client
    with client.labelled(name, 10.0, "here") as lock:
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                other = client_of(app)
                found = other is not client and not other.labelled(name, 10.0, "there").acquire(blocking=False)
                os.write(writes, b"yes" if found and other.holder(name) == "here" else b"no")
            finally:
                os._exit(0)
        os.close(writes)
        assert os.read(reads, 3) == b"yes"
        os.close(reads)
        os.waitpid(child, 0)
        assert lock.owned()
    client.close()


def test_the_locks_of_an_app_may_be_on_a_cluster(name: str) -> None:
    made = cluster(3, replicas=0)
    with made:
        client = new_client(app_with(redlatch_masters=made.url))
        for number in range(12):
            with client.labelled(f"{name}-{number}", 10.0, "here"):
                assert client.holder(f"{name}-{number}") == "here"
            assert client.holder(f"{name}-{number}") is None
            lock = client.labelled(f"{name}-{number}", 10.0, "queued:1")
            assert lock.acquire()
            client.free(f"{name}-{number}", client.hand_over(lock))
            assert client.holder(f"{name}-{number}") is None
        client.close()
        gone = new_client(app_with(redlatch_masters=made.url))
    with pytest.raises(QuorumUnavailable, match="no quorum could say who holds"):
        gone.holder(name)
