"""The state that says if a client may be used; the drivers look it up in every call.

Compiled, too (see `redlatch._c`): a compiled driver reads a field of a Python object in 250 instructions, and one of
this class in 2.
"""

from __future__ import annotations


class Lifecycle:
    """The state of one client.

    Attributes:
        usable: whether a call may begin.
        closing: whether calls are refused.
        closed: whether the sockets are closed.
        forked: whether this is the client of a forked child, which owns nothing.
        undialled: the masters to be dialled again although no connection broke, and when.
    """

    __slots__ = ("closed", "closing", "forked", "undialled", "usable")

    def __init__(self) -> None:
        self.usable = True
        self.closing = False
        self.closed = False
        self.forked = False
        self.undialled: dict[int, int] = {}

    def retire(self) -> None:
        """Refuse every new call from now on; calls that are under way may still undo what they did."""
        self.closing = True
        self.usable = False

    def disown(self) -> None:
        """Refuse every call in a forked child."""
        self.forked = True
        self.usable = False
