"""Who may vote, decided from what was seen: the gate alone. With servers: `tests/faults/test_memory.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redlatch import ConfigurationError, MasterQuarantined
from redlatch.protocol.guard import SECOND_LOOK_NS, Gate
from redlatch.protocol.policy import MILLISECOND, SECOND, Guard
from redlatch.protocol.sighting import KEPT_MS, Marker, Offset, Ruling, Sighting

ADDRESSES = "a:1", "b:1", "c:1"
MAX_TTL = 10
OUT_NS = MAX_TTL * SECOND + MAX_TTL * 10 * MILLISECOND + 2 * MILLISECOND
START_US = 1_800_000_000_000_000


class Rig:
    """A gate for three masters, whose clocks go with ours, and what a handshake would see of them."""

    def __init__(self, guard: Guard | None = None, addresses: tuple[str, ...] = ADDRESSES) -> None:
        self.now = 1000 * SECOND
        self.behind: list[int] = []
        self.wall_off_us = 0
        self.run_ids = ["run-" + address for address in addresses]
        self.ahead_us = [0] * len(addresses)
        self.persists = self.promoted = False
        self.backlog_ms = 3_600_000
        self.markers: list[bytes | None] = [None] * len(addresses)
        self.gate = Gate(
            addresses,
            guard or Guard(max_ttl=MAX_TTL),
            b"\0guard",
            0.01,
            lambda: self.clock_us() + self.wall_off_us,
            lambda index, ns: self.behind.append(index),
        )

    def clock_us(self) -> int:
        return START_US + self.now // 1000

    def sight(self, index: int) -> Sighting:
        server_us = self.clock_us() + self.ahead_us[index]
        times = self.now - 1000, self.now + 1000
        seen = self.persists, self.promoted, self.backlog_ms
        return Sighting(self.run_ids[index], self.markers[index], server_us, *times, *seen)

    def judge(self, index: int, others=None):
        """Have a master judged, after whatever is to be done about its marker."""
        key, old, new, made_us, _ = self.gate.errand(index)
        assert key == b"\0guard"
        if new and (self.markers[index] or b"") == old and self.sight(index).server_us - made_us < 5_000_000:
            self.markers[index] = new
        return self.gate.judge(index, self.sight(index), [] if others is None else others)

    def marker(self, index: int) -> Marker:
        found = Marker.read(self.markers[index])
        assert found is not None
        return found

    def found(self) -> Rig:
        """Have all markers written, as the first client of new masters does, and all masters let in."""
        sighted = [self.sight(index) for index in range(len(self.markers))]
        for index in range(len(self.markers)):
            ruling = self.judge(index, sighted)
            assert (ruling.admitted, ruling.wait_ns, ruling.cause) == (False, 0, None)
        for index in range(len(self.markers)):
            assert self.judge(index).admitted
        return self

    def again(self, **given) -> Rig:
        """Return another client of the same masters, at the same time."""
        other = Rig(**given)
        other.now, other.markers = self.now, self.markers
        return other

    def restart(self, index: int, keeps: bool = False) -> None:
        self.run_ids[index] += "+"
        if not keeps:
            self.markers[index] = None

    def beat(self, index: int, server_us: int | None = None):
        """Give a pulse its answer."""
        answer = self.clock_us() + self.ahead_us[index] if server_us is None else server_us
        return self.gate.watched(index).beat(self.now - 1000, self.now + 1000, answer)


def kept_out_for(ruling) -> float:
    """Return for how many seconds."""
    assert not ruling.admitted
    assert isinstance(ruling.cause, MasterQuarantined)
    assert "kept out" in str(ruling.cause)
    return ruling.wait_ns / SECOND


# --- new masters ------------------------------------------------------------------------------------------


def test_new_masters_are_marked_and_let_in_at_once():
    rig = Rig().found()
    assert {rig.marker(index).master for index in range(3)} == set(ADDRESSES)
    assert all(rig.marker(index).new and rig.marker(index).masters == ADDRESSES for index in range(3))


def test_whether_masters_are_new_is_not_decided_before_all_were_tried():
    rig = Rig()
    assert rig.judge(0, [rig.sight(0), rig.sight(1)]) is None


@pytest.mark.parametrize("reached", [1, 2])
def test_where_some_cannot_be_asked_the_others_wait_for_the_longest_ttl(reached):
    rig = Rig()
    sighted = [rig.sight(0), rig.sight(1) if reached > 1 else None, None]
    assert all(rig.judge(index, sighted).cause is None for index in range(reached))
    assert all(MAX_TTL - 0.1 < kept_out_for(rig.judge(index)) < MAX_TTL + 0.2 for index in range(reached))
    assert not rig.marker(0).new
    rig.now += OUT_NS
    assert all(rig.judge(index).admitted for index in range(reached))


def test_what_was_seen_a_while_ago_does_not_show_that_masters_are_new():
    rig = Rig()
    first = rig.sight(0)
    rig.now += 2 * SECOND
    sighted = [first, rig.sight(1), rig.sight(2)]
    ruling = rig.gate.judge(0, first, sighted)
    assert (ruling.admitted, ruling.wait_ns, ruling.cause) == (False, 0, None)
    assert rig.gate.errand(0).new == b""


def test_one_marker_among_those_that_wait_shows_that_the_others_are_not_new():
    """Whoever is judged first. Found by the simulator: nobody had reached the third when the others were new."""
    rig = Rig()
    rig.markers[1] = Marker("run-b:1", START_US, START_US, True, MAX_TTL * 1000, False, "b:1", ADDRESSES).text()
    sighted = [rig.sight(index) for index in range(3)]
    for index in (2, 0):
        assert rig.judge(index, sighted) == Ruling(False, SECOND_LOOK_NS)
    assert rig.judge(1, sighted).admitted


def test_a_second_client_is_let_in_at_once():
    rig = Rig().found()
    rig.now += SECOND
    assert all(rig.again().judge(index).admitted for index in range(3))


def test_two_clients_that_find_new_masters_together_are_both_let_in():
    one, other = Rig(), Rig()
    other.markers = one.markers
    sighted = [one.sight(index) for index in range(3)]
    for rig in (one, other):
        assert all(rig.judge(index, sighted).cause is None for index in range(3))
    for rig in (one, other):
        assert all(rig.judge(index).admitted for index in range(3))


def test_a_master_whose_marker_is_just_being_written_is_looked_at_again_and_let_in():
    rig = Rig().found()
    other = rig.again()
    marker, rig.markers[2] = rig.markers[2], None
    assert other.judge(0).admitted
    ruling = other.judge(2)
    assert (ruling.wait_ns, ruling.cause) == (SECOND_LOOK_NS, None)
    rig.markers[2] = marker
    other.now += SECOND_LOOK_NS
    assert other.judge(2).admitted


def test_markers_that_nobody_has_asked_for_are_gone_and_the_masters_as_new():
    rig = Rig().found()
    rig.now += (KEPT_MS + 1) * MILLISECOND
    rig.markers[:] = [None] * 3
    rig.found()


# --- masters that have forgotten --------------------------------------------------------------------------


@pytest.mark.parametrize("keeps", [True, False])
def test_a_master_that_was_restarted_is_kept_out_for_the_longest_ttl(keeps):
    rig = Rig().found()
    rig.restart(0, keeps)
    ruling = rig.judge(0)
    assert kept_out_for(ruling) == 0  # it is dialled at once to have its marker written
    rig.now += MILLISECOND
    assert MAX_TTL < kept_out_for(rig.judge(0)) <= OUT_NS / SECOND
    assert not rig.marker(0).new
    assert rig.marker(0).run_id == rig.run_ids[0]
    rig.now += OUT_NS - 10 * MILLISECOND
    assert kept_out_for(rig.judge(0)) > 0
    rig.now += 20 * MILLISECOND
    assert rig.judge(0).admitted


@pytest.mark.parametrize("keeps", [True, False])
def test_a_client_that_comes_later_knows_from_the_marker_for_how_long(keeps):
    rig = Rig().found()
    rig.restart(0, keeps)
    rig.judge(0)
    rig.judge(0)
    rig.now += 4 * SECOND
    other = rig.again()
    other.run_ids = rig.run_ids
    assert other.judge(1).admitted
    assert MAX_TTL - 4.1 < kept_out_for(other.judge(0)) < MAX_TTL - 3.8


def test_a_client_that_comes_first_after_a_restart_sees_that_the_others_have_markers():
    rig = Rig().found()
    rig.restart(0)
    other = rig.again()
    other.run_ids = rig.run_ids
    assert other.judge(1).admitted
    assert other.judge(0).cause is None
    other.now += SECOND_LOOK_NS
    assert kept_out_for(other.judge(0)) == 0
    assert kept_out_for(other.judge(0)) > MAX_TTL - 1


def test_who_knew_a_master_keeps_it_out_also_where_others_took_it_for_new():
    rig = Rig(addresses=("a:1",)).found()
    rig.restart(0)
    other = rig.again(addresses=("a:1",))
    other.run_ids = rig.run_ids
    other.found()  # with one master nothing else tells
    assert rig.marker(0).new
    assert kept_out_for(rig.judge(0)) > MAX_TTL - 1


def test_a_master_that_was_flushed_is_kept_out_though_it_is_the_same_process():
    rig = Rig().found()
    rig.markers[1] = None
    assert kept_out_for(rig.judge(1)) == 0
    assert kept_out_for(rig.judge(1)) > MAX_TTL - 1


def test_a_second_flush_begins_anew():
    rig = Rig().found()
    for _ in range(2):
        rig.markers[1] = None
        rig.judge(1)
        assert kept_out_for(rig.judge(1)) > MAX_TTL - 1
        rig.now += OUT_NS // 2


def test_being_dialled_again_and_again_prolongs_nothing():
    rig = Rig().found()
    rig.restart(0)
    for _ in range(20):
        rig.judge(0)
        rig.now += SECOND // 2
    rig.now += 200 * MILLISECOND
    assert rig.judge(0).admitted


def test_all_masters_that_have_forgotten_at_once_are_kept_out_by_who_knew_them():
    rig = Rig().found()
    for index in range(3):
        rig.restart(index)
    sighted = [rig.sight(index) for index in range(3)]
    assert all(kept_out_for(rig.judge(index, sighted)) == 0 for index in range(3))
    other = rig.again()
    other.run_ids = rig.run_ids
    for index in range(3):
        rig.judge(index)
        assert kept_out_for(other.judge(index)) > MAX_TTL - 1


def test_a_wall_clock_that_is_wrong_shortens_nothing():
    rig = Rig().found()
    rig.restart(0)
    rig.judge(0)
    rig.judge(0)
    for wrong_us in (-3600 * 1_000_000, 0):
        other = rig.again()
        other.run_ids, other.wall_off_us = rig.run_ids, wrong_us
        assert kept_out_for(other.judge(0)) > MAX_TTL - 1
    late = rig.again()
    late.run_ids, late.ahead_us[0] = rig.run_ids, 3600 * 1_000_000  # the server's own clock was set forward
    assert kept_out_for(late.judge(0)) > MAX_TTL - 1


def test_a_master_that_came_back_with_a_slow_clock_which_was_set_right_is_kept_out_as_long():
    rig = Rig().found()
    rig.restart(0)
    rig.ahead_us[0] = -30 * 1_000_000
    rig.judge(0)
    rig.judge(0)
    late = rig.again()  # whose wall clock is right, as is that of the master now
    late.run_ids = rig.run_ids
    assert kept_out_for(late.judge(0)) > MAX_TTL - 1


def test_a_first_replica_is_no_loss_of_memory():
    rig = Rig()
    rig.run_ids = ["process-0 history", "process-1 history", "process-2 history"]
    rig.found()
    rig.run_ids[0] = "process-0 another"
    since = rig.marker(0).since
    ruling = rig.judge(0)
    assert (ruling.admitted, ruling.cause) == (False, None)
    assert rig.judge(0).admitted
    assert (rig.marker(0).run_id, rig.marker(0).since, rig.marker(0).new) == (rig.run_ids[0], since, True)
    rig.run_ids[1], rig.promoted = "process-1 another", True
    assert kept_out_for(rig.judge(1)) == 0
    assert kept_out_for(rig.judge(1)) > MAX_TTL - 1


def test_row_50_a_new_replication_id_is_a_memory_loss_if_the_master_forgets_soon_that_it_was_a_replica():
    rig = Rig()
    rig.run_ids = ["process-0 history", "process-1 history", "process-2 history"]
    rig.found()
    rig.run_ids[0], rig.backlog_ms = "process-0 another", MAX_TTL * 1000 - 1
    assert kept_out_for(rig.judge(0)) == 0
    assert kept_out_for(rig.judge(0)) > MAX_TTL - 1


def test_who_knew_masters_keeps_them_out_that_were_flushed_all_at_once_and_taken_for_new():
    rig = Rig().found()
    rig.now += SECOND
    rig.markers[:] = [None] * 3
    rig.again().found()
    assert all(kept_out_for(rig.judge(index)) > MAX_TTL - 1 for index in range(3))


def test_a_marker_for_which_there_is_no_room_is_tried_at_growing_pauses():
    rig = Rig().found()
    rig.restart(0)
    pauses = [rig.gate.judge(0, rig.sight(0), []).wait_ns for _ in range(6)]  # and nothing is written
    assert pauses == [0, *[SECOND_LOOK_NS << times for times in (1, 2)], SECOND, SECOND, SECOND]
    rig.judge(0)
    rig.judge(0)
    rig.restart(0)
    assert rig.judge(0).wait_ns == 0


def test_who_spells_the_addresses_in_another_way_can_mark_a_master_that_was_restarted():
    rig = Rig().found()
    rig.restart(0)
    other = rig.again(addresses=("host-a:1", "host-b:1", "host-c:1"))
    other.run_ids = rig.run_ids
    assert other.judge(1).admitted
    assert other.judge(2).admitted
    assert other.judge(0).cause is None
    other.now += SECOND_LOOK_NS
    assert kept_out_for(other.judge(0)) == 0
    assert kept_out_for(other.judge(0)) > MAX_TTL - 1
    assert (rig.marker(0).master, rig.marker(0).masters) == (ADDRESSES[0], ADDRESSES)
    assert kept_out_for(rig.judge(0)) > MAX_TTL - 1
    assert rig.judge(1).admitted


def test_masters_that_keep_everything_are_trusted_where_that_was_said():
    rig = Rig(Guard(max_ttl=MAX_TTL, trust_persistence=True))
    rig.persists = True
    rig.found()
    rig.restart(0, keeps=True)
    ruling = rig.judge(0)
    assert (ruling.admitted, ruling.cause) == (False, None)
    assert rig.judge(0).admitted
    assert rig.marker(0).run_id == rig.run_ids[0]
    rig.restart(1, keeps=False)  # it has not kept everything after all
    assert kept_out_for(rig.judge(1)) == 0
    assert kept_out_for(rig.judge(1)) > MAX_TTL - 1


def test_to_trust_masters_without_an_append_only_file_is_refused():
    rig = Rig(Guard(max_ttl=MAX_TTL, trust_persistence=True))
    sighted = [rig.sight(index) for index in range(3)]
    rig.judge(0, sighted)
    ruling = rig.judge(0, sighted)
    assert "appendonly" in str(ruling.cause)
    assert not isinstance(ruling.cause, MasterQuarantined)


# --- clients that do not go together ----------------------------------------------------------------------


def refused(ruling, words: str) -> None:
    assert not ruling.admitted
    assert not isinstance(ruling.cause, MasterQuarantined)
    assert words in str(ruling.cause)


def test_another_longest_ttl_is_refused():
    rig = Rig().found()
    refused(rig.again(guard=Guard(max_ttl=20)).judge(0), "max_ttl=10 by others, not 20")


def test_another_number_of_masters_is_refused():
    rig = Rig().found()
    refused(rig.again(addresses=ADDRESSES[:2]).judge(0), "one of 3 masters for others (a:1, b:1, c:1), and of 2 here")


def test_another_list_of_as_many_masters_is_refused():
    one = Rig().found()
    two = Rig(addresses=("d:1", "e:1", "f:1")).found()
    mixed = Rig(addresses=("a:1", "b:1", "d:1"))
    mixed.now, mixed.markers = one.now, [*one.markers[:2], two.markers[0]]
    mixed.run_ids[2] = "run-d:1"
    assert mixed.judge(0).admitted
    refused(mixed.judge(2), "all clients must have the same list")


def test_a_strange_master_without_a_marker_is_refused():
    rig = Rig().found()
    mixed = rig.again(addresses=("a:1", "b:1", "d:1"))
    mixed.markers[2] = None
    assert mixed.judge(0).admitted
    refused(mixed.judge(2), "d:1 is not one of the masters")


def test_the_same_master_under_two_names_is_refused():
    rig = Rig().found()
    twice = rig.again(addresses=("a:1", "b:1", "localhost:1"))
    twice.markers[2], twice.run_ids[2] = rig.markers[0], "run-a:1"
    assert twice.judge(0).admitted
    refused(twice.judge(2), "used as a:1")


def test_masters_may_be_known_by_other_addresses():
    rig = Rig().found()
    other = rig.again(addresses=("x:9", "y:9", "z:9"))
    other.run_ids = rig.run_ids
    assert all(other.judge(index).admitted for index in range(3))
    rig.markers[1] = None
    assert kept_out_for(other.judge(1)) == 0
    other.judge(1)
    assert other.marker(1).master == "b:1"


@pytest.mark.parametrize(
    "text", [b"", b"mine", b"{}", b"[]", b'{"redlatch":2}', b'{"redlatch":1}', b"\xff", b"[" * 100_000]
)
def test_a_key_of_somebody_else_in_the_markers_place_is_refused(text):
    rig = Rig()
    rig.markers[0] = text
    refused(rig.judge(0), "a marker that is not ours")


def test_a_marker_that_was_edited_by_hand_is_refused():
    rig = Rig().found()
    rig.markers[0] = rig.markers[0].replace(b",", b", ")
    refused(rig.judge(0), "written in another way")


def test_who_knows_masters_by_other_addresses_keeps_the_list_of_a_master_that_was_restarted():
    rig = Rig().found()
    other = rig.again(addresses=("x:9", "y:9", "z:9"))
    rig.restart(0, keeps=True)
    other.run_ids = rig.run_ids
    assert kept_out_for(other.judge(0)) == 0
    other.judge(0)
    assert other.marker(0).masters == ADDRESSES


def test_a_marker_is_read_as_it_was_written():
    marker = Marker("r" * 40, 17, 18, False, 60_000, False, "a:1", ADDRESSES)
    assert Marker.read(marker.text()) == marker
    with pytest.raises(ValueError, match="other fields"):
        Marker.read(replace(marker, since="17").text())  # type: ignore[arg-type]


# --- clocks -----------------------------------------------------------------------------------------------


def test_a_pulse_that_shows_nothing_new_changes_nothing():
    rig = Rig().found()
    for _ in range(5):
        rig.now += SECOND
        assert rig.beat(0) is None
    assert not rig.behind


def test_a_changed_marker_ends_the_connection():
    rig = Rig().found()
    trouble = rig.beat(0, 0)
    assert "marker" in str(trouble)
    assert trouble.doubted_ns == rig.now - 1000


@pytest.mark.parametrize("seconds", [0.05, 11.0])
def test_a_clock_that_was_set_forward_keeps_its_master_out(seconds):
    rig = Rig().found()
    rig.now += SECOND
    rig.ahead_us[0] = int(seconds * 1_000_000)
    trouble = rig.beat(0)
    assert "set forward" in str(trouble)
    assert trouble.doubted_ns == rig.now - 1000
    assert rig.beat(1) is None
    assert kept_out_for(rig.judge(0)) == 0
    assert kept_out_for(rig.judge(0)) > MAX_TTL - 1
    other = rig.again()
    other.ahead_us = rig.ahead_us
    assert kept_out_for(other.judge(0)) > MAX_TTL - 1 - seconds


def test_a_clock_that_was_set_forward_while_nobody_was_connected_is_seen_when_somebody_is():
    rig = Rig().found()
    rig.now += SECOND
    rig.ahead_us[0] = 1_000_000
    assert rig.beat(1) is None
    assert not rig.judge(0).admitted  # it has a marker to write first
    assert kept_out_for(rig.judge(0)) > MAX_TTL - 1


def test_while_nothing_is_known_of_the_others_a_jump_is_not_judged():
    rig = Rig().found()
    rig.now += SECOND
    rig.ahead_us[0] = 1_000_000
    assert rig.beat(0) is not None
    ruling = rig.judge(0)
    assert not ruling.admitted
    assert 0 < ruling.wait_ns < SECOND
    rig.now += SECOND
    assert kept_out_for(rig.judge(0)) > MAX_TTL - 1  # and the others are not told
    assert rig.marker(0).new


def test_where_all_clocks_jump_alike_it_was_ours_that_stood_still():
    rig = Rig().found()
    rig.now += SECOND
    rig.ahead_us = [7_000_000, 7_000_100, 6_999_900]
    assert all(rig.beat(index) is not None for index in range(3))
    assert all(rig.judge(index).admitted for index in range(3))
    rig.now += SECOND
    assert all(rig.beat(index) is None for index in range(3))
    assert all(rig.marker(index).new for index in range(3))


def test_a_minority_that_jumps_alike_is_no_clock_of_ours():
    rig = Rig(addresses=("a:1", "b:1", "c:1", "d:1", "e:1")).found()
    rig.now += SECOND
    rig.ahead_us[:2] = [60_000_000, 60_000_000]
    assert all(rig.beat(index) is not None for index in range(2))
    assert not any(rig.judge(index).admitted for index in range(2))  # the others have not answered yet
    assert all(rig.beat(index) is None for index in range(2, 5))
    for index in range(2):
        assert not rig.judge(index).admitted  # it has a marker to write first
        assert kept_out_for(rig.judge(index)) > MAX_TTL - 1


def test_clocks_that_jump_by_different_times_keep_nobody_else_out():
    """A client that stood still, and asks its masters one after another, must not speak for all clients."""
    rig = Rig().found()
    rig.now += SECOND
    rig.ahead_us = [10_000_000, 9_600_000, 10_300_000]
    assert all(rig.beat(index) is not None for index in range(3))
    rig.now += SECOND
    for index in range(3):
        rig.judge(index)
        assert rig.marker(index).new


def test_the_clock_of_a_single_master_is_believed_by_nobody_else():
    rig = Rig(addresses=("a:1",)).found()
    rig.now += SECOND
    rig.ahead_us[0] = 1_000_000
    assert rig.beat(0) is not None
    assert kept_out_for(rig.judge(0)) > MAX_TTL - 1
    assert rig.marker(0).new


def test_a_clock_that_was_set_back_is_told_of_and_votes():
    rig = Rig().found()
    rig.now += SECOND
    rig.ahead_us[2] = -3_600_000_000
    assert rig.beat(2) is None
    assert rig.behind == [2]
    rig.now += SECOND
    assert rig.beat(2) is None
    assert rig.behind == [2]


def test_a_clock_that_stands_still_keeps_its_master_out_until_it_goes_on():
    rig = Rig().found()
    stood = rig.clock_us()
    rig.now += SECOND
    assert "stands still" in str(rig.beat(0, stood + 40))
    rig.ahead_us[0] = stood - rig.clock_us()
    assert "stands still" in str(rig.judge(0).cause)
    rig.now += SECOND
    assert rig.judge(0).admitted  # behind by now, but going


def test_the_offset_of_clocks_that_go_at_other_rates_is_no_jump():
    offset = Offset(0.01)
    for second in range(1, 100):
        now = second * SECOND
        assert offset.note(now, now + MILLISECOND, int(second * 1_009_000)) == 0


@pytest.mark.parametrize("by_ns", [30 * MILLISECOND, 5 * SECOND, -30 * MILLISECOND, -5 * SECOND])
def test_the_offset_of_a_clock_that_is_set_is_a_jump_by_about_as_much(by_ns):
    offset = Offset(0.01)
    for second in range(1, 10):
        assert offset.note(second * SECOND, second * SECOND + MILLISECOND // 2, second * 1_000_000) == 0
    jump = offset.note(10 * SECOND, 10 * SECOND + MILLISECOND // 2, 10_000_000 + by_ns // 1000)
    assert abs(jump - by_ns) < 15 * MILLISECOND


# --- its options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_ttl", [0, -1, float("nan"), float("inf"), 0.0001, 8 * 86_400])
def test_a_longest_ttl_that_cannot_work_is_refused(max_ttl):
    with pytest.raises(ConfigurationError, match="guard: a max_ttl"):
        Guard(max_ttl=max_ttl)


@pytest.mark.parametrize(("name", "value"), [("max_ttl", "60"), ("max_ttl", True), ("trust_persistence", 1)])
def test_an_option_of_the_wrong_type_is_refused(name, value):
    with pytest.raises(TypeError, match=f"guard: {name}"):
        Guard(**{name: value})
