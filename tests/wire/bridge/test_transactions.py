"""Transactions that stand for scripts, with replies that the tests write."""

from __future__ import annotations

from typing import Any

import pytest
import redis.exceptions as redis_errors

from redlatch.errors import MasterRefused
from redlatch.votes import family_scripts
from redlatch.votes.commands import pack
from redlatch.votes.family_scripts import SIGNAL_RELEASE
from redlatch.votes.scripts import (
    ACQUIRE_FENCED,
    ALL,
    CONFIRM,
    EXTEND,
    FENCE_IDLE_MS,
    KEPT_MS,
    LOCKED,
    MARK,
    MARK_WITHIN_US,
    OWNED,
    PULSE,
    RELEASE,
    Script,
)
from redlatch.wire.bridge.transactions import FRESH_MS, TRIES, StatusReply, TouchedTooOften, transaction_for

OK, QUEUED = b"OK", b"QUEUED"
IDLE = b"%d" % FENCE_IDLE_MS
# The clock of the server: 1,000,000 s and 5 us.
TIME = [b"1000000", b"5"]
CLOCK_US = 1_000_000_000_005
NOPERM = redis_errors.NoPermissionError("NOPERM no permission")

# What the server is sent, a command as one line; and what it answers.
Round = tuple[list[bytes], list[Any]]


def called(script: Script, *arguments: bytes) -> Any:
    steps = transaction_for([b"EVALSHA", script.sha, b"%d" % script.keys, *arguments])
    assert steps is not None
    return steps


def played(steps: Any, *rounds: Round) -> Any:
    """Run a transaction with these replies; return its reply."""
    replies: Any = None
    for expected, answers in rounds:
        batch = next(steps) if replies is None else steps.send(replies)
        assert [b" ".join(words) for words in batch] == expected
        replies = answers
    with pytest.raises(StopIteration) as ended:
        steps.send(replies)
    return ended.value.value


def reading(keys: bytes, *reads: tuple[bytes, Any]) -> Round:
    """Return the round that watches and reads."""
    return [b"WATCH " + keys, *[words for words, _ in reads], b"MULTI"], [OK, *[reply for _, reply in reads], OK]


def changing(*commands: bytes, replies: list[Any] | None) -> Round:
    """Return the round that performs the change; EXEC answers `replies`."""
    return [*commands, b"EXEC"], [*[QUEUED] * len(commands), replies]


GIVEN_UP: Round = [b"DISCARD"], [OK]


@pytest.mark.parametrize("words", [[b"SET", b"k", b"t"], [b"PTTL", b"k"], [b"DELIFEQ", b"k", b"t"]])
def test_other_commands_are_no_transactions(words: list[bytes]) -> None:
    assert transaction_for(words) is None


@pytest.mark.parametrize("script", [*ALL, MARK], ids=lambda script: script.text.decode()[:20])
def test_a_script_is_known_by_its_sha_and_by_its_text(script: Script) -> None:
    arguments = [b"1"] * (script.keys + 5)
    for name, word in ((b"EVAL", script.text), (b"EVALSHA", script.sha)):
        for count in range(1, 7):
            steps = transaction_for([name, word, b"%d" % script.keys, *arguments[:count]])
            try:
                assert next(steps)  # type: ignore[arg-type]
                break
            except TypeError:
                assert count < 6  # the number of arguments differs


@pytest.mark.parametrize("script", [each for each in family_scripts.ALL if each is not SIGNAL_RELEASE])
def test_scripts_of_the_family_are_refused(script: Script) -> None:
    with pytest.raises(StopIteration) as ended:
        next(called(script, b"k"))
    assert isinstance(ended.value.value, MasterRefused)


# --- release and extend ------------------------------------------------------------------------------------


def test_release_deletes_the_key_with_the_token() -> None:
    rounds = reading(b"k", (b"GET k", b"t")), changing(b"DEL k", replies=[1])
    assert played(called(RELEASE, b"k", b"t"), *rounds) == 1


@pytest.mark.parametrize("value", [None, b"other"])
def test_release_changes_nothing_without_the_token(value: bytes | None) -> None:
    assert played(called(RELEASE, b"k", b"t"), reading(b"k", (b"GET k", value)), GIVEN_UP) == 0


