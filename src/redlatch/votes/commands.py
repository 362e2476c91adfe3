"""The only list of commands: the bytes of each, by the dialect of the server, and the vote that each reply means.

`DELIFEQ` (Valkey 9) and `DELEX .. IFEQ` (Redis 8.4) cost the server a quarter of a release by script.
"""

from __future__ import annotations

from typing import Any

from redlatch.votes.family_scripts import FAIR_LOOK, RINGS_MS
from redlatch.votes.scripts import (
    ACQUIRE_FENCED,
    CONFIRM,
    COUNT_REPLICAS,
    EXTEND,
    HOLDER,
    LOCKED,
    MARK,
    OWNED,
    PULSE,
    RELEASE,
    Script,
)

from .payloads import delex, delifeq, digits, set_nx, strings
from .units import UNBOUNDED

# FULL_TEXT works with every server and also loads the script.
FULL_TEXT, BY_SHA, DELIFEQ, DELEX = range(4)

OK = b"OK"

# Equal no reply, for commands that have no fixed ones.
NEVER = object()
_NEVER_SAID = b"+NEVER\r\n"

# See `Command.meaning`.
NOTHING, VOTE, REFUSAL, NO, TIME, TEXT, TRACKED, LACKS, SIGNED, COUNT = range(10)

# The type of the other replies that a ballot keeps, by meaning.
KEPT = (None, int, int, int, None, bytes, None, int, int, None)

# The reply to PTTL for a key that does not exist.
GONE = -2

# A hundred years in microseconds. A client whose clock shows 1970 may propose fences 56 years below the counters.
_FURTHEST = 100 * 365 * 86_400_000_000

# Scripts count in floating point, exactly up to this number.
_EXACT = 1 << 53


