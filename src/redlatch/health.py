"""What a client knows of its masters, as `Client.health` returns it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MasterHealth:
    """What a client knows of one master.

    Attributes:
        address: without credentials.
        voting: whether it is connected, so that its votes count.
        why: why it does not vote; empty if it does.
        kept_out: for how many seconds more the guard keeps it out; 0.0 if it does not, or that is not known yet.
        masters: the list of masters that its marker names, as the first client spelled it; empty if it is not known.
            What cannot be printed is escaped.
        horizon: the longest ttl that is in use on it, in seconds; 0.0 if that is not known.
        marked: when its marker was written, in seconds since 1970 by its own clock; 0.0 if that is not known. That was
            when the masters were new, or when this one was last found to have forgotten.
        heals: for how many seconds more locks may be held that lack its vote, although it votes again: it was kept out,
            restarted or failed over. Each of them gets the vote when it is next extended or renewed.
        evicts: its maxmemory-policy, if that may evict keys, and with them locks, before their time; else empty. It is
            known while the master is connected.
    """

    address: str
    voting: bool
    why: str = ""
    kept_out: float = 0.0
    masters: tuple[str, ...] = ()
    horizon: float = 0.0
    marked: float = 0.0
    heals: float = 0.0
    evicts: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """What a client knows of its masters at one moment.

    Attributes:
        masters: in the order in which they were given.
        quorum: how many of them must agree.
        refused: why no call of this client can succeed, as the calls say: its list of masters is wrong, or another one
            than that of other clients; it is closed; or it belongs to the parent process. Empty if that is not so.
        at_risk: how many locks that this client holds would be lost if one more master failed, as far as their last
            acquire or extension has shown. 0 if there are so few masters that each failure loses locks.
    """

    masters: tuple[MasterHealth, ...]
    quorum: int
    refused: str = ""
    at_risk: int = 0

    @property
    def available(self) -> bool:
        """True if a quorum votes, so that locks can be had."""
        return not self.refused and sum([master.voting for master in self.masters]) >= self.quorum

    @property
    def ready(self) -> bool:
        """True if one master may be restarted, as all of them vote and no lock would be lost with one more vote."""
        steady = all([master.voting and not master.heals for master in self.masters])
        return not self.refused and steady and not self.at_risk

    def as_dict(self) -> dict[str, Any]:
        """Return all of this, for JSON."""
        return {"available": self.available, "ready": self.ready} | asdict(self)
