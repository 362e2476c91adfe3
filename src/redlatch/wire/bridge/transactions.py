"""Transactions instead of scripts, for a server that refuses EVAL: WATCH, reads, MULTI, the change, EXEC.

A transaction is a generator. It yields batches of commands, gets the reply to each command, and returns the reply of
the script that it stands for. A handshake (`scripting`), a bridge (`scriptless`) and the simulator run it.

Rules:
  * The connection must do nothing else until the transaction ends, because a WATCH belongs to a connection.
  * MULTI is answered before the change leaves. If the server refused MULTI, it would perform the change at once,
    although another holder may have the key by then.
  * EXEC answers null if any client has touched a watched key. This alone is no "no": the key may still have the token,
    because a late command of the same holder has extended it. A release that said no would leave the key, and an
    extension that said no would report a loss. So the transaction says no only after another read without the token.
  * Each null means that another client's write has succeeded. A key that others change again and again is an error
    after TRIES, never a vote.
  * Servers before Redis 6.0.9 do not count the expiry of a key as a touch. There the change itself says that the key is
    gone: DEL and PEXPIRE answer 0, PTTL answers -2.

Source: https://redis.io/docs/latest/develop/using-commands/transactions/
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from redlatch.errors import MasterRefused
from redlatch.votes.commands import GONE
from redlatch.votes.family_scripts import SIGNAL_RELEASE
from redlatch.votes.kinds import FAMILY
from redlatch.votes.label import ONE_LINE
from redlatch.votes.scripts import (
    ACQUIRE_FENCED,
    CONFIRM,
    EXTEND,
    FENCE_IDLE_MS,
    HOLDER,
    KEPT_MS,
    LOCKED,
    LONGEST_TOKEN,
    MARK,
    MARK_WITHIN_US,
    OWNED,
    PULSE,
    RELEASE,
)

Words = list[bytes]
Reply = Any
Steps = Generator[list[Words], list[Reply], Reply]
Result = TypeVar("Result")
Part = Generator[list[Words], list[Reply], Result]

# The most tries of a transaction whose keys other clients touch.
TRIES = 32

# A pulse renews a marker's life only if it has lost more than these milliseconds. So the pulses of many clients touch a
# marker ten times a second at most, and seldom disturb each other.
FRESH_MS = 100

# The rights that transactions need, beside those for the commands inside them.
RIGHTS = "+watch +multi +exec +discard"

SCRIPT_RIGHTS = "+eval +evalsha +script|load"

YES, NO = 1, 0


class StatusReply(bytes):
    """A reply of one line, not a string with a length."""


class TouchedTooOften(Exception):
    """Other clients have changed the keys at each try."""


class Failed(Exception):
    """The server has answered a command with an error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def transaction_for(words: Words) -> Steps | None:
    return answered(words[1], words[3:]) if calls_script(words) else None


def calls_script(words: Words) -> bool:
    return words[0] in (b"EVAL", b"EVALSHA")


def answered(script: bytes, arguments: Words) -> Steps:
    """Perform a script; an error is returned, as a reply."""
    make = TRY.get(script)
    if make is None:
        return MasterRefused(f"{FAMILY} need scripts, which this master refuses")
    try:
        for _ in range(TRIES):
            reply = yield from make(*arguments)
            if reply is not None:
                return reply
    except Failed as failed:
        return failed.error
    return TouchedTooOften(f"others have changed the key {TRIES} times between WATCH and EXEC")


# --- parts of a transaction ---------------------------------------------------------------------------------


def _begin(keys: Words, *reads: Words) -> Part[list[Reply]]:
    """Watch the keys, read, and open the transaction; return what was read."""
    replies = yield [[b"WATCH", *keys], *reads, [b"MULTI"]]
    for reply in replies:
        if isinstance(reply, Exception):
            if not isinstance(replies[-1], Exception):
                yield [[b"DISCARD"]]
            raise Failed(reply)
    return replies[1:-1]


def _end(reply: Result) -> Part[Result]:
    yield [[b"DISCARD"]]
    return reply


def _execute(*commands: Words) -> Part[list[Reply] | None]:
    """Return the reply to each command, or None if a watched key was touched."""
    *queued, done = yield [*commands, [b"EXEC"]]
    # Servers before Redis 6.2 may refuse EXEC and leave the transaction open.
    if isinstance(done, Exception) and not str(done).startswith("EXECABORT"):
        yield [[b"DISCARD"]]
    # A command that was refused says more than the EXECABORT that follows.
    for reply in [*queued, done, *(done if isinstance(done, list) else ())]:
        if isinstance(reply, Exception):
            raise Failed(reply)
    if done is None or (isinstance(done, list) and len(done) == len(commands)):
        return done
    raise Failed(ConnectionError("EXEC was not answered with a reply to each command"))


def _read(command: Words) -> Part[Reply]:
    [reply] = yield [command]
    if isinstance(reply, Exception):
        raise Failed(reply)
    return reply


def _number(reply: Reply) -> int:
    try:
        return int(reply)
    except (TypeError, ValueError):
        raise Failed(ConnectionError(f"a number was answered with {type(reply).__name__}")) from None


def _clock_us(reply: Reply) -> int:
    """Return the server's clock in microseconds since 1970."""
    if not isinstance(reply, list) or len(reply) != 2:
        raise Failed(ConnectionError(f"TIME was answered with {type(reply).__name__}"))
    return _number(reply[0]) * 1_000_000 + _number(reply[1])


# --- one try of each script; None means that a key was touched ------------------------------------------------


