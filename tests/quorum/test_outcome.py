"""The rules that turn votes into a lock, a release or an error."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from support.scripted_votes import BEGINNING, KEY, MS, NAME, SECOND, VALIDITY, Play

from redlatch import impl
from redlatch.errors import LockLost, MasterQuarantined, QuorumUnavailable

DEADLINE = BEGINNING + VALIDITY


@pytest.fixture
def outcome(implementation: impl.Implementation) -> ModuleType:
    return implementation.module("quorum.outcome")


def ballot_of(play: Play, votes: str) -> Any:
    """Return a ballot on a release with these votes, decided if they settle it."""
    ballot = play.ballots.Ballot(play.commands.Release(KEY, b"token", BEGINNING), play.masters, play.quorum.majority)
    play.vote(ballot, votes)
    return ballot


@pytest.fixture
def asking(play: Play) -> Play:
    """A play whose holder began an attempt at BEGINNING."""
    play.hold.claim(play.ticket)
    play.hold.ask(play.build.module("quorum.lease").new_lease(b"token", BEGINNING, DEADLINE))
    return play


@pytest.mark.parametrize(
    ("won", "now", "granted"), [(True, DEADLINE - 1, True), (True, DEADLINE, False), (False, BEGINNING, False)]
)
def test_a_lock_is_granted_by_a_quorum_before_the_deadline(
    asking: Play, outcome: ModuleType, won: bool, now: int, granted: bool
) -> None:
    assert bool(outcome.granted(asking.quorum, asking.hold, won, DEADLINE, now)) is granted


@pytest.mark.parametrize(("doubt", "granted"), [(BEGINNING, True), (BEGINNING + 1, False)])
def test_a_vote_that_may_be_forgotten_grants_no_lock(
    asking: Play, outcome: ModuleType, doubt: int, granted: bool
) -> None:
    asking.quorum.doubts.add(doubt)
    assert bool(outcome.granted(asking.quorum, asking.hold, True, DEADLINE, BEGINNING)) is granted


@pytest.mark.parametrize(("lost", "granted"), [(BEGINNING - 1, True), (BEGINNING, False)])
def test_a_key_that_was_deleted_since_the_attempt_began_grants_no_lock(
    asking: Play, outcome: ModuleType, lost: int, granted: bool
) -> None:
    asking.queues.note_deletion(KEY, lost)
    assert bool(outcome.granted(asking.quorum, asking.hold, True, DEADLINE, BEGINNING)) is granted


@pytest.mark.parametrize(
    ("votes", "failures", "final"), [("!!!", 1, False), ("!!!", 2, True), ("yy", 1, True), ("yy", 2, True)]
)
def test_a_second_failure_or_a_silence_is_final(
    play: Play, outcome: ModuleType, votes: str, failures: int, final: bool
) -> None:
    assert bool(outcome.is_final(ballot_of(play, votes), failures)) is final


def end(held: Play, outcome: ModuleType, votes: str, late: bool = False, resent: bool = False, tried: int = -1) -> bool:
    """End a release that began 2 ms ago with these votes; `tried` counts if it was sent again."""
    held.hold.begin_release(held.now)
    started, held.now = held.now, held.now + 2 * MS
    ballot = ballot_of(held, votes)
    ballot.command.tried = tried if resent else 0
    return bool(outcome.end_release(held.quorum, held.hold, ballot, late, resent, started))


# A master that obeyed the first command answers "no" to the second.
@pytest.mark.parametrize(("votes", "resent"), [("yyy", False), ("yyy", True), ("nnn", True), ("nn!yy", False)])
def test_a_release_ends_well_if_no_quorum_had_forgotten_the_token_before_it(
    held: Play, outcome: ModuleType, votes: str, resent: bool
) -> None:
    assert end(held, outcome, votes, resent=resent)
    assert held.hold.state == held.claims.FREE


@pytest.mark.parametrize(
    ("votes", "late", "reason"),
    [("nnn", False, "a quorum has forgotten it"), ("yyy", True, "its validity ran out")],
)
def test_a_release_of_a_lost_lock_frees_the_hold_and_says_why_it_was_lost(
    held: Play, outcome: ModuleType, votes: str, late: bool, reason: str
) -> None:
    with pytest.raises(LockLost, match=f"'{NAME}' was lost: {reason}") as caught:
        end(held, outcome, votes, late=late)
    assert (caught.value.reason, caught.value.name, caught.value.elapsed) == (reason, NAME, 0.002)
    assert held.hold.state == held.claims.FREE


@pytest.mark.parametrize(
    ("votes", "tried", "forgot", "lost"),
    [
        # Each master may have obeyed the first copy.
        ("nnn", -1, (), False),
        # Nothing was sent before: the links were down.
        ("nnn", 0b000, (), True),
        ("nnn", 0b001, (), False),
        # Other memories have answered.
        ("nnn", -1, (0, 1, 2), True),
        ("nnnnn", -1, (0, 1), False),
        ("n.ynn", -1, (0, 3, 4), True),
        # Some of each.
        ("nnn", 0b011, (0, 1), True),
        ("nnn", 0b011, (0,), False),
    ],
)
@pytest.mark.parametrize("how", ["doubt", "other server"])
def test_row_60_a_no_is_an_echo_only_of_a_copy_that_the_same_memory_may_have_obeyed(
    held: Play, outcome: ModuleType, how: str, votes: str, tried: int, forgot: tuple[int, ...], lost: bool
) -> None:
    doubts = held.quorum.doubts
    for master in forgot:
        (doubts.add if how == "doubt" else doubts.note_other)(BEGINNING + 1, master)
    if not lost:
        assert end(held, outcome, votes, resent=True, tried=tried)
        return
    with pytest.raises(LockLost, match="a quorum has forgotten it"):
        end(held, outcome, votes, resent=True, tried=tried)


@pytest.mark.parametrize(("forgot", "lost"), [((), False), ((0, 1), False), ((0, 1, 2), True)])
def test_row_60_a_no_after_the_end_of_the_lease_may_come_from_a_key_that_has_expired(
    held: Play, outcome: ModuleType, forgot: tuple[int, ...], lost: bool
) -> None:
    for master in forgot:
        held.quorum.doubts.note_other(BEGINNING + 1, master)
    held.hold.begin_release(held.now)
    held.now = DEADLINE
    ballot = ballot_of(held, "nnn")
    if not lost:
        assert outcome.end_release(held.quorum, held.hold, ballot, False, True, held.now)
        return
    with pytest.raises(LockLost, match="a quorum has forgotten it"):
        outcome.end_release(held.quorum, held.hold, ballot, False, True, held.now)


@pytest.mark.parametrize(("obeyed", "lost"), [(0b000, True), (0b001, False)])
def test_row_60_a_master_that_has_obeyed_an_earlier_copy_had_the_lock_whatever_it_says_now(
    held: Play, outcome: ModuleType, obeyed: int, lost: bool
) -> None:
    """After a fail-over, say: the new connection begins with a copy of the release, for which no caller waits."""
    for master in range(3):
        held.quorum.doubts.note_other(BEGINNING + 1, master)
    held.hold.begin_release(held.now)
    ballot = ballot_of(held, "nnn")
    ballot.command.tried, ballot.command.obeyed = -1, obeyed
    if not lost:
        assert outcome.end_release(held.quorum, held.hold, ballot, False, True, held.now)
        return
    with pytest.raises(LockLost, match="a quorum has forgotten it"):
        outcome.end_release(held.quorum, held.hold, ballot, False, True, held.now)


@pytest.mark.parametrize(("since", "kept"), [(BEGINNING, True), (BEGINNING + 1, False)])
def test_a_master_that_had_forgotten_before_the_lease_was_asked_for_has_kept_it(
    play: Play, since: int, kept: bool
) -> None:
    play.quorum.doubts.note_other(since, 1)
    assert play.quorum.doubts.kept(1, BEGINNING, b"x") is kept and play.quorum.doubts.kept(0, BEGINNING, b"x")


def test_row_60_a_release_without_a_verdict_notes_where_a_copy_may_have_been_obeyed(
    held: Play, outcome: ModuleType
) -> None:
    held.hold.begin_release(held.now)
    ballot = ballot_of(held, "n!!!")
    # The link to one of them was down.
    ballot.unsent = 0b1000
    assert not outcome.end_release(held.quorum, held.hold, ballot, False, False, held.now)
    assert [ballot.command.tried >> index & 1 for index in range(5)] == [0, 1, 1, 0, 1]
    assert ballot.unsent == -1


def test_a_release_that_comes_after_that_of_the_closed_client_says_so(held: Play, outcome: ModuleType) -> None:
    held.quorum.released_ns = held.now
    with pytest.raises(LockLost, match=r"released by close\(release=True\)"):
        end(held, outcome, "nnn")


def test_a_release_that_failed_for_the_first_time_is_sent_again(held: Play, outcome: ModuleType) -> None:
    assert not end(held, outcome, "!!!")
    assert held.hold.state == held.claims.RELEASING


@pytest.mark.parametrize(("votes", "resent"), [("!!!", True), ("yy", False)])
def test_a_release_without_a_verdict_can_be_called_again(
    held: Play, outcome: ModuleType, votes: str, resent: bool
) -> None:
    with pytest.raises(QuorumUnavailable, match=f"release of '{NAME}'"):
        end(held, outcome, votes, resent=resent)
    assert held.hold.state == held.claims.UNCONFIRMED


def test_the_error_of_a_ballot_that_was_held_counts_the_masters_that_it_waited_for(
    play: Play, outcome: ModuleType
) -> None:
    ballot = ballot_of(play, "!")
    ballot.silent = (0, 2)
    error = outcome.no_quorum("acquire", play.quorum, play.hold, ballot, SECOND // 4)
    assert "of 5 masters 1 failed and 1 did not answer within 0.250 s" in str(error)
    assert [str(cause) for cause in error.causes.values()] == ["broken 0", "no answer within 0.250 s"]


def test_the_error_names_each_master_that_failed_or_was_silent(play: Play, outcome: ModuleType) -> None:
    ballot = ballot_of(play, "y!y")
    ballot.silent = (4, 3)
    error = outcome.no_quorum("extend", play.quorum, play.hold, ballot, SECOND // 4)
    assert "extend of 'sku:42': of 5 masters 1 failed and 2 did not answer within 0.250 s; 3 must agree" in str(error)
    assert {master: str(cause) for master, cause in error.causes.items()} == {
        "master-1:6379": "broken 1",
        "master-3:6379": "no answer within 0.250 s",
        "master-4:6379": "no answer within 0.250 s",
    }
    assert isinstance(error.causes["master-3:6379"], TimeoutError)


@pytest.mark.parametrize(("elapsed_ns", "seconds"), [(0, 0.25), (2 * SECOND, 2.0)])
def test_the_error_says_how_long_the_whole_call_took(
    play: Play, outcome: ModuleType, elapsed_ns: int, seconds: float
) -> None:
    error = outcome.no_quorum("acquire", play.quorum, play.hold, ballot_of(play, "!!!"), SECOND // 4, elapsed_ns)
    assert error.elapsed == seconds


def kept_out(seconds: float) -> MasterQuarantined:
    return MasterQuarantined.kept_out(BEGINNING + int(seconds * SECOND), "it was restarted", BEGINNING)


@pytest.mark.parametrize(
    ("failed", "out", "retry_after"),
    [
        (3, (5.0, 9.0, 7.0), 5.0),
        (3, (0.25, 9.0, 7.0), 0.25),
        (5, (9.0, 5.0, 7.0, 8.0, 6.0), 7.0),
        (5, (9.0, 5.0), 1.0),
        (4, (9.0, 5.0, 7.0), 5.0),
        (5, (), 1.0),
        # The votes of the others were split: the longest pause of `Retry`.
        (1, (), 0.05),
    ],
)
def test_the_error_says_when_a_quorum_may_vote_again(
    play: Play, outcome: ModuleType, failed: int, out: tuple[float, ...], retry_after: float
) -> None:
    """What is left of a quarantine counts, and a second for a master that failed otherwise."""
    ballot = ballot_of(play, "!!!")
    ballot.causes = dict.fromkeys(range(failed), ConnectionError("gone")) | dict(enumerate(map(kept_out, out)))
    error = outcome.no_quorum("acquire", play.quorum, play.hold, ballot, 0)
    assert error.retry_after == pytest.approx(retry_after)


def test_the_text_has_the_time_that_is_left_now(play: Play, outcome: ModuleType) -> None:
    ballot = ballot_of(play, "!!!")
    ballot.causes = {0: kept_out(9)}
    play.now = BEGINNING + 4 * SECOND
    error = outcome.no_quorum("acquire", play.quorum, play.hold, ballot, 0)
    assert "kept out for 5.0 s more: it was restarted" in str(error)
    play.now = BEGINNING + 10 * SECOND
    assert "kept out for 0.0 s more" in str(outcome.no_quorum("acquire", play.quorum, play.hold, ballot, 0))


@pytest.mark.parametrize(("later", "released"), [(-1, True), (0, True), (1, False)])
def test_only_a_lease_that_had_not_run_out_was_ended_by_the_client(
    held: Play, outcome: ModuleType, later: int, released: bool
) -> None:
    assert not outcome.was_released(held.quorum, held.hold)
    held.now = held.hold.deadline_ns + later
    held.quorum.released_ns = held.now
    assert outcome.was_released(held.quorum, held.hold) is released


# --- steps that ask once more -------------------------------------------------------------------------------------


def question(play: Play, asked: list[str]) -> Any:
    """Ask until a ballot has a verdict; return its votes."""
    while True:
        ballot = ballot_of(play, "")
        yield ballot
        if not ballot.unavailable():
            return ballot.yes
        asked.append("again")


@pytest.mark.parametrize(("votes", "again"), [(["yyy"], 0), (["!!!", "yyy"], 1)])
def test_a_question_is_asked_once_more_if_connections_broke(
    play: Play, outcome: ModuleType, votes: list[str], again: int
) -> None:
    asked: list[str] = []
    steps = outcome.asking(play.quorum, play.hold, "query", question(play, asked))
    for each in votes:
        play.vote(next(steps), each)
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert (ended.value.value, len(asked)) == (3, again)


@pytest.mark.parametrize("votes", [["!!!", "!!!"], ["!"]])
def test_two_ballots_without_a_verdict_or_one_whose_time_is_over_are_final(
    play: Play, outcome: ModuleType, votes: list[str]
) -> None:
    steps = outcome.asking(play.quorum, play.hold, "query", question(play, []))
    for each in votes:
        ballot = next(steps)
        play.vote(ballot, each)
        if not ballot.decided:
            ballot.silent = (1, 2, 3, 4)
    with pytest.raises(QuorumUnavailable, match=r"^query of 'sku:42': of 5 masters"):
        next(steps)
