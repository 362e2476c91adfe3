"""One command's votes. Compiled as `redlatch._c.protocol.ballot`, too (see `redlatch._c`)."""

from __future__ import annotations

from typing import Any

from .commands import Command


class Ballot:
    """A command put to the vote of every master, and what they said.

    The verdict stands as soon as no further vote can change it; votes that come later are still counted.

    Attributes:
        command: what is asked.
        size, quorum: how many masters are asked, and how many must agree.
        until_ns: when whoever asked stops waiting, in nanoseconds since boot.
        yes, no, failed: the votes so far; whoever is in none of them is silent.
        decided: whether the verdict stands.
        causes: the errors of the failed votes by index of the master, or None.
        silent: who had not answered when the time was over, by index of the master.
        waiter: whom the driver tells when it is decided; None where nobody is to be told.
        farewell: the lock that was released by it without waiting; told if it turns out that it had been lost.
        resent: bit i says that master i got the full text of the script already.
    """

    __slots__ = (
        "causes",
        "command",
        "decided",
        "failed",
        "farewell",
        "no",
        "quorum",
        "resent",
        "silent",
        "size",
        "until_ns",
        "waiter",
        "yes",
    )

    def __init__(self, command: Command, size: int, quorum: int, until_ns: int = 0) -> None:
        self.command = command
        self.size = size
        self.quorum = quorum
        self.until_ns = until_ns
        self.yes = 0
        self.no = 0
        self.failed = 0
        self.decided = False
        self.causes: dict[int, BaseException] | None = None
        self.silent: tuple[int, ...] = ()
        self.waiter: Any = None
        self.farewell: Any = None
        self.resent = 0

    def settled(self) -> bool:
        """Tell whether the verdict stands: a quorum said yes, or no quorum can any more.

        Of a release more is asked, since it is over only when a quorum has answered: a "no", too, says that
        the key is not ours (any more). It is settled when one kind of vote has decided it, or all have come.
        """
        lost = self.size - self.quorum
        if self.yes >= self.quorum or self.no > lost or self.failed > lost:
            return True
        told = self.no + self.failed
        return told + self.yes >= self.size if self.command.releases else told > lost

    def withdraw(self) -> None:
        """Note that what it asked for is undone already, so that it cannot be won any more."""
        self.yes = -self.size

    def refused(self) -> bool:
        """Tell whether so many masters said no that no quorum can have said yes."""
        return self.no > self.size - self.quorum

    def unavailable(self) -> bool:
        """Tell whether failed and silent masters alone made a verdict impossible."""
        silent = 0 if self.decided else self.size - self.yes - self.no - self.failed
        return self.failed + silent > self.size - self.quorum
