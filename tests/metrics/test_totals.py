"""Sums of several clients: no counter goes down when a client ends, is closed or is collected."""

from __future__ import annotations

import gc
import threading

import pytest

from metrics.crew import Told, durations
from redlatch import ConfigurationError
from redlatch.metrics.totals import Export, Totals
from redlatch.stats import LockStats, MasterStats


def add(totals: Totals, client: Told, group: str = "") -> Export:
    return totals.add(client, group, totals.end)


def test_clients_are_added_up_by_group() -> None:
    totals = Totals(threading.RLock())
    first = Told(_=LockStats(acquired=1, held=1), sku=LockStats(acquired=2, lost={"expired": 1}))
    second = Told(sku=LockStats(acquired=4, lost={"expired": 1, "closed": 1}, acquire_time=durations(0.5, at3=1)))
    add(totals, first)
    add(totals, second)
    assert totals.read().groups == {
        "": LockStats(acquired=1, held=1),
        "sku": LockStats(acquired=6, lost={"expired": 2, "closed": 1}, acquire_time=durations(0.5, at3=1)),
    }


def test_a_group_without_a_name_takes_that_of_the_export() -> None:
    totals = Totals(threading.RLock())
    first, second = Told(_=LockStats(acquired=1), sku=LockStats(acquired=2)), Told(_=LockStats(acquired=4))
    add(totals, first, "sku")
    add(totals, second, "billing")
    assert {name: figures.acquired for name, figures in totals.read().groups.items()} == {"sku": 3, "billing": 4}


def test_a_group_is_there_before_its_first_lock() -> None:
    totals = Totals(threading.RLock())
    client = Told()
    add(totals, client)
    assert totals.read().groups == {"": LockStats()}


def test_a_master_is_up_if_it_is_up_for_all() -> None:
    totals = Totals(threading.RLock())
    first = Told(MasterStats("a", True, 0.0, 1, durations(0.1, at3=1)), MasterStats("b", True))
    second = Told(MasterStats("a", False, 7.0, 2, durations(0.2, at4=1)))
    add(totals, first)
    add(totals, second)
    assert totals.read().masters == {
        "a": MasterStats("a", False, 7.0, 3, durations(0.1 + 0.2, at3=1, at4=1)),
        "b": MasterStats("b", True),
    }


def test_counters_of_a_closed_client_stay_while_others_are_there() -> None:
    totals = Totals(threading.RLock())
    first = Told(MasterStats("a", False, 3.0, 5), sku=LockStats(acquired=1, held=1, waiting=2))
    second = Told(MasterStats("a", True, 0.0, 1), sku=LockStats(acquired=4, held=1))
    export = add(totals, first)
    add(totals, second)
    first.groups = {"sku": LockStats(acquired=2, held=1)}
    export.close()
    export.close()
    sums = totals.read()
    # The last acquire counts, too, although nobody read it before the end.
    assert sums.groups["sku"] == LockStats(acquired=6, held=1)
    assert sums.masters == {"a": MasterStats("a", True, 0.0, 6)}


def test_counters_of_a_forgotten_client_stay_as_they_were_read_last() -> None:
    totals = Totals(threading.RLock())
    first, second = Told(sku=LockStats(acquired=1, held=1)), Told(sku=LockStats(acquired=4))
    add(totals, first)
    add(totals, second)
    assert totals.read().groups["sku"] == LockStats(acquired=5, held=1)
    first.groups = {"sku": LockStats(acquired=3)}
    del first
    gc.collect()
    assert totals.read().groups["sku"] == LockStats(acquired=5)
    assert totals.read().groups["sku"] == LockStats(acquired=5)


def test_clients_that_are_gone_need_no_memory_if_nobody_reads() -> None:
    totals = Totals(threading.RLock())
    for _ in range(3):
        add(totals, Told())
        gc.collect()
    assert len(totals._exports) == 1


def test_a_master_of_gone_clients_only_is_not_shown() -> None:
    totals = Totals(threading.RLock())
    first, second = Told(MasterStats("a", True, 0.0, 1)), Told(MasterStats("b", True))
    export = add(totals, first)
    add(totals, second)
    export.close()
    assert set(totals.read().masters) == {"b"}


def test_a_client_counts_once() -> None:
    totals = Totals(threading.RLock())
    client = Told()
    export = add(totals, client)
    with pytest.raises(ConfigurationError, match="exported already"):
        add(totals, client)
    export.close()
    with add(totals, client):
        assert totals.read().groups == {"": LockStats()}


def test_the_end_of_the_last_one_is_told() -> None:
    totals = Totals(threading.RLock())
    first, second = Told(), Told()
    exports = [totals.add(client, "", totals.end) for client in (first, second)]
    assert [totals.end(export) for export in exports] == [False, True]


def test_a_client_that_sees_its_masters_no_more_leaves_its_counters() -> None:
    totals = Totals(threading.RLock())
    first, second = Told(MasterStats("a", False, 3.0, 5)), Told(MasterStats("a", True, 0.0, 1))
    add(totals, first)
    add(totals, second)
    assert totals.read().masters == {"a": MasterStats("a", False, 3.0, 6)}
    # A client that was closed.
    first.masters = ()
    assert totals.read().masters == {"a": MasterStats("a", True, 0.0, 6)}
    second.masters = ()
    assert totals.read().masters == {}