def pack(*words: bytes | str | int) -> bytes:
    """Build one command in RESP. Each word has its length, so that none can inject another."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        raw = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


_PTTL = b"*2\r\n$4\r\nPTTL\r\n"
_STRLEN = b"*2\r\n$6\r\nSTRLEN\r\n"
_ASKING = b"*1\r\n$6\r\nASKING\r\n"
_NOTE = b"*3\r\n$6\r\nCLIENT\r\n$7\r\nCACHING\r\n$3\r\nYES\r\n"


class Command:
    """One command about a key and a token.

    Attributes:
        yes: the reply that is a yes vote.
        no: the reply that is a no vote. An error reply is a failed vote; any other reply closes the connection.
        meaning: what any other reply means.
            NOTHING: no such reply is expected.
            VOTE: the number is kept. A positive number is a yes vote; a negative one needs a second round.
            REFUSAL: a no vote. The number is kept.
            NO: a no vote. The number is kept if the master pushes; that master then tracks the key (see `Note`).
            TIME: the answer to a pulse, and no vote.
            TEXT: a status. It is a yes vote, and kept.
            TRACKED: as NOTHING. But a master that pushes tracks the keys that the command reads (see `Note`).
            LACKS: a no vote of a master that lacks the key of a held lock, which `repair` may set again there.
            COUNT: a number of replicas, and no vote.
            SIGNED: a positive number is a yes vote, another one a no vote. The number is kept, and may need a second
                command (`follow`).
        releases: whether the command must reach every master that may hold the key, even after a reconnect.
        since_ns: when the command was made. For a release: when the first command with its token was made, so no
            server knows the token earlier.
        ttl_ms: for how long a yes vote makes the key live, or 0. Under a guard a master that may forget such a key must
            know this ttl first (see `wire.engine.fleet`).
        tried, obeyed: for a release, masks of the masters that may have obeyed a copy of it whose answer is not known,
            and of those that have answered "yes" to one.
    """

    __slots__ = (
        "key",
        "meaning",
        "no",
        "obeyed",
        "releases",
        "since_ns",
        "token",
        "tried",
        "ttl_ms",
        "yes",
        "yes_line",
    )

    def __init__(self, key: bytes, token: bytes, since_ns: int) -> None:
        self._concern(key, token, since_ns)

    def _concern(self, key: bytes, token: bytes, since_ns: int) -> None:
        self.yes: object = 1
        self.yes_line = b":1\r\n"
        self.no: object = 0
        self.meaning = NOTHING
        self.releases = False
        self.key = key
        self.token = token
        self.since_ns = since_ns
        self.ttl_ms = 0
        self.tried = self.obeyed = 0

    def payload(self, dialect: int) -> bytes:
        raise NotImplementedError

    def undo(self) -> Command | None:
        return None

    def expects(self, answer: Any) -> bool:
        """Return whether a reply of the type in `KEPT` is expected beside `yes` and `no`; others end the connection."""
        return True

    def lasts(self) -> bool:
        """Return whether a yes vote must not be forgotten in a fail-over (see `wire.engine.replication`)."""
        return self.ttl_ms > 0

    def again(self) -> Command:
        """Return the command to send if this one must be sent again, behind later commands."""
        return self

    def repair(self, index: int, now_ns: int) -> Command | None:
        """Return the command that sets the key again on a master that lacks it; None if it must not be sent."""
        return None

    def follow(self, answer: int) -> Command | None:
        """Return the command that this answer of a master asks for; the engine sends it there."""
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r}>"


class Acquire(Command):
    """SET key token NX PX ttl: one atomic command sets key and ttl."""

    __slots__ = ()

    def __init__(self, key: bytes, token: bytes, since_ns: int, ttl_ms: int) -> None:
        self._begin(key, token, since_ns, ttl_ms)

    def _begin(self, key: bytes, token: bytes, since_ns: int, ttl_ms: int) -> None:
        self._concern(key, token, since_ns)
        self.yes = OK
        self.yes_line = b"+OK\r\n"
        self.no = None
        self.ttl_ms = ttl_ms

    def payload(self, dialect: int) -> bytes:
        return set_nx(self.key, self.token, self.ttl_ms)

    def undo(self) -> Command | None:
        return new_release(self.key, self.token, self.since_ns)


def new_acquire(key: bytes, token: bytes, since_ns: int, ttl_ms: int) -> Acquire:
    command: Acquire = Acquire.__new__(Acquire)
    command._begin(key, token, since_ns, ttl_ms)
    return command


class AcquireFenced(Command):
    """Set the key to the token if it does not exist, and raise the fence counter of the key.

    The reply is `first` if it is above the counter, minus the counter if it is not, and 0 if the key exists.
    """

    __slots__ = ("_counter", "first", "last")

    def __init__(
        self, key: bytes, counter: bytes, token: bytes, since_ns: int, ttl_ms: int, first: int, last: int
    ) -> None:
        self._concern(key, token, since_ns)
        self._counter = counter
        self.meaning = VOTE
        self.yes = NEVER
        self.yes_line = _NEVER_SAID
        self.ttl_ms = ttl_ms
        self.first = first
        self.last = last

    def payload(self, dialect: int) -> bytes:
        ttl_ms, first, last = digits(self.ttl_ms), digits(self.first), digits(self.last)
        return _call(ACQUIRE_FENCED, dialect, [self.key, self._counter, self.token, ttl_ms, first, last])

    def expects(self, answer: int) -> bool:
        # An absurd counter would be written to the other masters, and end all fenced locks of this name.
        return answer == self.first or -min(self.first + _FURTHEST, _EXACT) <= answer <= 0

    def undo(self) -> Command | None:
        return Release(self.key, self.token, self.since_ns)


class Confirm(Command):
    __slots__ = ("_counter", "first", "last")

    def __init__(self, key: bytes, counter: bytes, token: bytes, since_ns: int, first: int, last: int) -> None:
        self._concern(key, token, since_ns)
        self._counter = counter
        self.first = first
        self.last = last

    def payload(self, dialect: int) -> bytes:
        first, last = digits(self.first), digits(self.last)
        return _call(CONFIRM, dialect, [self.key, self._counter, self.token, first, last])

    def lasts(self) -> bool:
        return True

    def undo(self) -> Command | None:
        return Release(self.key, self.token, self.since_ns)


class Release(Command):
    __slots__ = ()

    def __init__(self, key: bytes, token: bytes, since_ns: int) -> None:
        self._begin(key, token, since_ns)

    def _begin(self, key: bytes, token: bytes, since_ns: int) -> None:
        self._concern(key, token, since_ns)
        self.releases = True

    def payload(self, dialect: int) -> bytes:
        if dialect == DELIFEQ:
            return delifeq(self.key, self.token)
        if dialect == DELEX:
            return delex(self.key, self.token)
        return _call(RELEASE, dialect, [self.key, self.token])


def new_release(key: bytes, token: bytes, since_ns: int) -> Release:
    command: Release = Release.__new__(Release)
    command._begin(key, token, since_ns)
    return command


class Extend(Command):
    __slots__ = ()

    def __init__(self, key: bytes, token: bytes, since_ns: int, ttl_ms: int) -> None:
        self._concern(key, token, since_ns)
        self.ttl_ms = ttl_ms

    def payload(self, dialect: int) -> bytes:
        return _call(EXTEND, dialect, [self.key, self.token, digits(self.ttl_ms)])


class Scripted(Command):
    """A script of the lock family. The lease provides the token and `since_ns`."""

    __slots__ = ("_again", "_arguments", "_bells", "_more_keys", "_no_from", "_script", "_undo", "_yes_from")

    def __init__(
        self,
        key: bytes,
        lease: Any,
        script: Script,
        keys: list[bytes],
        arguments: list[bytes],
        meaning: int = NOTHING,
        releases: bool = False,
        undo: Command | None = None,
        again: Command | None = None,
    ) -> None:
        self._concern(key, lease.token, lease.since_ns)
        self.meaning = meaning
        self.releases = releases
        self._script = script
        self._arguments = keys + arguments
        self._more_keys = len(keys) - script.keys
        self._undo = undo
        self._again = again
        self._bells = b""
        self._yes_from = self._no_from = UNBOUNDED

    def calls(self, bells: bytes, yes_from: int, no_from: int) -> Scripted:
        """Make the command SIGNED: a number in an answer may be that of a waiter to call. Return the command itself.

        Args:
            bells: the key of the waiter's bell, without the number.
            yes_from, no_from: the least number of a waiter in a yes, and in a no.
        """
        self.meaning = SIGNED
        self._bells = bells
        self._yes_from = yes_from
        self._no_from = no_from
        return self

    def payload(self, dialect: int) -> bytes:
        return _call(self._script, dialect, self._arguments, self._more_keys)

    def undo(self) -> Command | None:
        return self._undo

    def again(self) -> Command:
        return self._again or self

    def follow(self, answer: int) -> Command | None:
        if -self._no_from < answer < self._yes_from:
            return None
        return Ring(self._bells + digits(abs(answer)))


class Ring(Command):
    """Ring the bell of a waiter: set a key that it watches."""

    __slots__ = ()

    def __init__(self, key: bytes) -> None:
        self._concern(key, b"", 0)
        self.yes = OK
        self.yes_line = b"+OK\r\n"

    def payload(self, dialect: int) -> bytes:
        return pack(b"SET", self.key, b"c", b"PX", RINGS_MS)


class Look(Command):
    """Ask whether the key is gone and, if not, for how many milliseconds it will live (PTTL).

    A master that pushes tracks the key (see `Note`). With `any_change` a missing key is a "no", too: the caller waits
    until another client takes the key.
    """

    __slots__ = ()

    def __init__(self, key: bytes, any_change: bool = False) -> None:
        self._concern(key, b"", 0)
        self.yes = NEVER if any_change else GONE
        self.yes_line = _NEVER_SAID if any_change else b":-2\r\n"
        self.no = None
        self.meaning = NO

    def payload(self, dialect: int) -> bytes:
        return strings(_PTTL, [self.key])


class LookAsFirst(Look):
    """As `Look`; but also say that the key is gone if the bell of this waiter rings, and watch the bell, too."""

    __slots__ = ("_bell",)

    def __init__(self, key: bytes, bell: bytes) -> None:
        super().__init__(key)
        self._bell = bell

    def payload(self, dialect: int) -> bytes:
        return _call(FAIR_LOOK, dialect, [self.key, self._bell])


class Called(Command):
    """Ask whether a waiter was called (STRLEN of its bell); if not, watch the bell."""

    __slots__ = ()

    def __init__(self, key: bytes) -> None:
        self._concern(key, b"", 0)
        self.no = None
        self.meaning = NO

    def payload(self, dialect: int) -> bytes:
        return strings(_STRLEN, [self.key])


class Watched(Command):
    """Watch some keys (EXISTS); their values do not matter."""

    __slots__ = ("_keys",)

    def __init__(self, keys: list[bytes]) -> None:
        self._concern(keys[0], b"", 0)
        self.yes = NEVER
        self.yes_line = _NEVER_SAID
        self.no = None
        self.meaning = NO
        self._keys = keys

    def payload(self, dialect: int) -> bytes:
        return pack(b"EXISTS", *self._keys)


class Note(Command):
    """Make a master that pushes track the key of the next command only (CLIENT CACHING YES)."""

    __slots__ = ()

    def __init__(self) -> None:
        self._concern(b"", b"", 0)
        self.yes = OK
        self.yes_line = b"+OK\r\n"

    def payload(self, dialect: int) -> bytes:
        return _NOTE


class Asking(Command):
    """Have a node of a cluster execute the next command although the key's slot is still on its way to it."""

    __slots__ = ()

    def __init__(self) -> None:
        self._concern(b"", b"", 0)
        self.yes = OK
        self.yes_line = b"+OK\r\n"

    def payload(self, dialect: int) -> bytes:
        return _ASKING


