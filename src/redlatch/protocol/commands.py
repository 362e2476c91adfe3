"""Every command as bytes, and which reply to it is which vote: the one place that knows both.

A command's bytes depend on the server's dialect: `DELIFEQ` (Valkey 9) and `DELEX .. IFEQ` (Redis 8.4)
release four times cheaper than a script; every server knows the scripts, by SHA or in full.

Longer than a module should be: it is the only list of commands. Compiled as `redlatch._c.protocol.commands`, too (see
`redlatch._c`).
"""

from __future__ import annotations

from typing import Any

from redlatch.protocol.scripts import ACQUIRE_FENCED, CONFIRM, EXTEND, LOCKED, OWNED, PULSE, RELEASE, Script

# How a server is spoken to. FULL_TEXT works everywhere and loads the script on the way.
FULL_TEXT, BY_SHA, DELIFEQ, DELEX = range(4)

OK = b"OK"

# A yes that no reply is, where each answer is kept.
_NEVER = object()
_NEVER_SAID = b"+NEVER\r\n"

# What a number is that is neither `yes` nor `no` (see `Command.tells`).
NOTHING, VOTE, REFUSAL, NO, TIME = range(5)

GONE = -2  # what PTTL answers for a key that is not there

# Names hold no NUL, so that no name is another one's counter.
COUNTER = b"\0fence"

# "$n\r\n" for every length that a name, a token or a number has: looking it up costs a quarter of formatting it.
_LENGTHS = [b"$%d\r\n" % length for length in range(1024)]


