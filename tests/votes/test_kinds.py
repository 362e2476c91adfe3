"""The table of kinds, against the code that it describes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_rights import rights_of

from redlatch import impl
from redlatch.votes import condition_scripts, family_scripts
from redlatch.votes.key import name_of
from redlatch.votes.kinds import (
    ALL,
    CONDITION,
    FAIR,
    FAMILY,
    FENCED,
    LATCH,
    LISTED,
    PLAIN,
    RATE_LIMIT,
    READER,
    SEMAPHORE,
    WRITER,
    Declaration,
    in_words,
)
from redlatch.votes.scripts import Script

OPERATIONS = Path(__file__).parents[2] / "docs/operations.md"

# What the user of plain locks may call anyway.
OF_PLAIN_LOCKS = {"set", "get", "del", "pexpire", "pttl", "time"}

# The beginning of the name of each script of a kind. All kinds with several holders call FULL.
SCRIPTS = {
    FAIR: "FAIR_",
    SEMAPHORE: "SLOT_",
    RATE_LIMIT: "RATE_",
    READER: "READ_",
    WRITER: "WRITE_",
    CONDITION: "CALL_",
    LATCH: "LATCH_",
}


def scripts_of(kind: Declaration) -> list[Script]:
    named = {**vars(family_scripts), **vars(condition_scripts)}
    found = [each for name, each in named.items() if name.startswith(SCRIPTS[kind]) and isinstance(each, Script)]
    found += [family_scripts.SLOT_RELEASE] * (kind is RATE_LIMIT)
    return found + [family_scripts.FULL] * (kind in (SEMAPHORE, READER, WRITER))


def rights(kind: Declaration) -> set[str]:
    return set(re.findall(r"\+(\w+)", kind.rights))


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind.home], ids=lambda kind: kind.home)
def test_the_class_of_a_kind_names_its_row(implementation: impl.Implementation, kind: Declaration) -> None:
    assert implementation.kind(kind.home).declared is kind


def test_each_family_that_needs_scripts_has_its_scripts() -> None:
    assert {kind for kind in ALL if kind.needs_scripts} == set(SCRIPTS)
    assert {kind for kind in ALL if kind.rights} == set(SCRIPTS)


@pytest.mark.parametrize("kind", SCRIPTS, ids=lambda kind: kind.plural)
def test_the_scripts_of_a_kind_call_no_command_without_a_right(kind: Declaration) -> None:
    called = set(rights_of(*scripts_of(kind))) - OF_PLAIN_LOCKS
    assert called <= rights(kind)
    # Waiters call these, and no script. Readers and writers are documented together.
    assert rights(kind) - called <= {"strlen", "exists"} or kind in (READER, WRITER)


@pytest.mark.parametrize("kind", SCRIPTS, ids=lambda kind: kind.plural)
def test_the_documentation_lists_the_rights_of_a_kind(kind: Declaration) -> None:
    assert f"`{kind.rights}`" in " ".join(OPERATIONS.read_text().split())


def test_every_key_of_a_kind_begins_with_its_first_one() -> None:
    for kind in ALL:
        assert all(suffix.startswith(kind.suffixes[0]) for suffix in kind.suffixes)
        assert all(name_of(key)[0] == b"n" for key in kind.keys_of(b"n"))


def test_holders_of_two_kinds_are_in_the_same_key_only_if_they_exclude_each_other() -> None:
    assert list(LISTED) == ["lock", "semaphore", "rate limit", "readers", "writer"]
    assert [kind for kind in ALL if kind.suffixes[0] == b""] == [PLAIN, FENCED, FAIR]
    assert READER.suffixes == WRITER.suffixes


def test_errors_name_each_family_once() -> None:
    assert FAMILY == "fair locks, semaphores, rate limits, read-write locks, conditions and latches"
    assert [in_words(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
