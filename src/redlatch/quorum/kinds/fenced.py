# cython: annotation_typing=True
"""The fenced lock: a plain lock whose holders are numbered."""

from __future__ import annotations

from redlatch.votes.kinds import FENCED

from ...votes.ballot import Ballot
from ...votes.commands import AcquireFenced, AskHolder, Command, Confirm
from ..hold import Hold
from ..lease import Lease, new_lease
from ..quorum import Quorum
from .kind import PLAIN_ONES
from .watching import WatchingKind


class Fenced(WatchingKind):
    """A plain lock whose holders are numbered by "propose and confirm" (docs/fencing.md).

    An attempt proposes a number above all that this client has seen. If a quorum has the key for us but some masters
    have higher numbers, a second round confirms a number above those. It asks only masters whose answers it knows, so
    its number is above theirs. Each round also takes the numbers of later holders to which the lease may be handed off.

    The second round also follows if a marker was read meanwhile that asks for a higher number: a master may have
    forgotten its counter while the attempt waited for its connection (FE1).
    """

    declared = FENCED

    def __init__(self, keys: list[bytes]) -> None:
        super().__init__()
        self._counter = keys[1]
        self.hand_off_group = PLAIN_ONES
        self.numbers = True

    def lease(self, quorum: Quorum, key: bytes, since_ns: int, deadline_ns: int) -> Lease:
        fence = quorum.fences.propose()
        lease = new_lease(quorum.tokens.take(since_ns), since_ns, deadline_ns)
        successors = quorum.queues.successors(quorum, key)
        return lease.numbered(fence, quorum.fences.last_of_block(fence, successors) if successors else fence)

    def acquiring(self, quorum: Quorum, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        return AcquireFenced(key, self._counter, lease.token, lease.since_ns, ttl_ms, lease.fence, lease.fence_end)

    def repairing(self, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        # This raises the counter to the last number of the lease, which the master may have forgotten, too.
        return AcquireFenced(key, self._counter, lease.token, lease.since_ns, ttl_ms, lease.fence_end, lease.fence_end)

    def second_round(self, quorum: Quorum, hold: Hold, ballot: Ballot) -> Ballot | None:
        lease, fences = hold.lease, quorum.fences
        # The second comparison is for a clock that was set back.
        high = lease.fence >= fences.marked_floor or lease.fence >= fences.floor()
        if not ballot.won() or (high and ballot.yes >= ballot.quorum):
            return None
        # A copy: another thread may add an answer meanwhile.
        answers = dict(ballot.answers or {})
        highest = max([lease.fence_end] + [-answer for answer in answers.values()])
        first = max(highest + 1, fences.floor())
        last = fences.last_of_block(first, lease.fence_end - lease.fence)
        hold.lease = lease.numbered(first, last)
        fences.note(highest)
        command = Confirm(hold.key, self._counter, lease.token, lease.since_ns, first, last)
        again = Ballot(command, len(answers), quorum.majority, ballot.until_ns)
        again.asked = sum([1 << index for index in answers])
        return again

    def won(self, quorum: Quorum, hold: Hold) -> None:
        quorum.fences.note(hold.lease.fence_end)

    def holder(self, key: bytes) -> Command | None:
        return AskHolder(key, self._counter)
