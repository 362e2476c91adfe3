"""python -m tests.fuzz --seconds 600: let atheris search for replies on which the builds differ, or one fails.

Atheris learns from the branches of the pure build which bytes lead further. The compiled build gets each input, too.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run libFuzzer, which ends its process, in a child; print the number of executions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--corpus", type=Path, required=True, help="a folder for what is found worth keeping")
    given = parser.parse_args()
    given.corpus.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={given.seconds}", "-max_len=512", "-timeout=20", f"-artifact_prefix={given.corpus}/"]
    command = [sys.executable, str(Path(__file__).with_name("child.py")), *options, str(given.corpus)]
    ended = subprocess.run(command, capture_output=True, text=True)
    done = re.findall(r"^#(\d+)\s+DONE", ended.stderr, re.MULTILINE)
    if ended.returncode or not done:
        print(ended.stderr[-6000:], file=sys.stderr)
        return ended.returncode or 1
    covered = re.findall(r"cov: (\d+)", ended.stderr)
    print(f"{int(done[-1]):,} executions, {covered[-1] if covered else '?'} branches covered, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
