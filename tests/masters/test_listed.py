"""Lists of masters. tests/test_config.py has what the faces refuse."""

from __future__ import annotations

from typing import Any

import pytest
import redis.asyncio

from redlatch.errors import ConfigurationError
from redlatch.masters.listed import masters_of, refuse_namesakes


def names(*urls: str) -> list[str]:
    return [master.name for master in masters_of(urls)]


def test_groups_are_told_apart_by_their_names() -> None:
    assert names("redis+sentinel://s1,s2/a", "redis+sentinel://s1,s2/b/1") == ["sentinel:a", "sentinel:b/1"]


def test_one_name_is_two_groups_where_other_sentinels_know_it() -> None:
    one, two = names("redis+sentinel://s2,s1/mymaster", "redis+sentinel://s4,s3/mymaster")
    assert one == "sentinel:mymaster@s1:26379,s2:26379"
    assert two == "sentinel:mymaster@s3:26379,s4:26379"


def test_only_the_names_that_would_be_equal_list_the_sentinels() -> None:
    assert names("redis+sentinel://s1/a", "redis+sentinel://s2/b", "redis+sentinel://s3/b") == [
        "sentinel:a",
        "sentinel:b@s2:26379",
        "sentinel:b@s3:26379",
    ]


@pytest.mark.parametrize("other", ["redis+sentinel://s1,s2/g", "redis+sentinel://s2,s3/g", "redis+sentinel://s1/g/1"])
def test_one_group_of_one_deployment_is_one_master(other: str) -> None:
    with pytest.raises(ConfigurationError, match=r"masters\[1\]: sentinel:g is masters\[0\] already"):
        masters_of(["redis+sentinel://s1,s2/g", other])


@pytest.mark.parametrize(
    "new",
    [
        "redis+sentinel://s2,s1/g",
        "redis+sentinel://s3,s4,s2/g",
        "redis+sentinel://s3,s4/other",
        "redis+sentinel://s3,s4/g/1",
        "redis://10.0.0.1",
    ],
)
def test_another_group_has_another_name_or_shares_a_sentinel(new: str) -> None:
    refuse_namesakes(masters_of(["redis://10.0.0.2", "redis+sentinel://s1,s2/g"]), masters_of([new]), "next")


def test_two_groups_of_one_name_are_no_old_and_new_masters() -> None:
    """Found by an attack: the error was that the masters were the same, or that no client had used them."""
    old, new = masters_of(["redis://h1", "redis+sentinel://s1,s2/g"]), masters_of(["redis+sentinel://s4,s3/g"])
    with pytest.raises(ConfigurationError) as caught:
        refuse_namesakes(old, new, "next")
    assert str(caught.value).startswith(
        "next: sentinel:g is in both lists, watched by s1:26379,s2:26379 in the old one and by s3:26379,s4:26379"
    )
    assert "by another name" in str(caught.value)


# --- clusters ------------------------------------------------------------------------------------------------

PASSWORD = "s3cr3tpw"


def of_redis_py(host: str, **options: Any) -> Any:
    # A client for threads asks the cluster when it is made.
    return redis.asyncio.RedisCluster(host=host, port=7000, **options)


@pytest.mark.parametrize(
    "cluster", ["redis+cluster://a,b", of_redis_py("a"), ["redis+cluster://a"], (of_redis_py("a"),)]
)
def test_a_cluster_is_the_only_master(cluster: Any) -> None:
    assert [master.is_cluster for master in masters_of(cluster)] == [True]


@pytest.mark.parametrize(
    ("given", "index", "written"),
    [
        (["redis+cluster://:{}@a,b", "redis://c"], 0, "redis+cluster://a:6379,b:6379"),
        (["redis+sentinel://s/g", "rediss+cluster://:{}@a,b"], 1, "rediss+cluster://a:6379,b:6379"),
        (["redis://c", of_redis_py("a", password=PASSWORD, ssl=True)], 1, "rediss+cluster://a:7000"),
        (["redis+cluster://a", "redis://c", of_redis_py("b")], 2, "redis+cluster://a:6379,b:7000"),
    ],
)
def test_a_cluster_beside_other_masters_is_refused(given: list[Any], index: int, written: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        masters_of([item.format(PASSWORD) if isinstance(item, str) else item for item in given])
    assert str(caught.value) == (
        f"masters[{index}]: a cluster cannot be listed beside other masters so far. Give it alone; if the others are "
        f"its nodes, {written} is enough"
    )


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (["redis+cluster://:{}@b", "redis+cluster://:{}@a"], "redis+cluster://b:6379,a:6379"),
        (["redis+cluster://a,b", "redis+cluster://b,c"], "redis+cluster://a:6379,b:6379,c:6379"),
        ([of_redis_py("a", password=PASSWORD), of_redis_py("b")], "redis+cluster://a:7000,b:7000"),
        (["redis+cluster://a", "redis+cluster://a"], "redis+cluster://a:6379"),
    ],
)
def test_several_clusters_are_refused(given: list[Any], written: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        masters_of([item.format(PASSWORD) if isinstance(item, str) else item for item in given])
    assert str(caught.value) == (
        "masters[1]: this is another cluster, and a client can have only one so far. Give one of them; if their hosts "
        f"are nodes of one cluster, write {written}"
    )


def test_each_server_knows_what_to_write_if_the_list_is_a_cluster() -> None:
    three = masters_of([f"redis://:{PASSWORD}@a", "redis://b:7000", "redis+sentinel://s/g", "unix:///run/a"])
    assert [master.instead for master in three[:2]] == [
        "redis+cluster://a:6379,b:7000 (if all of these are its nodes)"
    ] * 2
    assert masters_of(f"redis://:{PASSWORD}@a")[0].instead == "redis+cluster://a:6379"
    assert masters_of("unix:///run/a")[0].instead.startswith("redis+cluster:// and some of its nodes")