@pytest.mark.parametrize(("later", "answer"), [(b"t", 1), (b"other", 0), (None, 0)])
def test_release_of_a_touched_key_reads_it_again(later: bytes | None, answer: int) -> None:
    """A key that was touched may still have the token: a late extension touches it, too."""
    touched = reading(b"k", (b"GET k", b"t")), changing(b"DEL k", replies=None)
    then = changing(b"DEL k", replies=[1]) if answer else GIVEN_UP
    assert played(called(RELEASE, b"k", b"t"), *touched, reading(b"k", (b"GET k", later)), then) == answer


def test_release_is_a_no_where_an_old_server_finds_the_key_expired_in_exec() -> None:
    rounds = reading(b"k", (b"GET k", b"t")), changing(b"DEL k", replies=[0])
    assert played(called(RELEASE, b"k", b"t"), *rounds) == 0


def test_a_release_that_wakes_waiters_of_a_list_leaves_it_with_a_ttl() -> None:
    first = reading(b"k", (b"GET k", b"t"))
    change = changing(b"DEL k", b"DEL s", b"LPUSH s 1", b"PEXPIRE s 900", replies=[1, 0, 1, 1])
    assert played(called(SIGNAL_RELEASE, b"k", b"s", b"t", b"900"), first, change) == 1
    assert played(called(SIGNAL_RELEASE, b"k", b"s", b"t", b"900"), reading(b"k", (b"GET k", b"x")), GIVEN_UP) == 0


@pytest.mark.parametrize("left", [-1, 0, 999])
def test_extend_lets_the_key_live_longer(left: int) -> None:
    rounds = reading(b"k", (b"GET k", b"t"), (b"PTTL k", left)), changing(b"PEXPIRE k 1000", replies=[1])
    assert played(called(EXTEND, b"k", b"t", b"1000"), *rounds) == 1


@pytest.mark.parametrize(("found", "answer"), [(5000, 1), (-2, 0)])
def test_extend_never_shortens_and_still_asks_whether_the_key_was_touched(found: int, answer: int) -> None:
    rounds = reading(b"k", (b"GET k", b"t"), (b"PTTL k", 5001)), changing(b"PTTL k", replies=[found])
    assert played(called(EXTEND, b"k", b"t", b"1000"), *rounds) == answer


def test_extend_that_finds_another_holder_between_its_reads_reads_again() -> None:
    """GET found the token, the key expired, another holder took it, and PTTL found the ttl of that holder."""
    rounds = reading(b"k", (b"GET k", b"t"), (b"PTTL k", 60_000)), changing(b"PTTL k", replies=None)
    again = reading(b"k", (b"GET k", b"other"), (b"PTTL k", 59_999)), GIVEN_UP
    assert played(called(EXTEND, b"k", b"t", b"1000"), *rounds, *again) == 0


def test_extend_is_a_no_where_an_old_server_finds_the_key_expired_in_exec() -> None:
    rounds = reading(b"k", (b"GET k", b"t"), (b"PTTL k", 1)), changing(b"PEXPIRE k 1000", replies=[0])
    assert played(called(EXTEND, b"k", b"t", b"1000"), *rounds) == 0


@pytest.mark.parametrize(("script", "value", "answer"), [(OWNED, b"t", 1), (OWNED, b"x", 0), (OWNED, None, 0)])
def test_owned_is_one_read(script: Script, value: bytes | None, answer: int) -> None:
    assert played(called(script, b"k", b"t"), ([b"GET k"], [value])) == answer


@pytest.mark.parametrize(("value", "answer"), [(b"t", 1), (b"", 1), (None, 0)])
def test_locked_is_one_read(value: bytes | None, answer: int) -> None:
    assert played(called(LOCKED, b"k"), ([b"GET k"], [value])) == answer


# --- fences ------------------------------------------------------------------------------------------------


def fenced(*rounds: Round) -> Any:
    return played(called(ACQUIRE_FENCED, b"k", b"c", b"t", b"900", b"7", b"9"), *rounds)


def test_a_fenced_acquire_sets_the_key_and_raises_the_counter() -> None:
    first = reading(b"k c", (b"PTTL k", -2), (b"GET c", b"6"), (b"TIME", TIME))
    assert fenced(first, changing(b"SET k t NX PX 900", b"SET c 9 PX " + IDLE, replies=[OK, OK])) == 7


def test_a_fenced_acquire_with_a_low_number_answers_the_counter() -> None:
    first = reading(b"k c", (b"PTTL k", -2), (b"GET c", b"7"), (b"TIME", TIME))
    assert fenced(first, changing(b"SET k t NX PX 900", b"SET c 7 NX PX " + IDLE, replies=[OK, None])) == -7


