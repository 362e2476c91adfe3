"""Releases that found their row locked: when they are tried again, and what their caller is told later."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError

from redlatch.sql.late import LateReleases

from .test_backend import BUSY_ERROR, error

UNTIL_NS = 1000


class Rows:
    """Rows of which some are locked."""

    def __init__(self, **owners: bytes) -> None:
        self.owners = {name.encode(): owner for name, owner in owners.items()}
        self.failures: dict[bytes, DBAPIError] = {}
        self.tried: list[bytes] = []

    def release(self, key: bytes, token: bytes) -> bool:
        self.tried.append(key)
        if key in self.failures:
            raise self.failures[key]
        owned = self.owners.get(key) == token
        if owned:
            del self.owners[key]
        return owned


def test_a_release_is_due_until_it_was_done() -> None:
    rows = Rows(k=b"t")
    late = LateReleases(rows.release)
    assert not late
    late.add(b"k", b"t", UNTIL_NS)
    assert late
    late.retry(1)
    assert not late and not rows.owners
    assert late.forget(b"k", b"t")
    assert not late.forget(b"k", b"t")


def test_a_release_that_found_another_token_was_not_done() -> None:
    rows = Rows(k=b"u")
    late = LateReleases(rows.release)
    late.add(b"k", b"t", UNTIL_NS)
    late.retry(1)
    assert not late and rows.owners == {b"k": b"u"}
    assert not late.forget(b"k", b"t")


def test_one_locked_row_does_not_keep_the_others_for_long() -> None:
    rows = Rows(a=b"t", b=b"t")
    rows.failures = {b"a": BUSY_ERROR}
    late = LateReleases(rows.release)
    for key in (b"a", b"b"):
        late.add(key, b"t", UNTIL_NS)
    late.retry(1)
    late.retry(1)
    assert rows.tried == [b"a", b"b", b"a"]
    assert rows.owners == {b"a": b"t"} and late


def test_another_error_ends_the_connection() -> None:
    rows = Rows(k=b"t")
    rows.failures = {b"k": error("gone")}
    late = LateReleases(rows.release)
    late.add(b"k", b"t", UNTIL_NS)
    with pytest.raises(DBAPIError, match="gone"):
        late.retry(1)


def test_what_is_over_is_forgotten() -> None:
    rows = Rows(k=b"t")
    late = LateReleases(rows.release)
    late.add(b"k", b"t", UNTIL_NS)
    late.retry(UNTIL_NS)
    assert not late and not rows.tried
    late.add(b"k", b"t", UNTIL_NS)
    late.retry(1)
    late.retry(UNTIL_NS)
    assert not late.forget(b"k", b"t")


def test_a_release_that_is_forgotten_is_not_done() -> None:
    rows = Rows(k=b"t")
    late = LateReleases(rows.release)
    late.add(b"k", b"t", UNTIL_NS)
    assert not late.forget(b"k", b"t")
    late.retry(1)
    assert not rows.tried
