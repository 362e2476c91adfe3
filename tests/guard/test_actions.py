"""Masters that have forgotten: how long they are kept out, by which clients, and what is written."""

from __future__ import annotations

from typing import Any

import pytest

from redlatch import Guard, MasterQuarantined
from redlatch.guard.evidence import SECOND_LOOK_NS
from redlatch.votes.units import MILLISECOND, SECOND

from .rig import ADDRESSES, DEFAULT_TTL_MS, MAX_TTL, OUT_NS, STRICT, Rig, is_marked, kept_out_for


@pytest.mark.parametrize("keeps", [True, False])
def test_a_master_that_was_restarted_is_kept_out_for_the_longest_ttl(keeps: bool) -> None:
    rig = Rig().found()
    rig.restart(0, keeps)
    admission = rig.decide(0)
    assert is_marked(admission)  # it is dialled at once to have its marker written
    rig.now += MILLISECOND
    assert MAX_TTL < kept_out_for(rig.decide(0)) <= OUT_NS / SECOND
    assert rig.marker(0).out
    assert rig.marker(0).run_id == rig.run_ids[0]
    rig.now += OUT_NS - 200 * MILLISECOND
    assert kept_out_for(rig.decide(0)) > 0
    rig.now += 200 * MILLISECOND
    rig.pulse(1)
    assert rig.decide(0).admitted


@pytest.mark.parametrize("keeps", [True, False])
def test_a_client_that_comes_later_knows_from_the_marker_for_how_long(keeps: bool) -> None:
    rig = Rig().found()
    rig.restart(0, keeps)
    rig.decide(0)
    rig.decide(0)
    rig.now += 4 * SECOND
    other = rig.again()
    other.run_ids = rig.run_ids
    assert other.decide(1).admitted
    assert MAX_TTL - 4.1 < kept_out_for(other.decide(0)) < MAX_TTL - 3.8


def test_a_client_that_comes_first_after_a_restart_sees_that_the_others_have_markers() -> None:
    rig = Rig().found()
    rig.restart(0)
    other = rig.again()
    other.run_ids = rig.run_ids
    assert other.decide(1).admitted
    assert other.decide(0).cause is None
    other.now += SECOND_LOOK_NS
    assert is_marked(other.decide(0))
    assert kept_out_for(other.decide(0)) > MAX_TTL - 1


def test_a_client_that_knew_a_master_keeps_it_out_though_others_took_it_for_new() -> None:
    rig = Rig(STRICT, addresses=("a:1",)).found()
    rig.restart(0)
    other = rig.again(guard=STRICT, addresses=("a:1",))
    other.run_ids = rig.run_ids
    other.found()  # with one master nothing else tells
    assert not rig.marker(0).out
    assert kept_out_for(rig.decide(0)) > MAX_TTL - 1


def test_a_master_that_was_flushed_is_kept_out_though_it_is_the_same_process() -> None:
    rig = Rig().found()
    rig.markers[1] = None
    assert is_marked(rig.decide(1))
    assert kept_out_for(rig.decide(1)) > MAX_TTL - 1


def test_a_second_flush_begins_anew() -> None:
    rig = Rig().found()
    for _ in range(2):
        rig.markers[1] = None
        rig.decide(1)
        assert kept_out_for(rig.decide(1)) > MAX_TTL - 1
        rig.now += OUT_NS // 2


def test_being_dialled_again_and_again_prolongs_nothing() -> None:
    rig = Rig().found()
    rig.restart(0)
    for _ in range(20):
        rig.decide(0)
        rig.now += SECOND // 2
    rig.now += 200 * MILLISECOND
    rig.pulse(1)
    assert rig.decide(0).admitted


def test_masters_that_forgot_all_at_once_are_kept_out_by_clients_that_knew_them() -> None:
    rig = Rig().found()
    for index in range(3):
        rig.restart(index)
    reports = [rig.report(index) for index in range(3)]
    assert all(is_marked(rig.decide(index, reports)) for index in range(3))
    other = rig.again()
    other.run_ids = rig.run_ids
    for index in range(3):
        rig.decide(index)
        assert kept_out_for(other.decide(index)) > MAX_TTL - 1


