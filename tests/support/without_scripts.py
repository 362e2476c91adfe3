"""Masters that refuse scripts; and a run of the whole suite without scripts, with REDLATCH_TEST_WATCH=1.

In such a run every client whose test gives no mode has scripts="watch". Tests of locks that need scripts are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from redlatch import options
from redlatch.locks.factory import BaseClient
from redlatch.testing import embedded
from redlatch.wire.dial.scripting import Scripts, scripts_of

# The kinds of masters that refuse scripts. "native" releases by DELIFEQ; the others need a transaction for it. "resp2"
# has no HELLO, and so no pushes.
RIGHTS = "user", "default on nopass ~* &* +@all -@scripting"
KINDS: dict[str, dict[str, Any]] = {
    "native": {RIGHTS[0]: RIGHTS[1]},
    "rights": {RIGHTS[0]: f"{RIGHTS[1]} -delifeq"},
    "renamed": {"rename-command": [f'{name} ""' for name in ("EVAL", "EVALSHA", "SCRIPT", "DELIFEQ")]},
    "resp2": {"rename-command": [f'{name} ""' for name in ("EVAL", "EVALSHA", "SCRIPT", "DELIFEQ", "HELLO")]},
}


@contextmanager
def masters(count: int, kind: str = "rights") -> Iterator[embedded.Masters]:
    """Start masters that refuse scripts."""
    fleet = embedded.masters(count, config=KINDS[kind])
    with fleet:
        yield fleet


def use_transactions() -> None:
    """Give all clients scripts="watch" that were given no mode."""

    def chosen(mode: object) -> Scripts:
        return "watch" if mode == "auto" else scripts_of(mode)

    def skip(self: BaseClient) -> None:
        if self._scripts == "watch":
            pytest.skip("this lock needs scripts")

    options.scripts_of = chosen  # type: ignore[attr-defined]
    BaseClient._need_scripts = skip  # type: ignore[method-assign]


# What happens between WATCH and EXEC, to a key of the master behind a proxy.
Amid = Callable[[], object]


def between(proxy: Any, key: bytes, happens: Amid, times: int = 1) -> None:
    """Have something happen after WATCH and the reads of a transaction on a key, and before its change and EXEC."""
    left = [times]
    watched: list[bytes] = []

    def spoil(command: tuple[bytes, ...], reply: bytes) -> bytes | None:
        if command[0] == b"WATCH":
            watched[:] = command[1:]
        if command[0] == b"MULTI" and key in watched and left[0]:
            left[0] -= 1
            if happens() is CUT:
                return None
        return reply

    proxy.spoil = spoil


CUT = object()
