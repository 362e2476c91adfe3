"""The slots of a cluster: which link serves each one."""

from __future__ import annotations

from typing import Any

from ...votes.ballot import Ballot
from ...votes.commands import Command
from ...votes.key import SLOTS, slot_of
from .link import Link


class Routes:
    """The routes of one cluster.

    A release must follow the acquire that it undoes. So after a slot has gone to another link, the release takes the
    former one if that may yet execute the acquire.

    Args:
        source: `refresh(address)` has the topology read again, first from the node at this address, if it is given.

    Attributes:
        table: the link of each slot, or None; replaced as a whole by a new topology.
        links: the link of each node, by the address that the cluster gives it.
        cause: why no topology could be read yet; None before the first try, and once there is a table.
        asked: the ballots that were sent to the target of a slot on its way (ASKING), until the answer, and its link.
        delayed: the ballots that are sent later, and when.
        moved: when MOVED changed a slot, unless a topology was read since.
        named: (slot, index of a link) of each redirect to a known node since the last topology.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self.table: list[Link | None] = [None] * SLOTS
        self.links: dict[tuple[str, int], Link] = {}
        self.cause: BaseException | None = None
        self.asked: dict[Ballot, Link] = {}
        self.delayed: list[tuple[int, Ballot]] = []
        self.moved: dict[int, int] = {}
        self.named: set[tuple[int, int]] = set()
        # By slot: its former links, each with the number of what it had been sent.
        self._left: dict[int, list[tuple[Link, int]]] = {}

    def link_of(self, command: Command) -> Link | None:
        slot = slot_of(command.key)
        if self._left and command.releases:
            former = self._former(slot, command)
            if former is not None:
                return former
        return self.table[slot]

    def _former(self, slot: int, release: Command) -> Link | None:
        open_ones = [(link, end) for link, end in self._left.pop(slot, ()) if link.up and link.cut + link.head < end]
        if open_ones:
            self._left[slot] = open_ones
        return next((link for link, _ in open_ones if link.may_execute(release)), None)

    def leave(self, slot: int) -> None:
        """Record that a slot goes to another link. Call it before the table changes."""
        link = self.table[slot]
        if link is not None and link.owing():
            self._left.setdefault(slot, []).append((link, link.cut + len(link.pending)))

    def move(self, slot: int, link: Link | None, now_ns: int) -> None:
        self.leave(slot)
        self.moved[slot] = now_ns
        self.table[slot] = link

    def remove(self, link: Link) -> None:
        """Take the slots from a link whose node has left. MOVED may have named it after the topology was asked for."""
        lost = [slot for slot, owner in enumerate(self.table) if owner is link]
        for slot in lost:
            self.table[slot] = None
            self.moved.pop(slot, None)
        if lost:
            self.source.refresh()

    def forget(self, link: Link) -> None:
        """Forget the ballots that were sent behind ASKING on a link, because its connection broke."""
        self.asked = {ballot: target for ballot, target in self.asked.items() if target is not link}
