"""What a message says about its lock, and how long the lock of a message lives."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from redlatch.celery.headers import Passed, label, new_delivery, seconds_in_queue, task_id_in


def test_a_message_says_what_was_passed() -> None:
    headers = Passed("name", "token").headers({"other": 1, "redlatch_delivery": "old", "redlatch_token": "old"})
    assert headers == {"other": 1, "redlatch_name": "name", "redlatch_token": "token"}
    assert Passed.read({**headers, "redlatch_delivery": "new"}) == Passed("name", "token", "new")


@pytest.mark.parametrize("headers", [None, {}, {"redlatch_token": "t"}, {"redlatch_name": ""}, {"redlatch_name": 7}])
def test_a_message_without_a_name_passes_no_lock_on(headers: dict[str, Any] | None) -> None:
    assert Passed.read(headers) is None


def test_a_token_that_is_no_text_counts_as_none() -> None:
    assert Passed.read({"redlatch_name": "n", "redlatch_token": 7, "redlatch_delivery": []}) == Passed("n")


def test_a_label_names_the_task_whatever_its_id_is() -> None:
    assert task_id_in(label("delivery", "a:b:c")) == "a:b:c"
    assert new_delivery() != new_delivery()
    assert ":" not in new_delivery()


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 300),
        ({"countdown": 10}, 310),
        ({"countdown": -10}, 300),
        ({"expires": 30}, 31),
        ({"expires": 30, "countdown": 20}, 31),
        ({"expires": -5}, 1),
        ({"expires": 10_000}, 300),
    ],
)
def test_the_lock_of_a_message_lives_until_a_worker_has_had_time_for_it(options: dict[str, Any], seconds: int) -> None:
    assert seconds_in_queue(300.0, options) == seconds


ZONE = timezone(timedelta(hours=5))


@pytest.mark.parametrize(
    "moment",
    [
        lambda then: then,
        lambda then: then.isoformat(),
        lambda then: then.astimezone(ZONE),
        lambda then: then.replace(tzinfo=None),
    ],
)
def test_a_time_may_be_a_datetime_or_its_text(moment: Callable[[datetime], Any]) -> None:
    then = datetime.now(UTC) + timedelta(seconds=100)
    # Less than a minute has passed since the line above.
    assert 340 < seconds_in_queue(300.0, {"eta": moment(then)}) <= 400
    assert 41 < seconds_in_queue(300.0, {"expires": moment(then)}) <= 101


def test_a_time_without_a_zone_is_one_of_the_app() -> None:
    there = (datetime.now(ZONE) + timedelta(seconds=100)).replace(tzinfo=None)
    assert 340 < seconds_in_queue(300.0, {"eta": there}, ZONE) <= 400
    assert seconds_in_queue(300.0, {"eta": there}) > 10_000
