"""The lease: what the masters have granted, as an immutable value."""

from __future__ import annotations

from ..votes.ballot import Ballot


class Lease:
    """A token and its validity; `new_lease` makes one (see `new_ballot`). Methods that change a lease return a new one.

    Attributes:
        since_ns: when the attempt that asked for the lease began, before its first byte left.
        asked_ns: when the masters were last asked for the present validity.
        deadline_ns: until when the holder may act.
        fence, fence_end: the number of the holder, and the last number for later holders.
        refresh: an extension for which no caller waits, or None. Its result counts once `Hold.apply_refresh` is called.
        refresh_ns: the deadline that the refresh asks for.
    """

    __slots__ = (
        "asked_ns",
        "deadline_ns",
        "fence",
        "fence_end",
        "hand_offs",
        "refresh",
        "refresh_ns",
        "since_ns",
        "token",
    )

    def _begin(self, token: bytes, since_ns: int, deadline_ns: int) -> None:
        self.token = token
        self.since_ns = since_ns
        self.asked_ns = since_ns
        self.deadline_ns = deadline_ns
        self.fence = 0
        self.fence_end = 0
        self.hand_offs = 0
        self.refresh: Ballot | None = None
        self.refresh_ns = 0

    def _copy(self) -> Lease:
        lease = new_lease(self.token, self.since_ns, self.deadline_ns)
        lease.asked_ns = self.asked_ns
        lease.fence = self.fence
        lease.fence_end = self.fence_end
        lease.hand_offs = self.hand_offs
        lease.refresh = self.refresh
        lease.refresh_ns = self.refresh_ns
        return lease

    def until(self, deadline_ns: int) -> Lease:
        lease = self._copy()
        lease.deadline_ns = deadline_ns
        return lease

    def extended(self, deadline_ns: int, asked_ns: int) -> Lease:
        lease = self.until(deadline_ns)
        lease.asked_ns = max(asked_ns, self.asked_ns)
        return lease

    def numbered(self, fence: int, fence_end: int) -> Lease:
        lease = self._copy()
        lease.fence = fence
        lease.fence_end = fence_end
        return lease

    def handed_off(self) -> Lease:
        lease = self._copy()
        lease.hand_offs += 1
        lease.fence += 1
        return lease

    def refreshing(self, refresh: Ballot | None, refresh_ns: int) -> Lease:
        lease = self._copy()
        lease.refresh = refresh
        lease.refresh_ns = refresh_ns
        return lease

    def refreshed(self, now_ns: int) -> Lease:
        """Apply the refresh: it counts if a quorum said yes before the old deadline. A refusal ends the lease now."""
        deadline_ns = self.deadline_ns
        if self.refresh is not None:
            if self.refresh.yes >= self.refresh.quorum and now_ns < deadline_ns:
                deadline_ns = max(deadline_ns, self.refresh_ns)
            elif self.refresh.refused():
                deadline_ns = min(deadline_ns, now_ns)
        lease = self.until(deadline_ns)
        lease.refresh = None
        lease.refresh_ns = 0
        return lease


def new_lease(token: bytes, since_ns: int, deadline_ns: int) -> Lease:
    lease: Lease = Lease.__new__(Lease)
    lease._begin(token, since_ns, deadline_ns)
    return lease


NO_LEASE = new_lease(b"", 0, 0)
