"""Run the whole suite with a restricted user: with REDLATCH_TEST_ACL=1 every client of redlatch logs in as that user.

What the tests themselves ask of a master they ask as before. docs/operations.md lists the rights.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import redis

from redlatch.locks.factory import BaseClient
from redlatch.masters.master import Master
from redlatch.testing import embedded

OPERATIONS = Path(__file__).parents[2] / "docs/operations.md"

USER, PASSWORD = "lk", "s3cr3t-lk"

# Test names begin with "lock". The guard's marker is a NUL and a word, and no ACL rule may contain a NUL.
KEYS = ["~lock*", "~{lock*", "~n*", "~{n*", "~?guard"]


def rights(program: str) -> list[str]:
    """Return the rights that docs/operations.md lists; a server that knows no subcommands gets whole commands."""
    section = OPERATIONS.read_text().partition("\n## Access rights\n")[2].partition("\n### Without scripts\n")[0]
    found = sorted(set(re.findall(r"\+[a-z]+(?:\|[a-z]+)?", section)))
    return found if program != "old" else sorted({right.partition("|")[0] for right in found})


def admit(url: str) -> None:
    """Create the user on one master."""
    with redis.Redis.from_url(url, retry=None) as admin:
        try:
            _make(admin, rights("new"))
        except redis.ResponseError:
            # This is Redis 6.2, or a server without DELIFEQ or DELEX.
            _make(admin, rights("old"))


def _make(admin: redis.Redis, given: list[str]) -> None:
    admin.execute_command("ACL", "SETUSER", USER, "reset", "on", f">{PASSWORD}", "resetchannels", "-@all", *KEYS)
    for right in given:
        try:
            admin.execute_command("ACL", "SETUSER", USER, right)
        except redis.ResponseError:
            if right not in ("+delifeq", "+delex"):
                raise


def restrict() -> None:
    """Create the user on each master at its start, and let clients log in as that user."""
    masters_of, enter, start = BaseClient._masters_of, embedded.Masters.__enter__, embedded.Masters.start

    def restricted(masters: Any) -> list[Master]:
        if isinstance(masters, str):
            masters = [masters]
        if isinstance(masters, (list, tuple)):
            masters = [_as_user(master) for master in masters]
        return masters_of(masters)

    def entered(self: embedded.Masters) -> list[str]:
        urls = enter(self)
        # A sentinel has users of its own.
        for url in () if self._arguments else urls:
            admit(url)
        return urls

    def started(self: embedded.Masters, index: int) -> None:
        start(self, index)
        if not self._arguments:
            admit(self.urls[index])

    BaseClient._masters_of = staticmethod(restricted)
    embedded.Masters.__enter__ = entered  # type: ignore[method-assign]
    embedded.Masters.start = started  # type: ignore[method-assign]


def _as_user(master: Any) -> Any:
    if isinstance(master, str) and master.startswith(("redis://", "redis+sentinel://")) and "@" not in master:
        return master.replace("://", f"://{USER}:{PASSWORD}@")
    return master
