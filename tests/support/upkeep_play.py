"""One held lock that is renewed, played step by step without a driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from redlatch import impl
from redlatch.loss import Loss
from redlatch.quorum.upkeep import Term, Upkeep
from redlatch.quorum.upkeep_schedule import UpkeepSchedule
from redlatch.votes.units import MILLISECOND, SECOND

NOW = 100 * SECOND
TTL_MS = 3000


class Lock:
    """A lock object that may be referred to weakly, with what the drivers call for its loss."""

    def __init__(self) -> None:
        self.marked: list[Term] = []
        self.reasons: list[str] = []

    def _mark_lost(self, term: Term) -> None:
        self.marked.append(term)

    def _report_loss(self, reason: str, term: Term) -> None:
        self.reasons.append(reason)
        term.reported = True


class Play:
    """One held lock, with another thread that comes in while the schedule reads its lease."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        build = impl.load("python")
        self.claims = build.module("quorum.claim")
        self.holds = holds = build.module("quorum.hold")
        self.lease = build.module("quorum.lease").new_lease(b"token", NOW - SECOND, NOW + SECOND)
        self.hold = hold = holds.Hold("name", b"name", build.module("quorum.kinds.plain").PLAIN)
        hold.claim(object())
        hold.ask(self.lease)
        hold.keep(0)
        self.lock = Lock()
        self.upkeep = Upkeep(self.lock, hold, TTL_MS, renews=True)
        self.term = self.upkeep.begin(NOW)
        quorum: Any = SimpleNamespace(
            doubts=build.module("quorum.policy").Doubts(),
            released_ns=0,
            random=lambda: 0.5,
            validity_ns=lambda ttl_ms: ttl_ms * MILLISECOND,
            ttl_ms_for=lambda ns: ns // MILLISECOND,
            queues=SimpleNamespace(watches=build.module("quorum.waiting.watches").Watches(deque())),
        )
        self.quorum = quorum
        self.schedule = UpkeepSchedule(quorum)
        self._meets: Callable[[], None] | None = None
        slot = holds.Hold.lease

        def read(hold: Any) -> Any:
            found, meets, self._meets = slot.__get__(hold), self._meets, None
            if meets is not None:
                meets()
            return found

        monkeypatch.setattr(holds.Hold, "lease", property(read, slot.__set__))

    def meet(self, meets: Callable[[], None]) -> None:
        """Have another thread run this right after the lease is read the next time."""
        self._meets = meets

    def released(self) -> None:
        self.hold.begin_release(NOW)
        self.hold.free()

    def handed_back(self) -> None:
        """Pass the lease on, and get it back from the next holder: the same token, with a later deadline."""
        self.released()
        self.hold.claim(object())
        self.hold.to_waiting()
        self.hold.take_lease(self.lease.until(NOW + 60 * SECOND), self.hold)

    def acquired_again(self) -> Term:
        """Release the lock, and acquire the same lease again: by a hand-off and back."""
        self.handed_back()
        self.upkeep.end()
        return self.upkeep.begin(NOW)

    def begin_renewal(self) -> list[Term]:
        """Let the renewal begin that is due."""
        self.schedule.add(self.term)
        renewed = self.schedule.due(NOW)
        assert (renewed, list(self.schedule.lost)) == ([self.term], [])
        self.term.renewing = True  # as `Renewal` does
        return renewed

    def lost_at(self, now_ns: int) -> list[tuple[Loss, Term]]:
        """Return the reasons and the terms of the losses that are due at a time, and take them off the schedule."""
        self.schedule.due(now_ns)
        lost = [(reason, term) for _, term, reason in self.schedule.lost]
        self.schedule.lost.clear()
        return lost
