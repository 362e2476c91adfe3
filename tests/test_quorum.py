"""The algorithm without sockets: the tests run its generators with scripted votes, clock, tokens and random numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from types import ModuleType
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redlatch import impl
from redlatch.errors import AlreadyHeld, LockLost, NotOwned, QuorumUnavailable

MS = 1_000_000
SECOND = 1000 * MS
TTL_MS = 1000
# The ttl less 1 % and 2 ms.
VALIDITY = TTL_MS * MS - TTL_MS * MS // 100 - 2 * MS
LATENCY = 3 * MS
BEGINNING = 7_000 * SECOND
NAME, KEY = "sku:42", b"locks:sku:42"

# The votes of a ballot in the order of their arrival (y, n, ! for a failure, . for a missing vote), or a function that
# gets the ballot and returns them.
Votes = str | Callable[[Any], str]


def clock_of(build: impl.Implementation, read: Callable[[], int]) -> Any:
    """Return a clock of that build that reads the value of `read`."""

    class Shown(build.module("votes.units").Clock):  # type: ignore[misc]
        def now(self) -> int:
            return read()

    return Shown()


def undo(hold: Any, ticket: object) -> Any:
    """End an acquire as a driver does after an interrupt; return the command that it sends, or None."""
    try:
        return hold.undoing(ticket)
    finally:
        hold.end_undoing(ticket)


class Play:
    """One holder, N masters and their environment, with the effects in their order."""

    def __init__(self, masters: int = 5, chance: float = 0.5, build: impl.Implementation | None = None) -> None:
        self.build = build = build or impl.current
        self.extending = build.module("quorum.extend").extend
        self.releasing = build.module("quorum.release").release
        self.releasing_nowait = build.module("quorum.release").release_nowait
        self.inquiry: ModuleType = build.module("quorum.inquiry")
        self.effects_module: ModuleType = build.module("quorum.effects")
        self.acquire_module: ModuleType = build.module("quorum.acquire")
        self.contention_module: ModuleType = build.module("quorum.waiting.contention")
        self.batch: ModuleType = build.module("quorum.batch")
        self.new_attempt = build.module("quorum.attempt").new_attempt
        self.commands: ModuleType = build.module("votes.commands")
        self.ballots: ModuleType = build.module("votes.ballot")
        self.watches: ModuleType = build.module("quorum.waiting.watches")
        self.claims: ModuleType = build.module("quorum.claim")
        self.holds: ModuleType = build.module("quorum.hold")
        self.queues = build.module("quorum.waiting.queues").WaitQueues()
        self.policies = policies = build.module("quorum.policy")
        self.masters = masters
        self.now = BEGINNING
        self.chance = chance
        self.tokens = (b"token-%d" % number for number in itertools.count(1))
        self.effects: list[Any] = []
        self.rest = ""
        self.policy = policies.Policy(
            masters=tuple(f"master-{index}:6379" for index in range(masters)),
            drift_factor=0.01,
            attempt_ns=None,
            retry=policies.Retry(),
            clock=clock_of(build, lambda: self.now),
            random=lambda: self.chance,
            tokens=policies.Tokens(lambda: [next(self.tokens)]),
            fences=policies.Fences(lambda: 1000),
        )
        self.plain = build.module("quorum.kinds.plain").PLAIN
        self.hold = self.holds.Hold(NAME, KEY, self.plain)
        self.ticket = object()

    def vote(self, ballot: Any, votes: str) -> None:
        """Cast these votes, as far as they are counted before the ballot is decided."""
        for index, vote in enumerate(votes):
            if ballot.settled():
                break
            if vote == "y":
                ballot.yes += 1
            elif vote == "n":
                ballot.no += 1
            elif vote == "!":
                ballot.failed += 1
                ballot.causes = {**(ballot.causes or {}), index: ConnectionResetError(f"broken {index}")}
        ballot.decided = ballot.settled()

    def run(self, steps: Iterator[Any], *script: Votes) -> Any:
        """Run a generator to its end; each ballot takes the next votes of the script, and LATENCY."""
        rest = iter(script)
        verdict = self.follow(steps, rest)
        left = list(rest)
        assert not left, f"it ended without asking for {left}"
        return verdict

    def follow(self, steps: Iterator[Any], rest: Iterator[Votes]) -> Any:
        """Run a generator to its end, or to its answer, with as many votes as it asks for."""
        for effect in steps:
            if isinstance(effect, self.effects_module.Answer):
                return effect.value
            self.perform(effect, rest)
        return None

    def perform(self, effect: Any, rest: Iterator[Votes]) -> None:
        """Perform one effect."""
        self.effects.append(effect)
        asked = effect if isinstance(effect, list) else [effect] if isinstance(effect, self.ballots.Ballot) else []
        self.now += LATENCY if asked else 0
        for ballot in asked:
            if type(ballot.command).__name__ == "Look":
                # The masters do not push, so the waiter polls.
                ballot.no, ballot.decided = self.masters, True
                continue
            # These are the rest of the votes; one master was asked before the others.
            if ballot.asked < -1:
                votes = "".join(vote for index, vote in enumerate(self.rest) if ballot.asked >> index & 1)
            else:
                given = next(rest, None)
                assert given is not None, "it asked once too often"
                votes = given if isinstance(given, str) else given(ballot)
            if ballot.asked >= 0:
                self.rest = votes.ljust(self.masters, ".")
                votes = self.rest[ballot.asked.bit_length() - 1]
            self.vote(ballot, votes)
        if isinstance(effect, self.effects_module.Pause):
            self.now = max(self.now, effect.until_ns)

    def acquire(self, *script: Votes, give_up_ns: int | None = BEGINNING) -> Any:
        """Claim and acquire, with one attempt by default; return whether the lock was granted."""
        self.ticket = object()
        self.hold.claim(self.ticket)
        self.run(self.acquire_module.acquire(self.policy, self.queues, self.hold, TTL_MS, give_up_ns), *script)
        return self.hold.state == self.claims.HELD

    def extend(self, *script: Votes, ttl_ms: int = TTL_MS) -> Any:
        return self.run(self.extending(self.policy, self.hold, ttl_ms), *script)

    def release(self, *script: Votes) -> Any:
        return self.run(self.releasing(self.policy, self.queues, self.hold, SECOND), *script)

    def kinds(self) -> list[str]:
        """Return the names of all effects so far, with their commands."""
        names = []
        for effect in self.effects:
            ballots = effect if isinstance(effect, list) else getattr(effect, "ballots", [effect])
            commands = [type(ballot.command).__name__ for ballot in ballots if hasattr(ballot, "command")]
            names.append(" ".join([type(effect).__name__, *commands]))
        return names

    def of(self, kind: str) -> list[Any]:
        """Return the effects of one kind so far."""
        return [effect for effect in self.effects if type(effect).__name__ == kind]

    def jump(self, to_ns: int, votes: str) -> Votes:
        """Return votes that arrive when the clock reads `to_ns`."""

        def come(_: Any) -> str:
            self.now = to_ns
            return votes

        return come


@pytest.fixture
def play(implementation: impl.Implementation) -> Play:
    return Play(build=implementation)


@pytest.fixture
def held(play: Play) -> Play:
    """A play whose holder has its lock since BEGINNING, without the effects so far."""
    assert play.acquire("yyy")
    play.effects.clear()
    return play


def counted(votes: str) -> str:
    """Return the votes that count: those until the ballot is decided."""
    masters = len(votes)
    quorum = masters // 2 + 1
    for count in range(masters):
        seen = votes[:count]
        if seen.count("y") >= quorum or seen.count("n") + seen.count("!") > masters - quorum:
            return seen
    return votes


some_votes = st.integers(1, 7).flatmap(lambda size: st.text("yn!.", min_size=size, max_size=size))
votes_without_failures = st.integers(1, 7).flatmap(lambda size: st.text("yn", min_size=size, max_size=size))


def attempts_of(least: int, most: int) -> st.SearchStrategy[list[str]]:
    """Draw the votes of several attempts on the same 1 to 7 masters."""
    return st.integers(1, 7).flatmap(
        lambda size: st.lists(st.text("yn!.", min_size=size, max_size=size), min_size=least, max_size=most)
    )


# --- acquire: the decision ---------------------------------------------------------------------------


@given(votes=some_votes)
def test_an_attempt_succeeds_if_and_only_if_a_quorum_said_yes(build: impl.Implementation, votes: str) -> None:
    play = Play(len(votes), build=build)
    quorum = len(votes) // 2 + 1
    play.hold.claim(object())
    try:
        play.follow(
            play.acquire_module.acquire(play.policy, play.queues, play.hold, TTL_MS, BEGINNING), itertools.repeat(votes)
        )
    except QuorumUnavailable:
        pass
    won = counted(votes).count("y") >= quorum
    assert play.hold.state == (play.claims.HELD if won else play.claims.FREE)


@given(votes=votes_without_failures)
def test_when_every_master_answers_there_is_a_yes_or_a_no_and_no_error(build: impl.Implementation, votes: str) -> None:
    play = Play(len(votes), build=build)
    assert play.acquire(votes) == (votes.count("y") > len(votes) // 2)


@given(votes=some_votes)
def test_failures_and_silence_of_a_minority_never_raise(build: impl.Implementation, votes: str) -> None:
    masters = len(votes)
    if votes.count("!") + votes.count(".") <= masters - (masters // 2 + 1):
        play = Play(masters, build=build)
        assert play.acquire(votes) in (True, False)


@given(attempts=attempts_of(1, 6))
def test_every_attempt_has_a_token_of_its_own_and_is_undone_unless_won_or_refused_by_all(
    build: impl.Implementation, attempts: list[str]
) -> None:
    play = Play(len(attempts[0]), build=build)
    give_up = BEGINNING + 1000 * SECOND

    def last(_: Any) -> str:
        play.now = give_up
        return "n" * play.masters

    play.hold.claim(object())
    steps = play.acquire_module.acquire(play.policy, play.queues, play.hold, TTL_MS, give_up)
    try:
        play.follow(steps, itertools.chain(attempts, itertools.repeat(last)))
    except QuorumUnavailable:
        pass
    won = play.hold.state == play.claims.HELD
    asked = [effect for effect in play.of("Ballot") if type(effect.command).__name__ == "Acquire"]
    tokens = [ballot.command.token for ballot in asked if ballot.asked >= -1]
    assert len(set(tokens)) == len(tokens)
    refused = {ballot.command.token for ballot in asked if ballot.asked >= -1 and ballot.no == ballot.size}
    undone = [ballot.command.token for effect in play.of("Tell") for ballot in effect.ballots]
    assert undone == [token for token in (tokens[:-1] if won else tokens) if token not in refused]
    assert [kind for kind in play.kinds() if "Acquire" in kind or "Release" in kind] == [
        kind
        for token in tokens
        for kind in [
            *["Ballot Acquire" for ballot in asked if ballot.command.token == token],
            *["Tell Release" for each in undone if each == token],
        ]
    ]


def test_the_undo_is_for_the_same_key_and_since_the_same_moment_as_the_attempt(play: Play) -> None:
    assert not play.acquire("nnn")
    ask, undo = play.effects
    [undone] = undo.ballots
    assert (undone.command.key, undone.command.token, undone.command.since_ns) == (
        KEY,
        ask.command.token,
        ask.command.since_ns,
    )
    assert undone.command.releases


def test_a_won_attempt_leaves_its_token_in_the_hold_and_undoes_nothing(play: Play) -> None:
    assert play.acquire("yyy")
    assert play.kinds() == ["Ballot Acquire"]
    assert play.hold.token == play.effects[0].command.token


def test_two_acquires_of_one_object_use_two_tokens(play: Play) -> None:
    assert play.acquire("yyy")
    play.release("yyy")
    assert play.acquire("yyy", give_up_ns=None)
    first, last = (ask.command.token for ask in play.of("Ballot") if type(ask.command).__name__ == "Acquire")
    assert first != last


# --- acquire: the clock ------------------------------------------------------------------------------


def test_the_deadline_counts_from_before_the_first_ask_however_long_the_votes_take(play: Play) -> None:
    assert play.acquire(play.jump(BEGINNING + 500 * MS, "yyy"))
    assert play.hold.deadline_ns == BEGINNING + VALIDITY
    assert play.hold.elapsed_ns == 500 * MS


def test_the_deadline_is_fixed_before_the_ask_is_yielded(play: Play) -> None:
    play.hold.claim(object())
    steps = play.acquire_module.acquire(play.policy, play.queues, play.hold, TTL_MS, None)
    ballot = next(steps)
    # The driver needs some time to send.
    play.now += 10 * MS
    play.vote(ballot, "yyy")
    assert next(steps, None) is None
    assert play.hold.deadline_ns == BEGINNING + VALIDITY


def test_each_attempt_has_a_deadline_of_its_own(play: Play) -> None:
    assert play.acquire("nnn", "yyy", give_up_ns=None)
    second = play.of("Ballot")[-1].command.since_ns
    assert second > BEGINNING
    assert play.hold.deadline_ns == second + VALIDITY


def test_a_quorum_one_nanosecond_before_the_deadline_wins(play: Play) -> None:
    assert play.acquire(play.jump(BEGINNING + VALIDITY - 1, "yyy"))
    assert play.hold.held(play.now)


def test_a_quorum_exactly_at_the_deadline_is_too_late_and_undone(play: Play) -> None:
    assert not play.acquire(play.jump(BEGINNING + VALIDITY, "yyyyy"))
    assert play.kinds() == ["Ballot Acquire", "Tell Release"]
    assert play.hold.state == play.claims.FREE


def test_a_process_that_was_stopped_beyond_its_ttl_with_votes_in_flight_gets_no_lock(play: Play) -> None:
    assert not play.acquire(play.jump(BEGINNING + 10 * TTL_MS * MS, "yyyyy"))
    assert play.of("Tell")[0].ballots[0].command.token == play.of("Ballot")[0].command.token


def test_the_clock_is_read_after_the_last_counted_vote(play: Play) -> None:
    def late(_: Any) -> str:
        # Between the votes and the decision.
        play.now = BEGINNING + VALIDITY
        return "yyy"

    assert not play.acquire(late)


def test_an_attempt_waits_no_longer_than_its_patience_and_never_past_its_deadline(play: Play) -> None:
    play.acquire("nnn")
    assert play.of("Ballot")[0].until_ns == BEGINNING + play.policy.patience_ns(TTL_MS) < BEGINNING + VALIDITY


def test_a_very_short_ttl_bounds_the_wait_by_the_deadline(play: Play) -> None:
    play.hold.claim(object())
    assert not play.run(play.acquire_module.acquire(play.policy, play.queues, play.hold, 10, BEGINNING), "nnn")
    assert play.of("Ballot")[0].until_ns == BEGINNING + 10 * MS - MS // 10 - 2 * MS


# --- acquire: trying again ---------------------------------------------------------------------------


def test_one_attempt_is_made_even_without_time_to_wait(play: Play) -> None:
    assert play.acquire("yyy", give_up_ns=0)


def test_without_time_to_wait_a_busy_lock_is_given_up_without_a_pause(play: Play) -> None:
    assert play.acquire("nnn", give_up_ns=0) is False
    assert play.kinds() == ["Ballot Acquire", "Tell Release"]


@given(chance=st.floats(0, 1, exclude_max=True), busy=st.integers(1, 12))
def test_the_pauses_are_jittered_and_double_up_to_the_longest(
    build: impl.Implementation, chance: float, busy: int
) -> None:
    play = Play(chance=chance, build=build)
    ends = []

    def no(_: Any) -> str:
        ends.append(play.now)
        return "nnn"

    assert play.acquire(*[no] * busy, "yyy", give_up_ns=None)
    pauses = [pause.until_ns - end - LATENCY for pause, end in zip(play.of("Pause"), ends, strict=True)]
    bounds = [min(50 * MS, 4 * MS * 2**number) for number in range(busy)]
    assert pauses == [pytest.approx(bound * chance, abs=1) for bound in bounds]


def test_a_pause_is_cut_where_the_time_to_wait_ends_and_one_last_attempt_follows(play: Play) -> None:
    play.chance = 0.999
    give_up = BEGINNING + 2 * LATENCY + MS
    assert play.acquire("nnn", "nnn", give_up_ns=give_up) is False
    assert [pause.until_ns for pause in play.of("Pause")] == [give_up]


def test_a_split_vote_is_undone_and_tried_again(play: Play) -> None:
    assert play.acquire("ynnyn", "yyy", give_up_ns=None)
    assert play.kinds() == [
        "Ballot Acquire",
        "Tell Release",
        "Watch Look",
        "Pause",
        # First only one master is asked.
        "Ballot Acquire",
        # The others are asked after the first one granted.
        "Ballot Acquire",
    ]
    _, first, others = (effect for effect in play.of("Ballot"))
    assert first.asked == ~others.asked == 1 << play.policy.order[crc32(KEY) % 5]
    assert (others.size, others.quorum) == (4, 2)


def test_the_error_counts_all_masters_although_one_was_asked_first(play: Play) -> None:
    first = play.policy.order[crc32(KEY) % 5]
    with pytest.raises(QuorumUnavailable, match=r"of 5 masters 4 did not answer within .*; 3 must agree"):
        play.acquire("nnnnn", "".join(".y"[index == first] for index in range(5)), give_up_ns=None)


def test_a_minority_that_fails_beside_a_majority_that_is_busy_is_only_busy(play: Play) -> None:
    assert play.acquire("nn!", give_up_ns=0) is False


def test_an_attempt_whose_masters_failed_is_repeated_at_once(play: Play) -> None:
    assert play.acquire("!!!", "yyy", give_up_ns=0)
    assert play.kinds() == ["Ballot Acquire", "Tell Release", "Ballot Acquire"]


def test_a_second_failure_in_a_row_raises_with_each_masters_cause(play: Play) -> None:
    with pytest.raises(QuorumUnavailable, match="sku:42") as caught:
        play.acquire("!!!", "y!y!!", give_up_ns=None)
    assert {master: str(cause) for master, cause in caught.value.causes.items()} == {
        "master-1:6379": "broken 1",
        "master-3:6379": "broken 3",
        "master-4:6379": "broken 4",
    }
    assert caught.value.name == NAME
    assert caught.value.elapsed == 2 * LATENCY / SECOND


def test_failures_that_are_not_in_a_row_do_not_add_up(play: Play) -> None:
    assert play.acquire("!!!", "nnn", "!!!", "nnn", "!!!", "yyy", give_up_ns=None)


def test_a_failed_attempt_does_not_lengthen_the_next_pause(play: Play) -> None:
    assert play.acquire("!!!", "nnn", "yyy", give_up_ns=None)
    [pause] = play.of("Pause")
    assert pause.until_ns - (BEGINNING + 3 * LATENCY) == play.policy.retry.pause_ns(0, play.chance)


def test_silence_of_a_majority_raises_at_once(play: Play) -> None:
    with pytest.raises(QuorumUnavailable, match="did not answer"):
        play.acquire("yy...", give_up_ns=None)
    assert play.kinds() == ["Ballot Acquire", "Tell Release"]


def test_a_lock_is_busy_if_one_silent_master_keeps_the_ballot_open(play: Play) -> None:
    assert play.acquire("nny..", give_up_ns=0) is False


def test_after_quorum_unavailable_the_same_object_may_acquire_again(play: Play) -> None:
    with pytest.raises(QuorumUnavailable):
        play.acquire("!!!", "!!!")
    assert play.hold.state == play.claims.FREE
    assert play.acquire("yyy")


# --- the hold ----------------------------------------------------------------------------------------


def test_a_hold_that_is_claimed_refuses_a_second_claim(play: Play) -> None:
    play.hold.claim(object())
    with pytest.raises(AlreadyHeld, match="sku:42") as caught:
        play.hold.claim(object())
    assert caught.value.name == NAME


def test_a_hold_that_is_held_refuses_another_acquire_and_stays_held(held: Play) -> None:
    with pytest.raises(AlreadyHeld):
        held.acquire("yyy")
    assert held.hold.held(held.now)


def test_a_hold_that_lost_the_race_may_be_claimed_again(play: Play) -> None:
    assert not play.acquire("nnn")
    play.hold.claim(object())


def test_a_hold_is_held_until_just_before_its_deadline(held: Play) -> None:
    deadline = held.hold.deadline_ns
    assert held.hold.held(deadline - 1)
    assert not held.hold.held(deadline)


def test_a_claim_during_a_release_is_refused(held: Play) -> None:
    steps = held.releasing(held.policy, held.queues, held.hold, SECOND)
    next(steps)
    with pytest.raises(AlreadyHeld):
        held.hold.claim(object())


def test_a_second_release_during_a_release_is_refused_and_disturbs_nothing(held: Play) -> None:
    first = held.releasing(held.policy, held.queues, held.hold, SECOND)
    ballot = next(first)
    with pytest.raises(NotOwned):
        held.release("yyy")
    held.vote(ballot, "yyy")
    assert next(first, None) is None
    assert held.acquire("yyy", give_up_ns=None)
    assert held.hold.held(held.now)


def test_abandoning_a_finished_attempt_does_not_undo_a_later_claim(play: Play) -> None:
    with pytest.raises(QuorumUnavailable):
        play.acquire("!!!", "!!!")
    failed, other = play.ticket, object()
    play.hold.claim(other)
    next(play.acquire_module.acquire(play.policy, play.queues, play.hold, TTL_MS, None))
    # Lock.acquire does this after any exception.
    assert undo(play.hold, failed) is None
    assert undo(play.hold, other) is not None


def test_a_ticket_that_was_refused_has_nothing_to_abandon(held: Play) -> None:
    late = object()
    with pytest.raises(AlreadyHeld):
        held.hold.claim(late)
    assert undo(held.hold, late) is None
    assert held.hold.held(held.now)


# --- extend ------------------------------------------------------------------------------------------


def test_extending_is_one_compare_and_pexpire_of_the_same_token(held: Play) -> None:
    token = held.hold.token
    held.extend("yyy", ttl_ms=4000)
    [ask] = held.effects
    assert isinstance(ask.command, held.commands.Extend)
    assert (ask.command.key, ask.command.token, ask.command.ttl_ms) == (KEY, token, 4000)
    assert not ask.command.releases


def test_an_extension_counts_from_the_call_and_not_from_the_old_deadline(held: Play) -> None:
    started = held.now
    held.extend("yyy", ttl_ms=4000)
    assert held.hold.deadline_ns == started + held.policy.validity_ns(4000)


def test_an_extension_one_nanosecond_before_the_old_deadline_counts(held: Play) -> None:
    held.extend(held.jump(BEGINNING + VALIDITY - 1, "yyy"), ttl_ms=4000)
    assert held.hold.held(BEGINNING + VALIDITY)


def test_an_extension_at_the_old_deadline_is_lost_however_many_said_yes(held: Play) -> None:
    with pytest.raises(LockLost, match="validity ran out"):
        held.extend(held.jump(BEGINNING + VALIDITY, "yyyyy"), ttl_ms=4000)
    assert not held.hold.held(held.now)


def test_an_extension_during_which_a_master_may_have_forgotten_is_verified_by_another(held: Play) -> None:
    def forgets(ballot: Any) -> str:
        held.policy.doubts.add(held.now)
        return "yyy"

    started = held.now
    held.extend(forgets, "yyy", ttl_ms=4000)
    assert not held.policy.doubts.cover(held.hold.lease.asked_ns)
    assert [ask.command.ttl_ms for ask in held.effects] == [4000, 4000 - LATENCY // MS]
    assert held.hold.deadline_ns <= started + held.policy.validity_ns(4000) + MS


def test_an_extension_in_doubt_that_a_later_one_has_overtaken_is_not_repeated(held: Play) -> None:
    def stalls(ballot: Any) -> str:
        held.now = ballot.until_ns + 1
        held.policy.doubts.add(held.now)
        held.now += 1
        held.extend("yyy", ttl_ms=30_000)
        return "yyy"

    held.extend("yyy", ttl_ms=30_000)
    held.extend(stalls, ttl_ms=4000)
    assert [ask.command.ttl_ms for ask in held.effects] == [30_000, 4000, 30_000]
    assert held.hold.deadline_ns > held.now + 20 * SECOND
    assert not held.policy.doubts.cover(held.hold.lease.asked_ns)


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
    assert held.hold.deadline_ns == started + held.policy.validity_ns(4000)


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
    assert held.hold.deadline_ns == started + held.policy.validity_ns(200) < BEGINNING + VALIDITY


def test_a_shorter_ttl_counts_from_before_its_first_byte_leaves(held: Play) -> None:
    steps = held.extending(held.policy, held.hold, 200)
    started = held.now
    next(steps)
    assert held.hold.deadline_ns == started + held.policy.validity_ns(200)


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
    first = held.extending(held.policy, held.hold, 10_000)
    ballot = next(first)
    second = held.extending(held.policy, held.hold, 100)
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
    first = held.extending(held.policy, held.hold, TTL_MS)
    next(first)
    first.close()
    held.extend("yyy")
    assert held.kinds() == ["Ballot Extend"]


# --- releasing without waiting -----------------------------------------------------------------------


def test_release_nowait_sends_the_release_and_frees_the_object_at_once(held: Play) -> None:
    token = held.hold.token
    lock = object()
    held.run(held.releasing_nowait(held.policy, held.queues, held.hold, lock))
    [tell] = held.effects
    [ballot] = tell.ballots
    assert held.kinds() == ["Tell Release"]
    assert (ballot.command.token, ballot.released_lock) == (token, lock)
    assert held.hold.state == held.claims.FREE


def test_release_nowait_after_the_deadline_is_a_loss_and_still_deletes_the_key(held: Play) -> None:
    held.now = BEGINNING + VALIDITY
    with pytest.raises(LockLost, match="validity ran out"):
        held.run(held.releasing_nowait(held.policy, held.queues, held.hold, object()))
    assert held.kinds() == ["Tell Release"]
    # The loss is not reported a second time.
    assert held.effects[0].ballots[0].released_lock is None
    assert held.hold.state == held.claims.FREE


def test_release_nowait_after_an_interrupted_release_reports_no_loss(held: Play) -> None:
    steps = held.releasing(held.policy, held.queues, held.hold, SECOND)
    next(steps)
    held.hold.resend_release(held.hold.ticket)
    held.run(held.releasing_nowait(held.policy, held.queues, held.hold, object()))
    assert held.effects[0].ballots[0].released_lock is None


def test_release_nowait_needs_a_held_lock(held: Play) -> None:
    held.release("yyy")
    with pytest.raises(NotOwned):
        held.run(held.releasing_nowait(held.policy, held.queues, held.hold, object()))


# --- many at once ------------------------------------------------------------------------------------


def names(play: Play, count: int) -> list[Any]:
    """Return `count` free holds."""
    return [play.holds.Hold(f"{NAME}-{number}", b"%b-%d" % (KEY, number), play.plain) for number in range(count)]


def acquire_many(play: Play, holds: list[Any], *script: Votes) -> None:
    play.run(play.batch.acquire_many(play.policy, play.queues, holds, play.ticket, TTL_MS), *script)


def release_many(play: Play, holds: list[Any], *script: Votes) -> dict[int, Any]:
    errors: dict[int, Any] = {}
    play.run(play.batch.release_many(play.policy, play.queues, holds, SECOND, errors), *script)
    return errors


def test_many_acquires_are_one_round_with_a_result_each(play: Play) -> None:
    holds = names(play, 3)
    acquire_many(play, holds, "yyy", "nnn", "ynyy")
    assert play.kinds() == ["Tell Acquire Acquire Acquire", "list Acquire Acquire Acquire", "Tell Release"]
    assert [hold.state for hold in holds] == [play.claims.HELD, play.claims.FREE, play.claims.HELD]
    assert play.effects[2].ballots[0].command.key == holds[1].key
    assert len({ballot.command.token for ballot in play.effects[0].ballots}) == 3
    assert {hold.deadline_ns for hold in holds} == {0, BEGINNING + VALIDITY}


def test_a_batch_repeats_only_the_names_whose_masters_failed(play: Play) -> None:
    holds = names(play, 3)
    with pytest.raises(QuorumUnavailable, match=f"{NAME}-2"):
        acquire_many(play, holds, "yyy", "!!!", "!!!", "yyy", "!!!")
    first = ["Tell Acquire Acquire Acquire", "list Acquire Acquire Acquire", "Tell Release Release"]
    assert play.kinds() == [*first, "Tell Acquire Acquire", "list Acquire Acquire", "Tell Release"]
    assert [hold.state for hold in holds] == [play.claims.HELD, play.claims.HELD, play.claims.FREE]
    undone = [undo(hold, play.ticket) for hold in holds]
    assert [command and command.key for command in undone] == [holds[0].key, holds[1].key, None]


def test_masters_that_stay_silent_are_not_asked_again_by_an_acquire_of_many(play: Play) -> None:
    with pytest.raises(QuorumUnavailable):
        acquire_many(play, names(play, 2), "yyy", "y")
    assert play.kinds() == ["Tell Acquire Acquire", "list Acquire Acquire", "Tell Release"]


def test_a_batch_undoes_grants_that_come_after_the_validity(play: Play) -> None:
    holds = names(play, 2)
    acquire_many(play, holds, "yyy", play.jump(BEGINNING + VALIDITY, "yyy"))
    assert play.kinds()[2:] == ["Tell Release Release"]
    assert [hold.state for hold in holds] == [play.claims.FREE, play.claims.FREE]


def test_a_large_batch_is_split_into_rounds_and_parts(play: Play) -> None:
    size, part = play.batch.BATCH, play.batch.PART
    holds = names(play, 2 * size + 1)
    acquire_many(play, holds, *["yyy"] * len(holds))
    assert [len(effect) for effect in play.of("list")] == [size, size, 1]
    assert [len(effect.ballots) for effect in play.of("Tell")] == [part] * (2 * size // part) + [1]
    assert all(hold.state == play.claims.HELD for hold in holds)
    assert release_many(play, holds, *["yyy"] * len(holds)) == {}
    assert all(hold.state == play.claims.FREE for hold in holds)


def test_each_of_many_releases_has_a_result_of_its_own(play: Play) -> None:
    holds = names(play, 5)
    acquire_many(play, holds[:4], *["yyy"] * 4)
    play.effects.clear()
    errors = release_many(play, holds, "yyy", "nnn", "!!!", "!!!", "yyy", "!!!")
    assert play.kinds() == [f"{kind}{' Release' * count}" for count in (4, 2) for kind in ("Tell", "list")]
    assert [(place, type(error)) for place, error in sorted(errors.items())] == [
        (1, LockLost),
        (3, QuorumUnavailable),
        (4, NotOwned),
    ]
    assert [hold.state for hold in holds] == [*[play.claims.FREE] * 3, play.claims.SETTLING, play.claims.FREE]


def test_many_releases_after_the_deadline_are_lost_and_still_delete_the_keys(play: Play) -> None:
    holds = names(play, 2)
    acquire_many(play, holds, "yyy", "yyy")
    play.now = BEGINNING + VALIDITY
    errors = release_many(play, holds, "yyy", "nnn")
    assert [type(errors[place]) for place in (0, 1)] == [LockLost, LockLost]
    assert play.kinds()[2:] == ["Tell Release Release", "list Release Release"]


def test_a_lock_of_a_batch_with_a_pending_operation_is_waited_for(held: Play) -> None:
    extensions = [held.extending(held.policy, held.hold, TTL_MS) for _ in range(2)]
    errors: dict[int, Any] = {}
    held.run(held.batch.together(extensions, errors), "yyy", "yyy")
    assert held.kinds() == ["Tell Extend", "list Extend", "Pause", "Tell Extend", "list Extend"]
    assert not errors


def test_a_waiter_that_watches_a_key_is_woken_after_a_batch_has_sent_its_releases(held: Play) -> None:
    command = held.commands.Look(held.hold.key)
    look = held.watches.Watch(command, held.policy.size, held.policy.quorum, BEGINNING + VALIDITY)
    held.queues.watches.add(held.hold.key, look)
    steps = held.batch.together([held.releasing_nowait(held.policy, held.queues, held.hold, None)], {})
    sent = next(steps)
    assert [type(ballot.command).__name__ for ballot in sent.ballots] == ["Release"]
    assert not look.decided
    assert next(steps, None) is None
    assert look.decided


def test_acquire_all_that_gives_up_notifies_the_watchers_of_undone_keys(play: Play) -> None:
    """The masters push no change to the client that made it."""
    [hold] = names(play, 1)
    look = play.watches.Watch(play.commands.Look(hold.key), 5, 3, BEGINNING + SECOND)
    play.queues.watches.add(hold.key, look)
    play.run(play.batch.acquire_all(play.policy, play.queues, [hold], play.ticket, TTL_MS, 0), "ynnnn")
    assert hold.state == play.claims.FREE
    assert look.decided


# --- release -----------------------------------------------------------------------------------------


def test_a_release_asks_once_with_the_token_and_frees_the_object(held: Play) -> None:
    token = held.hold.token
    held.release("yyy")
    [ask] = held.effects
    assert isinstance(ask.command, held.commands.Release)
    assert (ask.command.key, ask.command.token, ask.command.since_ns) == (KEY, token, BEGINNING)
    assert held.hold.state == held.claims.FREE


def test_releasing_twice_is_not_owned(held: Play) -> None:
    held.release("yyy")
    with pytest.raises(NotOwned, match="sku:42") as caught:
        held.release()
    assert caught.value.name == NAME


def test_only_one_of_two_concurrent_releases_continues(held: Play) -> None:
    others: list[Any] = []

    def clock() -> int:
        # Another thread runs at this moment.
        if not others:
            others.append(None)
            others[0] = held.releasing(policy, held.queues, held.hold, SECOND)
            next(others[0])
        return held.now

    rest = {
        each: getattr(held.policy, each)
        for each in ("masters", "drift_factor", "attempt_ns", "retry", "tokens", "fences")
    }
    policy = type(held.policy)(clock=clock_of(held.build, clock), random=lambda: 0.5, **rest)
    with pytest.raises(NotOwned):
        next(held.releasing(policy, held.queues, held.hold, SECOND))


def test_releasing_a_lock_that_was_never_held_raises_not_owned(play: Play) -> None:
    with pytest.raises(NotOwned):
        play.release()


def test_releasing_at_the_deadline_is_lost_and_still_deletes_the_key(held: Play) -> None:
    held.now = BEGINNING + VALIDITY
    with pytest.raises(LockLost, match="validity ran out"):
        held.release("yyy")
    assert held.kinds() == ["Ballot Release"]
    assert held.hold.state == held.claims.FREE


def test_releasing_one_nanosecond_before_the_deadline_is_in_time(held: Play) -> None:
    held.now = BEGINNING + VALIDITY - 1
    held.release("yyy")
    assert held.hold.state == held.claims.FREE


def test_releasing_a_lock_that_a_quorum_has_forgotten_raises_lock_lost(held: Play) -> None:
    with pytest.raises(LockLost, match="forgotten"):
        held.release("nnn")
    assert held.hold.state == held.claims.FREE


def test_a_minority_that_forgot_the_token_does_not_fail_a_release(held: Play) -> None:
    held.release("nnyyy")


def test_a_release_that_fails_once_is_sent_again(held: Play) -> None:
    held.release("!!!", "yyy")
    assert held.kinds() == ["Ballot Release"] * 2


def test_a_no_to_a_repeated_release_is_no_loss(held: Play) -> None:
    held.release("!!!", "nnn")
    assert held.hold.state == held.claims.FREE


def test_a_release_that_fails_twice_raises_with_causes_and_may_be_called_again(held: Play) -> None:
    with pytest.raises(QuorumUnavailable) as caught:
        held.release("!!!", "!!!")
    assert len(caught.value.causes) == 3
    held.release("nnn")
    assert held.hold.state == held.claims.FREE


def test_a_lock_that_is_being_released_is_no_longer_held(held: Play) -> None:
    next(held.releasing(held.policy, held.queues, held.hold, SECOND))
    assert not held.hold.held(held.now)


def test_an_interrupted_release_may_be_called_again_and_a_no_is_then_no_loss(held: Play) -> None:
    steps = held.releasing(held.policy, held.queues, held.hold, SECOND)
    next(steps)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
    # Lock.release does this after any interrupt.
    held.hold.resend_release(held.hold.ticket)
    held.release("nnn")
    assert held.hold.state == held.claims.FREE


def test_resend_release_returns_the_same_command_after_an_interrupt(held: Play) -> None:
    steps = held.releasing(held.policy, held.queues, held.hold, SECOND)
    first = next(steps).command
    steps.close()
    again = held.hold.resend_release(held.hold.ticket)
    assert isinstance(again, held.commands.Release)
    assert (again.key, again.token, again.since_ns) == (first.key, first.token, first.since_ns)


def test_resend_release_returns_nothing_if_no_lock_is_held(play: Play) -> None:
    assert play.hold.resend_release(play.hold.ticket) is None


def test_an_object_whose_release_was_interrupted_may_acquire_again(held: Play) -> None:
    steps = held.releasing(held.policy, held.queues, held.hold, SECOND)
    next(steps)
    steps.close()
    held.hold.resend_release(held.hold.ticket)
    assert held.acquire("yyy")


# --- locked and owned --------------------------------------------------------------------------------


def locked(play: Play, *script: Votes) -> Any:
    return play.run(play.inquiry.locked(play.policy, play.hold, SECOND), *script)


def owned(play: Play, *script: Votes) -> Any:
    return play.run(play.inquiry.owned(play.policy, play.hold, SECOND), *script)


@pytest.mark.parametrize(("votes", "verdict"), [("yyy", True), ("nnn", False), ("yynnn", False), ("!!yyy", True)])
def test_a_name_is_locked_if_a_quorum_has_a_key_for_it(play: Play, votes: str, verdict: bool) -> None:
    assert locked(play, votes) is verdict


def test_locked_needs_no_token(play: Play) -> None:
    locked(play, "nnn")
    [ask] = play.effects
    assert isinstance(ask.command, play.commands.Locked)
    assert ask.command.token == b""


def test_a_query_that_fails_once_is_repeated(play: Play) -> None:
    assert locked(play, "!!!", "yyy") is True


def test_a_query_that_fails_twice_raises(play: Play) -> None:
    with pytest.raises(QuorumUnavailable):
        locked(play, "!!!", "!!!")


def test_a_query_that_meets_silence_raises_at_once(play: Play) -> None:
    with pytest.raises(QuorumUnavailable, match="did not answer"):
        locked(play, "yy...")


def test_a_lock_that_is_not_held_is_not_owned_and_no_master_is_asked(play: Play) -> None:
    assert owned(play) is False
    assert not play.effects


def test_a_lock_past_its_deadline_is_not_owned_and_no_master_is_asked(held: Play) -> None:
    held.now = BEGINNING + VALIDITY
    assert owned(held) is False
    assert not held.effects


@pytest.mark.parametrize(("votes", "verdict"), [("yyy", True), ("nnn", False), ("nnyyy", True), ("yynnn", False)])
def test_a_held_lock_is_owned_if_a_quorum_has_its_token(held: Play, votes: str, verdict: bool) -> None:
    assert owned(held, votes) is verdict
    assert held.effects[0].command.token == held.hold.token


def test_a_lock_whose_deadline_passes_during_the_query_is_not_owned(held: Play) -> None:
    assert owned(held, held.jump(BEGINNING + VALIDITY, "yyyyy")) is False


def test_a_lock_that_was_acquired_again_during_the_query_is_not_owned(held: Play) -> None:
    def meanwhile(_: Any) -> str:
        held.release("yyy")
        assert held.acquire("yyy")
        return "yyy"

    assert owned(held, meanwhile) is False


# --- interruptions -----------------------------------------------------------------------------------

BUSY = ("nnn", "!!!", "yynnn", "nnn")
INTERRUPTIONS: dict[str, Callable[[Generator[Any, Any, Any]], object]] = {
    "closed": lambda steps: steps.close(),
    "Ctrl-C": lambda steps: steps.throw(KeyboardInterrupt()),
    "an error": lambda steps: steps.throw(OSError("no")),
}


@pytest.mark.parametrize("how", INTERRUPTIONS)
@pytest.mark.parametrize("point", range(20))
def test_an_acquire_interrupted_at_any_effect_is_undone_with_its_last_token(play: Play, how: str, point: int) -> None:
    ticket = object()
    play.hold.claim(ticket)
    steps = play.acquire_module.acquire(play.policy, play.queues, play.hold, TTL_MS, None)
    script = itertools.cycle(BUSY)
    for _ in range(point + 1):
        play.perform(next(steps), script)
    last = [ballot.command.token for ballot in play.of("Ballot") if ballot.command.token][-1]
    try:
        INTERRUPTIONS[how](steps)
    except (KeyboardInterrupt, OSError):
        pass
    command = undo(play.hold, ticket)
    assert isinstance(command, play.commands.Release)
    assert (command.key, command.token) == (KEY, last)
    # The object is free for another attempt.
    play.hold.claim(object())


@pytest.mark.parametrize("how", INTERRUPTIONS)
def test_an_acquire_interrupted_before_its_first_effect_has_nothing_to_undo(play: Play, how: str) -> None:
    ticket = object()
    play.hold.claim(ticket)
    steps = play.acquire_module.acquire(play.policy, play.queues, play.hold, TTL_MS, None)
    try:
        INTERRUPTIONS[how](steps)
    except (KeyboardInterrupt, OSError):
        pass
    assert undo(play.hold, ticket) is None
    play.hold.claim(object())


def test_an_acquire_interrupted_between_its_grant_and_its_caller_is_undone(held: Play) -> None:
    token = held.hold.token
    command = undo(held.hold, held.ticket)
    assert command.token == token
    assert not held.hold.held(held.now)


def test_a_refused_acquire_has_nothing_to_undo(play: Play) -> None:
    assert not play.acquire("nnn")
    assert undo(play.hold, play.ticket) is None


@pytest.mark.parametrize("how", INTERRUPTIONS)
def test_an_interrupted_extension_leaves_the_lock_held_until_its_old_deadline(held: Play, how: str) -> None:
    steps = held.extending(held.policy, held.hold, 4000)
    next(steps)
    try:
        INTERRUPTIONS[how](steps)
    except (KeyboardInterrupt, OSError):
        pass
    assert held.hold.deadline_ns == BEGINNING + VALIDITY
    assert held.hold.held(held.now)


# --- waiting for a change ----------------------------------------------------------------------------


def look_at(play: Play) -> tuple[Any, Any]:
    """Begin to wait for a change of a key that three masters are asked about; return the steps and the look."""
    until = play.now + SECOND
    steps = play.contention_module.wait_for_change(play.policy, play.queues, KEY, LATENCY, SECOND, 0, until)
    look = next(steps)
    # This master keeps the key for 300 ms, and pushes.
    look.tell(0, 300, True)
    # The key is gone on this master.
    look.yes += 1
    assert look.settled()
    assert next(steps) == [look]
    assert not look.settled()
    return steps, look


def ended(steps: Any) -> Any:
    with pytest.raises(StopIteration) as end:
        next(steps)
    return end.value.value


def test_a_key_that_only_one_master_has_is_not_waited_for(build: impl.Implementation) -> None:
    steps, look = look_at(Play(3, build=build))
    # This is the third answer, which is late.
    look.yes += 1
    assert ended(steps) is False


def test_a_change_that_was_pushed_was_waited_for(build: impl.Implementation) -> None:
    steps, look = look_at(Play(3, build=build))
    assert look.change(0)
    assert ended(steps) is True


def test_a_time_that_is_over_was_waited_for(build: impl.Implementation) -> None:
    steps, _ = look_at(Play(3, build=build))
    assert ended(steps) is True
