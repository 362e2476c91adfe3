"""A process that imports each module of this project in a fork of its own.

The process has loaded the modules of other packages already, and none of this project. So an import of ours takes a
few milliseconds, and still starts from nothing that is ours.
"""

from __future__ import annotations

import json
import subprocess
import sys

# It gets the modules to load first as an argument, and then the name of a module in each line. It answers each line
# with what the import has written to stderr, in JSON: nothing if it succeeds.
PROGRAM = """
import contextlib, importlib, json, os, sys, traceback

for name in json.loads(sys.argv[1]):
    # Some packages are not installed, and some modules need settings of their framework.
    with contextlib.suppress(Exception):
        importlib.import_module(name)

for line in sys.stdin:
    reading, writing = os.pipe()
    if not os.fork():
        os.dup2(writing, 2)
        try:
            importlib.import_module(line.strip())
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(0)
    os.close(writing)
    with open(reading) as stderr:
        said = stderr.read()
    if status := os.wait()[1]:
        said += f"the process died with status {status}"
    print(json.dumps(said), flush=True)
"""


class Importer:
    """The process; a warning is an error in it.

    Args:
        others: the modules of other packages.
    """

    def __init__(self, others: list[str]) -> None:
        command = [sys.executable, "-W", "error", "-c", PROGRAM, json.dumps(others)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def stderr_of(self, module: str) -> str:
        """Import a module; return what the import has written to stderr, such as its traceback."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{module}\n")
        self._process.stdin.flush()
        said: str = json.loads(self._process.stdout.readline())
        return said

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        assert self._process.returncode == 0