def pack(*words: bytes | str | int) -> bytes:
    """Build one command as RESP: an array of length-prefixed strings, so that no word can inject another."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        raw = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


_SET = b"*6\r\n$3\r\nSET\r\n"
_PTTL = b"*2\r\n$4\r\nPTTL\r\n"
_STRLEN = b"*2\r\n$6\r\nSTRLEN\r\n"
_NOTE = b"*3\r\n$6\r\nCLIENT\r\n$7\r\nCACHING\r\n$3\r\nYES\r\n"
_DELIFEQ = b"*3\r\n$7\r\nDELIFEQ\r\n"
_DELEX = b"*4\r\n$5\r\nDELEX\r\n"
_IFEQ = b"\r\n$4\r\nIFEQ\r\n"

# How a SET ends, by its ttl in milliseconds: mostly a client has a few of them.
_ENDINGS: dict[int, bytes] = {}


def _ending(ttl_ms: int) -> bytes:
    ending = b"\r\n$2\r\nNX\r\n$2\r\nPX\r\n$%d\r\n%d\r\n" % (len(str(ttl_ms)), ttl_ms)
    if len(_ENDINGS) < 1024:
        _ENDINGS[ttl_ms] = ending
    return ending


class Command:
    """One command of a token.

    Attributes:
        yes, no: the replies that are votes; anything else is a failure or closes the connection.
        tells: what any other number is: NOTHING expected; a VOTE that is kept, for it if positive and undecided if
            negative; a REFUSAL that is kept; a NO that is kept of masters that push, which are to note the key then
            (see `Note`); or the TIME by the master's clock, which is no vote (see `Pulse`).
        yes_line: the line that `yes` comes as.
        releases: whether it must reach a master that may hold the key, even after a reconnect.
        key, token: what it is about.
        since_ns: when it was made; of a release, when the first command of its token was: before that no server can
            know the token.
    """

    __slots__ = ("key", "no", "releases", "since_ns", "tells", "token", "yes", "yes_line")

    def __init__(self, key: bytes, token: bytes, since_ns: int) -> None:
        self._concern(key, token, since_ns)

    def _concern(self, key: bytes, token: bytes, since_ns: int) -> None:
        self.yes: object = 1
        self.yes_line = b":1\r\n"
        self.no: object = 0
        self.tells = NOTHING
        self.releases = False
        self.key = key
        self.token = token
        self.since_ns = since_ns

    def payload(self, dialect: int) -> bytes:
        """Return the bytes for a server of that dialect."""
        raise NotImplementedError

    def undo(self) -> Command | None:
        """Return the command that undoes this one, or None where there is nothing to undo."""
        return None

    def again(self) -> Command:
        """Return what is sent instead where it has to be sent once more, behind what was sent since."""
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r}>"


class Acquire(Command):
    """SET key token NX PX ttl: one atomic command, never without a TTL."""

    __slots__ = ("ttl_ms",)

    def __init__(self, key: bytes, token: bytes, since_ns: int, ttl_ms: int) -> None:
        self._begin(key, token, since_ns, ttl_ms)

    def _begin(self, key: bytes, token: bytes, since_ns: int, ttl_ms: int) -> None:
        self._concern(key, token, since_ns)
        self.yes = OK
        self.yes_line = b"+OK\r\n"
        self.no = None
        self.ttl_ms = ttl_ms

    def payload(self, dialect: int) -> bytes:
        key, token = self.key, self.token
        ending = _ENDINGS.get(self.ttl_ms) or _ending(self.ttl_ms)
        return b"".join((_SET, _LENGTHS[len(key)], key, b"\r\n", _LENGTHS[len(token)], token, ending))

    def undo(self) -> Command | None:
        return new_release(self.key, self.token, self.since_ns)


def new_acquire(key: bytes, token: bytes, since_ns: int, ttl_ms: int) -> Acquire:
    """Return an Acquire. Compiled, a constructor would make Python objects of all its arguments first."""
    command: Acquire = Acquire.__new__(Acquire)
    command._begin(key, token, since_ns, ttl_ms)
    return command


class AcquireFenced(Command):
    """Acquire by a script that also raises the counter of the key, if the numbers that are proposed are above it.

    The answer is the first number where they are, minus the counter where they are not, 0 where the key is taken.
    """

    __slots__ = ("first", "last", "ttl_ms")

    def __init__(self, key: bytes, token: bytes, since_ns: int, ttl_ms: int, first: int, last: int) -> None:
        self._concern(key, token, since_ns)
        self.tells = VOTE
        self.yes = _NEVER
        self.yes_line = _NEVER_SAID
        self.ttl_ms = ttl_ms
        self.first = first
        self.last = last

    def payload(self, dialect: int) -> bytes:
        numbers = b"%d" % self.ttl_ms, b"%d" % self.first, b"%d" % self.last
        return _call(ACQUIRE_FENCED, dialect, self.key, self.key + COUNTER, self.token, *numbers)

    def undo(self) -> Command | None:
        return Release(self.key, self.token, self.since_ns)


class Confirm(Command):
    """Raise the counter of a key that holds the token, if the numbers are above it."""

    __slots__ = ("first", "last")

    def __init__(self, key: bytes, token: bytes, since_ns: int, first: int, last: int) -> None:
        self._concern(key, token, since_ns)
        self.first = first
        self.last = last

    def payload(self, dialect: int) -> bytes:
        return _call(CONFIRM, dialect, self.key, self.key + COUNTER, self.token, b"%d" % self.first, b"%d" % self.last)

    def undo(self) -> Command | None:
        return Release(self.key, self.token, self.since_ns)


class Release(Command):
    """Delete the key if it holds the token."""

    __slots__ = ()

    def __init__(self, key: bytes, token: bytes, since_ns: int) -> None:
        self._begin(key, token, since_ns)

    def _begin(self, key: bytes, token: bytes, since_ns: int) -> None:
        self._concern(key, token, since_ns)
        self.releases = True

    def payload(self, dialect: int) -> bytes:
        key, token = self.key, self.token
        if dialect == DELIFEQ:
            return b"".join((_DELIFEQ, _LENGTHS[len(key)], key, b"\r\n", _LENGTHS[len(token)], token, b"\r\n"))
        if dialect == DELEX:
            return b"".join((_DELEX, _LENGTHS[len(key)], key, _IFEQ, _LENGTHS[len(token)], token, b"\r\n"))
        return _call(RELEASE, dialect, key, token)


def new_release(key: bytes, token: bytes, since_ns: int) -> Release:
    """Return a Release, as `new_acquire` does."""
    command: Release = Release.__new__(Release)
    command._begin(key, token, since_ns)
    return command


class Extend(Command):
    """Keep the key for at least ttl_ms from now if it holds the token (PEXPIRE, which also works at maxmemory)."""

    __slots__ = ("ttl_ms",)

    def __init__(self, key: bytes, token: bytes, since_ns: int, ttl_ms: int) -> None:
        self._concern(key, token, since_ns)
        self.ttl_ms = ttl_ms

    def payload(self, dialect: int) -> bytes:
        return _call(EXTEND, dialect, self.key, self.token, b"%d" % self.ttl_ms)


class Scripted(Command):
    """The call of a script of the lock family, on keys that its kind knows.

    Args:
        key: of the lock.
        lease: whose token and beginning it concerns.
        tells, releases: see `Command`.
        undo: what undoes it, where it acquires.
        again: see `Command.again`; None is itself.
    """

    __slots__ = ("_again", "_arguments", "_script", "_undo")

    def __init__(
        self,
        key: bytes,
        lease: Any,
        script: Script,
        keys: list[bytes],
        arguments: list[bytes],
        tells: int = NOTHING,
        releases: bool = False,
        undo: Command | None = None,
        again: Command | None = None,
    ) -> None:
        self._concern(key, lease.token, lease.since_ns)
        self.tells = tells
        self.releases = releases
        self._script = script
        self._arguments = keys + arguments
        self._undo = undo
        self._again = again

    def payload(self, dialect: int) -> bytes:
        return _call(self._script, dialect, *self._arguments)

    def undo(self) -> Command | None:
        return self._undo

    def again(self) -> Command:
        return self._again or self


class Look(Command):
    """Ask whether the key is gone, and if not for how many milliseconds it stays (PTTL).

    A master that pushes notes the question (see `Note`), and says when the key has changed.

    Args:
        any_change: whether a key that is gone is a "no", too: that it is taken is waited for.
    """

    __slots__ = ()

    def __init__(self, key: bytes, any_change: bool = False) -> None:
        self._concern(key, b"", 0)
        self.yes = _NEVER if any_change else GONE
        self.yes_line = _NEVER_SAID if any_change else b":-2\r\n"
        self.no = None
        self.tells = NO

    def payload(self, dialect: int) -> bytes:
        return b"".join((_PTTL, _LENGTHS[len(self.key)], self.key, b"\r\n"))


class Called(Command):
    """Ask whether a client was called to its turn (STRLEN of its own key, see `fair`); if not, wait for that."""

    __slots__ = ()

    def __init__(self, key: bytes) -> None:
        self._concern(key, b"", 0)
        self.no = None
        self.tells = NO

    def payload(self, dialect: int) -> bytes:
        return b"".join((_STRLEN, _LENGTHS[len(self.key)], self.key, b"\r\n"))


class Note(Command):
    """Have a master that pushes note the key of the next command, and of no other (CLIENT CACHING)."""

    __slots__ = ()

    def __init__(self) -> None:
        self._concern(b"", b"", 0)
        self.yes = OK
        self.yes_line = b"+OK\r\n"

    def payload(self, dialect: int) -> bytes:
        return _NOTE


class Pulse(Command):
    """Ask a master for its clock, and whether its marker is still the one that it was let in with (see `guard`).

    Args:
        key: of the marker.
        marker: what it should be.
        kept_ms: for how long it is kept from now on.
    """

    __slots__ = ("_arguments",)

    def __init__(self, key: bytes, marker: bytes, kept_ms: int) -> None:
        self._concern(key, b"", 0)
        self.yes = self.no = _NEVER
        self.yes_line = _NEVER_SAID
        self.tells = TIME
        self._arguments = PULSE.keys, key, marker, b"%d" % kept_ms

    def payload(self, dialect: int) -> bytes:
        if dialect == FULL_TEXT:
            return pack(b"EVAL", PULSE.text, *self._arguments)
        return pack(b"EVALSHA", PULSE.sha, *self._arguments)


class Owned(Command):
    """Ask whether the key holds the token."""

    __slots__ = ()

    def payload(self, dialect: int) -> bytes:
        return _call(OWNED, dialect, self.key, self.token)


class Locked(Command):
    """Ask whether there is a key at all."""

    __slots__ = ()

    def payload(self, dialect: int) -> bytes:
        return _call(LOCKED, dialect, self.key)


def _call(script: Script, dialect: int, *arguments: bytes) -> bytes:
    """Build the call of a script: its keys first, then the other arguments."""
    if dialect == FULL_TEXT:
        return pack(b"EVAL", script.text, script.keys, *arguments)
    parts = [script.begin(len(arguments))]
    for argument in arguments:
        parts.append(_LENGTHS[len(argument)])
        parts.append(argument)
        parts.append(b"\r\n")
    return b"".join(parts)
