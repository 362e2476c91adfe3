"""URLs of masters behind sentinels. tests/test_config.py has the other URLs."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.connection as redis_connection

from redlatch.errors import ConfigurationError
from redlatch.masters.listed import masters_of
from redlatch.masters.master import Group, Master
from redlatch.masters.urls import master_of_url

PASSWORD = "s3cr3tpw"


def parsed(url: str) -> tuple[Master, Group]:
    master = master_of_url(url, "masters[0]")
    assert master.group is not None
    return master, master.group


def addresses(url: str) -> list[str]:
    return [sentinel.address for sentinel in parsed(url)[1].sentinels]


def test_a_url_lists_sentinels_and_names_a_group() -> None:
    master, group = parsed("redis+sentinel://s1:1,s2:2,s3/mymaster")
    assert (group.name, master.db, master.credentials()) == ("mymaster", 0, ())
    assert addresses("redis+sentinel://s1:1,s2:2,s3/mymaster") == ["s1:1", "s2:2", "s3:26379"]


def test_hosts_may_be_ipv6_addresses() -> None:
    assert addresses("redis+sentinel://[::1]:1,s2,[fe80::2]/g") == ["[::1]:1", "s2:26379", "[fe80::2]:26379"]


@pytest.mark.parametrize("scheme", ["redis+sentinel", "valkey+sentinel", "REDIS+Sentinel"])
def test_a_scheme_without_tls(scheme: str) -> None:
    master, group = parsed(f"{scheme}://s1/g")
    assert master._kind is group.sentinels[0]._kind is redis_connection.Connection


@pytest.mark.parametrize("scheme", ["rediss+sentinel", "valkeys+sentinel"])
def test_a_scheme_with_tls_is_for_the_master_and_the_sentinels(scheme: str) -> None:
    master, group = parsed(f"{scheme}://s1,s2/g")
    for server in (master, *group.sentinels):
        assert server._kind is redis_connection.SSLConnection
        assert server._options["ssl_check_hostname"] is True


def test_the_credentials_are_those_of_the_masters() -> None:
    master, group = parsed(f"redis+sentinel://me:{PASSWORD}@s1,s2/g/3")
    assert master.credentials() == ("me", PASSWORD)
    assert master.db == 3
    assert [sentinel.credentials() for sentinel in group.sentinels] == [(), ()]


def test_the_sentinels_have_credentials_of_their_own() -> None:
    master, group = parsed("redis+sentinel://:of%40it@s1/g?sentinel_username=you&sentinel_password=of%26them")
    assert master.credentials() == ("of@it",)
    assert group.sentinels[0].credentials() == ("you", "of&them")


def test_a_username_of_the_query_is_that_of_the_masters() -> None:
    master, group = parsed("redis+sentinel://s1/g?username=me&password=mine")
    assert master.credentials() == ("me", "mine")
    assert group.sentinels[0].credentials() == ()


def test_options_of_connections_are_for_both() -> None:
    master, group = parsed("redis+sentinel://s1/g?socket_keepalive=yes")
    for server in (master, group.sentinels[0]):
        assert server._options["socket_keepalive"] is True


def test_the_name_of_a_group_may_be_percent_encoded() -> None:
    assert parsed("redis+sentinel://s1/my%2Fmaster")[1].name == "my/master"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis+sentinel://s1,s2", "the name of the group is missing, such as redis\\+sentinel://"),
        ("redis+sentinel://s1,s2/", "the name of the group is missing"),
        ("redis+sentinel:///g", "host\\[:port\\] is needed"),
        ("redis+sentinel://s1,,s2/g", "host\\[:port\\] is needed"),
        ("redis+sentinel://s1:port/g", "host\\[:port\\] is needed"),
        ("redis+sentinel://s1:0/g", "host\\[:port\\] is needed"),
        ("redis+sentinel://[::1/g", "host\\[:port\\] is needed"),
        ("redis+sentinel://s1,s2,s1:26379/g", "a sentinel is listed twice"),
        ("redis+sentinel://s1/g/zero", "must be a database number"),
        ("redis+sentinel://s1/g/1/2", "must be a database number"),
        ("redis+sentinel://s1/g?no_such_option=1", "no connection has the option 'no_such_option'"),
        ("unix+sentinel://s1/g", "unknown scheme"),
        ("http+sentinel://s1/g", "unknown scheme"),
    ],
)
def test_a_malformed_url_is_refused_with_its_place(url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^masters\[1\]: .*{problem}"):
        masters_of(["redis://host", url])


@pytest.mark.parametrize(
    "url",
    [
        f"redis+sentinel://me:{PASSWORD}@s1:port/g",
        f"redis+sentinel://me:{PASSWORD}/x@s1/g",
        f"redis+sentinel://me:x?{PASSWORD}@s1/g",
        f"redis+sentinel://me:x#{PASSWORD}@s1/g",
        f"redis+sentinel://:{PASSWORD}@s1/g/{PASSWORD}",
        f"redis+sentinel://s1,{PASSWORD}:x/g?sentinel_password={PASSWORD}",
        f"redis+sentinel://me:{PASSWORD}@s1/g?port={PASSWORD}",
        f"redis+sentinel://s1/g?sentinel_password={PASSWORD}#{PASSWORD}",
        f"redis+sentinel://s1/g?sentinel_password={PASSWORD}&socket_timeout={PASSWORD}",
    ],
)
def test_no_error_repeats_a_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        masters_of([url])
    assert PASSWORD not in f"{caught.value!r} {caught.value.__cause__!r}"


def all_text(thing: Any) -> str:
    return f"{thing!r} {thing}"


def test_no_repr_shows_a_password() -> None:
    master, group = parsed(f"redis+sentinel://me:{PASSWORD}@s1/g?sentinel_password={PASSWORD}")
    for thing in (master, group, *group.sentinels):
        assert PASSWORD not in all_text(thing)


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("sentinel://s1,s2,s3/mymaster", "write redis+sentinel://, or rediss+sentinel:// with TLS"),
        ("redis-sentinel://s1,s2,s3/mymaster", "write redis+sentinel://"),
        ("rediss-sentinel://s1/mymaster", "rediss+sentinel:// with TLS"),
        ("SENTINEL://s1/mymaster", "write redis+sentinel://"),
        ("redis-cluster://h1,h2", "for a cluster write redis+cluster://, or rediss+cluster:// with TLS, such as"),
        ("rediscluster://h1", "write redis+cluster://"),
        ("cluster://h1", "write redis+cluster://"),
        ("redis+ssl://host", "write rediss://"),
        ("redis+socket:///run/redis.sock", "write unix://"),
        ("http://host:6379", "write redis:// and the port of such a server"),
        ("https://host", "unknown scheme 'https'; locks are kept on servers of Redis or Valkey"),
        ("tcp://host:6379", "write redis://"),
        ("memcached://host:11211", "kept on servers of Redis or Valkey"),
        ("postgresql://host/shop", "use redlatch.sql.Client"),
        ("postgresql+psycopg://host/shop", "use redlatch.sql.Client"),
        ("mysql+pymysql://host/shop", "use redlatch.sql.Client"),
        ("sqlite:///locks.db", "use redlatch.sql.Client"),
        ("host:6379", "write redis:// before the host"),
        ("10.0.0.1", "write redis:// before the host"),
        ("redis:host", "write redis:// before the host"),
        ("host1:6379,host2:6379", "write redis:// before the host"),
        ("rdis://host", "unknown scheme 'rdis'; one of redis://, rediss://, valkey://, valkeys://, unix://"),
    ],
)
def test_an_unknown_scheme_is_answered_with_what_to_write(url: str, meant: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        masters_of(url)
    assert meant in str(caught.value)


@pytest.mark.parametrize(
    "url", [f"{PASSWORD}:6379", f"me:{PASSWORD}@host", f"{PASSWORD}-x://host", f"a+{PASSWORD}://h"]
)
def test_a_text_that_may_be_a_password_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        masters_of(url)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("between", [",", " ", ", ", "\n"])
def test_urls_of_one_string_may_have_any_scheme(between: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^masters\[1\]: unknown scheme 'redis-sentinel'"):
        masters_of(f"redis://host{between}redis-sentinel://s1,s2/g")


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("redis://a,b,c", "several hosts in one URL; write one URL for each, such as redis://a,redis://b,redis://c"),
        ("redis://a:1,b:2", "several hosts in one URL"),
        (f"redis://me:{PASSWORD}@a,b", "several hosts in one URL"),
        (f"redis://:{PASSWORD}@a,:{PASSWORD}@b", "several hosts in one URL"),
        ("redis://a,", "several hosts in one URL"),
        ("redis://a, ", "several hosts in one URL"),
        ("redis://a:1,", "several hosts in one URL"),
        ("redis://[::1]:1,", "several hosts in one URL"),
        ("redis://${HOST}", "a placeholder, such as ${HOST}, that nothing has replaced"),
        ("redis://$HOST:6379", "a placeholder"),
        ("redis://{host}:{port}", "a placeholder"),
        ("redis://<host>", "a placeholder"),
        ("redis://%HOST%:6379", "a placeholder"),
        (f"redis://me:{PASSWORD}@my host:1", "the host has a space"),
        ("redis://my%20host", "the host has a space"),
        ("redis://ho*st", "a character that no host has"),
        ("redis://ho%2Fst", "a character that no host has"),
        ("redis://::1", "an IPv6 address has brackets: redis://[::1]:6379"),
        ("redis://[::1", "an IPv6 address has brackets"),
        ("redis://host:port", "the port must be a number from 1 to 65535"),
        (f"redis://me:{PASSWORD}@host:0", "the port must be a number"),
        (f"redis://me:{PASSWORD}@host:99999", "the port must be a number"),
        (f"redis://me:{PASSWORD}@host/zero", "must be a database number"),
        (f"redis://me:{PASSWORD}#x@host", "must be percent-encoded"),
        (f"redis://host?password=x#{PASSWORD}", "must be percent-encoded"),
        (f"redis://me:{PASSWORD}?x=1@host", "must be percent-encoded"),
        ("", "an empty URL; there may be a comma too many"),
        (" , redis://a", "an empty URL"),
    ],
)
def test_a_place_that_cannot_be_one_is_refused_with_what_to_write(url: str, meant: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        masters_of(url)
    said = str(caught.value)
    assert said.startswith("masters[0]: ") and meant in said and PASSWORD not in said
    assert ("percent" in said) == (meant == "must be percent-encoded" or "@b" in url)


def test_a_list_in_a_list_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^masters\[0\]: several hosts in one URL"):
        masters_of(["redis://a, redis://b"])


@pytest.mark.parametrize("url", ["redis+sentinel://s1,${HOST}/g", "redis+sentinel://s 1/g", "redis+sentinel://s1,/g"])
def test_the_host_of_a_sentinel_is_checked_too(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^masters\[0\]: .*host"):
        masters_of(url)


@pytest.mark.parametrize("host", ["a,b", "${HOST}", "my host", "redis://host", "host:6379"])
def test_the_host_of_a_redis_py_client_is_checked_too(host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^masters\[0\]: "):
        masters_of(redis.Redis(host=host))


@pytest.mark.parametrize(
    "host", ["redis_1", "b\u00fccher.example", "a.b.", "[fe80::1%25eth0]", "10.0.0.1", "x" * 63, "[::ffff:1.2.3.4]", ""]
)
def test_any_host_that_may_exist_is_accepted(host: str) -> None:
    for place in (host, f"{host}:7", f"me:pa@ss@{host}:7/3"):
        masters_of(f"redis://{place}")