def test_a_missing_counter_is_stored_as_the_clock_minus_half_a_day() -> None:
    first = reading(b"k c", (b"PTTL k", -2), (b"GET c", None), (b"TIME", TIME))
    count = CLOCK_US - FENCE_IDLE_MS * 500
    stored = b"SET c %d NX PX %b" % (count, IDLE)
    assert fenced(first, changing(b"SET k t NX PX 900", stored, replies=[OK, OK])) == -count


@pytest.mark.parametrize("left", [-1, 0, 5])
def test_a_fenced_acquire_leaves_a_key_alone_that_exists(left: int) -> None:
    assert fenced(reading(b"k c", (b"PTTL k", left), (b"GET c", b"6"), (b"TIME", TIME)), GIVEN_UP) == 0


def test_a_fenced_acquire_whose_key_was_taken_meanwhile_is_a_no() -> None:
    first = reading(b"k c", (b"PTTL k", -2), (b"GET c", b"6"), (b"TIME", TIME))
    taken = reading(b"k c", (b"PTTL k", 900), (b"GET c", b"8"), (b"TIME", TIME))
    assert fenced(first, changing(b"SET k t NX PX 900", b"SET c 9 PX " + IDLE, replies=None), taken, GIVEN_UP) == 0


def confirmed(*rounds: Round) -> Any:
    return played(called(CONFIRM, b"k", b"c", b"t", b"7", b"9"), *rounds)


@pytest.mark.parametrize(("left", "answer"), [(5, 1), (-2, 0)])
def test_a_confirmation_raises_the_counter_of_a_key_that_is_still_there(left: int, answer: int) -> None:
    first = reading(b"k c", (b"GET k", b"t"), (b"GET c", b"6"), (b"TIME", TIME))
    assert confirmed(first, changing(b"PTTL k", b"SET c 9 PX " + IDLE, replies=[left, OK])) == answer


@pytest.mark.parametrize(("value", "counter"), [(b"other", b"6"), (None, b"6"), (b"t", b"7"), (b"t", b"8")])
def test_a_confirmation_changes_nothing_without_the_token_or_above_the_number(
    value: bytes | None, counter: bytes
) -> None:
    first = reading(b"k c", (b"GET k", value), (b"GET c", counter), (b"TIME", TIME))
    assert confirmed(first, GIVEN_UP) == 0


# --- the guard ---------------------------------------------------------------------------------------------


def pulsed(wanted: bytes, marker: bytes | None, left: int, *rounds: Round) -> Any:
    first = reading(b"m", (b"TIME", TIME), (b"GET m", marker), (b"PTTL m", left))
    return played(called(PULSE, b"m", b"id", wanted), first, *rounds)


def test_a_pulse_lets_the_marker_live_longer_and_answers_clock_and_horizon() -> None:
    change = changing(b"PEXPIRE m %d" % KEPT_MS, replies=[1])
    answer = pulsed(b"500", b"id\n700", KEPT_MS - FRESH_MS, change)
    assert isinstance(answer, StatusReply)
    assert answer == b"%d 700" % CLOCK_US


def test_a_pulse_that_another_one_has_just_preceded_touches_nothing() -> None:
    """Else the pulses of many clients would disturb each other."""
    assert pulsed(b"500", b"id\n700", KEPT_MS - FRESH_MS + 1, GIVEN_UP) == b"%d 700" % CLOCK_US


def test_a_pulse_raises_the_horizon() -> None:
    change = changing(b"SET m id\n900 PX %d" % KEPT_MS, replies=[OK])
    assert pulsed(b"900", b"id\n700", KEPT_MS, change) == b"%d 900" % CLOCK_US


@pytest.mark.parametrize("marker", [None, b"other\n700", b"id", b"identity\n700"])
def test_a_pulse_to_another_marker_is_a_no(marker: bytes | None) -> None:
    assert pulsed(b"500", marker, 5, GIVEN_UP) == 0


def test_a_pulse_whose_marker_is_replaced_meanwhile_is_a_no() -> None:
    change = changing(b"SET m id\n900 PX %d" % KEPT_MS, replies=None)
    again = reading(b"m", (b"TIME", TIME), (b"GET m", b"other\n700"), (b"PTTL m", 5))
    assert pulsed(b"900", b"id\n700", 5, change, again, GIVEN_UP) == 0


