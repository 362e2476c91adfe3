"""A guard for a few masters, whose handshakes, clocks and restarts a test makes up."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from redlatch import Guard, MasterQuarantined
from redlatch.guard.admission import Admissions
from redlatch.guard.founding import DRAFT_KEPT_MS
from redlatch.guard.handshake import HandshakeReport
from redlatch.guard.marker import Marker
from redlatch.votes.scripts import KEPT_MS
from redlatch.votes.units import MILLISECOND, SECOND

ADDRESSES = "a:1", "b:1", "c:1"
MAX_TTL = 10
DEFAULT_TTL_MS = 2000
STRICT = Guard(max_ttl=MAX_TTL, strict=True)
OUT_NS = MAX_TTL * SECOND + MAX_TTL * 10 * MILLISECOND + 2 * MILLISECOND
START_US = 1_800_000_000_000_000


class Rig:
    """A guard for three masters, whose clocks agree with ours, and the reports of handshakes with them."""

    def __init__(self, guard: Guard | None = None, addresses: tuple[str, ...] = ADDRESSES, owner: str = "") -> None:
        self.now = 1000 * SECOND
        self.behind: list[int] = []
        self.since_us: list[int] = []  # of each marker that was noted
        self.wall_off_us = 0
        self.run_ids = ["run-" + address for address in addresses]
        self.ahead_us = [0] * len(addresses)
        self.persists = self.promoted = False
        self.up_us: int | None = None
        self.backlog_ms = 3_600_000
        self.markers: list[bytes | None] = [None] * len(addresses)
        self.admissions = Admissions(
            addresses,
            guard or Guard(max_ttl=MAX_TTL),
            b"\0guard",
            DEFAULT_TTL_MS,
            0.01,
            lambda: self.clock_us() + self.wall_off_us,
            lambda: 0.5,
            self.since_us.append,
            lambda index, ns: self.behind.append(index),
            owner,
        )

    def clock_us(self) -> int:
        return START_US + self.now // 1000

    def report(self, index: int) -> HandshakeReport:
        server_us = self.clock_us() + self.ahead_us[index]
        times = self.now - 1000, self.now + 1000
        seen = self.run_ids[index], self.markers[index], server_us, *times
        return HandshakeReport(*seen, self.persists, self.promoted, self.backlog_ms, self.up_us)

    def shake(self, index: int) -> HandshakeReport:
        """Have a handshake write the marker that is due; return its report."""
        handshake = self.admissions.handshake(index)
        assert handshake.key == b"\0guard"
        if handshake.write is not None:
            old, new, kept_ms, made_us = handshake.write
            drafts = b'"stage":"draft"' in new
            assert kept_ms == DRAFT_KEPT_MS if drafts else kept_ms >= KEPT_MS
            if (self.markers[index] or b"") == old and self.report(index).server_us - made_us < 5_000_000:
                self.markers[index] = new
        return self.report(index)

    def decide(self, index: int, others: Any = None) -> Any:
        """Have a decision made about a master, after its handshake has written the marker that is due."""
        return self.admissions.decide(index, self.shake(index), [] if others is None else others)

    def shake_all(self) -> list[Any]:
        """Return the decisions about all masters after a handshake with each of them."""
        self.now += 10_000
        reports: list[HandshakeReport | None] = [self.shake(index) for index in range(len(self.markers))]
        return [self.admissions.decide(index, report, reports) for index, report in enumerate(reports) if report]

    def marker(self, index: int) -> Marker:
        found = Marker.read(self.markers[index])
        assert found is not None
        return found

    def found(self) -> Rig:
        """Have all masters founded, as the first client of new masters does, and let in."""
        for _ in ("drafts", "prepared markers", "final markers"):
            for admission in self.shake_all():
                assert (admission.admitted, admission.wait_ns, admission.cause) == (False, 0, None)
        assert all(admission.admitted for admission in self.shake_all())
        return self

    def again(self, **given: Any) -> Rig:
        """Return another client of the same masters, at the same time."""
        other = Rig(**given)
        other.now, other.markers = self.now, self.markers
        return other

    def restart(self, index: int, keeps: bool = False) -> None:
        self.run_ids[index] += "+"
        if not keeps:
            self.markers[index] = None

    def pulse(self, index: int, server_us: int | None = None) -> Any:
        """Give a pulse its answer."""
        answer = self.clock_us() + self.ahead_us[index] if server_us is None else server_us
        times = self.now - 1000, self.now + 1000
        return self.admissions.monitor(index).answered(*times, answer, self.marker(index).horizon)

    def raise_horizon(self, index: int, horizon_ms: int) -> None:
        """Have another client raise the horizon of a master."""
        self.markers[index] = replace(self.marker(index), horizon=horizon_ms).text()


def kept_out_for(admission: Any) -> float:
    """Return for how many seconds a master is kept out, as the error says."""
    assert not admission.admitted
    assert isinstance(admission.cause, MasterQuarantined)
    found = re.match(r"kept out for (\d+\.\d) s more", str(admission.cause))
    assert found is not None
    return float(found[1])


def is_marked(admission: Any) -> bool:
    """Return whether a master is quarantined, and dialled at once to have its marker written."""
    kept_out_for(admission)
    wait_ns: int = admission.wait_ns
    return wait_ns == 0


def refused(admission: Any, words: str) -> None:
    assert not admission.admitted
    assert not isinstance(admission.cause, MasterQuarantined)
    assert words in str(admission.cause)
