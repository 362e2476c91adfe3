"""Build the programs of other languages, for `python -m bench --languages`.

Their sources are in `bench/languages` of a clone. They are copied to `build/languages` and built there, so that the
sources stay clean and a second build is short. No language is needed: one that cannot be built is left out.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "bench/languages"
BUILT = ROOT / "build/languages"

# The seconds for one build, with the download of its packages.
PATIENCE = 900

# What a build by hand leaves in a source folder.
LEFTOVERS = shutil.ignore_patterns("target", "node_modules")


class NotBuilt(Exception):
    """A language is left out; the message gives the reason in one line."""


@dataclass(frozen=True)
class Language:
    """A language with a program in `bench/languages`.

    Args:
        name: its name in messages.
        folder: the folder of its program.
        tools: the programs that must be on PATH.
        version: the command that prints the version of the toolchain.
        build: the command that builds the program in its folder.
        run: the command that runs it; "{folder}" stands for the folder.
    """

    name: str
    folder: str
    tools: tuple[str, ...]
    version: tuple[str, ...]
    build: tuple[str, ...]
    run: tuple[str, ...]

    def command(self, built: Path = BUILT) -> list[str]:
        """Return the command that runs the program."""
        return [word.format(folder=built / self.folder) for word in self.run]


RUST = Language(
    "Rust",
    "rust",
    ("cargo",),
    ("cargo", "--version"),
    ("cargo", "build", "--release"),
    ("{folder}/target/release/locks",),
)
GO = Language("Go", "go", ("go",), ("go", "version"), ("go", "build", "-o", "locks", "."), ("{folder}/locks",))
NODE = Language(
    "Node", "node", ("node", "npm"), ("node", "--version"), ("npm", "ci", "--no-audit"), ("node", "{folder}/main.js")
)
JAVA = Language(
    "Java",
    "java",
    ("mvn", "java"),
    ("java", "--version"),
    ("mvn", "--batch-mode", "--quiet", "compile"),
    ("java", "-cp", "{folder}/target/classes:{folder}/target/lib/*", "Locks"),
)


def build(language: Language, built: Path = BUILT) -> str:
    """Build the program of a language.

    Args:
        language: the language.
        built: the folder for the folders of all languages.

    Returns:
        The version of the toolchain.

    Raises:
        NotBuilt: a tool is missing, or the build failed.
    """
    for tool in language.tools:
        if shutil.which(tool) is None:
            raise NotBuilt(f"{tool} is not installed")
    folder = built / language.folder
    shutil.copytree(SOURCES / language.folder, folder, dirs_exist_ok=True, ignore=LEFTOVERS)
    run(language.build, folder)
    return run(language.version, folder).splitlines()[0]


def run(command: Sequence[str], folder: Path) -> str:
    """Run a command in a folder and return its output.

    Raises:
        NotBuilt: it failed or took too long; its whole output is in build.log in the folder.
    """
    log = folder / "build.log"
    with log.open("w") as file:
        # A group of its own, so that an interrupted race leaves no compiler behind.
        process = subprocess.Popen(command, cwd=folder, stdout=file, stderr=file, start_new_session=True)
        try:
            status = process.wait(PATIENCE)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise NotBuilt(f"{' '.join(command)} took longer than {PATIENCE} s; see {log}") from None
    words = log.read_text(errors="replace")
    if status:
        raise NotBuilt(f"{' '.join(command)} failed: {reason(words, status)}; see {log}")
    return words


def reason(words: str, status: int) -> str:
    """Return the first line that names an error, or else the last line, or else the exit status."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower()]
    return (named or lines[-1:] or [f"status {status}"])[0]
