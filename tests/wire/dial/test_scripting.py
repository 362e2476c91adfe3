"""How a handshake finds out whether a master runs scripts, and how it does without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis.exceptions as redis_errors
from hiredis import Reader
from support.dialling import PATIENCE, master_of, refusal
from support.scripted import scripted

from redlatch.errors import ConfigurationError, MasterRefused
from redlatch.guard.handshake import GuardHandshake
from redlatch.guard.marker import MarkerWrite
from redlatch.votes.commands import pack
from redlatch.votes.scripts import RELEASE
from redlatch.wire.dial.connect import Connection, dial
from redlatch.wire.dial.scripting import MODES, SCRIPTS, preparing, scripts_of
from wire.dial.test_connect import honest

NOPERM = "-NOPERM User lk has no permissions to run the '{}' command\r\n"
FORBIDDEN = "-ERR command {} not support for normal user\r\n"
UNKNOWN = "-ERR unknown command '{}', with args beginning with: 'return 1'\r\n"
KEYLESS = "-ERR Lua scripts without any input keys are not supported.\r\n"
NO_KEY = "-NOPERM No permissions to access a key\r\n"
WRITING = GuardHandshake(b"\0guard", write=MarkerWrite(b"", b"new", 7, 1_800_000_000_000_000))


class Played:
    """A server that refuses some commands with this text, and notes what it was sent."""

    def __init__(self, *refused: str, how: str = NOPERM) -> None:
        self.refused, self.how = set(refused), how
        self.words: list[bytes] = []
        self._open, self._queued = False, 0

    def __call__(self, command: list[bytes]) -> bytes:
        name = command[0].decode()
        self.words.append(name.encode())
        if name in self.refused:
            return self.how.format(name.lower()).encode()
        if name == "EXEC":
            self._open = False
            return b"*%d\r\n%b" % (self._queued, b"+OK\r\n" * self._queued)
        if name == "DISCARD":
            self._open = False
        elif name == "MULTI":
            self._open, self._queued = True, 0
        elif self._open:
            self._queued += 1
            return b"+QUEUED\r\n"
        return honest(command, EVALSHA=b"-NOSCRIPT No matching script.\r\n", EVAL=b":1\r\n")


def dialled(server: Callable[[list[bytes]], bytes], mode: Any = "auto", extension: Any = None) -> Connection:
    """Dial a played server once; the connection is closed."""
    with scripted(server) as url:
        connection = dial(master_of(url), PATIENCE, True, extension, mode)
        connection.sock.close()
    return connection


def refused(server: Played, mode: Any, extension: Any = None) -> str:
    with scripted(server) as url, pytest.raises(MasterRefused) as caught:
        dial(master_of(url), PATIENCE, True, extension, mode)
    return str(caught.value)


def test_a_server_that_runs_scripts_gets_no_transaction() -> None:
    server = Played()
    assert dialled(server).traits.scripts
    assert not {b"WATCH", b"MULTI"} & set(server.words)


@pytest.mark.parametrize("how", [NOPERM, UNKNOWN, FORBIDDEN])
def test_a_server_that_refuses_eval_and_evalsha_gets_transactions(how: str) -> None:
    assert not dialled(Played("EVAL", "EVALSHA", "SCRIPT", how=how)).traits.scripts


def test_a_server_that_runs_only_scripts_that_it_will_not_load_gets_transactions() -> None:
    assert not dialled(Played("EVAL", "SCRIPT")).traits.scripts


def test_a_missing_right_to_load_scripts_alone_changes_nothing() -> None:
    assert dialled(Played("SCRIPT")).traits.scripts


def test_a_server_that_refuses_eval_alone_is_called_by_sha() -> None:
    """Its marker is written by a transaction, because that script is never loaded."""
    server = Played("EVAL")
    assert dialled(server, extension=WRITING).traits.scripts
    assert server.words[-4:] == [b"EXEC", b"GET", b"TIME", b"CONFIG"]


@pytest.mark.parametrize("mode", ["auto", "lua"])
def test_a_server_that_refuses_only_scripts_without_keys_runs_scripts(mode: Any) -> None:
    assert dialled(Played("EVAL", "EVALSHA", how=KEYLESS), mode).traits.scripts


@pytest.mark.parametrize("right", ["WATCH", "MULTI", "EXEC", "DISCARD"])
def test_a_server_that_refuses_both_ways_is_used_as_before(right: str) -> None:
    assert dialled(Played("EVAL", "EVALSHA", right)).traits.scripts


@pytest.mark.parametrize("state", [b"-LOADING loading\r\n", b"-BUSY a script runs\r\n"])
def test_a_server_that_cannot_run_a_script_now_does_not_refuse_it(state: bytes) -> None:
    def busy(command: list[bytes]) -> bytes:
        return state if command[0] in (b"EVAL", b"EVALSHA") else Played()(command)

    if state.startswith(b"-LOADING"):
        with scripted(busy) as url:
            assert isinstance(refusal(url), redis_errors.BusyLoadingError)
    else:
        assert dialled(busy).traits.scripts


def test_the_guard_names_both_ways_if_a_server_refuses_both() -> None:
    with scripted(Played("EVAL", "EVALSHA", "WATCH")) as url:
        error = refusal(url, WRITING)
    assert isinstance(error, MasterRefused)
    assert "GET and EVAL" in str(error)
    assert "WATCH, MULTI, EXEC and DISCARD" in str(error)


def test_a_key_that_the_user_may_not_watch_is_no_missing_right_to_watch() -> None:
    server = Played("EVAL", "EVALSHA")

    def picky(command: list[bytes]) -> bytes:
        return NO_KEY.encode() if command[0] == b"WATCH" else server(command)

    assert not dialled(picky).traits.scripts


def test_watch_asks_for_no_script() -> None:
    server = Played()
    assert not dialled(server, "watch", WRITING).traits.scripts
    assert not {b"EVAL", b"EVALSHA", b"SCRIPT"} & set(server.words)


@pytest.mark.parametrize("right", ["WATCH", "MULTI", "EXEC", "DISCARD"])
def test_watch_without_a_right_to_transactions_is_refused_with_the_cure(right: str) -> None:
    text = refused(Played(right), "watch")
    assert f"'{right.lower()}'" in text
    assert "+watch +multi +exec +discard" in text


@pytest.mark.parametrize("how", [NOPERM, UNKNOWN])
def test_lua_on_a_server_without_scripts_is_refused_with_the_cure(how: str) -> None:
    text = refused(Played("EVAL", "EVALSHA", how=how), "lua")
    assert "+eval +evalsha +script|load" in text
    assert "'eval'" in text


def test_the_clock_of_the_guard_is_read_behind_the_marker() -> None:
    report = dialled(Played("EVAL", "EVALSHA"), extension=WRITING).traits.report
    assert report.server_us == 1_800_000_000_000_017
    assert report.sent_ns < report.came_ns


def test_a_handshake_that_writes_no_marker_needs_no_transaction() -> None:
    server = Played()
    dialled(server, "watch", GuardHandshake(b"\0guard"))
    assert server.words[-3:] == [b"GET", b"TIME", b"CONFIG"]


@pytest.mark.parametrize("mode", MODES)
def test_the_modes_are_known(mode: str) -> None:
    assert scripts_of(mode) == mode


@pytest.mark.parametrize("mode", ["", "eval", None, True, b"auto"])
def test_other_modes_are_refused(mode: object) -> None:
    with pytest.raises(ConfigurationError, match="'auto', 'watch' or 'lua'"):
        scripts_of(mode)


def test_the_handshake_loads_every_script() -> None:
    reader, loaded = Reader(), []
    for command in preparing("auto")[:-1]:
        reader.feed(command)
        loaded.append(reader.gets()[2])
    assert loaded == [script.text for script in SCRIPTS]
    assert RELEASE.text in loaded
    assert pack("EVAL", "return 1", 0) == preparing("lua")[-1]
