# cython: annotation_typing=True
"""Kinds of locks whose waiters watch the key between two attempts."""

from __future__ import annotations

from collections.abc import Generator

from ...votes.ballot import Ballot
from ...votes.commands import Look
from ..attempt import Attempt
from ..effects import Effect
from ..quorum import Quorum
from ..waiting.contention import wait_for_pushes
from ..waiting.watches import Watch, new_watch
from .kind import Kind

# The masters forget a waiter that has not asked for this time, as scripts take it. A live waiter asks once a second.
ALIVE_MS = b"2500"


class WatchingKind(Kind):
    """A kind whose waiters ask about the key together with each attempt after the first.

    The question leaves before the attempt. So the masters push every change that comes after a refusal.
    """

    def __init__(self) -> None:
        super().__init__()
        self._look: Watch | None = None
        # The same watch until it is sent.
        self._ahead: Watch | None = None

    def ahead(self) -> Ballot | None:
        look, self._ahead = self._ahead, None
        return look

    def undone(self, quorum: Quorum, key: bytes, ballot: Ballot) -> None:
        """Count masters that may have had the key for us as free: they push no change that this client makes itself."""
        look: Watch | None = self._look
        if look is not None:
            look.quorum = min(look.quorum, max(1, quorum.majority - (ballot.size - ballot.no - ballot.failed)))

    def wait(self, attempt: Attempt) -> Generator[Effect, None, bool]:
        quorum, key = attempt.quorum, attempt.hold.key
        waited = True
        look: Watch | None = self._look
        if look is not None:
            yield [look]
            # A master on which the attempt created the key and deleted it again pushes nothing more.
            # And if the key may be gone on a quorum, the attempt has lost for another reason, such as a late vote. The
            # masters that have a key need not change it.
            standing = look.standing()
            without_key = look.size - look.failed - standing
            pushed = look.yes + standing >= look.quorum and without_key < quorum.majority
            sure = look.quorum == quorum.majority or pushed
            left_ns = self.left_ns(quorum, look)
            waited = yield from wait_for_pushes(quorum, look, left_ns, attempt.pauses, attempt.until_ns, sure)
            self.end_watch(quorum, key)
        look = new_watch(quorum, Look(key, True), quorum.clock.now() + quorum.wait_ns(attempt.ttl_ms))
        self._look = self._ahead = look
        quorum.queues.watches.add(key, look)
        return waited

    def left_ns(self, quorum: Quorum, look: Watch) -> int:
        """Return after which time the masters may say yes without a push; `look` has their answers."""
        return look.left_ns()

    def end_watch(self, quorum: Quorum, key: bytes) -> None:
        look: Watch | None = self._look
        if look is not None:
            quorum.queues.watches.remove(key, look)
            # Last, so that an interrupted call can be repeated.
            self._look = self._ahead = None
