"""Releases that found their row locked for too long: the bridge does them later, so that no row stays for its ttl."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.exc import DBAPIError

from redlatch.sql.faults import is_busy
from redlatch.votes.units import SECOND
from redlatch.wire.net import now_ns

# How long to wait before late releases are tried again, in seconds.
LATE_PAUSE = 0.2

# The same, as a multiple of the time that the last try took: commands that come meanwhile wait for a try.
LATE_SHARE = 9

Claim = tuple[bytes, bytes]


class LateReleases:
    """The late releases of one connection.

    The caller of a late release has got an error. It may call again, and is then told what became of the first call.

    Args:
        release: releases a key that has a token; returns whether it had it.
    """

    def __init__(self, release: Callable[[bytes, bytes], bool]) -> None:
        self._release = release
        # By key and token: until when the row may exist.
        self._due: dict[Claim, int] = {}
        self._done: dict[Claim, int] = {}
        self._next_ns = 0

    def __bool__(self) -> bool:
        """Return whether a release is due."""
        return bool(self._due)

    def add(self, key: bytes, token: bytes, until_ns: int) -> None:
        if not self._due:
            self._next_ns = now_ns() + int(LATE_PAUSE * SECOND)
        self._due[key, token] = until_ns

    def forget(self, key: bytes, token: bytes) -> bool:
        """Forget a release, because its row is about to be used again; return whether it was done.

        An acquire that is tried again may have the token of its first try, whose undo was late.
        """
        self._due.pop((key, token), None)
        return self._done.pop((key, token), None) is not None

    def retry(self) -> None:
        """Try what is due, up to the first one whose row is still locked, unless the last try was just before."""
        began_ns = now_ns()
        if not (self._due or self._done) or began_ns < self._next_ns:
            return
        self._retry(began_ns)
        if self._due:
            ended_ns = now_ns()
            self._next_ns = ended_ns + max(int(LATE_PAUSE * SECOND), LATE_SHARE * (ended_ns - began_ns))

    def retry_at_once(self) -> None:
        """Try what is due for the last time."""
        self._retry(now_ns())

    def _retry(self, began_ns: int) -> None:
        self._done = {claim: until_ns for claim, until_ns in self._done.items() if began_ns < until_ns}
        for claim, until_ns in list(self._due.items()):
            # The next time it is the last one: each row may have another lock.
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
