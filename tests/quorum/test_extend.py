"""Extending: which votes count, and which deadline a lock has afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_votes import BEGINNING, INTERRUPTIONS, KEY, LATENCY, MS, NAME, SECOND, TTL_MS, VALIDITY, Play

from redlatch import impl
from redlatch.errors import LockLost, NotOwned, QuorumUnavailable


def test_extending_is_one_compare_and_pexpire_of_the_same_token(held: Play) -> None:
    token = held.hold.token
    held.extend("yyy", ttl_ms=4000)
    [ask] = held.effects
    assert type(ask.command).__name__ == "Extension"
    assert (ask.command.key, ask.command.token, ask.command.ttl_ms) == (KEY, token, 4000)
    assert not ask.command.releases


def test_an_extension_counts_from_the_call_and_not_from_the_old_deadline(held: Play) -> None:
    started = held.now
    held.extend("yyy", ttl_ms=4000)
    assert held.hold.deadline_ns == started + held.quorum.validity_ns(4000)


def test_an_extension_one_nanosecond_before_the_old_deadline_counts(held: Play) -> None:
    held.extend(held.jump(BEGINNING + VALIDITY - 1, "yyy"), ttl_ms=4000)
    assert held.hold.held(BEGINNING + VALIDITY)


def test_an_extension_at_the_old_deadline_is_lost_however_many_said_yes(held: Play) -> None:
    with pytest.raises(LockLost, match="validity ran out"):
        held.extend(held.jump(BEGINNING + VALIDITY, "yyyyy"), ttl_ms=4000)
    assert not held.hold.held(held.now)


def test_an_extension_during_which_a_master_may_have_forgotten_is_verified_by_another(held: Play) -> None:
    def forgets(ballot: Any) -> str:
        held.quorum.doubts.add(held.now)
        return "yyy"

    started = held.now
    held.extend(forgets, "yyy", ttl_ms=4000)
    assert not held.quorum.doubts.cover(held.hold.lease.asked_ns)
    assert [ask.command.ttl_ms for ask in held.effects] == [4000, 4000 - LATENCY // MS]
    assert held.hold.deadline_ns <= started + held.quorum.validity_ns(4000) + MS


def test_an_extension_in_doubt_that_a_later_one_has_overtaken_is_not_repeated(held: Play) -> None:
    def stalls(ballot: Any) -> str:
        held.now = ballot.until_ns + 1
        held.quorum.doubts.add(held.now)
        held.now += 1
        held.extend("yyy", ttl_ms=30_000)
        return "yyy"

    held.extend("yyy", ttl_ms=30_000)
    held.extend(stalls, ttl_ms=4000)
    assert [ask.command.ttl_ms for ask in held.effects] == [30_000, 4000, 30_000]
    assert held.hold.deadline_ns > held.now + 20 * SECOND
    assert not held.quorum.doubts.cover(held.hold.lease.asked_ns)


def test_an_extension_waits_no_longer_than_the_old_deadline(held: Play) -> None:
    held.now = BEGINNING + VALIDITY - MS
    with pytest.raises(LockLost):
        held.extend(held.jump(BEGINNING + VALIDITY, "yy..."), ttl_ms=60_000)
    assert held.of("Ballot")[0].until_ns == BEGINNING + VALIDITY


def test_an_extension_that_a_quorum_refuses_is_a_loss(held: Play) -> None:
    with pytest.raises(LockLost, match="forgotten") as caught:
        held.extend("nnn")
    assert caught.value.name == NAME
    assert not held.hold.held(held.now)


def test_extending_after_the_loss_is_lost_again(held: Play) -> None:
    with pytest.raises(LockLost):
        held.extend("nnn")
    with pytest.raises(LockLost):
        held.extend("yyy")


def test_extending_after_the_validity_is_over_is_lost(held: Play) -> None:
    held.now = BEGINNING + VALIDITY
    with pytest.raises(LockLost):
        held.extend("yyyyy")
    assert not held.hold.held(held.now)


def test_a_minority_that_forgot_the_token_does_not_fail_an_extension(held: Play) -> None:
    held.extend("nynyy")
    assert held.hold.held(held.now)


def test_a_failed_round_of_an_extension_is_tried_once_more(held: Play) -> None:
    started = held.now
    held.extend("!!!", "yyy", ttl_ms=4000)
    assert held.hold.deadline_ns == started + held.quorum.validity_ns(4000)


def test_an_extension_that_fails_twice_keeps_the_old_deadline(held: Play) -> None:
    with pytest.raises(QuorumUnavailable) as caught:
        held.extend("!!!", "!!!", ttl_ms=4000)
    assert len(caught.value.causes) == 3
    assert held.hold.deadline_ns == BEGINNING + VALIDITY
    assert held.hold.held(held.now)


def test_an_extension_that_meets_silence_raises_at_once(held: Play) -> None:
    with pytest.raises(QuorumUnavailable, match="did not answer"):
        held.extend("yy...", ttl_ms=4000)
    assert held.hold.deadline_ns == BEGINNING + VALIDITY


def test_a_shorter_ttl_that_some_masters_may_have_set_shortens_the_validity(held: Play) -> None:
    started = held.now
    with pytest.raises(QuorumUnavailable):
        held.extend("yy...", ttl_ms=200)
    assert held.hold.deadline_ns == started + held.quorum.validity_ns(200) < BEGINNING + VALIDITY


def test_a_shorter_ttl_counts_from_before_its_first_byte_leaves(held: Play) -> None:
    steps = held.extending(held.quorum, held.hold, 200)
    started = held.now
    next(steps)
    assert held.hold.deadline_ns == started + held.quorum.validity_ns(200)


def test_an_extension_of_a_lease_with_its_token_never_shortens_it(held: Play) -> None:
    # The holder has extended the lock after the ttl was chosen for a renewal.
    held.extend("yyy", ttl_ms=4000)
    deadline_ns = held.hold.deadline_ns
    held.run(held.extending(held.quorum, held.hold, 0, held.hold.token), "yyy")
    assert deadline_ns <= held.hold.deadline_ns < deadline_ns + MS
    assert held.effects[-1].command.ttl_ms == pytest.approx(4000, abs=2 * LATENCY // MS)


def test_it_asks_for_the_time_that_is_left_after_another_extension_has_ended(held: Play) -> None:
    renewal = held.extending(held.quorum, held.hold, 1, held.hold.token)
    under_way = held.extending(held.quorum, held.hold, 4000)
    asked = next(under_way)
    next(renewal)
    held.vote(asked, "yyy")
    assert next(under_way, None) is None
    held.run(renewal, "yyy")
    assert held.effects[-1].command.ttl_ms > 3900
    assert held.hold.deadline_ns > held.now + 3900 * MS


def test_it_chooses_its_ttl_again_if_another_extension_ends_as_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    # In the compiled build no thread can come in here.
    held = Play(build=impl.load("python"))
    assert held.acquire("yyy")
    renewal = held.extending(held.quorum, held.hold, 1, held.hold.token)
    ballot_of = held.quorum.ballot
    met: list[None] = []

    def ballot(*args: Any) -> Any:
        if not met:
            met.append(None)
            held.extend("yyy", ttl_ms=4000)
        return ballot_of(*args)

    monkeypatch.setattr(type(held.quorum), "ballot", lambda self, *args: ballot(*args))
    held.run(renewal, "yyy")
    assert held.effects[-1].command.ttl_ms > 3900
    assert held.hold.deadline_ns > held.now + 3900 * MS


def test_extending_a_lock_that_was_never_held_raises_not_owned(play: Play) -> None:
    with pytest.raises(NotOwned, match="sku:42"):
        play.extend()
    assert not play.effects


def test_an_extension_overtaken_by_a_release_does_not_bring_the_lock_back(held: Play) -> None:
    def meanwhile(_: Any) -> str:
        held.release("yyy")
        return "yyy"

    with pytest.raises(NotOwned):
        held.extend(meanwhile)
    assert held.hold.state == held.claims.FREE
    assert held.hold.deadline_ns == 0


def test_an_extension_overtaken_by_another_acquire_leaves_that_ones_deadline_alone(held: Play) -> None:
    def meanwhile(_: Any) -> str:
        held.release("yyy")
        assert held.acquire("yyy")
        return "yyy"

    with pytest.raises(NotOwned):
        held.extend(meanwhile, ttl_ms=60_000)
    assert held.hold.deadline_ns <= held.now + VALIDITY


def test_an_extension_waits_for_the_one_that_is_under_way(held: Play) -> None:
    first = held.extending(held.quorum, held.hold, 10_000)
    ballot = next(first)
    second = held.extending(held.quorum, held.hold, 100)
    assert type(next(second)).__name__ == "Pause"
    held.vote(ballot, "yyy")
    assert list(first) == []
    held.run(second, "yyy")
    assert held.hold.deadline_ns <= held.now + 100 * MS


def test_a_late_answer_to_an_extension_does_not_undo_a_later_shorter_ttl(held: Play) -> None:
    def meanwhile(_: Any) -> str:
        held.extend("yyy", ttl_ms=100)
        return "yyy"

    held.extend(meanwhile, ttl_ms=10_000)
    assert held.hold.deadline_ns <= held.now + 100 * MS


def test_an_abandoned_extension_does_not_delay_the_next_one(held: Play) -> None:
    first = held.extending(held.quorum, held.hold, TTL_MS)
    next(first)
    first.close()
    held.extend("yyy")
    assert held.kinds() == ["Ballot Extension"]


@pytest.mark.parametrize("how", INTERRUPTIONS)
def test_an_interrupted_extension_leaves_the_lock_held_until_its_old_deadline(held: Play, how: str) -> None:
    steps = held.extending(held.quorum, held.hold, 4000)
    next(steps)
    try:
        INTERRUPTIONS[how](steps)
    except (KeyboardInterrupt, OSError):
        pass
    assert held.hold.deadline_ns == BEGINNING + VALIDITY
    assert held.hold.held(held.now)
