"""Horizons: which masters may vote on a ttl (rule G3 of the guard).

The horizon of a master is the longest ttl in use on it, as its marker says. Other clients keep a master that forgets
its keys out for the longest horizon of the others. So a vote that gives a key a ttl counts only if the master had
stored that ttl in its marker, on this connection, before the first byte of the attempt left for any master. Such a link
covers the ttl.

The engine raises horizons by pulses. It holds a ballot until a quorum covers its ttl, and the other connected links do,
too, or are suspected of silence. Then all are asked, but the votes of those that do not cover the ttl count as failed.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Coverage(NamedTuple):
    """The links by whether they cover a ttl: they do, they are being dialled or may store it, or they do not."""

    ready: list[Any]
    coming: list[Any]
    lost: list[Any]


def stores(link: Any, ttl_ms: int) -> bool:
    return bool(link.up and link.horizon_ms >= ttl_ms)


def covers(link: Any, ttl_ms: int, since_ns: int) -> bool:
    return stores(link, ttl_ms) and bool(link.raised_ns <= since_ns)


def refusal(link: Any, ttl_ms: int) -> BaseException | None:
    """Return why a link may not store a ttl: not all masters have allowed it (G5)."""
    cause: BaseException | None = link.monitor.refusal(ttl_ms) if link.up and link.monitor is not None else None
    return cause


def coverage(links: list[Any], ttl_ms: int, since_ns: int) -> Coverage:
    """Sort links for an attempt of which no byte has left: what they have stored until now counts."""
    ready = [link for link in links if stores(link, ttl_ms)]
    missing = [link for link in links if link not in ready]
    # A master that has refused a pulse since the attempt began will refuse the next one, too.
    alive = [link for link in missing if (link.up or link.dialling) and link.refused_ns < since_ns]
    # The last master that is reached may allow a ttl that the others refuse so far.
    dialling = any([link.dialling for link in links])
    coming = [link for link in alive if dialling or refusal(link, ttl_ms) is None]
    return Coverage(ready, coming, [link for link in missing if link not in coming])


def uncovered(link: Any, command: Any) -> BaseException:
    cause = refusal(link, command.ttl_ms)
    if cause is not None:
        return cause
    if link.up and link.refused_ns < command.since_ns:
        return ConnectionError(f"{link.address} has not noted yet that a lock may live for {command.ttl_ms / 1000:g} s")
    return link.cause or ConnectionError(f"the connection to {link.address} is being made")
