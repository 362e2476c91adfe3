"""The reasons for the loss of a lock, as `on_lost` and `LockLost.reason` have them."""

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
