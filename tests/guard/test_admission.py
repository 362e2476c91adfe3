"""The table that decides whether a master may vote: each row, and each combination of its columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from redlatch import Guard, MasterQuarantined, MasterRefused
from redlatch.guard import admission
from redlatch.guard.actions import ASK_OTHERS_NS, LOOK_AGAIN_NS
from redlatch.guard.admission import TABLE, rows_of
from redlatch.guard.clock import ClockState
from redlatch.guard.evidence import SECOND_LOOK_NS, Case, MarkerState, ProcessState
from redlatch.guard.handover import left_marker, pending_marker
from redlatch.guard.handshake import HandshakeReport
from redlatch.guard.marker import PREPARED
from redlatch.votes.units import MILLISECOND, SECOND

from .rig import ADDRESSES, MAX_TTL, OUT_NS, Rig

NAMES = [row.name for row in TABLE]
REPORT = HandshakeReport("run", None, 0, 0, 0, False)


def case_of(marker: MarkerState, process: ProcessState, clock: ClockState) -> Case:
    master = Rig().admissions.masters[0]
    return Case(master, REPORT, marker=marker, process=process, clock=clock)


# --- each row, by a client that comes to it -----------------------------------------------------------------


def other_use(rig: Rig) -> Any:
    rig.markers[0] = b"mine"
    return rig.decide(0)


def standing_still(rig: Rig) -> Any:
    rig.found()
    rig.ahead_us[0] = -1_000_000
    rig.now += SECOND
    return rig.decide(0)


def other_options(rig: Rig) -> Any:
    return rig.found().again(guard=Guard(max_ttl=MAX_TTL, trust_persistence=True)).decide(0)


def left_for_others(rig: Rig) -> Any:
    rig.found()
    rig.markers[0] = left_marker(rig.marker(0), rig.report(0), ("d:1",), 1 << 120).text()
    return rig.decide(0)


def awaiting_handover(rig: Rig) -> Any:
    other = Rig(addresses=("d:1", "e:1")).found()
    rig.markers[0] = pending_marker(other.marker(0), rig.report(0), "a:1", ADDRESSES, 1 << 120).text()
    return rig.decide(0)


def joining_by_handover(rig: Rig) -> Any:
    awaiting_handover(rig)
    rig.markers[1] = replace(rig.marker(0), master="b:1", run_id="run-b:1", stage="final").text()
    rig.decide(1)
    return rig.decide(0)


def others_being_dialled(rig: Rig) -> Any:
    return rig.decide(0, [rig.report(0), rig.report(1)])


def others_out_of_reach(rig: Rig) -> Any:
    rig.decide(1, [rig.report(0), rig.report(1), None])
    return rig.decide(0, [rig.report(0), rig.report(1), None])


def new(rig: Rig) -> Any:
    return rig.decide(0, [rig.report(index) for index in range(3)])


def prepared_beside_final(rig: Rig) -> Any:
    other = rig.found().again()
    other.decide(1)
    other.markers[0] = replace(other.marker(0), stage=PREPARED).text()
    return other.decide(0)


def marker_on_its_way(rig: Rig) -> Any:
    other = rig.found().again()
    other.decide(1)
    other.markers[0] = None
    return other.decide(0)


def lost_marker(rig: Rig) -> Any:
    rig.found().markers[0] = None
    return rig.decide(0)


def jumped(rig: Rig, *ahead_us: int) -> None:
    """Have clocks of masters jump, and pulses of these masters show it."""
    rig.found().now += SECOND
    for index, by_us in enumerate(ahead_us):
        rig.ahead_us[index] = by_us
        rig.pulse(index)


def jump_not_heard(rig: Rig) -> Any:
    jumped(rig, 5_000_000)
    return rig.decide(0)


def jump_others_agree(rig: Rig) -> Any:
    jumped(rig, 5_000_000, 0, 0)
    return rig.decide(0)


def jump_unclear(rig: Rig) -> Any:
    jumped(rig, 5_000_000)
    rig.now += SECOND
    return rig.decide(0)


def jump_of_ours(rig: Rig) -> Any:
    jumped(rig, 5_000_000, 5_000_000, 5_000_000)
    return rig.decide(0)


def without_a_file(rig: Rig) -> Any:
    rig.admissions.settings = Guard(max_ttl=MAX_TTL, trust_persistence=True)
    for _ in range(3):
        rig.shake_all()
    return rig.decide(0)


def restarted(rig: Rig) -> Any:
    rig.found().restart(0, keeps=True)
    return rig.decide(0)


def renamed(rig: Rig) -> Any:
    rig.run_ids[0] = "process history"
    rig.found().run_ids[0] = "process another"
    return rig.decide(0)


def forgot_a_while_ago(rig: Rig) -> Any:
    rig.found().restart(0)
    rig.decide(0)
    rig.now += SECOND
    return rig.decide(0)


def older_marker(rig: Rig) -> Any:
    """Have databases swapped, with an empty one, and back again when the quarantine is over."""
    first = rig.found().markers[0]
    rig.now += SECOND
    rig.markers[0] = None
    rig.decide(0)
    rig.decide(0)
    rig.now += OUT_NS
    rig.pulse(1)
    assert rig.decide(0).admitted
    rig.markers[0] = first
    return rig.decide(0)


def as_it_was(rig: Rig) -> Any:
    return rig.found().again().decide(0)


# The row, what leads to it, and the admission: whether admitted, how long to wait, why, and whether a marker is due.
ROWS: list[tuple[str, Callable[[Rig], Any], tuple[bool, int, str, bool] | None]] = [
    ("another use of the key", other_use, (False, SECOND, "a:1 has a marker that is not ours", False)),
    ("a clock that stands still", standing_still, (False, SECOND, "its clock stands still", False)),
    ("another list, other options", other_options, (False, SECOND, "trust_persistence=False by others", False)),
    ("left for other masters", left_for_others, (True, 0, "a:1 was left for d:1", False)),
    ("waiting for a handover", awaiting_handover, (False, LOOK_AGAIN_NS, "a:1 waits for the handover", False)),
    ("joining by a handover", joining_by_handover, (False, 0, "", True)),
    ("new? others being dialled", others_being_dialled, None),
    ("new? others out of reach", others_out_of_reach, (False, LOOK_AGAIN_NS, "no answer yet from c:1", False)),
    ("new", new, (False, 0, "", True)),
    ("prepared, others final", prepared_beside_final, (False, 0, "", True)),
    ("a marker on its way", marker_on_its_way, (False, SECOND_LOOK_NS, "", False)),
    ("a lost marker", lost_marker, (False, 0, "it has lost its marker, and maybe locks", True)),
    ("a jump, others not heard", jump_not_heard, (False, LOOK_AGAIN_NS, "its clock was set forward by 4.9", False)),
    ("a jump, others agree with us", jump_others_agree, (False, 0, "its clock was set forward by 4.9", True)),
    ("a jump, perhaps ours", jump_unclear, (False, SECOND, "its clock was set forward by 4.9", False)),
    ("a jump of our own clock", jump_of_ours, (True, 0, "", False)),
    ("trusted, without a file", without_a_file, (False, SECOND, "appendonly yes is needed there", False)),
    ("restarted", restarted, (False, 0, "it was restarted, or is another server now", True)),
    ("an older marker is back", older_marker, (False, 0, "it has an older marker again", True)),
    ("renamed", renamed, (False, 0, "", True)),
    (
        "forgot a while ago",
        forgot_a_while_ago,
        (False, ASK_OTHERS_NS, "it has lost its marker, and maybe locks", False),
    ),
    ("as it was", as_it_was, (True, 0, "", False)),
]


@pytest.mark.parametrize(("name", "lead", "expected"), ROWS, ids=[name for name, *_ in ROWS])
def test_each_row_is_reached_and_has_its_effect(
    name: str, lead: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases: list[Case] = []

    def note(case: Case, table: Any) -> Any:
        cases.append(case)
        return rows_of(case, table)

    monkeypatch.setattr(admission, "rows_of", note)
    result = lead(Rig())
    assert name in [row.name for row in rows_of(cases[-1])]
    if expected is None:
        assert result is None
        return
    admitted, wait_ns, why, writes_marker = expected
    assert (result.admitted, cases[-1].master.write is not None) == (admitted, writes_marker)
    assert result.wait_ns == pytest.approx(wait_ns, abs=5 * MILLISECOND)
    assert why in str(result.cause or "") and bool(why) == (result.cause is not None)


def test_every_row_is_named_and_tested() -> None:
    assert [name for name, *_ in ROWS] == NAMES
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("another use of the key", MasterRefused), ("a lost marker", MasterQuarantined), ("restarted", MasterQuarantined)],
)
def test_a_master_is_refused_for_its_configuration_and_quarantined_for_its_memory(name: str, kind: Any) -> None:
    [lead] = [lead for row, lead, _ in ROWS if row == name]
    assert type(lead(Rig()).cause) is kind


# --- each combination of the columns ------------------------------------------------------------------------

ABSENT = {
    MarkerState.UNDECIDED: "new? others being dialled",
    MarkerState.MAYBE_NEW: "new? others out of reach",
    MarkerState.ALL_NEW: "new",
    MarkerState.PREPARED: "prepared, others final",
    MarkerState.JUST_MISSED: "a marker on its way",
    MarkerState.LOST: "a lost marker",
}
UNUSABLE = {
    MarkerState.LEFT: "left for other masters",
    MarkerState.AWAITED: "waiting for a handover",
    MarkerState.JOINING: "joining by a handover",
    MarkerState.UNREADABLE: "another use of the key",
    MarkerState.CONTRARY: "another list, other options",
}
PROCESS = {
    ProcessState.RESTARTED: "restarted",
    ProcessState.KEPT_MEMORY: "renamed",
    ProcessState.UNPERSISTED: "trusted, without a file",
}
SAME = {
    MarkerState.INTACT: "as it was",
    MarkerState.FORGETFUL: "forgot a while ago",
    MarkerState.OLDER: "an older marker is back",
}
FINAL = {
    ClockState.FORWARD_UNHEARD: "a jump, others not heard",
    ClockState.FORWARD: "a jump, others agree with us",
}
FIRST = {
    ClockState.STEADY: [],
    ClockState.FORWARD_UNCLEAR: ["a jump, perhaps ours"],
    ClockState.OURS_STOOD_STILL: ["a jump of our own clock"],
}


@pytest.mark.parametrize("marker", [*ABSENT, *UNUSABLE], ids=str)
def test_without_our_marker_neither_process_nor_clock_decides(marker: Any) -> None:
    case = case_of(marker, ProcessState.UNJUDGED, ClockState.UNJUDGED)
    assert [row.name for row in rows_of(case)] == [(ABSENT | UNUSABLE)[marker]]


def test_a_clock_that_stands_still_decides_before_marker_and_process_are_judged() -> None:
    case = case_of(MarkerState.UNJUDGED, ProcessState.UNJUDGED, ClockState.STANDS_STILL)
    assert [row.name for row in rows_of(case)] == ["a clock that stands still"]


@pytest.mark.parametrize(
    ("marker", "process", "clock"),
    list(itertools.product(SAME, [ProcessState.SAME, *PROCESS], [*FIRST, *FINAL])),
    ids=lambda state: state.name,
)
def test_with_a_marker_first_the_clock_decides_and_then_the_process(marker: Any, process: Any, clock: Any) -> None:
    if clock in FINAL:
        expected = [FINAL[clock]]
    else:
        of_marker = process & ProcessState.REMEMBERS and marker is MarkerState.OLDER
        expected = [*FIRST[clock], SAME[marker] if of_marker or process is ProcessState.SAME else PROCESS[process]]
    assert [row.name for row in rows_of(case_of(marker, process, clock))] == expected


def test_only_preparing_rows_are_not_final() -> None:
    assert [row.name for row in TABLE if not row.final] == ["a jump, perhaps ours", "a jump of our own clock"]


def test_a_case_without_a_row_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no row decides"):
        rows_of(case_of(MarkerState.UNJUDGED, ProcessState.SAME, ClockState.STEADY))


def test_the_states_of_a_column_are_all_in_any() -> None:
    columns: tuple[Any, ...] = (MarkerState, ProcessState, ClockState)
    for states in columns:
        for state in states:
            assert state & states.ANY


def test_a_master_is_admitted_by_two_rows_only() -> None:
    admitting = [name for name, _, expected in ROWS if expected is not None and expected[0]]
    assert admitting == ["left for other masters", "a jump of our own clock", "as it was"]


def test_an_older_marker_is_seen_by_a_client_that_knew_only_the_later_one() -> None:
    rig = Rig().found()
    first = rig.markers[0]
    rig.now += SECOND
    rig.markers[0] = None
    rig.decide(0)
    rig.decide(0)
    rig.now += OUT_NS
    later = rig.again()
    assert later.decide(1).admitted
    assert not later.decide(0).admitted
    later.now += ASK_OTHERS_NS
    later.pulse(1)
    assert later.decide(0).admitted
    later.now += OUT_NS
    later.pulse(0)
    later.markers[0] = first
    assert not later.decide(0).admitted
    assert later.decide(0).cause is not None


@pytest.mark.parametrize("renames", [False, True])
def test_a_trusted_master_that_was_restarted_with_an_older_file_is_kept_out(renames: bool) -> None:
    """Found by an attack: the older marker was renamed, and locks of the time after it had a second holder."""
    guard = Guard(max_ttl=MAX_TTL, trust_persistence=True)
    rig = Rig(guard)
    rig.persists = True
    rig.found()
    if renames:
        rig.restart(0, keeps=True)
        rig.decide(0)
        assert rig.decide(0).admitted
    older = rig.markers[0]
    other = rig.again(guard=guard)
    other.persists, other.run_ids = True, rig.run_ids
    for index in range(3):
        assert other.decide(index).admitted
    other.now += SECOND
    other.markers[0] = None
    other.decide(0)
    other.decide(0)
    rig.now = other.now = other.now + OUT_NS
    for client in (other, rig):
        client.decide(0)
        client.now += ASK_OTHERS_NS
        client.pulse(1)
    assert [client.decide(0).admitted for client in (other, rig)] == [True, True]
    for client in (rig, other):
        rig.restart(0, keeps=True)
        rig.markers[0] = older
        admission = client.decide(0)
        assert "older marker" in str(admission.cause)
        assert not client.decide(0).admitted


def test_a_marker_that_this_client_wrote_after_the_clock_was_set_back_is_no_older_one() -> None:
    rig = Rig().found()
    rig.now += SECOND
    rig.ahead_us[0], rig.wall_off_us = -30_000_000, -30_000_000
    rig.markers[0] = None
    for _ in range(3):
        rig.decide(0)
        rig.now += SECOND
    since = rig.marker(0).since
    rig.decide(0)
    assert rig.marker(0).since == since