def test_a_wall_clock_that_is_wrong_shortens_nothing() -> None:
    rig = Rig().found()
    rig.restart(0)
    rig.decide(0)
    rig.decide(0)
    for wrong_us in (-3600 * 1_000_000, 0):
        other = rig.again()
        other.run_ids, other.wall_off_us = rig.run_ids, wrong_us
        assert kept_out_for(other.decide(0)) > MAX_TTL - 1
    late = rig.again()
    late.run_ids, late.ahead_us[0] = rig.run_ids, 3600 * 1_000_000  # the server's own clock was set forward
    assert kept_out_for(late.decide(0)) > MAX_TTL - 1


def test_a_master_that_came_back_with_a_slow_clock_which_was_set_right_is_kept_out_as_long() -> None:
    rig = Rig().found()
    rig.restart(0)
    rig.ahead_us[0] = -30 * 1_000_000
    rig.decide(0)
    rig.decide(0)
    late = rig.again()  # whose wall clock is right, as is that of the master now
    late.run_ids = rig.run_ids
    assert kept_out_for(late.decide(0)) > MAX_TTL - 1


def test_a_first_replica_is_no_loss_of_memory() -> None:
    rig = Rig()
    rig.run_ids = ["process-0 history", "process-1 history", "process-2 history"]
    rig.found()
    rig.run_ids[0] = "process-0 another"
    since = rig.marker(0).since
    admission = rig.decide(0)
    assert (admission.admitted, admission.cause) == (False, None)
    assert rig.decide(0).admitted
    assert (rig.marker(0).run_id, rig.marker(0).since, not rig.marker(0).out) == (rig.run_ids[0], since, True)
    rig.run_ids[1], rig.promoted = "process-1 another", True
    assert is_marked(rig.decide(1))
    assert kept_out_for(rig.decide(1)) > MAX_TTL - 1


def test_row_50_a_new_replication_id_is_a_memory_loss_if_the_master_forgets_soon_that_it_was_a_replica() -> None:
    rig = Rig()
    rig.run_ids = ["process-0 history", "process-1 history", "process-2 history"]
    rig.found()
    rig.run_ids[0], rig.backlog_ms = "process-0 another", MAX_TTL * 1000 - 1
    assert is_marked(rig.decide(0))
    assert kept_out_for(rig.decide(0)) > MAX_TTL - 1


def test_masters_that_were_flushed_all_at_once_and_taken_for_new_are_kept_out_by_clients_that_knew_them() -> None:
    rig = Rig().found()
    rig.now += SECOND
    rig.markers[:] = [None] * 3
    rig.again().found()
    assert all(kept_out_for(rig.decide(index)) > MAX_TTL - 1 for index in range(3))


def test_a_marker_for_which_there_is_no_room_is_tried_at_growing_pauses() -> None:
    rig = Rig().found()
    rig.restart(0)
    admissions: Any = rig.admissions
    pauses = [admissions.decide(0, rig.report(0), []).wait_ns for _ in range(6)]  # and nothing is written
    assert pauses == [0, *[SECOND_LOOK_NS << times for times in (1, 2)], SECOND, SECOND, SECOND]
    rig.decide(0)
    rig.decide(0)
    rig.restart(0)
    assert rig.decide(0).wait_ns == 0


def test_a_client_with_other_spellings_of_the_addresses_can_mark_a_master_that_was_restarted() -> None:
    rig = Rig().found()
    rig.restart(0)
    other = rig.again(addresses=("host-a:1", "host-b:1", "host-c:1"))
    other.run_ids = rig.run_ids
    assert other.decide(1).admitted
    assert other.decide(2).admitted
    assert other.decide(0).cause is None
    other.now += SECOND_LOOK_NS
    assert is_marked(other.decide(0))
    assert kept_out_for(other.decide(0)) > MAX_TTL - 1
    assert (rig.marker(0).master, rig.marker(0).masters) == (ADDRESSES[0], ADDRESSES)
    assert kept_out_for(rig.decide(0)) > MAX_TTL - 1
    assert rig.decide(1).admitted


