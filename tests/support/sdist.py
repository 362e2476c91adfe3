"""Installs the source distribution into empty environments, and uses a lock in each: `make sdist` runs this.

The distribution is made from the tracked files in a folder of its own. In the clone, setuptools would also take what
an earlier build has left.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from redlatch.testing import masters

ROOT = Path(__file__).parents[2]

# What runs in the empty environment. The arguments are the expected build and the URLs of the masters.
USE = """
import sys
import redlatch

assert redlatch.IMPL == sys.argv[1], f"the build is {redlatch.IMPL}, not {sys.argv[1]}"
with redlatch.Client(sys.argv[2:]) as client:
    lock = client.lock("sdist")
    assert lock.acquire(timeout=10)
    lock.check()
    lock.release()
    assert not lock.locked()
print(redlatch.__file__)
"""


def tracked(folder: Path) -> list[str]:
    """Return the paths of all tracked files below a folder of the clone, as paths in the clone."""
    listed = subprocess.run(["git", "ls-files", "-z", "--", str(folder)], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return [path for path in listed.stdout.decode().split("\0") if (ROOT / path).is_file()]


def build(folder: Path) -> Path:
    """Make the source distribution in a folder; return its path."""
    source = folder / "source"
    for path in tracked(ROOT):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, source / path)
    subprocess.run(
        [sys.executable, "-m", "build", "--sdist", "--outdir", folder, source], stdout=subprocess.DEVNULL, check=True
    )
    [made] = folder.glob("redlatch-*.tar.gz")
    return made


def install(distribution: Path, environment: Path, extension: bool) -> Path:
    """Install a distribution into a new environment, without any extra; return its Python."""
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    # Without optimization: this shows that nothing is missing, and takes a third of the time.
    flags = f"{os.environ.get('REDLATCH_CFLAGS', '')} -O0" if extension else ""
    chosen = {"REDLATCH_BUILD_EXT": str(int(extension)), "REDLATCH_CFLAGS": flags}
    pip: list[str | Path] = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-cache-dir"]
    subprocess.run([*pip, distribution], env=os.environ | chosen, check=True)
    return python


def main() -> None:
    """Try the pure and the compiled build."""
    with tempfile.TemporaryDirectory() as name, masters(3) as urls:
        folder = Path(name)
        distribution = build(folder)
        for impl in ("python", "c"):
            python = install(distribution, folder / impl, impl == "c")
            # `-I`: neither PYTHONPATH nor the clone is on the path.
            used = subprocess.run(
                [python, "-I", "-c", USE, impl, *urls], cwd=folder, stdout=subprocess.PIPE, text=True, check=True
            )
            package = Path(used.stdout.strip()).parent
            missing = [path for path in tracked(ROOT / "src/redlatch") if not (package.parent / path[4:]).is_file()]
            assert not missing, f"not installed: {missing}"
            print(f"{distribution.name}, {impl}: installed and used")


if __name__ == "__main__":
    main()
