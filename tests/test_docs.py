"""The documentation: its paths and links exist, and its examples run."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.examples import OTHER_LANGUAGES

import redlatch
from redlatch.testing import cluster, masters

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/redlatch"

DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
DOCUMENTS += sorted((ROOT / "docs").glob("*.md"))

# What they name is below one of these folders.
BASES = (ROOT, ROOT / "src", PACKAGE)

# Not in source distributions.
ONLY_IN_CLONES = ("bench/results", ".github")

FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")
PATH = re.compile(r"[\w.-]*/[\w./-]*|[\w-]+\.(?:py|pyx|pxd|md|toml|json|yml|c)")
MODULE = re.compile(r"(?:redlatch|tests)(?:\.\w+)+")
CLASS = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)*")

# What is named and is no part of the repository, or no class of ours.
MADE_BY_MAKE = (".venv/", "build/")
PLAIN_WORDS = {"True", "False", "None"}

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def without_code(text: str) -> str:
    """Remove blocks and spans of code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def slug(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings."""
    return {slug(found) for found in re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE)}


def left_out(path: Path) -> bool:
    """Tell whether a file is missing because this is a source distribution."""
    return (
        not (ROOT / ".git").exists()
        and path.is_relative_to(ROOT)
        and str(path.relative_to(ROOT)).startswith(ONLY_IN_CLONES)
    )


# --- paths ---------------------------------------------------------------------------------------------


def words_of_code(text: str) -> Iterator[str]:
    """Yield the words of all code in a document, without what stands before "=" or behind "::"."""
    blocks = [block for _, block in FENCE.findall(text)]
    for code in blocks + re.findall(r"`([^`\n]+)`", FENCE.sub("", text)):
        for word in re.split(r"[\s\"'()\[\],]+", code):
            yield word.rpartition("=")[2].partition("::")[0].rstrip(".,:;")


def named_paths(document: Path) -> list[str]:
    """Return the paths and modules that a document names; one with "<" or "*" in it is a pattern."""
    words = {word for word in words_of_code(document.read_text()) if PATH.fullmatch(word) or MODULE.fullmatch(word)}
    return sorted(word for word in words if word != "/" and not word.startswith(MADE_BY_MAKE))


def exists(word: str) -> bool:
    """Tell whether a path, or a module or its attribute, is there."""
    if MODULE.fullmatch(word):
        path = (ROOT if word.startswith("tests.") else ROOT / "src") / word.replace(".", "/")
        module, _, attribute = word.rpartition(".")
        there = path.is_dir() or path.with_suffix(".py").exists()
        return there or (module.startswith("redlatch") and hasattr(importlib.import_module(module), attribute))
    found = [base / word for base in BASES]
    return any(path.is_dir() if word.endswith("/") else path.exists() for path in found) or left_out(ROOT / word)


def classes() -> set[str]:
    """Return the names of all classes of the package."""
    trees = [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


both_guides = pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])


@both_guides
def test_every_path_and_module_that_is_named_exists(name: str) -> None:
    words = named_paths(ROOT / name)
    assert len(words) > 10
    assert [word for word in words if not exists(word)] == []


@both_guides
def test_every_class_that_is_named_exists(name: str) -> None:
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", (ROOT / name).read_text()))
    named = {found for span in spans for found in [span.partition(".")[0]] if CLASS.fullmatch(found)}
    assert named - PLAIN_WORDS - classes() == set()


@pytest.mark.parametrize("name", ["README.md", "docs/architecture.md"])
def test_it_has_at_most_150_lines(name: str) -> None:
    assert (ROOT / name).read_text().count("\n") <= 150


# --- links ---------------------------------------------------------------------------------------------


def broken_links(document: Path) -> list[str]:
    """Return the relative links of a document that lead to no file, or to no heading."""
    broken = []
    for target in LINK.findall(without_code(document.read_text())):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.exists():
            broken += [] if left_out(path) else [target]
        elif anchor and anchor not in anchors(path):
            broken.append(target)
    return broken


@every_document
def test_relative_links_lead_to_files_and_headings(document: Path) -> None:
    assert broken_links(document) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n\n## A heading\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n[a](other.md) [b](other.md#a-heading) [c](#page) ![d](https://localhost/x.png)\n"
        "[e](missing.md) [f](other.md#no-heading) [g](#nothing) ![h](missing.svg)\n"
    )
    assert broken_links(page) == ["missing.md", "other.md#no-heading", "#nothing", "missing.svg"]


# --- the site ------------------------------------------------------------------------------------------


def test_the_page_of_calls_has_every_public_class() -> None:
    shown = set(re.findall(r"^\.\. auto(?:class|exception):: (\w+)", (ROOT / "docs/api.md").read_text(), re.MULTILINE))
    assert shown == {name for name in redlatch.__all__ if isinstance(getattr(redlatch, name), type)}


def test_the_summary_of_no_property_has_a_colon() -> None:
    """Sphinx takes the words before it for the type of the property."""
    public = [getattr(redlatch, name) for name in redlatch.__all__]
    summaries = {
        f"{owner.__name__}.{name}": (value.__doc__ or "").partition("\n")[0]
        for owner in public
        if isinstance(owner, type)
        for name, value in inspect.getmembers(owner)
        if isinstance(value, property) and not name.startswith("_")
    }
    assert "Lock.lost" in summaries
    assert [name for name, summary in summaries.items() if ":" in re.sub("`[^`]*`", "", summary)] == []


def test_every_page_is_in_the_contents_and_described() -> None:
    index = (ROOT / "docs/index.md").read_text()
    blocks = [block for language, block in FENCE.findall(index) if "toctree" in language]
    listed = re.findall(r"^[\w-]+$", "".join(blocks), re.MULTILINE)
    pages = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
    assert sorted([*listed, "index"]) == pages
    described = {target.partition("#")[0] for target in LINK.findall(without_code(index))}
    assert [page for page in listed if f"{page}.md" not in described] == []


def test_the_figures_of_summaries_are_those_of_the_benchmarks() -> None:
    summary, figures = (ROOT / "docs/benchmarks.md").read_text().split("\n## How to repeat them\n")
    speed = (ROOT / "docs/comparison.md").read_text().partition("\n## Speed\n")[2].partition("\n## ")[0]
    for text in (summary, speed):
        found = re.findall(r"\d+(?:,\d{3})+|\d+\.\d\d", text)
        assert len(found) > 3
        assert [number for number in found if number not in figures] == []


# --- examples ------------------------------------------------------------------------------------------


SKIPPED = re.compile(r"^<!-- skip: (?:next|start) *(.*?) *-->$", re.MULTILINE)
RUNNER = ROOT / "tests/support/examples.py"
EVALUATED = {"python", *OTHER_LANGUAGES}


def with_masters(text: str, urls: list[str]) -> str:
    """Replace the addresses of a page by those of running masters, and its databases by files."""
    for number, url in enumerate(urls, 1):
        text = text.replace(f"redis://10.0.0.{number}", url)
    text = text.replace("postgresql+psycopg://app@db/shop", "sqlite:///shop.db")
    return text.replace("postgresql+asyncpg://app@db/shop", "sqlite+aiosqlite:///shop.db")


@pytest.fixture(scope="module")
def lone() -> Iterator[str]:
    """Return a master that is in no list of several."""
    with masters(1) as urls:
        yield urls[0]


SEEDS = "redis+cluster://10.0.0.1,10.0.0.2,10.0.0.3"


@pytest.fixture(scope="module")
def cluster_url() -> Iterator[str]:
    made = cluster(replicas=0)
    with made:
        yield made.url


@every_document
def test_the_examples_of_a_page_run(
    document: Path, three: list[str], lone: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    page, text = tmp_path / document.name, document.read_text()
    if SEEDS in text:
        text = text.replace(SEEDS, request.getfixturevalue("cluster_url"))
    page.write_text(with_masters(text, three).replace("redis://10.0.0.9", lone))
    # With -P the modules of the tests are not on the path of the examples.
    command = [sys.executable, "-P", str(RUNNER), str(page), *three]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")


@every_document
def test_an_example_compiles(document: Path) -> None:
    for language, block in FENCE.findall(document.read_text()):
        if language == "python":
            compile(block, document.name, "exec")


@every_document
def test_a_block_runs_or_has_a_reason(document: Path) -> None:
    text = document.read_text()
    languages = {language for language, _ in FENCE.findall(text) if language and not language.startswith("{")}
    assert languages <= EVALUATED
    for reason in SKIPPED.findall(text):
        assert re.fullmatch(r'".{10,}"', reason)
        assert [path for path in re.findall(r"tests/[\w/]+\.py", reason) if not (ROOT / path).exists()] == []
