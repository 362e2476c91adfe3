"""The faults of programs that hold a lock, most of them known from other tools (consul's issues, by number)."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from support.faces import PATIENCE, await_true
from support.forked import in_child
from support.runs import alive, beat, beating, children, now, start

from redlatch import Client
from redlatch.run.supervisor import Alerts, Ended
from redlatch.testing import embedded

SECOND = 1_000_000_000

# A program that says which signal it has got.
READY = """
import os, signal, sys, time
def got(number, _):
    os.write(1, b"got " + signal.Signals(number).name.encode())
    os._exit(5)
signal.signal(getattr(signal, "SIG" + sys.argv[1]), got)
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""

PASSED_ON = ["HUP", "INT", "QUIT", "USR1", "USR2", "WINCH", "TERM", "ALRM", "CONT", "URG"]


@pytest.fixture
def beats(tmp_path: Path) -> Path:
    return tmp_path / "beats"


def await_end(path: Path) -> int:
    """Wait until the process that writes to a file has ended; return when it last wrote, in ns since boot."""
    pid, _ = beat(path)
    await_true(lambda: not alive(pid))
    return beat(path)[1]


@pytest.mark.parametrize("number", PASSED_ON)
def test_a_signal_reaches_the_program(three: list[str], name: str, number: str) -> None:
    """Consul 797, 2489, 1210, 3754, 4643."""
    process = start(three, name, sys.executable, "-c", READY, number)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(getattr(signal, f"SIG{number}"))
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (5, f"got SIG{number}", "")


def test_a_signal_reaches_the_children_of_a_shell(three: list[str], name: str, beats: Path) -> None:
    """Consul 2022."""
    process = start(three, name, "sh", "-c", f"{shlex.join(beating(beats))}; true")
    beat(beats)
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    await_end(beats)


def test_a_program_that_was_ended_releases_its_lock_at_once(three: list[str], name: str, beats: Path) -> None:
    """Consul 9788."""
    process = start(three, "--ttl", "50", name, *beating(beats))
    beat(beats)
    process.terminate()
    process.communicate(timeout=PATIENCE)
    with Client(three) as client:
        assert client.lock(name).acquire(blocking=False)


def test_the_death_of_one_server_ends_nothing(fleet: Callable[..., embedded.Masters], name: str, beats: Path) -> None:
    """Consul 1290."""
    masters = fleet(3)
    process = start(masters.urls, "--ttl", "0.5", name, *beating(beats))
    pid, written = beat(beats)
    masters.kill(0)
    await_true(lambda: beat(beats)[1] > written + SECOND)
    assert alive(pid)
    process.terminate()
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    assert "the lock" not in err


def test_a_killed_redlatch_leaves_no_process_behind(three: list[str], name: str, beats: Path) -> None:
    child = beats.with_name("beats.child")
    process = start(three, name, *beating(beats, "forks", "deaf"))
    beat(beats), beat(child)
    process.kill()
    process.communicate(timeout=PATIENCE)
    await_end(beats)
    await_end(child)


def test_a_stopped_redlatch_holds_its_program_no_longer_than_its_lock(three: list[str], name: str, beats: Path) -> None:
    process = start(three, "--ttl", "1", name, *beating(beats))
    beat(beats)
    process.send_signal(signal.SIGSTOP)
    stopped = now()
    last = await_end(beats)
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=PATIENCE)
    assert last < stopped + SECOND
    assert process.returncode == 75


def test_a_redlatch_that_was_stopped_renews_before_it_gives_up(three: list[str], name: str, beats: Path) -> None:
    """It ended its program at once if less than --kill-after was left, although the masters would renew the lock."""
    process = start(three, "--ttl", "6", name, *beating(beats))
    beat(beats)
    process.send_signal(signal.SIGSTOP)
    time.sleep(3.2)
    process.send_signal(signal.SIGCONT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)
    process.terminate()
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (128 + signal.SIGTERM, "")


