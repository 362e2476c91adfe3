"""The end of a ``with``: which claim of its lock object it may release.

One lock object is one holder, but a claim may have changed since the ``with`` was entered: its body has released the
lock, and the body itself, or another thread or task, has acquired it again through the same object. So the ``with``
remembers the ticket of its claim in `Claim.entered`. While one ``with`` is open, its end releases that claim, in
whatever thread or task it runs. A claim that was made later is released only by the thread or task that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..errors import NotOwned
from ..quorum.hold import Hold


def may_leave(ticket: object, entered: object, made_here: Callable[[object], bool]) -> bool:
    """Return whether the end of a ``with`` may release a claim.

    Args:
        ticket: the ticket of the claim; None if there is none.
        entered: `Claim.entered`. It is None if no ``with`` was entered, as after `contextlib.ExitStack.push`.
        made_here: returns whether the calling thread or task has made a ticket.
    """
    return ticket is not None and (ticket is entered or entered is None or made_here(ticket))


def leaves(
    hold: Hold,
    tickets: Iterable[object],
    entered: object,
    made_here: Callable[[object], bool],
    name: str | bytes,
    names: list[str | bytes] | None = None,
) -> bool:
    """End a ``with``; return whether it must release a claim. If the body has released the lock, nothing is left.

    Args:
        hold: the hold that knows of the ``with``.
        tickets: the tickets of the claims on all names.
        entered, made_here: as for `may_leave`.
        name: the name of the lock; of several, the first.
        names: all names of a lock on several.

    Raises:
        NotOwned: the claim is of another thread or task.
    """
    hold.leave()
    left = [ticket for ticket in tickets if ticket is not None]
    if left and not any([may_leave(ticket, entered, made_here) for ticket in left]):
        raise NotOwned(
            f"{names or name!r} was released before the end of its with statement, and another thread or task uses "
            "this lock object now; make one lock object for each holder",
            name=name,
        )
    return bool(left)
