"""Plain locks as other clients write them: with a token that was chosen, and with a signal for those who wait.

For `redlatch.compat`. Compiled as `redlatch._c.protocol.foreign`, too (see `redlatch._c`).
"""

from __future__ import annotations

from redlatch.protocol import family_scripts as scripts

from .commands import BY_SHA, FULL_TEXT, NOTHING, Command, Release, Scripted
from .family import FamilyKind
from .hold import Hold
from .key import key_as_it_is
from .kind import CHOSEN_ONES, NEVER
from .lease import Lease, new_lease
from .policy import Policy
from .waiting import Lines


class Given(FamilyKind):
    """A plain lock whose token is chosen by who uses it.

    Others may choose the same token, in other processes: so nothing is undone unless a master said yes, and a key whose
    attempt was interrupted, or got no answer, may stay until its ttl. And attempts that share a token may undo each
    other where a connection breaks in between: the server may read what was sent on the old one behind what is sent on
    the new one. So it is asked for only where the interface has it so.

    Args:
        token: the value of the key, at most 512 bytes.
        once: whether nobody else has it, and it is for the first attempt only; each other one takes a fresh token.
    """

    def __init__(self, token: bytes, once: bool = False) -> None:
        super().__init__()
        key_as_it_is(token, "token")
        self._token = token
        self._once = self.undoes = once
        self.passes = CHOSEN_ONES if once else NEVER

    def lease(self, policy: Policy, lines: Lines, key: bytes, since_ns: int, deadline_ns: int) -> Lease:
        token = self._token or policy.tokens.take()
        if self._once:
            self._token = b""
        return new_lease(token, since_ns, deadline_ns)

    def promise(self, token: bytes) -> None:
        """Have this token in the attempts to come, and take over no lease: somebody was told that it will be this."""
        self._once = False
        self.passes = NEVER
        self._token = token

    def won(self, policy: Policy, hold: Hold) -> None:
        hold.shown = not self._once

    def releasing(self, key: bytes, lease: Lease) -> Command:
        return self._in_order(Release(key, lease.token, lease.since_ns))

    def _in_order(self, release: Command) -> Command:
        return release if self._once else InOrder(release)


class Signalled(Given):
    """One whose waiters, in other processes, wait for an element of a list: BLPOP, as python-redis-lock does.

    Args:
        signal: the key of the list.
        signal_ms: milliseconds that the element stays.
    """

    def __init__(self, token: bytes, once: bool, signal: bytes, signal_ms: int) -> None:
        super().__init__(token, once)
        self._signal = signal
        self._signal_ms = signal_ms

    def releasing(self, key: bytes, lease: Lease) -> Command:
        keys, arguments = [key, self._signal], [lease.token, b"%d" % self._signal_ms]
        return self._in_order(Scripted(key, lease, scripts.SIGNAL_RELEASE, keys, arguments, NOTHING, True))


class InOrder(Command):
    """A release that calls no script by its SHA.

    A server that has forgotten the script would get that once more, in full, behind what was sent meanwhile; and if
    that is the next attempt with the same token, it would be undone, too.
    """

    __slots__ = ("_release",)

    def __init__(self, release: Command) -> None:
        self._concern(release.key, release.token, release.since_ns)
        self.releases = True
        self._release = release

    def payload(self, dialect: int) -> bytes:
        return self._release.payload(FULL_TEXT if dialect == BY_SHA else dialect)
