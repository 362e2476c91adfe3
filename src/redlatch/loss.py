"""The reasons for the loss of a lock, as `on_lost` and `LockLost.reason` have them, each with its text."""

from __future__ import annotations

import enum


class LossKind(enum.Enum):
    """The kinds of losses. The value of each is its name in `LockStats.lost` and in metrics.

    Attributes:
        EXPIRED: the validity ended, for example because the work took longer than the ttl.
        FORGOTTEN: a quorum of masters no longer has the key with the token of the lock.
        MAX_HOLD: the lock was held for its `max_hold`, and not renewed any more.
        HEARTBEAT: the process, or its event loop, had not run for longer than `heartbeat`.
        CLOSED: the client was closed with ``release=True``.
        IN_DOUBT: a master that voted for the lock may have forgotten it. `extend` finds out; no figure counts this.
        OTHER: none of these; the text says more.
    """

    EXPIRED = "expired"
    FORGOTTEN = "forgotten"
    MAX_HOLD = "max_hold"
    HEARTBEAT = "heartbeat"
    CLOSED = "closed"
    IN_DOUBT = "in_doubt"
    OTHER = "other"


class Loss(str):
    """The reason for the loss of a lock: a text for people, with a kind for programs.

    Args:
        kind: the kind of the loss.
        text: the text.

    Attributes:
        kind: a `LossKind`.
    """

    __slots__ = ("kind",)

    kind: LossKind

    def __new__(cls, kind: LossKind, text: str) -> Loss:
        loss = super().__new__(cls, text)
        loss.kind = kind
        return loss

    def because(self, detail: object) -> Loss:
        """Return this loss with more about its cause."""
        return Loss(self.kind, f"{self}; {detail}")

    def __reduce__(self) -> tuple[type[Loss], tuple[LossKind, str]]:
        return Loss, (self.kind, str(self))


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
