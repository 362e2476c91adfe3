"""docs/help.md has the `--help` texts of all commands as they are, and docs/command-line.md names every option."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import click
import pytest
from support import help_texts

from redlatch.cli import COMMANDS, build

COMMAND_LINE = (Path(__file__).parents[1] / "docs/command-line.md").read_text()


def test_the_page_has_the_help_texts_as_they_are() -> None:
    assert help_texts.PAGE.read_text() == help_texts.page(), "run: make help-texts"


def test_every_command_has_a_text() -> None:
    found = [" ".join(words) for words in help_texts.paths(build())]
    assert set(found) >= {"", *COMMANDS, "masters show", "masters move"}
    assert len(found) == len(set(found))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_the_command_line_names_every_command(name: str) -> None:
    assert f"`redlatch {name}`" in COMMAND_LINE


def test_the_page_of_the_command_line_names_every_option_of_run() -> None:
    command: click.Command = import_module(COMMANDS["run"]).run
    options = [option for each in command.params if isinstance(each, click.Option) for option in each.opts]
    table = COMMAND_LINE.partition("\n| option | meaning |\n")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(--?[\w-]+)`", table))
    assert named == set(options)
