"""The choice of the build: a forced choice is used, or fails with an error."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.builds import implementation_named

import redlatch
from redlatch import impl

# Makes the compiled build look as if there had been no compiler.
NOT_BUILT = "import sys; sys.modules['redlatch._c.drivers.threads'] = None; "
SAY = "import redlatch; print(redlatch.IMPL)"


def run(program: str, choice: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "REDLATCH_IMPL"}
    if choice is not None:
        environment["REDLATCH_IMPL"] = choice
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def built() -> None:
    try:
        impl.load("c")
    except ImportError:
        pytest.skip("the compiled implementation was not built")


@pytest.mark.parametrize("choice", [None, ""])
def test_the_compiled_build_is_used_if_there_is_one(built: None, choice: str | None) -> None:
    assert run(SAY, choice).stdout == "c\n"


@pytest.mark.parametrize("choice", [None, ""])
def test_the_pure_build_is_used_if_there_is_no_other(choice: str | None) -> None:
    assert run(NOT_BUILT + SAY, choice).stdout == "python\n"


def test_a_compiled_build_that_cannot_be_loaded_causes_a_warning(built: None) -> None:
    broken = """
import sys
class Broken:
    def find_spec(self, name, path, target=None):
        if name == "redlatch._c.drivers.threads":
            raise ImportError("undefined symbol: Py_OfAnotherVersion")
sys.meta_path.insert(0, Broken())
"""
    done = run(broken + SAY, None)
    assert done.stdout == "python\n"
    assert "RuntimeWarning: the 'c' implementation of redlatch cannot be imported: undefined symbol" in done.stderr
    assert run(NOT_BUILT + SAY, None).stderr == ""


def test_the_pure_build_can_be_forced() -> None:
    assert run(SAY, "python").stdout == "python\n"


def test_the_compiled_build_can_be_forced(built: None) -> None:
    assert run(SAY, "c").stdout == "c\n"


def test_forcing_a_compiled_build_that_is_missing_is_an_import_error_with_the_reason() -> None:
    done = run(NOT_BUILT + SAY, "c")
    assert done.returncode == 1
    assert "ImportError: the 'c' implementation of redlatch cannot be imported" in done.stderr
    assert "C compiler" in done.stderr


@pytest.mark.parametrize("choice", ["C", "cython", "pure", " c", "0"])
def test_a_choice_that_does_not_exist_is_an_import_error_that_names_the_variable(choice: str) -> None:
    done = run(SAY, choice)
    assert done.returncode == 1
    assert f"ImportError: REDLATCH_IMPL: 'c' or 'python' is needed, not {choice!r}" in done.stderr


def test_a_forced_pure_build_loads_nothing_compiled() -> None:
    program = (
        "import sys, redlatch; redlatch.Client('redis://a'); print([m for m in sys.modules if 'redlatch._c' in m])"
    )
    assert run(program, "python").stdout == "[]\n"


@pytest.mark.parametrize(("choice", "where"), [("c", "redlatch._c.drivers"), ("python", "redlatch.drivers")])
def test_a_client_runs_on_the_build_that_was_forced(built: None, choice: str, where: str) -> None:
    program = (
        "import redlatch; clients = redlatch.Client('redis://a'), redlatch.AsyncClient('redis://a'); "
        "print(*(type(client._driver).__module__ for client in clients))"
    )
    assert run(program, choice).stdout == f"{where}.threads {where}.aio\n"


def test_an_implementation_that_does_not_exist_cannot_be_loaded() -> None:
    with pytest.raises(ImportError, match="'fortran'"):
        impl.load("fortran")


def test_files_of_an_older_build_are_not_loaded(tmp_path: Path) -> None:
    """They would be used silently with the new pure modules, for example after a build that failed."""
    package = Path(redlatch.__file__).parent
    shutil.copytree(package, tmp_path / "redlatch", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    old = tmp_path / "redlatch/_c/wire/engine/net.py"
    old.parent.mkdir(exist_ok=True)
    old.write_text("print('the older build')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import redlatch._c.wire.engine.net"
    done = run(program, None)
    assert (done.stdout, done.returncode) == ("", 1)
    assert "ModuleNotFoundError: No module named 'redlatch._c.wire'" in done.stderr


def test_both_implementations_live_in_one_process(built: None) -> None:
    engines = [impl.load(name).module("wire.engine.fleet") for name in ("c", "python")]
    assert engines[0].Fleet is not engines[1].Fleet


def test_impl_names_the_running_build() -> None:
    assert redlatch.IMPL == impl.current.name


def test_the_garbage_collector_does_not_track_the_objects_of_every_lock() -> None:
    """Cython silently ignores its directive for this if it does not recognize the class."""
    build = implementation_named("c")
    commands = build.module("votes.commands")
    made = [
        build.module("quorum.hold").Hold("x", b"x", build.module("quorum.kinds.plain").PLAIN),
        commands.Release(b"x", b"t", 1),
    ]
    made += [commands.Acquire(b"x", b"t", 1, 10), commands.Extend(b"x", b"t", 1, 10)]
    made.append(build.module("quorum.lease").new_lease(b"t", 1, 10))
    assert not any(gc.is_tracked(each) for each in made)


@pytest.mark.parametrize(
    ("before", "choice", "text"),
    [
        ("", "foo", "redlatch: REDLATCH_IMPL: 'c' or 'python' is needed, not 'foo'\n"),
        (NOT_BUILT, "c", "redlatch: the 'c' implementation of redlatch cannot be imported: "),
    ],
)
@pytest.mark.parametrize("command", ["status", "run"])
def test_the_command_line_reports_a_forced_choice_in_one_line(
    before: str, choice: str, text: str, command: str
) -> None:
    words = ["redlatch", command, "-m", "redis://127.0.0.1:1", *(["-n", "a", "true"] if command == "run" else [])]
    done = run(f"{before}import sys; sys.argv = {words}; import redlatch.cli; redlatch.cli.main()", choice)
    assert done.returncode == 78
    assert done.stderr.startswith(text) and len(done.stderr.splitlines()) == 1
