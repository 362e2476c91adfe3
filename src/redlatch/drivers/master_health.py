"""The state of the masters, read from the engine's links and from the guard; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import MasterQuarantined
from ..guard.master import GuardedMaster
from ..health import Health, MasterHealth
from ..masters.master import Master
from ..votes.redaction import shown
from ..votes.units import SECOND
from .master_log import MOST_SHOWN

if TYPE_CHECKING:
    from ..quorum.hold import Hold
    from ..wire.engine.link import Link


def health_of_all(
    masters: list[Master],
    links: Sequence[Link] | None,
    guarded: list[GuardedMaster] | None,
    quorum: int,
    refused: str,
    unused: bool,
    held: Iterable[Hold],
    now_ns: int,
) -> Health:
    """Return what is known of all masters, and of the locks that are held.

    Args:
        refused: why no call can succeed, or "".
        unused: whether that is because the client is closed or forked, so that no master votes.
        held: the holds that may be held.
    """
    nothing = [None] * len(masters)
    # Not strict: in the middle of a handover, another thread finds links of other masters.
    known = zip(masters, links or nothing, guarded or nothing, strict=False)
    found = [health_of(*each, now_ns) for each in known]
    if unused:
        found = [replace(master, voting=False, why=refused, kept_out=0.0) for master in found]
    at_risk = 0 if unused or not links else count_at_risk(held, links, quorum, guarded is not None, now_ns)
    return Health(tuple(found), quorum, refused, at_risk)


def causes_of(masters: list[Master], links: Sequence[Link] | None, guarded: bool) -> dict[str, BaseException]:
    """Return why masters do not vote, by their names."""
    waiting = ConnectionError("it is not connected yet")
    known: Sequence[Link | None] = [None] * len(masters) if links is None else links
    return {
        master.name: (link.cause or waiting) if link is not None else waiting
        for master, link in zip(masters, known, strict=False)
        if link is None or not link.up or (guarded and link.monitor is None)
    }


def health_of(master: Master, link: Link | None, guarded: GuardedMaster | None, now_ns: int) -> MasterHealth:
    votes = link is not None and link.up and (guarded is None or link.monitor is not None)
    found = MasterHealth(master.address, votes)
    if link is not None and link.up:
        found = replace(found, evicts=link.traits.evicts)
    if not found.voting:
        found = replace(found, **_why_not(None if link is None else link.cause, now_ns))
    marker = None if guarded is None else guarded.marker
    if marker is None:
        return found
    # Any client may have written them.
    masters = tuple([shown(address) for address in marker.masters])
    found = replace(found, masters=masters, horizon=marker.horizon / 1000, marked=marker.since / 1_000_000)
    heals_ns = max(0, guarded.heals_ns - now_ns) if found.voting and guarded is not None else 0
    return replace(found, heals=heals_ns / SECOND)


def count_at_risk(holds: Iterable[Hold], links: Sequence[Link], quorum: int, guarded: bool, now_ns: int) -> int:
    """Count the held locks that would be lost if one more master failed.

    A master has the key of a lock if its connection is older than the last acquire or extension of the lock, and it
    has not answered since then that it lacks the key.
    """
    if quorum >= len(links):
        return 0
    voting = [link for link in links if link.up and not link.suspected and (link.monitor is not None or not guarded)]

    def spares_one(hold: Hold) -> bool:
        asked_ns = hold.lease.asked_ns
        extended_ns, lacking = hold.lacking
        lost = lacking if extended_ns == asked_ns else 0
        return len([link for link in voting if link.adopted_ns <= asked_ns and not lost >> link.index & 1]) > quorum

    return sum([hold.held(now_ns) and not spares_one(hold) for hold in dict.fromkeys(holds)])


def _why_not(cause: BaseException | None, now_ns: int) -> dict[str, Any]:
    if cause is None:
        return {"why": "not connected yet"}
    if isinstance(cause, MasterQuarantined):
        return {"why": shown(cause.as_of(now_ns), MOST_SHOWN), "kept_out": cause.left(now_ns)}
    return {"why": shown(cause, MOST_SHOWN)}
