"""Redirects: a node of a cluster answers that it does not have the slot of a key. The test plays the nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.cluster_ends import HOST, ClusterEnds, ask, moved

from redlatch import impl
from redlatch.votes.key import slot_of
from redlatch.wire.engine.redirects import MOST_HOPS
from redlatch.wire.server_traits import reply_error

OK, NIL, YES, NO = b"+OK\r\n", b"_\r\n", b":1\r\n", b":0\r\n"
TRYAGAIN = b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n"
CLUSTERDOWN = b"-CLUSTERDOWN The cluster is down\r\n"
NOSCRIPT = b"-NOSCRIPT No matching script\r\n"
SECOND = 1_000_000_000


@pytest.fixture
def nodes(implementation: impl.Implementation) -> Iterator[ClusterEnds]:
    """Three nodes, all connected; the first one has all slots."""
    nodes = ClusterEnds(implementation)
    yield nodes
    nodes.close()


# --- MOVED -------------------------------------------------------------------------------------------------


def test_moved_is_no_vote_and_the_command_goes_to_the_new_owner(nodes: ClusterEnds) -> None:
    ballot = nodes.submit(nodes.command())
    assert nodes.got(0) == ["SET"]
    nodes.answer(0, moved(1))
    assert (ballot.yes, ballot.no, ballot.failed, ballot.decided) == (0, 0, 0, False)
    assert nodes.got(1) == ["SET"]
    nodes.answer(1, OK)
    assert ballot.decided and ballot.yes == 1


def test_after_moved_the_next_command_goes_to_the_new_owner_at_once(nodes: ClusterEnds) -> None:
    nodes.submit(nodes.command())
    nodes.answer(0, moved(1))
    nodes.answer(1, OK)
    nodes.got(0), nodes.got(1)
    nodes.submit(nodes.command("Owned"))
    nodes.submit(nodes.command(key=b"another"))
    assert (nodes.got(0), nodes.got(1)) == (["SET"], ["EVALSHA"])


def test_moved_has_the_topology_read_again_first_from_the_node_that_it_names(nodes: ClusterEnds) -> None:
    nodes.submit(nodes.command())
    nodes.answer(0, moved(2))
    assert nodes.source.asked == [(HOST, 7002)]


def test_an_empty_host_is_that_of_the_node_which_answers(nodes: ClusterEnds) -> None:
    nodes.submit(nodes.command())
    nodes.answer(0, moved(1, host=""))
    assert nodes.got(1) == ["SET"]


def test_a_stale_redirect_does_not_change_a_newer_table(nodes: ClusterEnds) -> None:
    late = nodes.submit(nodes.command())
    nodes.give_all_to(2)
    nodes.answer(0, moved(1))
    assert (nodes.got(1), nodes.got(2)) == ([], ["SET"])
    nodes.answer(2, OK)
    assert late.yes == 1


def test_an_unknown_node_delays_the_command_until_the_topology_has_it(nodes: ClusterEnds) -> None:
    ballot = nodes.submit(nodes.command())
    nodes.answer(0, moved(5))
    assert not ballot.decided and nodes.source.asked
    link = nodes.fleet.add_node(HOST, 7005, "new")
    nodes.adopt(link.index)
    nodes.give_all_to(link.index)
    assert nodes.got(link.index) == ["SET"]


def test_no_further_command_goes_to_the_former_owner_while_the_new_one_is_unknown(nodes: ClusterEnds) -> None:
    nodes.submit(nodes.command())
    nodes.answer(0, moved(5))
    nodes.got(0)
    nodes.submit(nodes.command())
    nodes.let_pass(0.02)
    assert nodes.got(0) == []
    nodes.give_all_to(1)
    assert nodes.got(1) == ["SET", "SET"]


def test_a_node_that_names_itself_gets_a_new_connection_and_the_command(nodes: ClusterEnds) -> None:
    ballot = nodes.submit(nodes.command())
    nodes.answer(0, moved(0))
    assert nodes.fallen() == [0]
    assert not ballot.decided
    nodes.adopt(0)
    nodes.fleet.flush()
    nodes.answer(0, OK)
    assert ballot.yes == 1


def test_two_nodes_that_name_each_other_get_the_command_with_pauses_and_not_for_ever(nodes: ClusterEnds) -> None:
    ballot = nodes.submit(nodes.command())
    sent = 1
    nodes.got(0)
    while not ballot.decided:
        asked = next(index for index in (0, 1) if nodes.fleet.links[index].owing())
        nodes.answer(asked, moved(1 - asked))
        nodes.let_pass()
        sent += len(nodes.got(0)) + len(nodes.got(1))
    assert sent == MOST_HOPS + 1
    assert ballot.failed == 1


def test_a_command_whose_time_is_over_is_not_sent_again(nodes: ClusterEnds) -> None:
    ballot = nodes.submit(nodes.command(), until_ns=nodes.clock.now() + 1)
    nodes.answer(0, moved(1))
    assert nodes.got(1) == [] and ballot.failed == 1


def test_a_script_that_the_new_owner_lacks_is_sent_in_full(nodes: ClusterEnds) -> None:
    ballot = nodes.submit(nodes.command("Owned"))
    nodes.answer(0, NOSCRIPT)
    assert nodes.got(0) == ["EVALSHA", "EVAL"]
    nodes.answer(0, moved(1))
    assert nodes.got(1) == ["EVALSHA"]
    nodes.answer(1, NOSCRIPT)
    assert nodes.got(1) == ["EVAL"]
    nodes.answer(1, YES)
    assert ballot.yes == 1


def test_waiters_are_told_of_a_change_that_this_client_has_sent_twice(nodes: ClusterEnds) -> None:
    # The server pushes nothing for changes by our own connection.
    release = nodes.submit(nodes.command("Release"))
    nodes.answer(0, moved(1))
    nodes.fleet.changed.clear()
    nodes.answer(1, YES)
    assert release.yes == 1
    assert nodes.fleet.changed == [(0, b"the-key")]


# --- ASK ---------------------------------------------------------------------------------------------------


def test_ask_sends_one_command_behind_asking_and_changes_no_route(nodes: ClusterEnds) -> None:
    ballot = nodes.submit(nodes.command())
    nodes.answer(0, ask(1))
    assert nodes.got(1) == ["ASKING", "SET"]
    nodes.answer(1, OK, OK)
    assert ballot.yes == 1
    nodes.got(0)
    nodes.submit(nodes.command())
    assert nodes.got(0) == ["SET"]
    assert nodes.source.asked == []


def test_a_script_that_the_target_lacks_is_sent_in_full_behind_asking(nodes: ClusterEnds) -> None:
    ballot = nodes.submit(nodes.command("Owned"))
    nodes.answer(0, ask(1))
    assert nodes.got(1) == ["ASKING", "EVALSHA"]
    nodes.answer(1, OK, NOSCRIPT)
    assert nodes.got(1) == ["ASKING", "EVAL"]
    nodes.answer(1, OK, YES)
    assert ballot.yes == 1


def test_a_key_behind_asking_is_not_tracked_and_so_not_waited_for(nodes: ClusterEnds) -> None:
    nodes.adopt(1, tracking=True)
    look = nodes.submit(nodes.command("Look"))
    nodes.answer(0, ask(1))
    assert nodes.got(1) == ["ASKING", "PTTL"]
    nodes.answer(1, OK, b":9000\r\n")
    assert look.no == 1 and not look.watchable()


def test_the_undo_of_an_acquire_behind_asking_follows_it_there(nodes: ClusterEnds) -> None:
    acquire = nodes.command()
    nodes.submit(acquire)
    nodes.answer(0, ask(1))
    undo = nodes.submit(acquire.undo())
    assert nodes.got(0) == ["SET"]
    assert nodes.got(1) == ["ASKING", "SET", "ASKING", "EVALSHA"]
    nodes.answer(1, OK, OK, OK, YES)
    assert undo.yes == 1


# --- releases ----------------------------------------------------------------------------------------------


def test_the_undo_of_an_acquire_that_is_on_its_way_takes_the_same_way(nodes: ClusterEnds) -> None:
    acquire = nodes.command()
    nodes.submit(acquire)
    nodes.give_all_to(1)
    undo = nodes.submit(acquire.undo())
    assert (nodes.got(0), nodes.got(1)) == (["SET", "EVALSHA"], [])
    # The acquire, whose undo has been sent, is not sent again; the undo goes on to the owner.
    nodes.answer(0, moved(1), moved(1))
    assert nodes.got(1) == ["EVALSHA"]
    nodes.answer(1, NO)
    assert undo.decided


def test_a_later_release_takes_the_new_way(nodes: ClusterEnds) -> None:
    nodes.submit(nodes.command())
    nodes.give_all_to(1)
    nodes.answer(0, OK)
    nodes.got(0)
    nodes.submit(nodes.command("Release"))
    assert (nodes.got(0), nodes.got(1)) == ([], ["EVALSHA"])


def test_the_undo_of_a_delayed_acquire_removes_it(nodes: ClusterEnds) -> None:
    acquire = nodes.command()
    nodes.submit(acquire)
    nodes.answer(0, TRYAGAIN)
    nodes.got(0)
    undo = nodes.submit(acquire.undo())
    nodes.let_pass()
    assert nodes.got(0) == ["EVALSHA"]
    nodes.answer(0, NO)
    assert undo.decided


def test_a_release_that_is_resumed_withdraws_the_acquire_behind_it(nodes: ClusterEnds) -> None:
    nodes.submit(nodes.command("Release", token=b"undone"))
    acquire = nodes.submit(nodes.command(token=b"undone"))
    nodes.answer(0, TRYAGAIN, TRYAGAIN)
    nodes.got(0)
    nodes.give_all_to(1)
    assert nodes.got(1) == ["EVALSHA"]
    assert not acquire.decided and not nodes.fleet.routes.delayed


def test_a_release_that_nobody_waits_for_goes_on(nodes: ClusterEnds) -> None:
    nodes.fleet.submit(nodes.fleet.ballot_of(nodes.command("Release")))
    nodes.fleet.flush()
    nodes.answer(0, moved(1))
    assert nodes.got(1) == ["EVALSHA"]


def test_an_owed_release_goes_to_the_new_owner_of_its_slot(nodes: ClusterEnds) -> None:
    release = nodes.submit(nodes.command("Release"))
    nodes.lose(0)
    assert release.failed == 1
    nodes.give_all_to(1)
    assert nodes.got(1) == ["EVALSHA"]


def test_a_parked_command_goes_to_the_new_owner_of_its_slot(nodes: ClusterEnds) -> None:
    nodes.lose(0)
    ballot = nodes.submit(nodes.command())
    assert not ballot.decided
    nodes.give_all_to(1)
    assert nodes.got(1) == ["SET"]
    nodes.answer(1, OK)
    assert ballot.yes == 1


def test_a_release_that_finds_its_new_owner_down_is_sent_when_it_is_back(nodes: ClusterEnds) -> None:
    nodes.lose(0)
    nodes.lose(1)
    nodes.submit(nodes.command("Release"))
    nodes.give_all_to(1)
    nodes.fleet.fail(1, ConnectionRefusedError())
    nodes.adopt(1)
    nodes.fleet.flush()
    assert nodes.got(1) == ["EVALSHA"]


def test_the_commands_of_a_removed_node_go_to_the_others(nodes: ClusterEnds) -> None:
    nodes.lose(0)
    nodes.submit(nodes.command("Release"))
    nodes.give_all_to(2)
    nodes.fleet.remove_node(HOST, 7000, ConnectionAbortedError())
    assert nodes.got(2) == ["EVALSHA"]


# --- other answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [TRYAGAIN, b"-READONLY You can't write\r\n", b"-LOADING Redis is loading\r\n"])
def test_an_answer_that_passes_is_no_vote_and_the_command_is_sent_again(nodes: ClusterEnds, answer: bytes) -> None:
    ballot = nodes.submit(nodes.command())
    nodes.answer(0, answer)
    assert not ballot.decided
    nodes.let_pass()
    assert nodes.got(0) == ["SET", "SET"]
    nodes.answer(0, OK)
    assert ballot.yes == 1


def test_clusterdown_is_a_failed_vote_with_its_reason(nodes: ClusterEnds) -> None:
    ballot = nodes.submit(nodes.command())
    nodes.answer(0, CLUSTERDOWN)
    assert ballot.failed == 1 and "CLUSTERDOWN" in str(ballot.causes[0])
    assert nodes.source.asked


def test_the_redirect_keeps_no_text_but_the_address() -> None:
    assert str(reply_error("MOVED 3999 10.0.0.1:7000")) == "MOVED 3999 10.0.0.1:7000"
    assert "secret" not in str(reply_error("MOVED 3999 10.0.0.1:7000 secret"))


def test_a_slot_without_a_node_fails_when_no_topology_can_be_read(implementation: impl.Implementation) -> None:
    nodes = ClusterEnds(implementation, 0)
    ballot = nodes.submit(nodes.command())
    assert not ballot.decided and nodes.source.asked
    nodes.fleet.lose_route(ConnectionRefusedError("no seed answers"))
    assert ballot.failed == 1
    assert nodes.submit(nodes.command()).failed == 1
    nodes.close()


def test_a_release_outlives_a_topology_that_cannot_be_read(nodes: ClusterEnds) -> None:
    release = nodes.submit(nodes.command("Release"))
    nodes.answer(0, moved(5))
    nodes.fleet.lose_route(ConnectionRefusedError("no seed answers"))
    assert not release.decided and nodes.fleet.owing()
    nodes.give_all_to(1)
    assert nodes.got(1) == ["EVALSHA"]


def test_waiters_are_told_of_a_change_by_a_release_that_had_to_wait_for_its_slot(nodes: ClusterEnds) -> None:
    nodes.fleet.route([], nodes.clock.now())
    nodes.submit(nodes.command("Release"))
    nodes.give_all_to(1)
    nodes.fleet.changed.clear()
    nodes.answer(1, YES)
    assert nodes.fleet.changed == [(0, b"the-key")]


def test_closing_waits_for_a_release_that_waits_for_a_new_node(nodes: ClusterEnds) -> None:
    nodes.submit(nodes.command("Release"))
    nodes.answer(0, moved(5))
    nodes.fleet.add_node(HOST, 7005, "new")
    nodes.give_all_to(3)
    assert nodes.fleet.owing() == 1


def test_closing_undoes_what_is_delayed(nodes: ClusterEnds) -> None:
    ballot = nodes.submit(nodes.command())
    nodes.answer(0, TRYAGAIN)
    nodes.got(0)
    nodes.fleet.abandon()
    assert ballot.decided and not ballot.won()
    assert nodes.got(0) == ["EVALSHA"]


def test_watches_on_a_slot_that_went_to_another_link_are_called(nodes: ClusterEnds) -> None:
    nodes.fleet.changed.clear()
    nodes.give_all_to(1)
    ((voter, slots),) = nodes.fleet.changed
    assert voter == 0 and slot_of(b"the-key") in slots


def test_a_ballot_that_is_delayed_counts_as_silent_at_its_deadline(nodes: ClusterEnds) -> None:
    ballot = nodes.submit(nodes.command())
    nodes.answer(0, TRYAGAIN)
    nodes.fleet.record_silent(ballot)
    assert ballot.silent == (0,)
    assert nodes.fleet.unanswered()
