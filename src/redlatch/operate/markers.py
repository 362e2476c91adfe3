"""Read and write the markers of masters for a mover: one handshake for each step, several masters at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import redis.exceptions as redis_errors

from redlatch.errors import MasterRefused
from redlatch.guard.handshake import GuardHandshake, HandshakeReport
from redlatch.guard.marker import Marker, MarkerWrite
from redlatch.masters.master import Master
from redlatch.votes.scripts import MARK_WITHIN_US
from redlatch.wire.dial.connect import dial

TIMEOUT = 2.0

TRIES = 10


class CannotMove(Exception):
    """The handover cannot begin or continue now. The message says why, and what to do."""


@dataclass
class Seen:
    report: HandshakeReport
    marker: Marker | None

    def keeps(self, stage: str, number: int) -> bool:
        """Return True if the master has this handover's marker, written in the current run of its process."""
        marker = self.marker
        return (
            marker is not None
            and (marker.stage, marker.attempt) == (stage, number)
            and marker.run_id == self.report.run_id
        )


@dataclass
class Markers:
    key: bytes

    def read(self, master: Master) -> Seen:
        return self._shake(master, None)

    def write(self, master: Master, seen: Seen, marker: Marker, kept_ms: int, within_ns: int | None = None) -> Seen:
        """Write a marker if the master still has what was read, at most `within_ns` after the read (None: 5 s).

        Return what the master has then. It deletes the marker after `kept_ms`.
        """
        made_us = seen.report.server_us
        if within_ns is not None:
            made_us -= MARK_WITHIN_US - min(max(0, within_ns // 1000), MARK_WITHIN_US)
        return self._shake(master, MarkerWrite(seen.report.marker or b"", marker.text(), kept_ms, made_us))

    def ensure(self, master: Master, wanted: Callable[[Seen], Marker | None], kept: Callable[[Marker], int]) -> Seen:
        """Write the marker that `wanted` returns until it is there, or until `wanted` returns None."""
        seen = self.read(master)
        for _ in range(TRIES):
            marker = wanted(seen)
            if marker is None:
                return seen
            seen = self.write(master, seen, marker, kept(marker))
        raise CannotMove(f"the marker of {master.name} changes all the time: is another handover under way?")

    def _shake(self, master: Master, write: MarkerWrite | None) -> Seen:
        try:
            connection = dial(master, TIMEOUT, False, GuardHandshake(self.key, write))
        except (OSError, redis_errors.RedisError, MasterRefused) as error:
            raise CannotMove(f"{master.name} cannot be used: {error}") from error
        connection.sock.close()
        report: HandshakeReport = connection.traits.report
        try:
            return Seen(report, Marker.read(report.marker))
        except (ValueError, TypeError, RecursionError) as error:
            raise CannotMove(f"{master.name} has a marker that is not ours") from error


def each(masters: Iterable[Master], work: Callable[[Master], Seen]) -> tuple[dict[str, Seen], dict[str, CannotMove]]:
    listed = list(masters)

    def tried(master: Master) -> Seen | CannotMove:
        try:
            return work(master)
        except CannotMove as error:
            return error

    with ThreadPoolExecutor(max(1, len(listed))) as pool:
        results = {master.name: result for master, result in zip(listed, pool.map(tried, listed), strict=True)}
    done = {name: result for name, result in results.items() if isinstance(result, Seen)}
    return done, {name: result for name, result in results.items() if isinstance(result, CannotMove)}


def every(masters: Iterable[Master], work: Callable[[Master], Seen]) -> dict[str, Seen]:
    done, failed = each(masters, work)
    for error in failed.values():
        raise error
    return done