class Pulse(Command):
    """Ask a master for its clock, compare its marker with `identity`, and raise its horizon to `wanted_ms`."""

    __slots__ = ("_arguments", "wanted_ms")

    def __init__(self, key: bytes, identity: bytes, wanted_ms: int) -> None:
        self._concern(key, b"", 0)
        self.yes = self.no = NEVER
        self.yes_line = _NEVER_SAID
        self.meaning = TIME
        self.wanted_ms = wanted_ms
        self._arguments = PULSE.keys, key, identity, b"%d" % wanted_ms

    def payload(self, dialect: int) -> bytes:
        if dialect == FULL_TEXT:
            return pack(b"EVAL", PULSE.text, *self._arguments)
        return pack(b"EVALSHA", PULSE.sha, *self._arguments)


class Wait(Command):
    """Wait until so many replicas have all writes of this connection (WAIT); the reply is how many have them."""

    __slots__ = ("replicas", "timeout_ms")

    def __init__(self, replicas: int, timeout_ms: int) -> None:
        self._concern(b"", b"", 0)
        self.yes = self.no = NEVER
        self.yes_line = _NEVER_SAID
        self.meaning = COUNT
        self.replicas = replicas
        self.timeout_ms = timeout_ms

    def payload(self, dialect: int) -> bytes:
        return pack(b"WAIT", self.replicas, self.timeout_ms)


