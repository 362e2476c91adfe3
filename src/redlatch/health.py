"""The state of a client's masters, as `Client.health` returns it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MasterHealth:
    """The state of one master, as a client knows it.

    Attributes:
        address: its address, without credentials.
        voting: whether it is connected, so that its votes count.
        why: why it does not vote; empty if it does.
        kept_out: seconds for which the guard still keeps it out; 0.0 if it does not, or if that is not known yet.
        masters: the list of masters that its marker names, as the first client spelled it; empty if it is not known.
            Characters that cannot be printed are escaped.
        horizon: the longest ttl that is in use on it, in seconds; 0.0 if that is not known.
        marked: when its marker was written, in seconds since 1970 by its own clock: when the masters were new, or when
            this one was last found to have forgotten. 0.0 if that is not known.
        heals: seconds for which there may be held locks without its vote, although it votes again: it was kept out,
            restarted or failed over. Each of them gets the vote when it is next extended or renewed.
        evicts: its maxmemory-policy, if that may evict keys, and with them locks, before their time; otherwise empty.
            It is known while the master is connected.
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
    """The state of a client's masters at one moment.

    Attributes:
        masters: in the order in which they were given.
        quorum: how many of them must agree.
        refused: why no call of this client can succeed: its list of masters is wrong, or differs from that of other
            clients; it is closed; or it belongs to the parent process. Otherwise empty.
        at_risk: how many locks of this client would be lost if one more master failed, as their last acquire or
            extension has shown. 0 if there are so few masters that each failure loses locks.
    """

    masters: tuple[MasterHealth, ...]
    quorum: int
    refused: str = ""
    at_risk: int = 0

    @property
    def available(self) -> bool:
        """True if a quorum votes, so that locks can be acquired."""
        return not self.refused and sum([master.voting for master in self.masters]) >= self.quorum

    @property
    def ready(self) -> bool:
        """True if one master may be restarted, as all of them vote and no lock would be lost with one more vote."""
        steady = all([master.voting and not master.heals for master in self.masters])
        return not self.refused and steady and not self.at_risk

    def as_dict(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        return {"available": self.available, "ready": self.ready} | asdict(self)
