"""The guard of a single master (R1, FE1): it is used on after it has forgotten locks, and the client learns of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from redlatch import Guard, MasterQuarantined
from redlatch.guard.admission import ALONE, rows_of
from redlatch.guard.clock import ClockState
from redlatch.guard.evidence import Case, MarkerState, ProcessState
from redlatch.guard.handshake import HandshakeReport
from redlatch.votes.units import SECOND

from .rig import MAX_TTL, START_US, Rig, refused


def alone(**options: Any) -> Rig:
    """Return the guard of a client of one master, which is founded."""
    return Rig(Guard(max_ttl=MAX_TTL, **options), addresses=("a:1",)).found()


def flush(rig: Rig) -> None:
    rig.markers[0] = None


def restart_with_its_keys(rig: Rig) -> None:
    rig.restart(0, keeps=True)


def set_its_clock(rig: Rig) -> None:
    rig.ahead_us[0] = 5_000_000
    assert rig.pulse(0) is not None


def swap_databases_twice(rig: Rig) -> None:
    first = rig.markers[0]
    flush(rig)
    while not rig.decide(0).admitted:
        pass
    rig.now += SECOND
    rig.markers[0] = first


FORGETS = [flush, Rig.restart, restart_with_its_keys, set_its_clock, swap_databases_twice]


def forget(rig: Rig, how: Callable[..., None]) -> None:
    rig.now += SECOND
    how(rig, 0) if how is Rig.restart else how(rig)


@pytest.mark.parametrize("how", FORGETS)
def test_a_master_that_has_forgotten_is_used_on_at_once_and_the_client_learns_of_it(how: Any) -> None:
    rig = alone()
    forget(rig, how)
    admissions = [rig.decide(0)]
    while not admissions[-1].admitted:
        admissions.append(rig.decide(0))
    assert len(admissions) <= 3
    assert [(each.wait_ns, each.cause) for each in admissions] == [(0, None)] * len(admissions)
    assert admissions[0].forgot
    assert not rig.decide(0).forgot
    assert rig.marker(0).out == 0


@pytest.mark.parametrize("how", FORGETS[:3])
def test_a_client_that_sees_the_new_marker_of_another_one_learns_of_it_too(how: Any) -> None:
    rig = alone()
    other = rig.again(guard=Guard(max_ttl=MAX_TTL), addresses=("a:1",))
    assert other.decide(0).admitted
    forget(rig, how)
    other.now, other.run_ids = rig.now, rig.run_ids
    while not rig.decide(0).admitted:
        pass
    admission = other.decide(0)
    assert (admission.admitted, admission.forgot) == (True, True)
    assert not other.decide(0).forgot


@pytest.mark.parametrize("forget", [flush, set_its_clock])
def test_with_trusted_persistence_a_client_learns_of_it_too(forget: Any) -> None:
    """Found by an attack: the marker of another client looked like the one before, and two clients had the lock."""
    guard = Guard(max_ttl=MAX_TTL, trust_persistence=True)
    rig = Rig(guard, addresses=("a:1",))
    rig.persists = True
    rig.found()
    other = rig.again(guard=guard, addresses=("a:1",))
    other.persists = True
    assert other.decide(0).admitted
    rig.now += SECOND
    if forget is flush:
        flush(rig)
        while not rig.decide(0).admitted:
            pass
        other.now = rig.now
    else:
        other.now = rig.now
        set_its_clock(other)
    assert other.decide(0).forgot


def test_with_trusted_persistence_a_restart_with_all_keys_puts_nothing_in_doubt() -> None:
    guard = Guard(max_ttl=MAX_TTL, trust_persistence=True)
    rig = Rig(guard, addresses=("a:1",))
    rig.persists = True
    rig.found()
    other = rig.again(guard=guard, addresses=("a:1",))
    other.persists, other.run_ids = True, rig.run_ids
    assert other.decide(0).admitted
    rig.restart(0, keeps=True)
    while not rig.decide(0).admitted:
        pass
    admission = other.decide(0)
    assert (admission.admitted, admission.forgot) == (True, False)


def test_with_trusted_persistence_a_fail_over_puts_locks_in_doubt() -> None:
    guard = Guard(max_ttl=MAX_TTL, trust_persistence=True)
    rig = Rig(guard, addresses=("a:1",))
    rig.persists = True
    rig.found().restart(0, keeps=True)
    rig.promoted = True
    assert rig.decide(0).forgot
    assert rig.decide(0).admitted


def test_a_pulse_finds_that_the_master_has_forgotten() -> None:
    rig = alone()
    cause = rig.pulse(0, server_us=0)
    assert isinstance(cause, MasterQuarantined) and cause.doubted_ns


def test_a_new_client_puts_nothing_in_doubt() -> None:
    rig = alone()
    other = rig.again(guard=Guard(max_ttl=MAX_TTL), addresses=("a:1",))
    admission = other.decide(0)
    assert (admission.admitted, admission.forgot) == (True, False)


def test_a_new_marker_keeps_the_horizon_that_the_old_one_had() -> None:
    rig = alone()
    rig.raise_horizon(0, 9000)
    forget(rig, restart_with_its_keys)
    rig.decide(0)
    assert rig.decide(0).admitted
    assert rig.marker(0).horizon == 9000


@pytest.mark.parametrize("how", FORGETS[:2])
def test_with_strict_it_is_kept_out(how: Any) -> None:
    rig = alone(strict=True)
    forget(rig, how)
    rig.decide(0)
    admission = rig.decide(0)
    assert isinstance(admission.cause, MasterQuarantined)
    assert not admission.admitted and not admission.forgot


def test_strict_must_be_equal_for_all_clients() -> None:
    other = alone(strict=True).again(guard=Guard(max_ttl=MAX_TTL), addresses=("a:1",))
    refused(other.decide(0), "a:1 is used with strict=True by others: all clients must give the same guard")


@pytest.mark.parametrize("how", FORGETS[:3])
def test_the_time_of_each_marker_is_noted_for_the_fences(how: Any) -> None:
    rig = alone()
    first = max(rig.since_us)
    assert first >= START_US
    forget(rig, how)
    while not rig.decide(0).admitted:
        pass
    assert max(rig.since_us) >= first + 1_000_000


ANY = HandshakeReport("run", None, 0, 0, 0, False)
# With one master there are no others that one could wait for, or agree with.
OF_SEVERAL = (
    MarkerState.UNDECIDED | MarkerState.MAYBE_NEW | MarkerState.PREPARED | MarkerState.JUST_MISSED,
    ClockState.FORWARD_UNHEARD | ClockState.FORWARD | ClockState.OURS_STOOD_STILL,
)


def test_one_row_decides_each_case_that_a_single_master_can_be_in() -> None:
    master = Rig().admissions.masters[0]
    reached = set()
    for marker, process, clock in itertools.product(MarkerState, ProcessState, ClockState):
        judged = marker & MarkerState.PRESENT
        if marker & OF_SEVERAL[0] or clock & OF_SEVERAL[1] or marker is MarkerState.UNJUDGED:
            continue
        if bool(judged) == (process is ProcessState.UNJUDGED) or bool(judged) == (clock is ClockState.UNJUDGED):
            continue
        case = Case(master, ANY, marker=marker, process=process, clock=clock)
        [*_, row] = rows_of(case, ALONE)
        assert row.final
        reached.add(row.name)
    assert reached | {"a clock that stands still"} == {row.name for row in ALONE}
