"""Lists of masters. tests/test_config.py has what the faces refuse."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster

from redlatch.errors import ConfigurationError
from redlatch.masters.listed import masters_of, refuse_namesakes
from redlatch.masters.server import WHOLE_CLUSTER


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


class Cluster(redis.RedisCluster):
    """A client of a cluster that has not asked it for its nodes: redis-py does that when it makes the client."""

    def __init__(self) -> None:
        pass

    def __del__(self) -> None:
        pass


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", [Cluster, redis.asyncio.RedisCluster])
def test_a_client_of_a_cluster_is_refused_with_what_to_use(kind: Any, several: bool) -> None:
    cluster = Cluster() if kind is Cluster else kind(host="127.0.0.1")
    with pytest.raises(ConfigurationError) as caught:
        masters_of([cluster] if several else cluster)
    assert str(caught.value) == f"masters[0]: a {kind.__name__} is no master: {WHOLE_CLUSTER}"
