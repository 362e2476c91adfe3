"""The guard's part of a handshake: commands, replies and reports, without sockets (see `wire.dial.test_connect`)."""

from __future__ import annotations

from typing import Any

import pytest
import redis.exceptions

from redlatch.errors import MasterRefused
from redlatch.guard.handshake import BACKLOG_MS, GuardHandshake, HandshakeReport, Replies
from redlatch.guard.marker import MarkerWrite
from redlatch.votes.commands import pack
from redlatch.votes.scripts import MARK
from redlatch.votes.units import UNBOUNDED

READING = GuardHandshake(b"\0guard")
WRITING = GuardHandshake(b"\0guard", MarkerWrite(b"old", b"new", 7, 17))
TIME = [b"1800000000", b"17"]
TIME_US = 1_800_000_000_000_017


def test_a_handshake_asks_for_the_marker_the_clock_and_the_backlog() -> None:
    assert READING.commands() == [pack("GET", b"\0guard"), pack("TIME"), pack("CONFIG", "GET", "repl-backlog-ttl")]
    assert READING.info_sections == (b"persistence",)


def test_a_marker_that_is_due_is_written_before_it_is_read() -> None:
    write, *rest = WRITING.commands()
    assert write == pack("EVAL", MARK.text, 1, b"\0guard", b"old", b"new", 7, 17)
    assert rest == READING.commands()


def test_another_try_writes_nothing() -> None:
    assert WRITING.repeated() == READING
    assert READING.repeated() == READING


@pytest.mark.parametrize("marker", [None, b"text"])
def test_the_replies_say_the_marker_and_the_time(marker: bytes | None) -> None:
    assert READING.read([marker, TIME, {b"repl-backlog-ttl": b"60"}]) == Replies(marker, TIME_US, 60_000)
    assert WRITING.read([1, marker, TIME, {b"repl-backlog-ttl": b"60"}]) == Replies(marker, TIME_US, 60_000)


@pytest.mark.parametrize(
    ("reply", "backlog_ms"),
    [
        ([b"repl-backlog-ttl", b"60"], 60_000),
        ([b"repl-backlog-ttl", b"0"], UNBOUNDED),
        ([b"repl-backlog-ttl", b"9" * 30], UNBOUNDED),
        ([b"repl-backlog-ttl", b"-1"], BACKLOG_MS),
        ([], BACKLOG_MS),
        (b"OK", BACKLOG_MS),
        (None, BACKLOG_MS),
        (redis.exceptions.NoPermissionError("NOPERM"), BACKLOG_MS),
    ],
)
def test_a_backlog_that_the_master_does_not_tell_is_the_default(reply: Any, backlog_ms: Any) -> None:
    assert READING.read([None, TIME, reply]).backlog_ms == backlog_ms


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_missing_right_is_refused_with_the_rights_that_are_needed(place: int) -> None:
    replies: list[Any] = [1, None, TIME, []]
    replies[place] = redis.exceptions.NoPermissionError("NOPERM")
    with pytest.raises(MasterRefused, match=r"the guard needs the rights to GET and EVAL .* NOPERM"):
        WRITING.read(replies)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_another_error_is_raised_as_it_is(place: int) -> None:
    replies: list[Any] = [1, None, TIME, []]
    replies[place] = redis.exceptions.OutOfMemoryError("OOM")
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        WRITING.read(replies)


def test_a_replica_that_refuses_the_marker_is_left_to_the_check_of_its_role() -> None:
    assert WRITING.read([redis.exceptions.ReadOnlyError("READONLY"), None, TIME, []]).marker is None


@pytest.mark.parametrize("clock", [None, b"OK", [], [b"1"], [b"1", b"2", b"3"], [b"a", b"b"], [b"-1", b"0"]])
def test_a_reply_that_is_no_time_is_refused(clock: Any) -> None:
    with pytest.raises(MasterRefused, match="TIME was answered with"):
        READING.read([None, clock, []])


def test_a_reply_that_is_no_marker_is_refused() -> None:
    with pytest.raises(MasterRefused, match="GET of the marker was answered with int"):
        READING.read([5, TIME, []])


def test_a_report_has_the_replies_the_times_and_the_fields_of_info() -> None:
    info = {"run_id": "run", "master_replid": "history", "aof_enabled": "1", "master_replid2": "0" * 40}
    found = Replies(b"text", TIME_US, 60_000)
    expected = HandshakeReport("run history", b"text", TIME_US, 5, 9, True, False, 60_000)
    assert READING.report(found, info, 5, 9) == expected
    assert READING.report(found, info | {"master_replid2": "f" * 40}, 5, 9) == expected._replace(promoted=True)
    assert READING.report(found, {"run_id": "run"}, 5, 9) == expected._replace(run_id="run", persists=False)


@pytest.mark.parametrize(
    ("said", "up_us"), [("17", 17_000_000), ("0", 0), ("", None), ("-1", None), ("soon", None), ("9" * 40, None)]
)
def test_a_report_has_for_how_long_the_server_has_run(said: str, up_us: int | None) -> None:
    info = {"run_id": "run", "uptime_in_seconds": said}
    assert READING.report(Replies(None, TIME_US, 60_000), info, 5, 9).up_us == up_us