@pytest.mark.parametrize("words", [[], ["deaf"], ["forks", "deaf"]], ids=["obedient", "deaf", "with a child"])
def test_the_program_is_dead_before_its_ttl_is_over_if_most_masters_are_silent(
    fleet: Callable[..., embedded.Masters], name: str, beats: Path, words: list[str]
) -> None:
    masters = fleet(5)
    process = start(masters.urls, "--ttl", "1", name, *beating(beats, *words))
    paths = [beats, beats.with_name("beats.child")][: 2 if "forks" in words else 1]
    for path in paths:
        beat(path)
    for index in range(3):
        masters.pause(index)
    silent = now()
    try:
        for path in paths:
            assert await_end(path) < silent + SECOND
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        for index in range(3):
            masters.resume(index)
    assert process.returncode == 75
    assert "the lock is lost" in err


def test_a_child_that_outlives_its_parent_is_killed_with_the_lock(
    fleet: Callable[..., embedded.Masters], name: str, beats: Path
) -> None:
    """Consul 2022, when the lock is lost."""
    masters = fleet(3)
    process = start(masters.urls, "--ttl", "1", name, *beating(beats, "forks", "deaf", "leaves"))
    child = beats.with_name("beats.child")
    beat(beats), beat(child)
    for index in range(2):
        masters.kill(index)
    silent = now()
    assert await_end(child) < silent + SECOND
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 75


def test_a_lock_that_somebody_deletes_ends_the_program(three: list[str], name: str, beats: Path) -> None:
    process = start(three, "--ttl", "1", name, *beating(beats))
    beat(beats)
    for url in three:
        with redis.Redis.from_url(url) as server:
            server.delete(name)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 75
    assert "the lock is lost" in err
    await_end(beats)


def test_with_warn_the_program_goes_on(three: list[str], name: str) -> None:
    process = start(three, "--ttl", "0.5", "--on-loss", "warn", name, "cat", stdin=subprocess.PIPE)
    with Client(three) as client:
        await_true(lambda: client.lock(name).locked())
    for url in three:
        with redis.Redis.from_url(url) as server:
            server.delete(name)
    assert process.stderr is not None
    assert "the program goes on" in process.stderr.readline()
    assert process.communicate("still there", timeout=PATIENCE)[0] == "still there"
    assert process.returncode == 0


def test_with_restart_the_program_runs_again_under_a_new_lease(three: list[str], name: str, beats: Path) -> None:
    process = start(three, "--ttl", "1", "--on-loss", "restart", "--fence", name, *beating(beats))
    first, _ = beat(beats)
    for url in three:
        with redis.Redis.from_url(url) as server:
            server.delete(name)
    await_true(lambda: not alive(first) and beat(beats)[0] != first)
    second, _ = beat(beats)
    assert alive(second)
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    await_end(beats)


@pytest.mark.skipif(sys.platform != "linux", reason="it finds processes in /proc")
def test_a_program_without_its_keeper_still_ends_in_time(
    fleet: Callable[..., embedded.Masters], name: str, beats: Path
) -> None:
    masters = fleet(3)
    process = start(masters.urls, "--ttl", "1", name, *beating(beats))
    program, _ = beat(beats)
    [keeper] = [pid for pid in children(process.pid) if pid != program]
    os.kill(keeper, signal.SIGKILL)
    for index in range(2):
        masters.kill(index)
    silent = now()
    assert await_end(beats) < silent + SECOND
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 75