def marked(old: bytes, found: bytes | None, late_us: int, *rounds: Round) -> Any:
    first = reading(b"m", (b"TIME", TIME), (b"GET m", found))
    return played(called(MARK, b"m", old, b"new", b"800", b"%d" % (CLOCK_US - late_us)), first, *rounds)


@pytest.mark.parametrize(("old", "found"), [(b"", None), (b"old", b"old")])
def test_a_marker_replaces_the_expected_one(old: bytes, found: bytes | None) -> None:
    assert marked(old, found, MARK_WITHIN_US, changing(b"SET m new PX 800", replies=[OK])) == 1


@pytest.mark.parametrize(
    ("old", "found", "late_us"), [(b"", b"x", 0), (b"old", None, 0), (b"old", b"old", MARK_WITHIN_US + 1)]
)
def test_a_marker_does_not_replace_another_one_and_is_not_written_late(
    old: bytes, found: bytes | None, late_us: int
) -> None:
    assert marked(old, found, late_us, GIVEN_UP) == 0


def test_a_marker_that_another_client_has_replaced_between_watch_and_exec_stays() -> None:
    change = changing(b"SET m new PX 800", replies=None)
    assert marked(b"", None, 0, change, reading(b"m", (b"TIME", TIME), (b"GET m", b"theirs")), GIVEN_UP) == 0


# --- errors ------------------------------------------------------------------------------------------------


def test_a_key_that_is_touched_at_each_try_is_an_error_and_no_vote() -> None:
    once = reading(b"k", (b"GET k", b"t")), changing(b"DEL k", replies=None)
    assert isinstance(played(called(RELEASE, b"k", b"t"), *once * TRIES), TouchedTooOften)


def test_a_refused_watch_ends_the_transaction_before_the_change() -> None:
    refused = [b"WATCH k", b"GET k", b"MULTI"], [NOPERM, b"t", OK]
    assert played(called(RELEASE, b"k", b"t"), refused, GIVEN_UP) is NOPERM


def test_a_refused_multi_keeps_the_change_back() -> None:
    """Without MULTI the server would perform the DEL at once."""
    refused = [b"WATCH k", b"GET k", b"MULTI"], [OK, b"t", NOPERM]
    assert played(called(RELEASE, b"k", b"t"), refused) is NOPERM


def test_the_error_of_a_refused_change_is_the_reply_and_not_the_abort() -> None:
    abort = redis_errors.ResponseError("EXECABORT Transaction discarded")
    refused = [b"DEL k", b"EXEC"], [NOPERM, abort]
    assert played(called(RELEASE, b"k", b"t"), reading(b"k", (b"GET k", b"t")), refused) is NOPERM


def test_a_transaction_that_an_old_server_leaves_open_is_discarded() -> None:
    full = redis_errors.OutOfMemoryError("OOM command not allowed")
    refused = [b"DEL k", b"EXEC"], [QUEUED, full]
    assert played(called(RELEASE, b"k", b"t"), reading(b"k", (b"GET k", b"t")), refused, GIVEN_UP) is full


def test_an_error_among_the_results_is_the_reply() -> None:
    change = changing(b"DEL k", replies=[NOPERM])
    assert played(called(RELEASE, b"k", b"t"), reading(b"k", (b"GET k", b"t")), change) is NOPERM


@pytest.mark.parametrize("done", [b"OK", 1, [], [1, 1], [b"x"]])
def test_nonsense_in_reply_to_exec_ends_the_connection(done: Any) -> None:
    nonsense = [b"DEL k", b"EXEC"], [QUEUED, done]
    answer = played(called(RELEASE, b"k", b"t"), reading(b"k", (b"GET k", b"t")), nonsense)
    assert isinstance(answer, ConnectionError)


@pytest.mark.parametrize("clock", [None, [], [b"1"], [b"x", b"1"], b"1"])
def test_nonsense_in_reply_to_time_ends_the_connection(clock: Any) -> None:
    first = reading(b"m", (b"TIME", clock), (b"GET m", None))
    answer = played(called(MARK, b"m", b"", b"new", b"800", b"1"), first)
    assert isinstance(answer, ConnectionError)


def test_the_words_of_a_batch_can_be_packed() -> None:
    [watch, *_] = next(called(RELEASE, b"k\r\n", b"t"))
    assert pack(*watch) == b"*2\r\n$5\r\nWATCH\r\n$3\r\nk\r\n\r\n"
