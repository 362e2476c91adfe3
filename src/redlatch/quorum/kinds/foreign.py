"""Plain locks as other clients write them, for the drop-ins of `redlatch.compat`."""

from __future__ import annotations

from redlatch.votes import family_scripts as scripts

from ...votes.commands import BY_SHA, FULL_TEXT, NOTHING, Command, Release, Scripted
from ...votes.key import key_as_it_is
from ..hold import Hold
from ..lease import Lease, new_lease
from ..quorum import Quorum
from .kind import CHOSEN_ONES, NEVER
from .watching import WatchingKind


class Given(WatchingKind):
    """A plain lock whose token the user chooses.

    Another process may choose the same token. So an attempt is undone only if a master has said yes, and the key of one
    that got no answer may stay until its ttl is over. Attempts that share a token may undo each other if a connection
    breaks between them: the server may read bytes from the old connection after bytes from the new one.

    Args:
        token: the value of the key, at most 512 bytes.
        once: whether no other holder has the token. Then only the first attempt uses it, and each later attempt takes a
            new token.
    """

    def __init__(self, token: bytes, once: bool = False) -> None:
        super().__init__()
        key_as_it_is(token, "token")
        self._token = token
        self._once = self.undoes = once
        self.hand_off_group = CHOSEN_ONES if once else NEVER

    def lease(self, quorum: Quorum, key: bytes, since_ns: int, deadline_ns: int) -> Lease:
        token = self._token or quorum.tokens.take_plain()
        if self._once:
            self._token = b""
        return new_lease(token, since_ns, deadline_ns)

    def promise(self, token: bytes) -> None:
        """Use this token in all later attempts, and take no lease: the user already knows the token."""
        self._once = False
        self.hand_off_group = NEVER
        self._token = token

    def won(self, quorum: Quorum, hold: Hold) -> None:
        hold.token_exposed = not self._once

    def undoing(self, key: bytes, lease: Lease, last: bool) -> Command:
        return self._in_order(Release(key, lease.token, lease.since_ns))

    def _in_order(self, release: Command) -> Command:
        return release if self._once else InOrder(release)


class Signalled(Given):
    """A lock whose waiters in other processes wait for an element of a list with BLPOP, as python-redis-lock does."""

    def __init__(self, token: bytes, once: bool, signal: bytes, signal_ms: int) -> None:
        super().__init__(token, once)
        self._signal = signal
        self._signal_ms = signal_ms

    def undoing(self, key: bytes, lease: Lease, last: bool) -> Command:
        keys, arguments = [key, self._signal], [lease.token, b"%d" % self._signal_ms]
        return self._in_order(Scripted(key, lease, scripts.SIGNAL_RELEASE, keys, arguments, NOTHING, True))


class InOrder(Command):
    """A release that calls no script by its SHA.

    If a server had forgotten the script, the full text would follow the commands sent meanwhile, and also undo a next
    attempt with the same token.
    """

    __slots__ = ("_release",)

    def __init__(self, release: Command) -> None:
        self._concern(release.key, release.token, release.since_ns)
        self.releases = True
        self._release = release

    def payload(self, dialect: int) -> bytes:
        return self._release.payload(FULL_TEXT if dialect == BY_SHA else dialect)
