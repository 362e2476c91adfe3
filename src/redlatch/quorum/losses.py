"""Why locks are lost: the texts that errors and reports have, and what the figures call them."""

from __future__ import annotations

# The usual reasons. An error or a report may go on after one of these texts.
RAN_OUT, FORGOTTEN, RELEASED, HELD_LONGEST = (
    "its validity ran out",
    "a quorum has forgotten it",
    "released by close(release=True)",
    "it was held for its max_hold",
)

# What `LockStats.lost` calls any other reason.
OTHER = "other"

_LABELS = {RAN_OUT: "expired", FORGOTTEN: "forgotten", RELEASED: "closed", HELD_LONGEST: "max_hold"}


def label_of(reason: str) -> str:
    """Return what the figures call the reason of a loss."""
    return next((label for beginning, label in _LABELS.items() if reason.startswith(beginning)), OTHER)
