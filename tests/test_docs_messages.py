"""The documentation covers every error, every line of the log, and every message of `redlatch run`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import redlatch

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/redlatch"
OPERATIONS = ROOT / "docs/operations.md"
COMMAND_LINE = ROOT / "docs/command-line.md"

# A field of a message that varies.
FIELD = re.compile(r"%[-.\d]*[a-z]")

# The levels that the log section writes for the methods of a logger.
LEVELS = {"info": "info", "warning": "warning", "error": "error", "exception": "error", "critical": "error"}

# Lines without constant text: the log section says in its prose what they are.
ONLY_FIELDS = {("pottery", "%s: %s"), ("redlatch.compat.redlock", "%s")}

# --- errors -----------------------------------------------------------------------------------


def quoted() -> list[str]:
    """Return the parts of messages that Troubleshooting quotes in the first column of its tables."""
    section = OPERATIONS.read_text().partition("\n## Troubleshooting\n")[2]
    first = re.findall(r"^\| ([^|]*) \|", section, re.MULTILINE)
    quotes = [quote for cell in first for quote in re.findall(r'"([^"]+)"', cell)]
    parts = [part.strip(" :;") for quote in quotes for part in re.split(r"\.\.\.|[\[\]]", quote)]
    return sorted({part for part in parts if len(part) > 3})


@cache
def messages() -> list[str]:
    """Return all texts of the package."""
    trees = [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_operations_quotes_messages_as_they_are() -> None:
    known = messages()
    assert len(quoted()) > 20
    assert [part for part in quoted() if not any(part in text for text in known)] == []


@pytest.mark.parametrize("error", [name for name in redlatch.__all__ if isinstance(getattr(redlatch, name), type)])
def test_operations_covers_every_error(error: str) -> None:
    if issubclass(getattr(redlatch, error), redlatch.LockError) and error != "LockError":
        assert f"`{error}`" in OPERATIONS.read_text()


# --- the log -------------------------------------------------------------------------------------------


def loggers(tree: ast.Module, module: str) -> dict[str, str]:
    """Return the loggers of a module: their names in it, and what they are called."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("logging.getLogger("):
            assert isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Call)
            [argument] = node.value.args
            called = argument.value if isinstance(argument, ast.Constant) else module
            assert isinstance(called, str)
            found[node.targets[0].id] = called
    return found


def lines_of(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the lines that a module may log, each with its logger and level; of drop-ins only from WARNING on."""
    tree = ast.parse(path.read_text())
    known = loggers(tree, ".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            continue
        logger, level = known.get(ast.unparse(call.func.value)), LEVELS.get(call.func.attr)
        if logger is None or level is None or (logger != "redlatch" and level == "info"):
            continue
        line = call.args[0]
        assert isinstance(line, ast.Constant) and isinstance(line.value, str), f"{path}: {ast.unparse(call)}"
        yield logger, line.value, level


@cache
def logged() -> list[tuple[str, str, str]]:
    """Return all lines that the package may log, each with its logger and level."""
    return sorted({line for path in PACKAGE.rglob("*.py") for line in lines_of(path)})


@cache
def documented() -> list[tuple[str, str]]:
    """Return the lines that the log section has in its tables, each with its level."""
    section = OPERATIONS.read_text().partition("\n### The log\n")[2].partition("\n### ")[0]
    return re.findall(r"^\| `([^`]+)` \| (\w+) \|", section, re.MULTILINE)


def is_shown(line: str, level: str, shown: tuple[str, str]) -> bool:
    """Tell whether a row shows a line: with the same level and constant text, and anything in its fields."""
    pattern = ".+".join(re.escape(text) for text in FIELD.split(line))
    return shown[1] == level and re.fullmatch(pattern, shown[0]) is not None


def test_no_logger_goes_by_another_way() -> None:
    for path in PACKAGE.rglob("*.py"):
        # The command line turns warnings off, and logs nothing itself.
        if "getLogger" in path.read_text() and path.name != "command.py":
            assert loggers(ast.parse(path.read_text()), "module"), path


@pytest.mark.parametrize(("logger", "line", "level"), logged())
def test_operations_has_every_line_of_the_log_with_its_level(logger: str, line: str, level: str) -> None:
    if (logger, line) in ONLY_FIELDS:
        section = OPERATIONS.read_text().partition("\n### The log\n")[2].partition("\n### ")[0]
        assert f"`{logger}`" in section
        return
    assert any(is_shown(line, level, shown) for shown in documented())


@pytest.mark.parametrize("shown", documented(), ids=lambda shown: shown[0])
def test_operations_has_no_line_that_nothing_logs(shown: tuple[str, str]) -> None:
    assert any(is_shown(line, level, shown) for logger, line, level in logged() if (logger, line) not in ONLY_FIELDS)


# --- redlatch run --------------------------------------------------------------------------------------


@cache
def said() -> list[str]:
    """Return the messages of `redlatch run`, with "..." for what varies."""
    found = set()
    for path in (PACKAGE / "run").glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and ast.unparse(call.func) in ("self.say", "self._say")):
                continue
            [text] = call.args
            parts = text.values if isinstance(text, ast.JoinedStr) else [text]
            found.add("".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in parts))
    # A variable has the text of an error.
    return sorted(found - {"..."})


@pytest.mark.parametrize("line", said())
def test_the_command_line_page_has_every_message_of_run(line: str) -> None:
    assert len(said()) > 5
    shown = re.findall(r"^\| `([^`]+)` \|", COMMAND_LINE.read_text(), re.MULTILINE)
    assert line in shown
