"""The page docs/help.md, made of the `--help` texts of all commands: `python tests/support/help_texts.py` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from redlatch.cli import build

PAGE = Path(__file__).parents[2] / "docs/help.md"

# This many columns of a block are visible on the site without scrolling.
WIDTH = 88

BEGINNING = """# Help texts

What each command prints with `--help`. [The command line](command-line.md) explains the commands with examples.

<!-- `make help-texts` writes this page. tests/test_help.py compares it with the commands. -->
"""


def paths(command: click.Command, *before: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of a command, and then those of its subcommands, in the order of `--help`."""
    yield before
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            # click remembers `--help` from a test that has called the command without its group, which adds `-h`.
            below._help_option = None
            yield from paths(below, *before, name)


def help_of(words: tuple[str, ...]) -> str:
    """Return what a command prints with `--help`."""
    command = [*words, "--help"]
    ran = CliRunner().invoke(
        build(), command, prog_name="redlatch", terminal_width=WIDTH, max_content_width=WIDTH, catch_exceptions=False
    )
    assert ran.exit_code == 0, ran.output
    return ran.output


def page() -> str:
    """Return the text of the page."""
    titles = [(" ".join(["redlatch", *words]), help_of(words)) for words in paths(build())]
    return BEGINNING + "".join(f"\n## {title}\n\n```\n{text}```\n" for title, text in titles)


if __name__ == "__main__":
    PAGE.write_text(page())
