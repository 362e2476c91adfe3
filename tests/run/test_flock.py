"""What `redlatch run` has in common with flock(1): its options, its exit statuses and the examples of its manual."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click import Context
from support.faces import PATIENCE, await_true
from support.runs import ran, start

from redlatch import Client
from redlatch.cli import build
from redlatch.testing import embedded

LONG = 60.0


def test_the_program_runs_with_its_arguments_and_its_exit_status_is_passed_on(three: list[str], name: str) -> None:
    assert ran(three, name, "--", "sh", "-c", "echo a; echo b >&2; exit 7") == (7, "a\n", "b\n")
    # As with flock, no "--" is needed, and options of the program are its own.
    assert ran(three, "-x", name, "echo", "-n", "a", "b", "c") == (0, "a b c", "")
    # A string for the shell may be before the name or behind it.
    assert ran(three, name, "-c", "exit 3; true")[0] == 3
    assert ran(three, name, "--command", "exit 3")[0] == 3
    assert ran(three, "-c", "exit 3", name)[0] == 3
    assert ran(three, name, "--", "-c", "exit 3")[0] == 127


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock(1) is the reference")
@pytest.mark.parametrize("words", [["-c", "echo $0 && exit 3"], ["--command", "exit 3"], ["./script", "a b"]])
def test_flock_and_redlatch_run_the_same(three: list[str], name: str, tmp_path: Path, words: list[str]) -> None:
    script = tmp_path / "script"
    # It has no first line "#!".
    script.write_text("echo script $1\nexit 4\n")
    script.chmod(0o755)
    environment = os.environ | {"REDLATCH_MASTERS": ",".join(three), "SHELL": "/bin/sh"}
    found = []
    for tool in (["flock", str(tmp_path / "lock")], [sys.executable, "-m", "redlatch.cli", "run", name]):
        done = subprocess.run(
            [*tool, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        found.append((done.returncode, done.stdout))
    assert found[0] == found[1]


def test_a_script_without_a_first_line_is_found_in_the_path(three: list[str], name: str, tmp_path: Path) -> None:
    script = tmp_path / "a-script-of-this-test"
    script.write_text('echo "$0 $1"\n')
    script.chmod(0o755)
    # A folder in which it may not be executed comes first.
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / script.name).write_text("echo never\n")
    path = f"{hidden}:{tmp_path}:{os.environ['PATH']}"
    environment = os.environ | {"REDLATCH_MASTERS": ",".join(three), "PATH": path}
    run = [sys.executable, "-m", "redlatch.cli", "run", name, script.name, "a b"]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{script} a b\n", "")


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_names_that_are_not_ascii_are_the_same_in_every_locale(
    three: list[str], name: str, locale: dict[str, str]
) -> None:
    environment = os.environ | locale | {"REDLATCH_MASTERS": ",".join(three), "SHELL": "/bin/sh"}
    name = f"größe-{name}"
    words = ["run", "--owner", "Büro", "--prefix", "für:", name]
    command = [sys.executable, "-m", "redlatch.cli", *words, "-c", "echo $REDLATCH_NAME $REDLATCH_OWNER; read x"]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline().decode() == f"{name} Büro\n"
    with Client(three, prefix="für:") as client:
        holder = client.lock(name).holder()
        assert holder is not None and holder.owner == "Büro"
    status = [sys.executable, "-m", "redlatch.cli", "status", "--prefix", "für:", name]
    shown = subprocess.run(status, env=environment, capture_output=True, timeout=PATIENCE, check=False)
    assert shown.returncode == 0, shown.stderr
    assert b"B\xc3\xbcro" in shown.stdout or b"B\\xfcro" in shown.stdout
    unlock = [sys.executable, "-m", "redlatch.cli", "unlock", "-y", "--if-owner", "Büro", "--prefix", "für:", name]
    assert subprocess.run(unlock, env=environment, capture_output=True, timeout=PATIENCE, check=False).returncode == 0
    process.communicate(b"end\n", timeout=PATIENCE)


def hang(masters: embedded.Masters) -> Callable[[], None]:
    """Take two masters away; return what brings them back."""
    for index in range(2):
        masters.pause(index)

    def heal() -> None:
        for index in range(2):
            masters.resume(index)

    return heal


def forget(masters: embedded.Masters) -> Callable[[], None]:
    """Restart two masters empty: the guard keeps them out for the longest ttl."""
    for index in range(2):
        masters.kill(index)
        masters.start(index)
    return lambda: None


def miss(masters: embedded.Masters) -> Callable[[], None]:
    """Take two masters away; return what starts them, empty."""
    for index in range(2):
        masters.kill(index)

    def heal() -> None:
        for index in range(2):
            masters.start(index)

    return heal


@pytest.mark.parametrize("fault", [hang, forget, miss])
def test_a_wait_rides_out_what_heals(
    fleet: Callable[..., embedded.Masters], name: str, fault: Callable[[embedded.Masters], Callable[[], None]]
) -> None:
    masters = fleet(3)
    # After a restart the masters are kept out for --max-ttl. The waiting command starts well within it.
    options = ["--ttl", "1", "--max-ttl", "6"]
    assert ran(masters.urls, *options, name, "true")[0] == 0
    heal = fault(masters)
    # Without -w it does not wait for masters.
    assert ran(masters.urls, *options, "-n", name, "true")[0] == 69
    process = start(masters.urls, *options, "-w", str(PATIENCE), name, "echo", "ran")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    heal()
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, "ran\n"), err


def test_a_new_fleet_is_waited_for_until_all_its_masters_answer(
    fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet(3)
    masters.kill(0)
    assert ran(masters.urls, "-n", name, "true")[0] == 69
    process = start(masters.urls, "-w", str(PATIENCE), name, "echo", "ran")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    masters.start(0)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, "ran\n"), err


def test_a_wait_for_a_busy_lock_ends_as_busy(three: list[str], name: str) -> None:
    with Client(three) as client, client.lock(name, ttl=LONG):
        assert ran(three, "-w", "0.5", "-E", "9", name, "echo", "never")[:2] == (9, "")


def test_a_wrong_password_is_not_waited_for(three: list[str], name: str) -> None:
    urls = [url.replace("//", "//nobody:wrong@") for url in three]
    began = time.monotonic()
    assert ran(urls, "-w", str(PATIENCE), name, "echo", "never")[0] == 69
    assert time.monotonic() - began < PATIENCE / 2


def test_a_wait_for_masters_that_stay_down_ends_with_its_own_status(name: str) -> None:
    began = time.monotonic()
    status, out, err = ran(["redis://127.0.0.1:1"], "-w", "1.5", name, "echo", "never")
    assert (status, out) == (69, "") and "127.0.0.1:1" in err
    assert time.monotonic() - began > 1.5


def test_a_name_that_is_held_makes_n_and_w_fail(three: list[str], name: str) -> None:
    with Client(three) as client, client.lock(name, ttl=LONG):
        assert ran(three, "-n", name, "echo", "never") == (1, "", "")
        assert ran(three, "-w", ".007", name, "echo", "never") == (1, "", "")
        assert ran(three, "--timeout", ".007", "-E", "42", name, "echo", "never") == (42, "", "")
    assert ran(three, "-n", name, "echo", "again") == (0, "again\n", "")


def test_shared_locks_run_together_and_exclude_an_exclusive_one(three: list[str], name: str) -> None:
    with Client(three) as client, client.rw_lock(name, ttl=LONG).read():
        assert ran(three, "-s", "-w", ".007", name, "echo", "shared") == (0, "shared\n", "")
    with Client(three) as client, client.rw_lock(name, ttl=LONG).write():
        assert ran(three, "-s", "-w", ".007", name, "echo", "shared")[0] == 1


def test_a_script_can_lock_itself_by_its_first_line(three: list[str], name: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    run = f'{sys.executable} -m redlatch.cli run -en \'{name}\' sh "$0" "$@"'
    script.write_text(f'[ "$LOCKED" != "$0" ] && exec env LOCKED="$0" {run} || :\necho "once: $1"\n')
    environment = os.environ | {"REDLATCH_MASTERS": " ".join(three)}
    done = subprocess.run(["sh", script, "a b"], env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "once: a b\n")
    with Client(three) as client, client.lock(name, ttl=LONG):
        done = subprocess.run(["sh", script, "a"], env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize(
    ("command", "status"), [(["/nonexistent/program"], 127), (["no-such-program-here"], 127), (["/etc/passwd"], 126)]
)
def test_a_program_that_cannot_be_executed(three: list[str], name: str, command: list[str], status: int) -> None:
    done, out, err = ran(three, name, "--", *command)
    assert (done, out) == (status, "")
    assert f"cannot execute {command[0]!r}" in err
    assert ran(three, "-n", name, "true")[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1])
def test_a_program_that_a_signal_kills(three: list[str], name: str, number: signal.Signals) -> None:
    assert ran(three, name, "sh", "-c", f"kill -{number.value} $$")[0] == 128 + number


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["name"], "a program is needed"),
        (["-c", "true", "name", "true"], "a program is needed"),
        (["-s", "-x", "name", "true"], "exclude each other"),
        (["-s", "--fair", "name", "true"], "--fair and --fence need a lock with one holder"),
        (["-n", "-w", "3", "name", "true"], "-n does not wait"),
        (["--kill-after", "9", "name", "true"], "at most half of the ttl"),
        (["--ttl", "120", "name", "true"], "--ttl: 120 s is above the --max-ttl of 60 s"),
        (["--owner", "x" * 65, "name", "true"], "owner: a name of at most 64 bytes"),
        (["-m", "http://10.0.0.1", "name", "true"], "http"),
        (["--nonsense", "name", "true"], "No such option"),
        (["name", "-n", "true"], "-n follows NAME: options come before it"),
        (["name", "--ttl=3", "true"], "--ttl=3 follows NAME: options come before it"),
        (["name", "-c", "true", "more"], "-c follows NAME: options come before it"),
        (["-c", "true", "name", "-c", "true"], "-c follows NAME: options come before it"),
        (["name", "-c"], "-c follows NAME: options come before it"),
        (["x" * 513, "true"], "512"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(three: list[str], arguments: list[str], said: str) -> None:
    status, out, err = ran(three, *arguments)
    assert (status, out) == (64, "")
    assert said in err and "Traceback" not in err


def test_masters_that_nobody_names_are_asked_for() -> None:
    status, _, err = ran([], "name", "true")
    assert status == 64
    assert "the variable REDLATCH_MASTERS is not set" in err


def test_masters_that_do_not_answer(name: str) -> None:
    status, out, err = ran(["redis://127.0.0.1:1"], name, "echo", "never")
    assert (status, out) == (69, "")
    assert "127.0.0.1:1" in err and "Traceback" not in err


def test_the_environment_names_lock_owner_and_fence_and_no_token(three: list[str], name: str) -> None:
    _, out, _ = ran(three, "--fence", "--owner", "web-1:nightly", name, "env")
    found = dict(line.partition("=")[::2] for line in out.splitlines() if line.startswith("REDLATCH_"))
    assert found.pop("REDLATCH_NAME") == name
    assert found.pop("REDLATCH_OWNER") == "web-1:nightly"
    fence = int(found.pop("REDLATCH_FENCE"))
    assert not any("TOKEN" in variable for variable in found)
    _, out, _ = ran(three, "--fence", name, "sh", "-c", "echo $REDLATCH_FENCE")
    assert int(out) > fence


def test_the_holder_is_told_to_others_while_the_program_runs(three: list[str], name: str) -> None:
    process = start(three, "--owner", "cron@web-1", name, "cat", stdin=subprocess.PIPE)
    with Client(three) as client:
        lock = client.lock(name)
        await_true(lambda: lock.locked())
        holder = lock.holder()
        assert holder is not None and holder.owner == "cron@web-1"
        status, _, err = ran(three, "-nv", name, "true")
        assert status == 1 and "busy: cron@web-1 has held it for" in err
        process.communicate("", timeout=PATIENCE)
        assert not lock.locked()


def test_as_many_as_there_are_slots_run_at_the_same_time(three: list[str], name: str) -> None:
    many = [start(three, "--slots", "2", name, "cat", stdin=subprocess.PIPE) for _ in range(2)]
    with Client(three) as client:
        await_true(lambda: client.semaphore(name, 2).locked())
    assert ran(three, "-n", "--slots", "2", name, "true")[0] == 1
    for process in many:
        process.communicate("", timeout=PATIENCE)
    assert ran(three, "-n", "--slots", "2", name, "true")[0] == 0


def test_the_lock_is_held_for_its_least_time_and_then_released(three: list[str], name: str) -> None:
    process = start(three, "-v", "--min-hold", "2", name, "true")
    assert process.stderr is not None
    lines: Any = iter(process.stderr.readline, "")
    assert any("ended with 0" in line for line in lines)
    with Client(three) as client:
        assert client.lock(name).locked()
        assert process.wait(PATIENCE) == 0
        assert not client.lock(name).locked()
    process.communicate()


def test_a_lock_that_is_held_for_long_is_renewed(three: list[str], name: str) -> None:
    assert ran(three, "--ttl", "0.5", name, "sleep", "1.5")[0] == 0


def test_the_page_names_every_option_of_every_command() -> None:
    page = (Path(__file__).parents[2] / "docs/command-line.md").read_text()
    group = build()
    commands = {name: group.get_command(Context(group), name) for name in group.list_commands(Context(group))}
    missing = [
        f"{name} {option}"
        for name in ("run", "status", "top", "unlock", "doctor")
        for command in [commands[name]]
        if command is not None
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("-") and f"{option}" not in page.replace("`", " ")
    ]
    assert missing == []


# `redlatch run` that gets a SIGTERM before it can wait for the lock.
EARLY = """
import os, signal
from redlatch.run import job
from redlatch.cli import main
class Program(job.Program):
    def __init__(self, command):
        os.kill(os.getpid(), signal.SIGTERM)
        super().__init__(command)
job.Program = Program
main()
"""


# The same, while it forks: there Python prints and drops an exception.
FORKING = """
import os, signal
from redlatch.cli import main
os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGTERM))
main()
"""


@pytest.mark.parametrize("program", [EARLY, FORKING], ids=["early", "forking"])
def test_a_signal_at_the_very_beginning_has_its_exit_status(three: list[str], name: str, program: str) -> None:
    """Found by attacks: it had that of a lock that is busy, and a traceback; and it was dropped."""
    command = [sys.executable, "-c", program, "run", name, "true"]
    environment = os.environ | {"REDLATCH_MASTERS": ",".join(three)}
    with Client(three) as client, client.lock(name, ttl=LONG):
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + signal.SIGTERM, "", "")


# `redlatch run` that gets a Ctrl-C while it loads its modules.
LOADING = """
import os, signal, redlatch.cli
build = redlatch.cli.build
redlatch.cli.build = lambda: os.kill(os.getpid(), signal.SIGINT) or build()
redlatch.cli.main()
"""


def test_a_ctrl_c_while_it_loads_kills_it(three: list[str], name: str) -> None:
    """A loop of a shell ends only if its command dies of the signal."""
    command = [sys.executable, "-c", LOADING, "run", name, "true"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")
