"""What `redlatch run` has in common with flock(1): its options, its exit statuses and the examples of its manual."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click import Context
from support.faces import PATIENCE, await_true
from support.runs import ran, start

from redlatch import Client
from redlatch.cli import build

LONG = 60.0


def test_the_program_runs_with_its_arguments_and_its_exit_status_is_passed_on(three: list[str], name: str) -> None:
    assert ran(three, name, "--", "sh", "-c", "echo a; echo b >&2; exit 7") == (7, "a\n", "b\n")
    # As with flock, no "--" is needed, and options of the program are its own.
    assert ran(three, "-x", name, "echo", "-n", "a", "b", "c") == (0, "a b c", "")
    assert ran(three, name, "-c", "exit 3")[0] == 3 or ran(three, "-c", "exit 3", name)[0] == 3


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
        (["--ttl", "120", "name", "true"], "above the 60 s of the guard"),
        (["--owner", "x" * 65, "name", "true"], "owner: a name of at most 64 bytes"),
        (["-m", "http://10.0.0.1", "name", "true"], "http"),
        (["--nonsense", "name", "true"], "No such option"),
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


def test_a_signal_at_the_very_beginning_has_its_exit_status(three: list[str], name: str) -> None:
    """Found by an attack: it had that of a lock that is busy, and a traceback."""
    command = [sys.executable, "-c", EARLY, "run", "-m", three[0], name, "true"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + signal.SIGTERM, "", "")
