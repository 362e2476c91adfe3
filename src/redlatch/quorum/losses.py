"""The losses of locks, each with its text."""

from __future__ import annotations

from redlatch.loss import Loss, LossKind

RAN_OUT = Loss(LossKind.EXPIRED, "its validity ran out")

FORGOTTEN = Loss(LossKind.FORGOTTEN, "a quorum has forgotten it")

# The answers to a release with `wait=False` have said so.
LOST_BEFORE = Loss(LossKind.FORGOTTEN, "a quorum had forgotten it before it was released")

# The masters have pushed a change of the key, and then said that it is gone.
KEY_GONE = Loss(LossKind.FORGOTTEN, "a majority of masters reported that its key is gone")

# A quarantine that lasts longer than the lease: the masters cannot confirm the lock any more.
KEPT_OUT = Loss(LossKind.FORGOTTEN, "a majority of masters has forgotten it, and is kept out until after its deadline")

RELEASED = Loss(LossKind.CLOSED, "released by close(release=True)")

IN_DOUBT = Loss(
    LossKind.IN_DOUBT, "a master that voted for it may have forgotten it; extend() finds out whether a quorum has it"
)

# The thread or task that held a re-entrant lock has ended.
HOLDER_ENDED = Loss(LossKind.OTHER, "its holder ended without releasing it, so it was no longer renewed and ran out")

# The kinds that figures count.
COUNTED = tuple([kind for kind in LossKind if kind is not LossKind.IN_DOUBT])


def held_longest(seconds: float) -> Loss:
    return Loss(LossKind.MAX_HOLD, f"it was held for its max_hold of {seconds:g} s, and not renewed any more")


def stalled(seconds: float) -> Loss:
    """Return the loss of a lock whose process had not run for this time."""
    text = f"its process, or event loop, had not run for {seconds:.1f} s, so it was not renewed any more"
    return Loss(LossKind.HEARTBEAT, text)
