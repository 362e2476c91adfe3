"""Releases that found their row locked for too long: the bridge does them later, so that no row stays for its ttl."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.exc import DBAPIError

from redlatch.sql.faults import is_busy

# How long to wait before late releases are tried again, in seconds.
LATE_PAUSE = 0.2

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

    def __bool__(self) -> bool:
        """Return whether a release is due."""
        return bool(self._due)

    def add(self, key: bytes, token: bytes, until_ns: int) -> None:
        self._due[key, token] = until_ns

    def forget(self, key: bytes, token: bytes) -> bool:
        """Forget a release, because its row is about to be used again; return whether it was done.

        An acquire that is tried again may have the token of its first try, whose undo was late.
        """
        self._due.pop((key, token), None)
        return self._done.pop((key, token), None) is not None

    def retry(self, now_ns: int) -> None:
        """Try what is due, up to the first one whose row is still locked."""
        self._done = {claim: until_ns for claim, until_ns in self._done.items() if now_ns < until_ns}
        for claim, until_ns in list(self._due.items()):
            # The next time it is the last one: each row may have another lock.
            del self._due[claim]
            if now_ns >= until_ns:
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
