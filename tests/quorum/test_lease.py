"""The lease: what each change of it returns, and what a refresh does to its deadline."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from redlatch import impl

FIELDS = "token since_ns asked_ns deadline_ns fence fence_end hand_offs refresh refresh_ns".split()


def shown(lease: Any) -> dict[str, Any]:
    return {field: getattr(lease, field) for field in FIELDS}


@pytest.fixture
def leases(implementation: impl.Implementation) -> ModuleType:
    return implementation.module("quorum.lease")


@pytest.fixture
def lease(leases: ModuleType) -> Any:
    """A lease that is valid from 10 to 100, was extended at 20, and has the number 3 of 3 to 5."""
    return leases.new_lease(b"token", 10, 90).numbered(3, 5).extended(100, 20)


@pytest.fixture
def refresh(implementation: impl.Implementation) -> Any:
    """A ballot of three masters about an extension."""
    command = implementation.module("votes.commands").Extend(b"key", b"token", 10, 1000)
    return implementation.module("votes.ballot").Ballot(command, 3, 2)


def test_a_new_lease_was_asked_for_at_its_beginning_and_has_no_number(leases: ModuleType) -> None:
    expected = {**dict.fromkeys(FIELDS, 0), "token": b"token", "since_ns": 10, "asked_ns": 10, "deadline_ns": 100}
    assert shown(leases.new_lease(b"token", 10, 100)) == {**expected, "refresh": None}


@pytest.mark.parametrize(
    ("change", "arguments", "changed"),
    [
        ("until", (500,), {"deadline_ns": 500}),
        ("extended", (500, 50), {"deadline_ns": 500, "asked_ns": 50}),
        # The lease was asked for later than this extension began.
        ("extended", (500, 1), {"deadline_ns": 500}),
        ("numbered", (7, 9), {"fence": 7, "fence_end": 9}),
        ("handed_off", (), {"hand_offs": 1, "fence": 4}),
    ],
)
def test_a_change_returns_a_new_lease_and_leaves_the_old_one_as_it_is(
    lease: Any, refresh: Any, change: str, arguments: tuple[int, ...], changed: dict[str, Any]
) -> None:
    lease = lease.refreshing(refresh, 700)
    before = shown(lease)
    assert shown(getattr(lease, change)(*arguments)) == {**before, **changed}
    assert shown(lease) == before


def test_a_lease_knows_the_renewal_that_is_under_way(lease: Any, refresh: Any) -> None:
    before = shown(lease)
    refreshing = lease.refreshing(refresh, 700)
    assert shown(refreshing) == {**before, "refresh": refresh, "refresh_ns": 700}
    assert shown(refreshing.refreshing(None, 0)) == before


@pytest.mark.parametrize(
    ("votes", "now_ns", "refresh_ns", "deadline_ns"),
    [
        ("yy", 99, 700, 700),
        # A quorum said yes, but the old deadline has passed.
        ("yy", 100, 700, 100),
        # A refresh never shortens a lease.
        ("yy", 50, 60, 100),
        # A quorum has forgotten the token, so the lease ends now.
        ("nn", 60, 700, 60),
        ("nn", 200, 700, 100),
        # There is no verdict.
        ("yn", 60, 700, 100),
        ("", 60, 700, 100),
    ],
)
def test_the_votes_on_a_renewal_decide_the_deadline(
    lease: Any, refresh: Any, votes: str, now_ns: int, refresh_ns: int, deadline_ns: int
) -> None:
    refresh.yes, refresh.no = votes.count("y"), votes.count("n")
    refreshed = lease.refreshing(refresh, refresh_ns).refreshed(now_ns)
    assert shown(refreshed) == {**shown(lease), "deadline_ns": deadline_ns}


def test_a_lease_without_a_renewal_is_renewed_to_the_same_deadline(lease: Any) -> None:
    assert shown(lease.refreshed(200)) == shown(lease)
