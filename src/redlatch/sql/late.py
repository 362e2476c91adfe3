"""Releases that found their row locked for too long. The bridge repeats them, so that no row stays for its ttl."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.exc import DBAPIError

from redlatch.sql.faults import is_busy
from redlatch.votes.units import SECOND
from redlatch.wire.engine.net import now_ns

LATE_PAUSE = 0.2

# The pause is at least this multiple of the last try's time: a try delays other commands.
LATE_SHARE = 9

Claim = tuple[bytes, bytes]


class LateReleases:
    """The late releases of one connection. Their callers have got an error, and may call again."""

    def __init__(self, release: Callable[[bytes, bytes], bool]) -> None:
        self._release = release
        self._due: dict[Claim, int] = {}
        self._done: dict[Claim, int] = {}
        self._next_ns = 0

    def __bool__(self) -> bool:
        return bool(self._due)

    def add(self, key: bytes, token: bytes, until_ns: int) -> None:
        if not self._due:
            self._next_ns = now_ns() + int(LATE_PAUSE * SECOND)
        self._due[key, token] = until_ns

    def forget(self, key: bytes, token: bytes) -> bool:
        self._due.pop((key, token), None)
        return self._done.pop((key, token), None) is not None

    def retry(self) -> None:
        began_ns = now_ns()
        if not (self._due or self._done) or began_ns < self._next_ns:
            return
        self._retry(began_ns)
        if self._due:
            ended_ns = now_ns()
            self._next_ns = ended_ns + max(int(LATE_PAUSE * SECOND), LATE_SHARE * (ended_ns - began_ns))

    def retry_at_once(self) -> None:
        self._retry(now_ns())

    def _retry(self, began_ns: int) -> None:
        self._done = {claim: until_ns for claim, until_ns in self._done.items() if began_ns < until_ns}
        for claim, until_ns in list(self._due.items()):
            # Try it last the next time: other rows may be free.
            del self._due[claim]
            if began_ns >= until_ns:
                continue
            try:
                released = self._release(*claim)
            except DBAPIError as error:
                if not is_busy(error):
                    raise
                self._due[claim] = until_ns
                return
            if released:
                self._done[claim] = until_ns
