"""An output that cannot be written has an exit status of its own: 1 would say "not ready" or "not held"."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from redlatch import Client

# In its place a command gets the name of a lock that is held.
NAME = "NAME"

COMMANDS = (
    ["status"],
    ["status", "--json"],
    ["top", "--looks", "1"],
    ["unlock", "-y", NAME],
    ["doctor"],
    ["doctor", "--json"],
    ["masters", "show"],
    ["masters", "show", "--json"],
    ["--help"],
    ["run", "--help"],
    ["--version"],
)


def call(urls: list[str], name: str, words: list[str], output: int, *of_python: str) -> tuple[int, str]:
    """Return the exit status of a command whose stdout is a descriptor, and its stderr."""
    try:
        with Client(urls) as client, client.lock(name, ttl=60):
            done = subprocess.run(
                [sys.executable, *of_python, "-m", "redlatch.cli", *[name if each == NAME else each for each in words]],
                env=os.environ | {"REDLATCH_MASTERS": ",".join(urls)},
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
            )
    finally:
        os.close(output)
    return done.returncode, done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="it is a device of Linux")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_full_disk_has_its_own_status_and_message(three: list[str], name: str, words: list[str]) -> None:
    # `python -u` has no buffer, and another kind of file.
    of_python = ("-u",) if "--json" in words else ()
    said = call(three, name, words, os.open("/dev/full", os.O_WRONLY), *of_python)
    assert said == (74, "redlatch: the output cannot be written: No space left on device\n")


@pytest.mark.usual(
    "a closed pipe is met where a full disk is, and all commands are tried there",
    *[{"words": words} for words in (["status"], ["doctor", "--json"], ["--help"])],
)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_closed_pipe_has_the_same_status_and_no_message(three: list[str], name: str, words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    assert call(three, name, words, writer) == (74, "")
