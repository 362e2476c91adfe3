"""The guard of a cluster: each primary has a guard and a marker of its own, as a single master has.

A marker is a key of the node that it is about, so its slot must be one of the node's. Its hash tag is the client's
prefix and the first number that gives such a slot; the address of the node keeps the markers of two nodes apart when
slots move. If the slot leaves the node, the client writes the same marker under another key, on the same connection:
the node has forgotten nothing.

`strict` cannot be kept: a client that sees the node for the first time may look for the marker under another key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import count

from redlatch.errors import ConfigurationError
from redlatch.guard.actions import Admission
from redlatch.guard.admission import Admissions
from redlatch.guard.handshake import GuardHandshake, HandshakeReport
from redlatch.guard.marker import MARKER, Marker
from redlatch.guard.master import GuardedMaster
from redlatch.guard.settings import Guard
from redlatch.votes.key import may_be_tag, slot_of

# Makes the guard of one node from its name, its marker's key, and what to call when its clock was set back.
MakeShardGuard = Callable[[str, bytes, Callable[[int, int], None]], Admissions]


def marker_key(prefix: bytes, address: str, slots: Collection[int]) -> bytes:
    """Return the key of a node's marker, which is in one of its slots."""
    return next(marker_keys(prefix, address, slots))


def marker_keys(prefix: bytes, address: str, slots: Collection[int]) -> Iterator[bytes]:
    """Yield the keys that a node's marker may have, without an end. The slots must not be empty."""
    # A brace in the prefix would end the tag. Such a client has all its names in one slot, or no tag at all.
    tag = prefix if may_be_tag(prefix) else b""
    for number in count():
        key = b"{%b%d}%b%b" % (tag, number, address.encode(), MARKER)
        if slot_of(key) in slots:
            yield key


@dataclass(frozen=True)
class ShardHandshake(GuardHandshake):
    """A handshake that looks for the marker where it is when the handshake is repeated."""

    master: GuardedMaster | None = None

    about_the_key = "docs/cluster.md, Access rights, has the rule for such keys"

    def repeated(self) -> GuardHandshake:
        assert self.master is not None
        return replace(self, key=self.master.key, write=None)


class ShardAdmissions:
    """The guards of a cluster's nodes, by the index of the node; for the driver, it is as `Admissions`."""

    left: Marker | None = None

    def __init__(
        self, settings: Guard, prefix: bytes, make: MakeShardGuard, clock_set_back: Callable[[int, int], None]
    ) -> None:
        if settings.strict:
            raise ConfigurationError("guard: strict=True is for servers; a cluster cannot keep it")
        self.settings = settings
        self._prefix = prefix
        self._make = make
        self._clock_set_back = clock_set_back
        self._guards: list[Admissions] = []

    @property
    def masters(self) -> list[GuardedMaster]:
        return [self.monitor(index) for index in range(len(self._guards))]

    def add(self, address: str, slots: Collection[int]) -> None:
        """Add the guard of the next index."""
        index = len(self._guards)

        def set_back(_: int, by_ns: int) -> None:
            self._clock_set_back(index, by_ns)

        self._guards.append(self._make(address, marker_key(self._prefix, address, slots), set_back))

    def has_moved(self, index: int, slots: Collection[int]) -> bool:
        """Choose another key for a marker whose slot has left its node; return whether that was needed."""
        master = self.monitor(index)
        if slot_of(master.key) in slots:
            return False
        master.key = marker_key(self._prefix, self._guards[index].addresses[0], slots)
        return True

    def handshake(self, index: int) -> GuardHandshake:
        master = self.monitor(index)
        made = master.handshake()
        return ShardHandshake(made.key, made.write, master)

    def monitor(self, index: int) -> GuardedMaster:
        return self._guards[index].masters[0]

    def known_as(self, address: str) -> list[GuardedMaster]:
        """Return all guards of a node: it gets another one when it comes back."""
        return [guard.masters[0] for guard in self._guards if guard.addresses == (address,)]

    def decide(self, index: int, report: HandshakeReport, others: object) -> Admission | None:
        return self._guards[index].decide(0, report, [report])
