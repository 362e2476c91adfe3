"""Read the call of a Lua script back from the bytes of a command."""

from __future__ import annotations

from typing import Any, NamedTuple

from hiredis import Reader

from redlatch.votes import condition_scripts, family_scripts, scripts
from redlatch.votes.commands import BY_SHA, FULL_TEXT
from redlatch.votes.scripts import Script

_NAMES = {
    value: name
    for module in (scripts, family_scripts, condition_scripts)
    for name, value in vars(module).items()
    if isinstance(value, Script)
}


class ScriptCall(NamedTuple):
    """One call of a script.

    Attributes:
        script: the name of the script in its module.
        keys: its KEYS.
        arguments: its ARGV.
        in_full: whether the call has the text of the script, and not its SHA.
    """

    script: str
    keys: list[bytes]
    arguments: list[bytes]
    in_full: bool


def script_call(command: Any, dialect: int = BY_SHA) -> ScriptCall:
    """Return the call that a command makes on a server of this dialect."""
    reader = Reader()
    reader.feed(command.payload(dialect))
    word, script, count, *rest = reader.gets()
    assert word in (b"EVAL", b"EVALSHA")
    assert dialect != FULL_TEXT or word == b"EVAL"
    [name] = [name for known, name in _NAMES.items() if script in (known.sha, known.text)]
    return ScriptCall(name, rest[: int(count)], rest[int(count) :], word == b"EVAL")
