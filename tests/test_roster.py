"""The roster: what a caller sees of a list of masters while their dialling comes to an end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from redlatch import embedded
from redlatch.config import masters_of
from redlatch.drivers.roster import Roster
from redlatch.errors import ConfigurationError
from redlatch.protocol.guard import MARKER, Gate
from redlatch.protocol.policy import Guard
from redlatch.wire.connect import Connection, dial
from redlatch.wire.engine import Fleet
from redlatch.wire.net import BootClock


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with embedded.masters(1) as [url]:
        yield url


class Watched:
    """A socket that notes, when it is closed, whether its roster claims that every master has been tried."""

    def __init__(self, connection: Connection, roster: Roster, seen: list[bool]) -> None:
        self.sock, self.roster, self.seen = connection.sock, roster, seen

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self.seen.append(self.roster.is_complete())
        self.sock.close()


def test_nobody_sees_all_masters_tried_before_the_last_verdict_stands(url: str) -> None:
    # Else a caller between the two would take a wrong list for a good one.
    masters = masters_of([url, url.replace("127.0.0.1", "localhost")])
    roster = Roster(masters, 2, BootClock(), Fleet, lambda index, outcome: None)
    roster.muster()
    try:
        roster.arrive(0, dial(masters[0], 10.0))
        assert not roster.is_complete()
        twin, seen = dial(masters[1], 10.0), list[bool]()
        twin.sock = Watched(twin, roster, seen)  # type: ignore[assignment]
        roster.arrive(1, twin)
        assert seen == [False]
        assert roster.is_complete()
        with pytest.raises(ConfigurationError, match=r"^masters\[1\]: .*run_id"):
            roster.check()
    finally:
        roster.close()


@pytest.mark.parametrize("how", ["close", "disown"])
def test_a_connection_that_broke_just_before_the_end_is_closed(url: str, how: str) -> None:
    masters = masters_of([url])
    roster = Roster(masters, 1, BootClock(), Fleet, lambda index, outcome: None)
    roster.muster()
    try:
        roster.arrive(0, dial(masters[0], 10.0))
        roster.fleet.torn = True
        roster.fleet.mend()
        [(_, sock)] = roster.fleet.fallen
        getattr(roster, how)()
        assert sock.fileno() == -1
    finally:
        roster.close()


class Interrupted(Gate):
    """A gate at which the roster is closed by another thread before a connection is judged."""

    roster: Roster

    def judge(self, *args: Any) -> Any:
        self.roster.close()
        return super().judge(*args)


def test_a_connection_that_is_judged_while_the_roster_closes_is_closed_without_an_error(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    masters = masters_of([url])
    made = list[Interrupted]()

    def gate(set_back: Any) -> Gate:
        made.append(Interrupted((masters[0].address,), Guard(), MARKER, 0.01, lambda: 0, set_back))
        return made[0]

    roster = Roster(masters, 1, BootClock(), Fleet, lambda index, outcome: None, gate=gate)
    roster.muster()
    made[0].roster = roster
    connection = dial(masters[0], 10.0, errand=made[0].errand(0))
    roster.arrive(0, connection)
    assert connection.sock.fileno() == -1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
