"""Why locks are lost: the texts that errors and reports have, and what the figures call them."""

from __future__ import annotations

# The usual reasons. An error or a report may go on after one of these texts.
RAN_OUT, FORGOTTEN, RELEASED, HELD_LONGEST, STALLED = (
    "its validity ran out",
    "a quorum has forgotten it",
    "released by close(release=True)",
    "it was held for its max_hold of",
    "its process, or event loop, had not run for",
)

# The answers to a release that nobody waited for have said so.
LOST_BEFORE = "a quorum had forgotten it before it was released"

# The masters have pushed a change of the key, and then said that it is gone.
KEY_GONE = "a majority of masters reported that its key is gone"

# A quarantine that lasts longer than the lease: the masters cannot confirm the lock any more.
KEPT_OUT = "a majority of masters has forgotten it, and is kept out until after its deadline"

# What `LockStats.lost` calls any other reason.
OTHER = "other"

_LABELS = {
    RAN_OUT: "expired",
    FORGOTTEN: "forgotten",
    LOST_BEFORE: "forgotten",
    KEY_GONE: "forgotten",
    KEPT_OUT: "forgotten",
    HELD_LONGEST: "max_hold",
    STALLED: "heartbeat",
    RELEASED: "closed",
}

# All labels, as metrics show them.
LABELS = (*dict.fromkeys(_LABELS.values()), OTHER)


def label_of(reason: str) -> str:
    """Return what the figures call the reason of a loss."""
    return next((label for beginning, label in _LABELS.items() if reason.startswith(beginning)), OTHER)