@pytest.mark.skipif(sys.platform != "linux", reason="it finds processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_wait_for_the_lock(three: list[str], name: str, number: signal.Signals) -> None:
    with Client(three) as client, client.lock(name, ttl=60):
        process = start(three, "--fair", "-v", name, "echo", "never")
        # The process of the program waits until the lock is held.
        await_true(lambda: len(children(process.pid)) == 2)
        with redis.Redis.from_url(three[0]) as server:
            await_true(lambda: server.zcard(f"{{{name}}}\0queue") or len(server.keys(f"*{name}*")) > 1)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (128 + number, "")
        assert "Traceback" not in err


def delete(urls: list[str], name: str) -> None:
    for url in urls:
        with redis.Redis.from_url(url) as server:
            server.delete(name)


def test_closed_standard_streams_do_not_disarm_the_keeper(three: list[str], name: str, beats: Path) -> None:
    command = f"exec {shlex.join([sys.executable, '-m', 'redlatch.cli', 'run', '--ttl', '1', name, *beating(beats)])}"
    environment = os.environ | {"REDLATCH_MASTERS": ",".join(three)}
    process = subprocess.Popen(["sh", "-c", f"{command} 0<&- 1>&- 2>&-"], env=environment)
    beat(beats)
    process.send_signal(signal.SIGSTOP)
    stopped = now()
    assert await_end(beats) < stopped + SECOND
    process.send_signal(signal.SIGCONT)
    assert process.wait(PATIENCE) == 75


def test_a_healthy_program_lives_without_a_time_to_end(three: list[str], name: str) -> None:
    process = start(three, "--ttl", "0.5", "--kill-after", "0", name, "sleep", "3")
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")


def test_a_reader_that_is_gone_does_not_delay_the_end(three: list[str], name: str, beats: Path) -> None:
    process = start(three, "--ttl", "1", name, *beating(beats))
    beat(beats)
    assert process.stderr is not None
    process.stderr.close()
    delete(three, name)
    assert process.wait(PATIENCE) == 75
    await_end(beats)
    assert process.stdout is not None
    process.stdout.close()


def test_a_service_that_is_told_to_end_during_a_loss_does_not_start_again(
    fleet: Callable[..., embedded.Masters], name: str, beats: Path
) -> None:
    masters = fleet(3)
    options = ["--ttl", "4", "--on-loss", "restart", "--kill-after", "2"]
    process = start(masters.urls, *options, name, *beating(beats, "deaf"))
    beat(beats)
    # Silent masters leave the program the time of --kill-after. A deleted key would not: another may have the lock.
    for index in range(2):
        masters.pause(index)
    assert process.stderr is not None
    assert "the lock is lost" in process.stderr.readline()
    process.terminate()
    _, err = process.communicate(timeout=PATIENCE)
    for index in range(2):
        masters.resume(index)
    assert process.returncode == 128 + signal.SIGTERM
    assert "again" not in err
    await_end(beats)


@pytest.mark.skipif(sys.platform != "linux", reason="it finds processes in /proc")
def test_a_signal_during_the_wait_does_not_reach_the_program(three: list[str], name: str) -> None:
    with Client(three) as client, client.lock(name, ttl=60) as lock:
        process = start(three, name, "echo", "ran")
        await_true(lambda: len(children(process.pid)) == 2)
        # It waits when it has asked for the lock.
        with redis.Redis.from_url(three[0]) as server:
            await_true(lambda: len([each for each in server.client_list() if each["name"].startswith("redlatch")]) > 1)
        process.send_signal(signal.SIGUSR1)
        lock.release()
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (0, "ran\n", "")


class Late(Alerts):
    """A SIGTERM comes between the end of the acquire and the start of the program."""

    def wait(self, seconds: float) -> list[int]:
        os.kill(os.getpid(), signal.SIGTERM)
        return super().wait(seconds)


def test_a_signal_right_after_the_acquire_ends_the_process() -> None:
    """Found by an attack: the signal was dropped, and the program ran on."""

    def begin() -> None:
        alerts = Late()
        alerts.take_signals()
        with pytest.raises(Ended):
            alerts.begin()

    in_child(begin)


def test_a_fence_of_another_lock_does_not_reach_the_program(three: list[str], name: str) -> None:
    inner = [sys.executable, "-m", "redlatch.cli", "run", f"{name}-inner", "env"]
    process = start(three, "--fence", name, *inner)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert f"REDLATCH_NAME={name}-inner" in out and "REDLATCH_FENCE" not in out