def test_trust_persistence_admits_restarted_masters_that_kept_their_keys() -> None:
    rig = Rig(Guard(max_ttl=MAX_TTL, trust_persistence=True))
    rig.persists = True
    rig.found()
    rig.restart(0, keeps=True)
    admission = rig.decide(0)
    assert (admission.admitted, admission.cause) == (False, None)
    assert rig.decide(0).admitted
    assert rig.marker(0).run_id == rig.run_ids[0]
    rig.restart(1, keeps=False)  # it has not kept everything after all
    assert is_marked(rig.decide(1))
    assert kept_out_for(rig.decide(1)) > MAX_TTL - 1


@pytest.mark.parametrize("process", ["process-0", "replica"])
def test_trust_persistence_does_not_trust_a_replica_that_was_promoted(process: str) -> None:
    """Found by an attack: a lagging replica voted at once, and two clients had the lock."""
    rig = Rig(Guard(max_ttl=MAX_TTL, trust_persistence=True))
    rig.persists = True
    rig.run_ids = ["process-0 history", "process-1 history", "process-2 history"]
    rig.found()
    rig.run_ids[0], rig.promoted = f"{process} another", True
    assert is_marked(rig.decide(0))
    assert kept_out_for(rig.decide(0)) > MAX_TTL - 1
    rig.now += OUT_NS
    rig.pulse(1)
    assert rig.decide(0).admitted


def test_trust_persistence_refuses_masters_without_an_append_only_file() -> None:
    rig = Rig(Guard(max_ttl=MAX_TTL, trust_persistence=True))
    for _ in range(3):
        rig.shake_all()
    admission = rig.decide(0)
    assert "appendonly" in str(admission.cause)
    assert not isinstance(admission.cause, MasterQuarantined)


# --- votes that come back (row 73) --------------------------------------------------------------------------

# The longest ttl in use, with the allowance for drift, and 1.5 s in which all clients find the master again.
HEALS_NS = DEFAULT_TTL_MS * MILLISECOND * 101 // 100 + 2 * MILLISECOND + 1500 * MILLISECOND


def test_new_masters_have_nothing_to_heal() -> None:
    rig = Rig().found()
    assert [master.heals_ns for master in rig.admissions.masters] == [0, 0, 0]


def test_a_master_that_was_kept_out_heals_for_the_longest_ttl_in_use() -> None:
    rig = Rig().found()
    rig.restart(0)
    rig.decide(0)
    rig.decide(0)
    until_ns = rig.admissions.masters[0].until_ns
    rig.now = until_ns + MILLISECOND
    rig.pulse(1)
    assert rig.decide(0).admitted
    assert rig.admissions.masters[0].heals_ns == until_ns + HEALS_NS
    # A client that comes later finds the same.
    other = rig.again()
    other.run_ids = rig.run_ids
    admitted = []
    for index in (0, 1, 2, 0):
        other.now += SECOND
        admitted.append(other.decide(index).admitted)
    assert admitted == [False, True, True, True]
    assert other.admissions.masters[0].heals_ns == pytest.approx(until_ns + HEALS_NS, abs=MILLISECOND)
    assert other.admissions.masters[1].heals_ns == 0


@pytest.mark.parametrize("up", [5, None])
def test_a_trusted_master_heals_from_the_start_of_its_process(up: int | None) -> None:
    """While it was down, it has missed extensions."""
    rig = Rig(Guard(max_ttl=MAX_TTL, trust_persistence=True))
    rig.persists = True
    rig.found()
    rig.now += 60 * SECOND
    rig.restart(0, keeps=True)
    rig.up_us = None if up is None else up * 1_000_000
    rig.decide(0)
    assert rig.decide(0).admitted
    expected = 0 if up is None else rig.now + 1000 - up * SECOND + HEALS_NS
    assert rig.admissions.masters[0].heals_ns == expected


def test_nothing_heals_where_a_lock_needs_all_votes() -> None:
    rig = Rig(STRICT, addresses=ADDRESSES[:2]).found()
    rig.restart(0)
    rig.decide(0)
    rig.decide(0)
    rig.now += OUT_NS + SECOND
    rig.pulse(1)
    assert rig.decide(0).admitted
    assert rig.admissions.masters[0].heals_ns == 0
