"""Horizons: which masters may vote on a ttl (rule G3 of the guard).

The horizon of a master is the longest ttl in use on it, as its marker says. Other clients keep a master that forgets
its keys out for the longest horizon of the others. So a vote that gives a key a ttl counts only if the master had
stored that ttl in its marker, on this connection, before the first byte of the attempt left for any master. A link that
fulfils this covers the ttl.

If fewer links than a quorum cover the ttl of a ballot, the engine raises the horizons by pulses, and holds the ballot
until a quorum does. If a quorum covers it, the other links are not asked; their votes count as failed.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Coverage(NamedTuple):
    """Which links cover a ttl.

    Args:
        ready: the links that cover it.
        coming: the links that are being dialled, or may store it.
        missing: the links that do not cover it, `coming` among them.
    """

    ready: list[Any]
    coming: list[Any]
    missing: list[Any]


def covers(link: Any, ttl_ms: int, since_ns: int) -> bool:
    """Return whether a link had stored a ttl before a time."""
    return bool(link.up and link.horizon_ms >= ttl_ms and link.raised_ns <= since_ns)


def coverage(links: list[Any], ttl_ms: int, since_ns: int, fresh: bool) -> Coverage:
    """Return which links cover a ttl.

    Args:
        since_ns: when the attempt began.
        fresh: whether no byte of the attempt has left yet. What a link has stored until now then counts.
    """
    ready = [link for link in links if covers(link, ttl_ms, link.raised_ns if fresh else since_ns)]
    missing = [link for link in links if link not in ready]
    # A master that has refused to store it since the attempt began will not store it in time.
    coming = [link for link in missing if (link.refused_ns < since_ns if link.up else link.dialling)]
    return Coverage(ready, coming, missing)


def uncovered(link: Any, ttl_ms: int) -> BaseException:
    """Return why a link may not vote on a ttl."""
    if link.up:
        return ConnectionError(f"{link.address} has not noted yet that a lock may live for {ttl_ms / 1000:g} s")
    return link.cause or ConnectionError(f"the connection to {link.address} is being made")