def _release(key: bytes, token: bytes) -> Part[int | None]:
    [value] = yield from _begin([key], [b"GET", key])
    if value != token:
        return (yield from _end(NO))
    done = yield from _execute([b"DEL", key])
    return None if done is None else _number(done[0])


def _signal_release(key: bytes, signal: bytes, token: bytes, signal_ms: bytes) -> Part[int | None]:
    [value] = yield from _begin([key], [b"GET", key])
    if value != token:
        return (yield from _end(NO))
    add = [b"DEL", signal], [b"LPUSH", signal, b"1"], [b"PEXPIRE", signal, signal_ms]
    done = yield from _execute([b"DEL", key], *add)
    return None if done is None else _number(done[0])


def _extend(key: bytes, token: bytes, ttl_ms: bytes) -> Part[int | None]:
    value, left = yield from _begin([key], [b"GET", key], [b"PTTL", key])
    if value != token:
        return (yield from _end(NO))
    shorter = _number(left) < int(ttl_ms)
    # EXEC even without a change: between GET and PTTL another holder may have taken the key.
    done = yield from _execute([b"PEXPIRE", key, ttl_ms] if shorter else [b"PTTL", key])
    if done is None:
        return None
    return YES if done[0] != (0 if shorter else GONE) else NO


def _owned(key: bytes, token: bytes) -> Part[int]:
    value = yield from _read([b"GET", key])
    return YES if value == token else NO


def _locked(key: bytes) -> Part[int]:
    value = yield from _read([b"GET", key])
    return NO if value is None else YES


def _holder(key: bytes, counter: bytes) -> Part[StatusReply | int]:
    value = yield from _read([b"GET", key])
    if value is None:
        return NO
    left = yield from _read([b"PTTL", key])
    high = None if counter == key else (yield from _read([b"GET", counter]))
    token = value[:LONGEST_TOKEN].translate(ONE_LINE)
    # The key may have expired after the first question.
    return NO if left == GONE else StatusReply(b"%d %b %b" % (left, high or b"0", token))


def _counter(value: Reply, clock: Reply) -> int:
    """Return a counter; a missing one is the server's clock minus half a day (see `votes.scripts`)."""
    return _clock_us(clock) - FENCE_IDLE_MS * 500 if value is None else _number(value)


def _acquire_fenced(
    key: bytes, counter: bytes, token: bytes, ttl_ms: bytes, first: bytes, last: bytes
) -> Part[int | None]:
    # PTTL, because it answers for a key of any type.
    left, value, clock = yield from _begin([key, counter], [b"PTTL", key], [b"GET", counter], [b"TIME"])
    if left != GONE:
        return (yield from _end(NO))
    count, idle = _counter(value, clock), b"%d" % FENCE_IDLE_MS
    low = int(first) <= count
    raised = [b"SET", counter, b"%d" % count, b"NX"] if low else [b"SET", counter, last]
    done = yield from _execute([b"SET", key, token, b"NX", b"PX", ttl_ms], [*raised, b"PX", idle])
    if done is None:
        return None
    return NO if done[0] is None else -count if low else int(first)


def _confirm(key: bytes, counter: bytes, token: bytes, first: bytes, last: bytes) -> Part[int | None]:
    held, value, clock = yield from _begin([key, counter], [b"GET", key], [b"GET", counter], [b"TIME"])
    if held != token or int(first) <= _counter(value, clock):
        return (yield from _end(NO))
    done = yield from _execute([b"PTTL", key], [b"SET", counter, last, b"PX", b"%d" % FENCE_IDLE_MS])
    if done is None:
        return None
    return NO if done[0] == GONE else YES


def _pulse(key: bytes, identity: bytes, wanted_ms: bytes) -> Part[StatusReply | int | None]:
    begins = identity + b"\n"
    # TIME first: the marker was there after that moment.
    clock, marker, left = yield from _begin([key], [b"TIME"], [b"GET", key], [b"PTTL", key])
    if not isinstance(marker, bytes) or not marker.startswith(begins):
        return (yield from _end(NO))
    horizon_ms, wanted = _number(marker[len(begins) :]), int(wanted_ms)
    kept_ms = b"%d" % KEPT_MS
    answer = StatusReply(b"%d %d" % (_clock_us(clock), max(horizon_ms, wanted)))
    if wanted > horizon_ms:
        done = yield from _execute([b"SET", key, begins + wanted_ms, b"PX", kept_ms])
    elif _number(left) > KEPT_MS - FRESH_MS:
        return (yield from _end(answer))
    else:
        done = yield from _execute([b"PEXPIRE", key, kept_ms])
    return None if done is None or done[0] == 0 else answer


def _mark(key: bytes, old: bytes, new: bytes, kept_ms: bytes, made_us: bytes) -> Part[int | None]:
    # The script refuses a late write. Here the check comes one round trip before the write; EXEC writes only if no
    # client has touched the marker and the server was not restarted.
    clock, marker = yield from _begin([key], [b"TIME"], [b"GET", key])
    if _clock_us(clock) - int(made_us) > MARK_WITHIN_US or (marker or b"") != old:
        return (yield from _end(NO))
    done = yield from _execute([b"SET", key, new, b"PX", kept_ms])
    return None if done is None else YES


TRY: dict[bytes, Callable[..., Part[Any]]] = {
    word: make
    for script, make in (
        (RELEASE, _release),
        (SIGNAL_RELEASE, _signal_release),
        (EXTEND, _extend),
        (OWNED, _owned),
        (LOCKED, _locked),
        (HOLDER, _holder),
        (ACQUIRE_FENCED, _acquire_fenced),
        (CONFIRM, _confirm),
        (PULSE, _pulse),
        (MARK, _mark),
    )
    for word in (script.sha, script.text)
}
