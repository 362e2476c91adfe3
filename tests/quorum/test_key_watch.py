"""`KeyWatch` and `KeyWatches`: which pushes lead to a question, how often, and what the answers mean."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from redlatch import impl
from redlatch.errors import MasterQuarantined, MasterRefused
from redlatch.quorum.key_watch import (
    AGAIN_NS,
    FIRST_NS,
    PAUSE_NS,
    PAUSES_IN_TTL,
    SLACK,
    KeyWatch,
    KeyWatches,
    beyond_proof,
)
from redlatch.votes.units import MILLISECOND, SECOND, UNBOUNDED

NOW = 100 * SECOND
TTL_MS = 60_000
BUILD = impl.load("python")
BALLOTS = BUILD.module("votes.ballot")
COMMANDS = BUILD.module("votes.commands")


class Term:
    """One lease, whose holder has its key until it is told otherwise."""

    def __init__(self, key: bytes = b"key", shares: bool = False) -> None:
        kind = SimpleNamespace(watched=lambda key: None if shares else key)
        self.hold = SimpleNamespace(key=key, kind=kind)
        self.upkeep = SimpleNamespace(ttl_ms=TTL_MS)
        self.watch: Any = None
        self.held = self.lock_exists = True
        self.lost: list[str] = []

    def live(self) -> bool:
        return self.held

    def cared_for(self) -> bool:
        return self.held and self.lock_exists

    def lose(self, reason: str, now_ns: int) -> None:
        self.lost.append(reason)


@pytest.fixture
def keys() -> KeyWatches:
    return KeyWatches(SimpleNamespace(held=None, polls=False))


@pytest.fixture
def term(keys: KeyWatches) -> Term:
    term = Term()
    keys.begin(term, NOW)
    return term


def ask(term: Term, now_ns: int, yes: int, no: int = 0, failed: int = 0) -> None:
    """Put a question, and let masters answer it."""
    ballot = BALLOTS.new_ballot(COMMANDS.Owned(b"key", b"token", 0), yes + no + failed, (yes + no + failed) // 2 + 1, 0)
    term.watch.begin(now_ns)
    term.watch.ask(ballot)
    ballot.yes, ballot.no, ballot.failed, ballot.decided = yes, no, failed, True


def answered(keys: KeyWatches, term: Term, now_ns: int, yes: int, no: int = 0, failed: int = 0) -> None:
    """Put a question, let masters answer it, and process the answers."""
    ask(term, now_ns, yes, no, failed)
    keys.conclude([term])
    assert keys.take_news(now_ns) == [term]


# --- one key --------------------------------------------------------------------------------------------------


def test_the_first_question_comes_a_moment_after_the_lock_was_won(keys: KeyWatches, term: Term) -> None:
    assert term.watch.due_ns == NOW + FIRST_NS
    keys.plan(term, NOW)
    assert not keys.take_due()
    keys.plan(term, NOW + FIRST_NS)
    assert keys.take_due() == [term]
    assert not keys.take_due()


def test_a_question_that_never_began_is_due_again(keys: KeyWatches, term: Term) -> None:
    keys.plan(term, NOW + FIRST_NS)
    assert term.watch.due_ns == NOW + FIRST_NS + AGAIN_NS


def test_a_question_that_was_never_sent_has_not_the_answers_of_the_last_one(keys: KeyWatches, term: Term) -> None:
    """Found by an attack: its task was cancelled, so the masters tracked the key no more, and nobody asked again."""
    answered(keys, term, NOW, 3)
    term.watch.begin(NOW)
    keys.conclude([term])
    keys.take_news(NOW)
    assert term.watch.due_ns == NOW + TTL_MS * MILLISECOND // PAUSES_IN_TTL


def test_nothing_is_due_while_a_question_is_under_way(keys: KeyWatches, term: Term) -> None:
    ask(term, NOW, 3)
    assert term.watch.due_ns == UNBOUNDED
    term.watch.ask_by(NOW)
    keys.plan(term, NOW)
    assert not keys.take_due()


@pytest.mark.parametrize(
    ("yes", "pushes", "calls"), [(1, 1, True), (3, 1, False), (3, 2, True), (2, 1, True), (5, 2, False), (5, 3, True)]
)
def test_a_push_calls_if_fewer_than_a_quorum_may_have_the_key(
    keys: KeyWatches, term: Term, yes: int, pushes: int, calls: bool
) -> None:
    failed = {1: 0, 2: 1, 3: 0, 5: 0}[yes]
    answered(keys, term, NOW, yes, failed=failed)
    assert [keys.changed(index, b"key") for index in range(pushes)] == [False] * (pushes - 1) + [calls]
    assert keys.take_news(NOW) == ([term] if calls else [])
    assert (term.watch.due_ns == NOW) == calls


def test_the_pushes_of_one_master_count_once(keys: KeyWatches, term: Term) -> None:
    answered(keys, term, NOW, 3)
    assert not any(keys.changed(1, b"key") for _ in range(5))


def test_a_flush_concerns_all_keys(keys: KeyWatches) -> None:
    terms = [Term(b"%d" % number) for number in range(3)]
    for term in terms:
        keys.begin(term, NOW)
        answered(keys, term, NOW, 3)
    assert not keys.changed(0, None)
    assert keys.changed(1, None)
    assert keys.take_news(NOW) == terms


def test_pushes_for_other_keys_and_for_leases_that_have_ended_cause_nothing(keys: KeyWatches, term: Term) -> None:
    answered(keys, term, NOW, 1)
    assert not keys.changed(0, b"other")
    term.held = False
    assert not keys.changed(0, b"key")
    assert not keys.changed(0, None)


def test_pushes_while_a_question_is_under_way_lead_to_another_one(keys: KeyWatches, term: Term) -> None:
    ask(term, NOW, 3)
    assert not any(keys.changed(index, b"key") for index in range(3))
    keys.conclude([term])
    keys.take_news(NOW)
    assert term.watch.due_ns == NOW
    assert not term.lost


def test_late_answers_count_for_later_pushes(keys: KeyWatches, term: Term) -> None:
    answered(keys, term, NOW, 3, failed=0)
    term.watch.ballot.yes = 5
    term.watch.ballot.quorum = 3
    assert [keys.changed(index, b"key") for index in range(3)] == [False, False, True]


# --- answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("yes", "no", "failed"), [(0, 1, 0), (1, 2, 0), (0, 2, 1), (2, 3, 0), (0, 3, 2)])
def test_a_lock_is_lost_if_too_many_masters_do_not_have_its_token(
    keys: KeyWatches, term: Term, yes: int, no: int, failed: int
) -> None:
    answered(keys, term, NOW, yes, no, failed)
    assert term.lost == ["a majority of masters reported that its key is gone"]


@pytest.mark.parametrize(("yes", "no", "failed"), [(2, 1, 0), (1, 1, 1), (0, 1, 2), (0, 0, 3), (3, 2, 0), (2, 2, 1)])
def test_a_lock_is_not_lost_while_a_quorum_may_have_its_token(
    keys: KeyWatches, term: Term, yes: int, no: int, failed: int
) -> None:
    answered(keys, term, NOW, yes, no, failed)
    assert not term.lost
    undecided = yes < (yes + no + failed) // 2 + 1
    assert term.watch.due_ns == (NOW + TTL_MS * MILLISECOND // PAUSES_IN_TTL if undecided else UNBOUNDED)


def test_the_answers_about_a_lock_that_was_released_meanwhile_mean_nothing(keys: KeyWatches, term: Term) -> None:
    term.held = False
    answered(keys, term, NOW, 0, 3)
    assert not term.lost


# --- how often ------------------------------------------------------------------------------------------------


def test_pushes_without_a_loss_cost_fewer_and_fewer_questions(keys: KeyWatches, term: Term) -> None:
    answered(keys, term, NOW, 1)
    now_ns, gaps = NOW, []
    for _ in range(12):
        assert keys.changed(0, b"key")
        keys.take_news(now_ns)
        gaps.append(term.watch.due_ns - now_ns)
        now_ns = term.watch.due_ns
        answered(keys, term, now_ns, 1)
    longest_ns = TTL_MS * MILLISECOND // PAUSES_IN_TTL
    assert gaps == [0, *[min(PAUSE_NS << number, longest_ns) for number in range(11)]]


def test_the_pause_becomes_shorter_with_questions_that_no_push_has_caused(keys: KeyWatches, term: Term) -> None:
    answered(keys, term, NOW, 1)
    now_ns = NOW
    for _ in range(4):
        keys.changed(0, b"key")
        keys.take_news(now_ns)
        now_ns = term.watch.due_ns
        answered(keys, term, now_ns, 1)
    for _ in range(8):
        now_ns += 10 * SECOND
        answered(keys, term, now_ns, 1)
    for gap_ns in (0, PAUSE_NS):
        assert keys.changed(0, b"key")
        keys.take_news(now_ns)
        assert term.watch.due_ns - now_ns == gap_ns
        answered(keys, term, term.watch.due_ns, 1)


def test_no_other_reason_for_a_question_ends_the_pause(keys: KeyWatches, term: Term) -> None:
    answered(keys, term, NOW, 1)
    keys.changed(0, b"key")
    keys.take_news(NOW)
    answered(keys, term, NOW, 1)
    term.watch.ask_by(NOW)
    assert term.watch.due_ns == NOW + PAUSE_NS


# --- connections and tables -----------------------------------------------------------------------------------


def test_all_keys_are_asked_about_after_a_new_connection(keys: KeyWatches, term: Term) -> None:
    first, second = object(), object()
    assert keys.connected([first])
    keys.take_news(NOW)
    assert term.watch.due_ns == NOW
    answered(keys, term, NOW, 1)
    assert not keys.connected([first])
    assert not keys.connected([])
    assert keys.take_news(NOW) == []
    assert keys.connected([first, second])
    assert keys.take_news(NOW) == [term]
    assert term.watch.due_ns == NOW + PAUSE_NS


def test_connections_that_break_all_the_time_cost_fewer_and_fewer_questions(keys: KeyWatches, term: Term) -> None:
    now_ns, gaps = NOW, []
    for _ in range(4):
        assert keys.connected([object()])
        assert keys.take_news(now_ns) == [term]
        gaps.append(term.watch.due_ns - now_ns)
        now_ns = term.watch.due_ns
        answered(keys, term, now_ns, 3)
    assert gaps == [0, PAUSE_NS, 2 * PAUSE_NS, 4 * PAUSE_NS]


def test_nothing_is_asked_while_the_masters_push_nothing(keys: KeyWatches, term: Term) -> None:
    keys._watches.polls = True
    keys.plan(term, NOW + FIRST_NS)
    assert not keys.take_due()
    assert term.watch.due_ns == NOW + FIRST_NS + AGAIN_NS


def test_a_key_of_several_holders_and_a_key_in_a_database_are_not_watched(keys: KeyWatches) -> None:
    shared, stored = Term(shares=True), Term()
    keys.begin(shared, NOW)
    keys.possible = False
    keys.begin(stored, NOW)
    assert shared.watch is stored.watch is None
    assert not keys.watching()
    assert keys._watches.held is None


def test_the_waiters_pass_pushes_on_as_soon_as_a_key_is_watched(keys: KeyWatches) -> None:
    term = Term()
    keys.begin(term, NOW)
    assert keys._watches.held is keys
    assert keys.watching()


@pytest.mark.parametrize("what", ["held", "lock_exists"])
def test_leases_that_have_ended_or_whose_lock_was_collected_are_forgotten(keys: KeyWatches, what: str) -> None:
    for number in range(10 * SLACK):
        term = Term(b"%d" % number)
        keys.begin(term, NOW)
        setattr(term, what, False)
    assert not keys.watching()
    assert len(keys._by_key) <= SLACK + 1


def test_leases_that_have_ended_are_not_looked_at_again_while_another_one_is_watched(keys: KeyWatches) -> None:
    """Found by an attack: with many of them, the look after each event of a socket kept the client busy."""
    terms = [Term(b"%d" % number) for number in range(9)]
    for term in terms:
        keys.begin(term, NOW)
        term.held = term is terms[4]
    assert keys.watching()
    for ended in terms[:4] + terms[5:]:
        del ended.held
    assert keys.watching()


def test_leases_on_one_key_that_have_ended_are_forgotten(keys: KeyWatches) -> None:
    again = [Term() for _ in range(3)]
    for term in again:
        keys.begin(term, NOW)
        term.held = term is again[-1]
    assert keys._by_key[b"key"] == (again[-1],)


# --- leases that cannot be verified ---------------------------------------------------------------------------

LATE, EARLY, REFUSED = (
    MasterQuarantined(until_ns=NOW + 2 * SECOND),
    MasterQuarantined(until_ns=NOW + SECOND // 2),
    MasterRefused("no"),
)


@pytest.mark.parametrize(
    ("causes", "doubted", "expected"),
    [
        ({"a": LATE, "b": LATE}, {0}, True),
        ({"a": LATE, "b": LATE, "c": LATE}, {1, 2}, True),
        ({"a": LATE, "b": LATE}, {2}, False),
        ({"a": LATE}, {0}, False),
        ({"a": LATE, "b": EARLY}, {0, 1}, False),
        ({"a": LATE, "b": REFUSED}, {0, 1}, False),
        ({}, {0, 1, 2}, False),
    ],
)
def test_a_lease_is_beyond_proof_if_the_masters_that_forgot_it_are_out_until_its_deadline(
    causes: dict[str, BaseException], doubted: set[int], expected: bool
) -> None:
    doubts = BUILD.module("quorum.policy").Doubts()
    for index in doubted:
        doubts.add(NOW, index)
    quorum: Any = SimpleNamespace(masters=("a", "b", "c"), size=3, majority=2, doubts=doubts)
    hold: Any = SimpleNamespace(deadline_ns=NOW + SECOND, lease=SimpleNamespace(asked_ns=NOW - 1))
    assert beyond_proof(quorum, hold, causes.items()) == expected


def test_a_watch_of_a_short_ttl_has_a_pause_all_the_same() -> None:
    watch = KeyWatch(10, NOW)
    for _ in range(3):
        watch.alarm(NOW)
        watch.begin(NOW)
    watch.asking = False
    watch.alarm(NOW)
    assert watch.due_ns == NOW + PAUSE_NS
