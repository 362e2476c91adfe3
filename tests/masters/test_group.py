"""A group of servers behind sentinels, and what the sentinels last named."""

from __future__ import annotations

import pytest
import redis.connection as redis_connection

from redlatch.masters.group import Found, Group
from redlatch.masters.server import Server

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
