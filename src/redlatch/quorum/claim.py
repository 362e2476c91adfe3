"""The claim: the acquire that may use a lock object, and the state of that acquire."""

from __future__ import annotations

from typing import Any

from redlatch.errors import AlreadyHeld, NotOwned

from ..votes.commands import Command

# The states of a claim.
#
# FREE         No attempt is under way. An acquire may have the claim already (`ticket`).
# WAITING      The acquire has made no attempt yet, or waits in the queue. Nothing is on the masters.
# ASKING       An acquire makes attempts, or waits between two of them: the masters may have the key.
# HELD         The lease counts until its deadline.
# RELEASING    A release is under way.
# UNCONFIRMED  A release failed or was interrupted. It may be called again.
# HANDED_OFF   Another hold has the lease. The claim is about to end.
# UNDOING      An interrupted acquire is being undone. The claim is about to end.
FREE, WAITING, ASKING, HELD, RELEASING, UNCONFIRMED, HANDED_OFF, UNDOING = range(8)

# Stands in `Claim.entered` for several tickets. It is no ticket.
SEVERAL = "several"

# The states that may follow each state, with the method that makes the change, and the reason. Only this file writes
# `state`, and `WaitQueues.hand_off`, which must not call anything between its check and its last step. The simulations
# check every change against this table.
TRANSITIONS = {
    FREE: {
        FREE: "claim, free: an acquire gets the claim, or its claim ends",
        WAITING: "to_waiting: an acquire begins",
        ASKING: "ask: an attempt of a batch begins",
    },
    WAITING: {
        WAITING: "to_waiting: the acquire goes on waiting",
        ASKING: "ask: an attempt begins",
        HELD: "take_lease: another hold has handed its lease off",
        FREE: "free: the timeout is over",
    },
    ASKING: {
        ASKING: "ask: the next attempt begins",
        HELD: "keep: a quorum has granted the lease",
        WAITING: "to_waiting: the hold has released a lease that it could not use",
        UNDOING: "undoing: an interrupt ended the acquire",
        FREE: "free: the attempt was lost and is undone",
    },
    HELD: {
        RELEASING: "begin_release: the holder releases the lock",
        HANDED_OFF: "hand_off: a waiter of this client gets the lease",
        ASKING: "give_back: the hold cannot use the lease that it was handed",
        WAITING: "to_waiting: the giver has taken the lease back",
        UNCONFIRMED: "resend_release: an interrupt ended the release before its first step",
        UNDOING: "undoing: an interrupt ended the acquire just after it won",
        FREE: "free: the release was sent without waiting, or the key is known to be gone",
    },
    RELEASING: {
        FREE: "free: a quorum has answered",
        HANDED_OFF: "hand_off: a waiter of this client gets the lease",
        UNCONFIRMED: "to_unconfirmed, resend_release: no quorum has answered, or an interrupt ended the release",
    },
    UNCONFIRMED: {
        RELEASING: "begin_release: the release is called again",
        UNCONFIRMED: "resend_release: another interrupt",
        UNDOING: "undoing: an interrupt ended the acquire and its release",
        FREE: "claim: a new acquire replaces the old release",
    },
    HANDED_OFF: {
        FREE: "free: the release is over",
        RELEASING: "hand_off: the waiter has left, or the token was exposed meanwhile",
    },
    UNDOING: {
        UNDOING: "undoing: another interrupt",
        FREE: "free: the undo was sent",
    },
}


class Claim:
    """The state of one lock object, and the acquire that may use it.

    Rules:
      * One lock object is one holder: two holders that share a token would release each other's lock. So only the
        acquire whose ticket is in `ticket` has the claim. A second acquire is refused.
      * Each method checks first and writes last, without a call in between: another thread or an interrupt can only
        come in at a call. So an interrupt leaves the claim unchanged or completely changed.

    The methods with an underscore are for `Hold`.

    Attributes:
        ticket: the ticket of the acquire that has the claim. Compare by `is`: those of a thread are equal.
        entered: the ticket of the claim that the open `with` of the lock object has made; SEVERAL for more than one,
            whose claims follow each other, because bodies released the lock.
        others: how many more `with` statements are open.
        awaited: whether a user of the lock object waits on its condition, and acquires again afterwards.
        let_go_ns: when the release began that has no verdict so far. The holder acts no longer than until then.
        unanswered: in the state UNCONFIRMED, the command of that release.
    """

    __slots__ = ("awaited", "entered", "let_go_ns", "name", "others", "state", "ticket", "unanswered")

    def __init__(self, name: str | bytes) -> None:
        self._begin(name)

    def _begin(self, name: str | bytes) -> None:
        self.name = name
        self.state = FREE
        self.ticket: object = None
        self.entered: object = None
        self.others = 0
        self.awaited = False
        self.let_go_ns = 0
        self.unanswered: Any = None

    def is_held(self) -> bool:
        # The number is written out: in the compiled build a name would not be a C integer.
        return self.state == 3

    def leave_own(self) -> bool:
        """End the only open `with` if its claim is still that of the lock object; return whether it is."""
        if self.ticket is None or self.ticket is not self.entered:
            return False
        self.entered = None
        return True

    def leave(self) -> None:
        """Record that one of several `with` statements ends, or one whose claim has ended."""
        if self.others:
            self.others -= 1
        else:
            self.entered = None

    def follow(self, ticket: object) -> None:
        """Let the open `with` that has this ticket continue with the present claim."""
        if self.entered is ticket:
            self.entered = self.ticket

    def _to_claimed(self, ticket: object) -> None:
        # After an unconfirmed release the claim is free to take.
        if (self.ticket is None or self.state == UNCONFIRMED) and not self.awaited:
            self.ticket = ticket
            self.state = FREE
            return
        if self.ticket is None:
            text = f"a holder waits on the condition of this lock object, and will acquire {self.name!r} again; "
        else:
            text = f"this lock object holds or is acquiring {self.name!r} already; release it first, or "
        raise AlreadyHeld(f"{text}make one lock object for each holder: for each thread or task", name=self.name)

    def to_waiting(self) -> None:
        self.state = WAITING

    def _to_asking(self) -> None:
        self.state = ASKING

    def _to_held(self) -> None:
        self.state = HELD

    def _to_releasing(self, now_ns: int) -> bool:
        """Begin a release; return whether an earlier one had no verdict."""
        # 3 is HELD. A call of `is_held` would let another thread in before the change.
        if self.state == 3:
            self.let_go_ns = now_ns
            self.state = RELEASING
            return False
        if self.state == UNCONFIRMED:
            self.state = RELEASING
            return True
        raise NotOwned(f"cannot release {self.name!r}: this lock object does not hold it", name=self.name)

    def to_unconfirmed(self, command: Command) -> None:
        self.unanswered = command
        self.state = UNCONFIRMED

    def _to_resent(self, ticket: object, command: Command, now_ns: int) -> bool:
        if self.ticket is not ticket or self.state not in (HELD, RELEASING, UNCONFIRMED):
            return False
        if self.state == HELD:
            self.let_go_ns = now_ns
        self.unanswered = command
        self.state = UNCONFIRMED
        return True

    def _to_undoing(self, ticket: object) -> bool:
        if self.ticket is not ticket or self.state not in (ASKING, HELD, UNCONFIRMED, UNDOING):
            return False
        # From now on no thread can release the lock or hand its lease off.
        self.state = UNDOING
        return True

    def _to_free(self) -> None:
        # The claim ends last.
        self.state = FREE
        self.ticket = None