class CountReplicas(Command):
    __slots__ = ()

    def __init__(self) -> None:
        self._concern(b"", b"", 0)
        self.yes = self.no = NEVER
        self.yes_line = _NEVER_SAID
        self.meaning = COUNT

    def payload(self, dialect: int) -> bytes:
        return _call(COUNT_REPLICAS, dialect, [])


class MarkElsewhere(Command):
    """Write the marker of a master under another key, where there is none yet."""

    __slots__ = ("_arguments",)

    def __init__(self, key: bytes, text: bytes, kept_ms: int, made_us: int) -> None:
        self._concern(key, b"", 0)
        self._arguments = MARK.keys, key, b"", text, kept_ms, made_us

    def payload(self, dialect: int) -> bytes:
        return pack(b"EVAL", MARK.text, *self._arguments)


# 17 digits for the clock and 12 for the horizon.
_LONGEST_ANSWER = 30


def read_pulse(answer: object) -> tuple[int, int] | None:
    """Return the server's clock in microseconds since 1970 and the horizon; both are 0 if the marker is another one."""
    if type(answer) is not bytes:
        return (0, 0) if type(answer) is int and answer == 0 else None
    clock, _, horizon = answer.partition(b" ")
    if not clock.isdigit() or not horizon.isdigit() or len(answer) > _LONGEST_ANSWER:
        return None
    return int(clock), int(horizon)


class Owned(Command):
    __slots__ = ()

    def payload(self, dialect: int) -> bytes:
        return _call(OWNED, dialect, [self.key, self.token])


class Locked(Command):
    __slots__ = ()

    def payload(self, dialect: int) -> bytes:
        return _call(LOCKED, dialect, [self.key])


class AskHolder(Command):
    """Ask which token the key holds, and until when; `counter` is the key itself if the lock has no fence counter."""

    __slots__ = ("_counter",)

    def __init__(self, key: bytes, counter: bytes) -> None:
        self._concern(key, b"", 0)
        self.yes = NEVER
        self.yes_line = _NEVER_SAID
        self.meaning = TEXT
        self._counter = counter

    def payload(self, dialect: int) -> bytes:
        return _call(HOLDER, dialect, [self.key, self._counter])


def read_holder(answer: bytes) -> tuple[bytes, int, int] | None:
    """Return the token, the milliseconds that its key will live (-1: no ttl) and the counter."""
    parts = answer.split(b" ", 2)
    if len(parts) < 3 or not parts[0].removeprefix(b"-").isdigit() or not parts[1].isdigit():
        return None
    return parts[2], int(parts[0]), int(parts[1])


def _call(script: Script, dialect: int, arguments: list[bytes], more_keys: int = 0) -> bytes:
    if dialect == FULL_TEXT:
        return pack(b"EVAL", script.text, script.keys + more_keys, *arguments)
    return strings(script.begin(len(arguments), more_keys), arguments)
