"""The figures of groups of locks."""

from __future__ import annotations

from typing import Any

from redlatch import impl


def groups_of(implementation: impl.Implementation) -> Any:
    return implementation.module("quorum.figures").Groups()


def test_what_is_counted_is_read(implementation: impl.Implementation) -> None:
    figures = groups_of(implementation).named("")
    figures.win(1_000_000)
    figures.refuse(True)
    figures.refuse(False)
    figures.refuse(False)
    figures.renew(2_000_000_000)
    figures.lose("expired")
    figures.lose("expired")
    figures.hold_time.count(3_000_000)
    stats = figures.stats(held=4, waiting=5)
    assert (stats.acquired, stats.busy, stats.timed_out, stats.renewals) == (1, 1, 2, 1)
    assert (stats.lost, stats.held, stats.waiting) == ({"expired": 2}, 4, 5)
    assert (stats.acquire_time.sum, stats.hold_time.sum, stats.renewal_slack.sum) == (0.001, 0.003, 2.0)


def test_what_was_read_does_not_change(implementation: impl.Implementation) -> None:
    figures = groups_of(implementation).named("")
    figures.lose("expired")
    stats = figures.stats(0, 0)
    figures.lose("forgotten")
    figures.win(1)
    assert (stats.lost, stats.acquired, stats.acquire_time.count) == ({"expired": 1}, 0, 0)


def test_a_group_keeps_its_figures(implementation: impl.Implementation) -> None:
    groups = groups_of(implementation)
    assert groups.named("orders") is groups.named("orders")
    assert groups.named("orders") is not groups.named("")
    assert list(groups.by_name) == ["", "orders"]


def test_names_of_locks_as_groups_do_not_fill_the_memory(implementation: impl.Implementation) -> None:
    groups = groups_of(implementation)
    most = implementation.module("quorum.figures").MOST_GROUPS
    for number in range(10 * most):
        groups.named(f"order:{number}").refuse(True)
    assert len(groups.by_name) == most + 2
    assert groups.named("(others)").busy == 9 * most
    assert groups.named("order:0").busy == 1
