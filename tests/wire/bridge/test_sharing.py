"""One transaction for several calls."""

from __future__ import annotations

from typing import Any

import pytest
import redis.exceptions as redis_errors

from redlatch.votes import family_scripts
from redlatch.votes.scripts import ACQUIRE_FENCED, EXTEND, OWNED, PULSE, RELEASE
from redlatch.wire.bridge.sharing import runs
from wire.bridge.test_transactions import GIVEN_UP, NOPERM, OK, QUEUED, Round, changing, played, reading

SET, PTTL = [b"SET", b"k", b"t"], [b"PTTL", b"k"]


def release(key: bytes, token: bytes = b"t") -> list[bytes]:
    return [b"EVALSHA", RELEASE.sha, b"1", key, token]


def extend(key: bytes) -> list[bytes]:
    return [b"EVAL", EXTEND.text, b"1", key, b"t", b"1000"]


OWNING = [b"EVALSHA", OWNED.sha, b"1", b"k", b"t"]
PULSING = [b"EVALSHA", PULSE.sha, b"1", b"m", b"id", b"1000"]
FENCING = [b"EVALSHA", ACQUIRE_FENCED.sha, b"2", b"f", b"f2", b"t", b"900", b"7", b"9"]
FAIR = [b"EVALSHA", family_scripts.FAIR_ACQUIRE.sha, b"1", b"q"]


@pytest.mark.parametrize(
    ("commands", "lengths"),
    [
        ([], []),
        ([SET, PTTL, SET], [3]),
        ([SET, release(b"a"), release(b"b"), extend(b"c"), FENCING, PTTL], [1, 4, 1]),
        ([release(b"a"), extend(b"a"), release(b"b")], [1, 2]),
        ([FENCING, release(b"f2")], [1, 1]),
        ([OWNING, OWNING, PULSING, release(b"a"), FAIR, SET], [1, 1, 1, 1, 1, 1]),
        ([SET] * 9, [4, 4, 1]),
        ([release(b"%d" % number) for number in range(9)], [4, 4, 1]),
    ],
)
def test_commands_go_together_while_their_order_does_not_matter(
    commands: list[list[bytes]], lengths: list[int]
) -> None:
    divided = list(runs(commands, 4))
    assert [len(run) for run, _ in divided] == lengths
    assert [words for run, _ in divided for words in run] == commands
    assert all((steps is None) == (run[0] in (SET, PTTL)) for run, steps in divided)


def performed(calls: list[list[bytes]], *rounds: Round) -> Any:
    [(_, steps)] = list(runs(calls, 10))
    assert steps is not None
    return played(steps, *rounds)


BOTH = [release(b"a"), extend(b"b")]


def both(first: Any, second: Any) -> Round:
    return reading(b"a b", (b"GET a", first), (b"GET b", second), (b"PTTL b", 5))


def test_calls_share_one_transaction() -> None:
    assert performed(BOTH, both(b"t", b"t"), changing(b"DEL a", b"PEXPIRE b 1000", replies=[1, 1])) == [1, 1]


def test_a_call_without_its_token_takes_no_part_in_the_change() -> None:
    assert performed(BOTH, both(b"other", b"t"), changing(b"PEXPIRE b 1000", replies=[1])) == [0, 1]


def test_calls_that_change_nothing_need_no_exec() -> None:
    assert performed(BOTH, both(None, b"other"), GIVEN_UP) == [0, 0]


def test_each_call_has_the_replies_to_its_own_commands() -> None:
    first = reading(b"f f2 a", (b"PTTL f", -2), (b"GET f2", b"6"), (b"TIME", [b"1", b"1"]), (b"GET a", b"t"))
    change = changing(b"SET f t NX PX 900", b"SET f2 9 PX 86400000", b"DEL a", replies=[OK, OK, 0])
    assert performed([FENCING, release(b"a")], first, change) == [7, 0]


ALONE = (
    *(reading(b"a", (b"GET a", b"t")), changing(b"DEL a", replies=[1])),
    *(reading(b"b", (b"GET b", b"other"), (b"PTTL b", 5)), GIVEN_UP),
)


def test_a_touched_key_gives_each_call_a_transaction_of_its_own() -> None:
    touched = changing(b"DEL a", b"PEXPIRE b 1000", replies=None)
    assert performed(BOTH, both(b"t", b"t"), touched, *ALONE) == [1, 0]


def test_a_refused_command_gives_each_call_a_transaction_of_its_own() -> None:
    abort = redis_errors.ResponseError("EXECABORT Transaction discarded")
    refused = [b"DEL a", b"PEXPIRE b 1000", b"EXEC"], [QUEUED, NOPERM, abort]
    assert performed(BOTH, both(b"t", b"t"), refused, *ALONE) == [1, 0]


@pytest.mark.parametrize("opened", [OK, NOPERM])
def test_a_refused_read_gives_each_call_a_transaction_of_its_own(opened: Any) -> None:
    words, replies = both(b"t", NOPERM)
    refused = words, [*replies[:-1], opened]
    given_up = [GIVEN_UP] if opened == OK else []
    assert performed(BOTH, refused, *given_up, *ALONE) == [1, 0]


def test_nonsense_for_one_call_gives_each_call_a_transaction_of_its_own() -> None:
    words, replies = both(b"t", b"t")
    nonsense = words, [*replies[:-2], b"no number", OK]
    assert performed(BOTH, nonsense, GIVEN_UP, *ALONE) == [1, 0]


def test_an_error_among_the_results_is_the_reply_to_its_call_alone() -> None:
    """EXEC has performed the others, so they are not repeated."""
    change = changing(b"DEL a", b"PEXPIRE b 1000", replies=[1, NOPERM])
    assert performed(BOTH, both(b"t", b"t"), change) == [1, NOPERM]


def test_a_transaction_that_an_old_server_leaves_open_is_discarded() -> None:
    full = redis_errors.OutOfMemoryError("OOM command not allowed")
    refused = [b"DEL a", b"PEXPIRE b 1000", b"EXEC"], [QUEUED, QUEUED, full]
    assert performed(BOTH, both(b"t", b"t"), refused, GIVEN_UP, *ALONE) == [1, 0]
