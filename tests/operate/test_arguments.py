"""Whatever the arguments of a command are, it answers with a text and an exit status, and never with a traceback."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
import warnings
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.help_texts import paths
from support.selection import ALL

from redlatch.cli import build, main
from redlatch.operate import doctor

# Where checks often end. A shell can pass any bytes but NUL: those that are no UTF-8 are surrogates in Python.
EDGES = ["", "nan", "inf", "-inf", "-1", "0", "1e308", "1e-308", "0.1", "9" * 5000, "\udcff", "é", "x" * 600, "-", "--"]
URLS = ["redis://127.0.0.1:1", "redis://[", "http://127.0.0.1", "redis://\udcff", "redis+sentinel://127.0.0.1:1/x"]
LETTERS = st.characters(codec="utf-8", exclude_characters="\0") | st.just("\udcff")
WORDS = st.sampled_from(EDGES) | st.sampled_from(URLS) | st.text(LETTERS, max_size=8)

# These two begin long work once their arguments are right, so only their arguments are read.
READ_ONLY = {("demo",)}

# What keeps a command short, and the options by which it would wait for longer than this, in seconds.
SHORT = {"top": ["--looks", "1"], "run": ["-n"]}
PATIENT, LONGEST = {"wait", "every", "min_hold"}, 0.2

# In seconds, for one command.
LIMIT = 60


def commands() -> dict[tuple[str, ...], click.Command]:
    """Return all commands that have no subcommands, by their words."""
    found = {}
    for path in paths(build()):
        command: Any = build()
        for word in path:
            command = command.get_command(click.Context(command), word)
        if not isinstance(command, click.Group):
            found[path] = command
    return found


def seconds(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return 0.0


@st.composite
def arguments(draw: st.DrawFn, command: click.Command) -> list[str]:
    """Draw some options with any values, and some arguments."""
    line = []
    options = [each for each in command.params if isinstance(each, click.Option)]
    for option in draw(st.lists(st.sampled_from(options), max_size=5)):
        line.append(draw(st.sampled_from(option.opts)))
        if not option.is_flag:
            value = draw(WORDS)
            line.append("nan" if option.name in PATIENT and seconds(value) > LONGEST else value)
    return line + draw(st.lists(WORDS, max_size=3))


def called(urls: list[str], line: list[str]) -> tuple[int, str]:
    """Run a command line in a forked child; return its exit status and what it wrote."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as file:
        with warnings.catch_warnings():
            # Since Python 3.12, a fork in a process with threads warns.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            status = 99
            try:
                status = _be(urls, line, folder, file.fileno())
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        _, ended = os.waitpid(child, 0)
        file.seek(0)
        return os.waitstatus_to_exitcode(ended), file.read().decode(errors="replace")


def _be(urls: list[str], line: list[str], folder: str, output: int) -> int:
    """Be the command; return its exit status."""
    # Neither a terminal nor files of others, and `-c` runs nothing.
    os.setsid()
    os.chdir(folder)
    os.environ |= {"REDLATCH_MASTERS": ",".join(urls), "SHELL": "/bin/true"}
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    for number in (1, 2):
        os.dup2(output, number)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LIMIT)
    sys.argv = ["redlatch", *line]
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0


def read(command: click.Command, path: tuple[str, ...], line: list[str]) -> None:
    """Read the arguments of a command without running it."""
    try:
        command.make_context(path[-1], list(line))
    except (click.ClickException, click.exceptions.Exit):
        return


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_no_arguments_give_a_traceback(
    three: list[str], path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = commands()[path]
    # The doctor compares clocks for two seconds.
    monkeypatch.setattr(doctor, "WATCHED", 0.01)

    @settings(max_examples=60 if ALL else 20)
    @given(arguments(command))
    def check(line: list[str]) -> None:
        if path in READ_ONLY:
            read(command, path, line)
            return
        status, said = called(three, [*path, *SHORT.get(path[0], []), *line])
        assert 0 <= status < 128 and status != 70, said
        assert "Traceback" not in said

    check()


@pytest.mark.parametrize(
    "line",
    [
        ["top", "--looks", "1", "--prefix", "\udcff"],
        ["top", "--looks", "1", "--every", "nan"],
        ["top", "--looks", "2", "--every", "1e308", "--prefix", "x" * 600],
        ["status", "--wait", "nan"],
        ["status", "--prefix", "\udcff"],
        ["doctor", "--drift-factor", "nan"],
        ["doctor", "--drift-factor", "1e308"],
        ["masters", "move", "--from", "redis://127.0.0.1:1", "--to", "redis://127.0.0.1:2", "--drift-factor", "nan"],
        ["run", "--prefix", "\udcff", "--min-hold", "nan", "x", "true"],
        ["run", "--ttl", "nan", "x", "true"],
        ["run", "--owner", "\udcff", "x", "true"],
        ["run", "x\udcff", "no-such-program\udcff"],
        ["unlock", "-y", "--if-fence", "9" * 5000, "x"],
    ],
    ids=" ".join,
)
def test_arguments_that_gave_a_traceback(three: list[str], line: list[str]) -> None:
    status, said = called(three, line)
    assert 0 <= status < 128 and status != 70, said
    assert "Traceback" not in said


@pytest.mark.parametrize("option", ["--every", "--wait", "--drift-factor", "--max-ttl", "--ttl", "--min-hold"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_number_that_is_not_finite_is_an_error_of_usage(three: list[str], option: str, value: str) -> None:
    [path, *_] = [path for path, command in commands().items() if option in [o for p in command.params for o in p.opts]]
    status, said = called(three, [*path, option, value])
    assert status in (2, 64) and option in said


def test_a_prefix_of_any_bytes_is_that_of_a_client(three: list[str], name: str) -> None:
    words = ["--prefix", "p\udcff", name]
    status, said = called(three, ["run", "-n", *words, sys.executable, "-m", "redlatch.cli", "status", *words])
    assert status == 0 and os.uname().nodename in said
