"""One master: its name in the list, and the group that Sentinel watches."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import redis.connection as redis_connection

from redlatch.errors import ConfigurationError
from redlatch.masters.master import Found, Group, Master
from redlatch.masters.server import Server

PATIENCE = 10.0


def behind_sentinels(db: int = 0) -> Master:
    sentinels = [Server(redis_connection.Connection, {"host": host, "port": 26379}) for host in ("s2", "s1")]
    return Master(redis_connection.Connection, {"db": db}, Group("mymaster", sentinels))


def test_a_master_is_named_by_its_address_and_its_database() -> None:
    assert Master(redis_connection.Connection, {"host": "host", "port": 1}).name == "host:1"
    assert Master(redis_connection.Connection, {"host": "host", "port": 1, "db": 2}).name == "host:1/2"


def test_a_master_behind_sentinels_is_named_by_its_group() -> None:
    assert behind_sentinels().name == "sentinel:mymaster"
    assert behind_sentinels(3).name == "sentinel:mymaster/3"


def test_its_name_may_list_the_sentinels_in_order() -> None:
    master = behind_sentinels(3)
    master.name_sentinels()
    assert master.name == "sentinel:mymaster@s1:26379,s2:26379/3"


def test_it_is_reached_where_the_sentinels_say() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        with behind_sentinels().connect_at((host, port), PATIENCE) as sock:
            assert sock.getpeername() == (host, port)


def test_the_tls_files_for_the_sentinels_are_checked_too(tmp_path: Path) -> None:
    sentinel = Server(redis_connection.SSLConnection, {"host": "s1", "ssl_ca_certs": str(tmp_path / "none")})
    master = Master(redis_connection.Connection, {}, Group("mymaster", [sentinel]))
    with pytest.raises(ConfigurationError, match="ssl_ca_certs"):
        master.check_files("masters[0]")


OLD, NEW = ("10.0.0.1", 6379), ("10.0.0.2", 6379)


def group_of(count: int, host: str | None = None) -> Group:
    sentinels = [Server(redis_connection.Connection, {"host": f"s{index}", "port": 26379}) for index in range(count)]
    return Group("group", sentinels, host)


@pytest.mark.parametrize(("count", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_more_than_half_of_the_listed_sentinels_must_agree(count: int, majority: int) -> None:
    assert group_of(count).majority == majority


def test_the_repr_lists_the_sentinels() -> None:
    assert repr(group_of(2)) == "<Group group at s0:26379,s1:26379>"


def test_another_address_of_a_later_question_makes_the_address_old() -> None:
    group = group_of(3)
    found = Found(OLD, group.number_question())
    assert group.successor(found) is None
    later = Found(NEW, group.number_question())
    assert group.note(later)
    assert group.successor(found) == NEW
    assert group.successor(later) is None
    assert group.successor(Found(OLD, group.number_question())) is None


def test_an_answer_that_comes_late_makes_no_later_address_old() -> None:
    group = group_of(3)
    late = Found(OLD, group.number_question())
    found = Found(NEW, group.number_question())
    group.note(late)
    assert group.successor(found) is None


def test_the_address_that_was_found_before_changes_nothing() -> None:
    group = group_of(3)
    found = Found(NEW, group.number_question())
    # The listener asks after the announcement of each sentinel.
    assert [group.note(Found(NEW, group.number_question())) for _ in range(3)] == [True, False, False]
    assert group.successor(found) is None


def test_a_forced_host_replaces_the_one_that_the_sentinels_name() -> None:
    assert group_of(1, host="nat").reached("10.0.0.1", 7000) == ("nat", 7000)
    assert group_of(1).reached("10.0.0.1", 7000) == ("10.0.0.1", 7000)
