"""Renewals and reports of losses: the results that are stored, and an `on_lost` that fails."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.scripted_votes import MS, TTL_MS, Play

from redlatch import impl
from redlatch.drivers.upkeep import MOST_REPORTS, Renewal, ReportThreads, report_losses, report_lost_releases
from redlatch.errors import LockError, QuorumUnavailable
from redlatch.quorum.lease import new_lease
from redlatch.quorum.policy import Doubts
from redlatch.quorum.upkeep import Upkeep
from redlatch.quorum.upkeep_schedule import UpkeepSchedule
from redlatch.votes.ballot import Ballot
from redlatch.votes.commands import Release


class Lock:
    """A lock that records how its loss is reported."""

    def __init__(self, seen: list[Any], fails: BaseException | None = None) -> None:
        self.seen = seen
        self.fails = fails

    def _mark_lost(self, term: Any) -> None:
        self.seen.append("marked")

    def _report_loss(self, reason: str = "forgotten", term: Any = None) -> None:
        self.seen.append(reason)
        if term is not None:
            term.reported = True
        if self.fails is not None:
            raise self.fails


def lost(*locks: Lock) -> deque[Any]:
    return deque((lock, SimpleNamespace(reported=False), f"reason {number}") for number, lock in enumerate(locks))


def test_a_report_that_raises_is_raised_after_all_losses_were_reported() -> None:
    seen: list[Any] = []
    first = SystemExit("first")
    losses = lost(Lock(seen, first), Lock(seen, SystemExit("second")), Lock(seen))
    with pytest.raises(SystemExit) as caught:
        report_losses(losses)
    assert caught.value is first
    assert seen == ["reason 0", "reason 1", "reason 2"]
    assert not losses


def test_a_loss_that_was_found_twice_is_reported_once() -> None:
    seen: list[Any] = []
    losses = lost(Lock(seen))
    losses.append(losses[0])
    report_losses(losses)
    assert seen == ["reason 0"]


def test_another_thread_reports_the_next_loss_while_this_one_is_reported() -> None:
    seen: list[Any] = []
    waiting: list[Callable[[], None]] = []

    class Slow(Lock):
        def _report_loss(self, reason: str = "forgotten", term: Any = None) -> None:
            assert len(waiting) == 1
            waiting.pop()()  # the other thread reports all that is left
            super()._report_loss(reason, term)

    def aside(work: Callable[[], None]) -> bool:
        waiting.append(work)
        return True

    losses = lost(Slow(seen), Lock(seen))
    reports = ReportThreads(losses, aside)
    assert reports.start()
    waiting.pop()()
    assert seen == ["reason 1", "reason 0"]
    assert not losses and not waiting


def test_a_bounded_number_of_threads_reports_losses() -> None:
    begun: list[Callable[[], None]] = []
    seen: list[Any] = []

    def aside(work: Callable[[], None]) -> bool:
        begun.append(work)
        return True

    reports = ReportThreads(lost(Lock(seen)), aside)
    assert all(reports.start() for _ in range(2 * MOST_REPORTS))
    assert len(begun) == MOST_REPORTS
    for work in begun:
        work()
    assert seen == ["reason 0"]
    # Each thread that has ended makes room for another.
    assert reports.start()
    assert len(begun) == MOST_REPORTS + 1


def test_without_another_thread_one_thread_reports_all_losses() -> None:
    seen: list[Any] = []
    reports = ReportThreads(lost(Lock(seen, SystemExit()), Lock(seen)), lambda work: False)
    assert not reports.start()
    with pytest.raises(SystemExit):
        reports.report()
    assert seen == ["reason 0", "reason 1"]


def test_a_lost_release_is_off_the_list_before_its_report() -> None:
    seen: list[Any] = []
    ballots: list[Any] = []

    class Closes(Lock):
        def _report_loss(self, reason: str = "forgotten", term: Any = None) -> None:
            super()._report_loss(reason, term)
            # An `on_lost` that closes the client has the rest reported, but not itself once more.
            report_lost_releases(ballots, Doubts(), 6)

    ballots += [refused(Lock(seen)), refused(Closes(seen, None))]
    report_lost_releases(ballots, Doubts(), 6)
    assert seen == ["forgotten", "forgotten"]
    assert not ballots


def refused(lock: Lock) -> Ballot:
    """Return an unawaited release that the only master has refused."""
    ballot = Ballot(Release(b"k", b"token", 5), 1, 1)
    ballot.released_lock, ballot.refusers = lock, 1
    ballot.released_lease = new_lease(b"token", 5, 7)
    return ballot


@pytest.mark.parametrize(("forgot", "reports"), [(5, []), (6, ["forgotten"])])
def test_row_60_an_unawaited_release_that_was_sent_again_is_a_loss_if_the_master_has_forgotten(
    forgot: int, reports: list[str]
) -> None:
    seen: list[Any] = []
    ballot, doubts = refused(Lock(seen)), Doubts()
    ballot.command.tried = 1
    doubts.add(forgot, 0)
    report_lost_releases([ballot], doubts, 6)
    assert seen == reports


@pytest.mark.parametrize(("now", "reports"), [(6, ["forgotten"]), (7, [])])
def test_row_60_a_refusal_after_the_key_may_have_expired_is_no_loss(now: int, reports: list[str]) -> None:
    seen: list[Any] = []
    report_lost_releases([refused(Lock(seen))], Doubts(), now)
    assert seen == reports


def test_row_60_a_refusal_that_may_be_an_echo_waits_for_the_missing_votes() -> None:
    seen: list[Any] = []
    ballot = Ballot(Release(b"k", b"token", 5), 3, 2)
    ballot.released_lock, ballot.command.tried = Lock(seen), 0b100
    ballot.released_lease = new_lease(b"token", 5, 7)
    ballot.no, ballot.refusers, ballot.decided = 2, 0b101, True
    report_lost_releases([ballot], Doubts(), 6)
    assert (seen, ballot.decided) == ([], False)
    ballot.no, ballot.refusers = 3, 0b111
    report_lost_releases([ballot], Doubts(), 6)
    assert seen == ["forgotten"]


class Renewed:
    """A held lock of a play that is renewed once."""

    def __init__(self, play: Play) -> None:
        assert play.acquire("yyy")
        self.play = play
        self.schedule = UpkeepSchedule(play.quorum)
        # The upkeep keeps only a weak reference to its lock.
        self.lock = Lock([])
        self.upkeep = upkeep = Upkeep(self.lock, play.hold, TTL_MS, renews=True)
        self.term = upkeep.begin(play.now)
        self.schedule.add(self.term)
        play.now = self.term.usual_ns()
        [term] = self.schedule.due(play.now)
        assert term is self.term
        self.renewal = Renewal(self.schedule, play.quorum, [term])

    def next_ns(self) -> int:
        """Return when something is due for the lock."""
        self.schedule.next_ns(self.play.now)
        return self.term.due_ns


@pytest.fixture
def renewed(implementation: impl.Implementation) -> Renewed:
    return Renewed(Play(build=implementation))


def test_a_renewal_moves_the_deadline_and_is_due_again_before_it(renewed: Renewed) -> None:
    before = renewed.play.hold.deadline_ns
    renewed.play.run(renewed.renewal.steps(), "yyy")
    renewed.renewal.succeed()
    renewed.renewal.conclude()
    assert "renewal" not in str(renewed.upkeep.why_over(renewed.play.now))
    assert renewed.play.hold.deadline_ns > before
    assert renewed.play.now < renewed.next_ns() < renewed.play.hold.deadline_ns
    assert renewed.term.reason is None


@pytest.mark.parametrize("how", ["refused", "unexpected", "interrupted"])
def test_a_renewal_that_did_not_succeed_is_tried_again_before_the_deadline(
    renewed: Renewed, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    if how == "refused":
        renewed.renewal.fail(QuorumUnavailable("no quorum"))
    if how == "unexpected":
        renewed.renewal.fail(ValueError("what"))
    # An interrupt calls neither `succeed` nor `fail`.
    renewed.renewal.conclude()
    assert renewed.play.now < renewed.next_ns() < renewed.play.hold.deadline_ns
    logged = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [str(record.exc_info and record.exc_info[1]) for record in logged] == ["what"] * (how == "unexpected")


def test_a_renewal_of_an_old_lease_does_not_extend_the_next_one(renewed: Renewed) -> None:
    play, steps = renewed.play, renewed.renewal.steps()
    play.hold.begin_release(play.now)
    play.hold.free()
    assert play.acquire("yyy")
    deadline_ns = play.hold.deadline_ns
    play.run(steps)
    renewed.renewal.succeed()
    renewed.renewal.conclude()
    assert play.hold.deadline_ns == deadline_ns


def test_the_loss_names_the_last_failure_but_no_text_of_an_unexpected_error(renewed: Renewed) -> None:
    renewed.renewal.fail(ValueError("a text"))
    error = renewed.renewal._error
    assert isinstance(error, LockError)
    assert "ValueError" in str(error) and "a text" not in str(error)


def test_a_lock_that_a_quorum_has_forgotten_is_lost(renewed: Renewed) -> None:
    renewed.play.run(renewed.renewal.steps(), "nnn")
    renewed.renewal.succeed()
    renewed.renewal.conclude()
    renewed.play.now += MS
    assert renewed.schedule.due(renewed.play.now) == []
    assert list(renewed.schedule.lost) == [(renewed.lock, renewed.term, renewed.term.reason)]
    assert set(renewed.lock.seen) == {"marked"}
