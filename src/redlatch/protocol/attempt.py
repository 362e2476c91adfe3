"""The attempts of one acquire, and what follows from their votes.

An attempt goes through these steps, between which the driver does what `acquire` yields:

  begin     take a new token, return the ballot on it
  second    return a second ballot if a quorum may come of it
  won       judge the votes: a quorum in time is a lock
  settles   of a lost attempt: whether to wait for the masters that have not answered
  judge     decide how to go on; return the ballot that undoes the attempt, if it must be undone

Then it is `over`, or the next attempt follows: after a wait if `waits`, else after a pause at most.

Compiled as `redlatch._c.protocol.attempt`, too (see `redlatch._c`).
Source of the algorithm: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
"""

from __future__ import annotations

from .ballot import Ballot
from .hold import Hold
from .outcome import granted, is_final, no_quorum
from .policy import UNBOUNDED, Policy
from .waiting import Lines


class Attempt:
    """One attempt after the other on one lock.

    Args:
        policy, lines, hold, ttl_ms: as for `acquire`.
        until_ns: when the time is over; 0 if it was over at the beginning.
        began_ns: when the acquire began.

    Attributes:
        started_ns: when the last attempt began.
        patience_ns: how long it waits for answers.
        now_ns: when its votes were counted; before the first attempt, when the acquire began.
        over: whether no attempt follows.
        waits: whether the next one follows after a change only.
        pauses: how many times in a row there was nothing to wait for.
    """

    __slots__ = (
        "_again",
        "_ballot",
        "_began_ns",
        "_deadline_ns",
        "_failures",
        "_first",
        "_hold",
        "_kind",
        "_lines",
        "_missed",
        "_policy",
        "_settling",
        "_split",
        "_ttl_ms",
        "_until_ns",
        "now_ns",
        "over",
        "patience_ns",
        "pauses",
        "started_ns",
        "waits",
    )

    def __init__(self, policy: Policy, lines: Lines, hold: Hold, ttl_ms: int, until_ns: int, began_ns: int) -> None:
        self._set(policy, lines, hold, ttl_ms, until_ns, began_ns)

    def _set(self, policy: Policy, lines: Lines, hold: Hold, ttl_ms: int, until_ns: int, began_ns: int) -> None:
        self._policy = policy
        self._lines = lines
        self._hold = hold
        self._kind = hold.kind
        self._ttl_ms = ttl_ms
        self._until_ns = until_ns
        self._began_ns = began_ns
        self._first = -1  # the master that the next attempt asks before the others
        self.now_ns = began_ns
        self.over = self.waits = False
        self.pauses = 0
        self._failures = 0  # in a row
        self._again = 0  # how many times in a row the masters' answers asked for another attempt

    def begin(self, started_ns: int) -> Ballot:
        """Begin an attempt at this time, before its first byte leaves; return the ballot to put."""
        policy = self._policy
        deadline = started_ns + policy.validity_ns(self._ttl_ms)
        patience = policy.patience_within(self._ttl_ms, self._until_ns - started_ns if self._until_ns else UNBOUNDED)
        until = min(deadline, started_ns + patience)
        ballot = self._hold.attempt(policy, self._lines, self._ttl_ms, started_ns, deadline, until)
        if self._first >= 0:
            ballot.ask_only(self._first, started_ns + policy.lone_ns(patience, self._lines.round_ns))
        ballot.behind = self._kind.behind()
        self.started_ns = started_ns
        self.patience_ns = patience
        self._deadline_ns = deadline
        self._ballot = ballot
        self._split = self._settling = False
        return ballot

    def second(self) -> Ballot | None:
        """Return the ballot that must be put, too; None if the first one decides."""
        policy, ballot = self._policy, self._ballot
        if self._first >= 0 and ballot.yes >= ballot.quorum:
            until = min(self._deadline_ns, self.started_ns + self.patience_ns)
            second: Ballot | None = ballot.ask_others(policy.size, policy.quorum, until)
        else:
            second = self._kind.second_round(policy, self._hold, ballot)
        if second is not None:
            self._ballot = second
            self._split = True
        return second

    def won(self) -> bool:
        """Tell whether the attempt has won; then the hold is HELD."""
        policy, hold, kind = self._policy, self._hold, self._kind
        # The vote of the master that was asked first may come after `second`: alone it is no quorum.
        whole = self._split or self._first < 0
        won = whole and self._ballot.yes >= self._ballot.quorum
        now = policy.clock.now()  # after the last counted vote, whatever is counted later
        self.now_ns = now
        if not granted(policy, self._lines, hold, won, self._deadline_ns, now):
            return False
        hold.keep(now - self.started_ns)
        kind.won(policy, hold)
        self._lines.overtake(policy, hold, now)
        if (kind.shares and kind.queues) or (hold.shown and hold.key in self._lines.lines):
            self._lines.leave(hold, now, False)
        return True

    def settles(self) -> bool:
        """Tell whether to wait for the masters that have not answered; mostly there is nothing to undo then."""
        ballot = self._ballot
        # The one that was asked first is down or silent: the others may say more.
        self._missed = self._first >= 0 and not self._split and not ballot.no
        if not self._missed:
            self._failures = self._failures + 1 if ballot.unavailable() else 0
        if not self._kind.settles or self._split or not ballot.decided or ballot.yes or ballot.no >= ballot.size:
            return False
        ballot.wait_for_all(min(self.now_ns + 2 * (self.now_ns - self.started_ns), self._until_ns))
        self._settling = True
        return True

    def judge(self) -> Ballot | None:
        """Decide how to go on after an attempt that has not won; return the ballot that undoes it, or None."""
        policy, kind, ballot, failures = self._policy, self._kind, self._ballot, self._failures
        if self._settling:
            self.now_ns = policy.clock.now()
        in_time = self.now_ns < self._until_ns
        heeded = not failures and kind.heed(policy, ballot) and (in_time or self._again < kind.late)
        if not (self._missed or heeded):
            # A first failure is no verdict: connections that broke are made anew, and what is sent waits for them.
            self.over = is_final(ballot, failures) if failures else not in_time
        self.waits = not (self._missed or heeded or failures)
        self._again = self._again + heeded
        if kind.leads and self._first < 0:
            self._lines.round_ns = self.now_ns - self.started_ns
        if self._missed:
            self._lines.shun(self._first, self.now_ns)
            self._first = -1
        refused = not self._split and ballot.no >= ballot.size  # by all that were asked
        if (refused and not (self.over and kind.signs_off)) or not (kind.undoes or ballot.yes > 0):
            return None
        hold = self._hold
        return policy.ballot(hold.releasing() if self.over else kind.undoing(hold.key, hold.lease))

    def undone(self) -> None:
        """Note that the undo was sent."""
        self._kind.undone(self._policy, self._lines, self._hold.key, self._ballot)

    def end(self) -> None:
        """Give up.

        Raises:
            QuorumUnavailable: too many masters failed.
        """
        hold, now = self._hold, self.now_ns
        self._lines.leave(hold, now, False)
        hold.free()
        if self._failures:
            started = self.started_ns
            raise no_quorum("acquire", self._policy, hold, self._ballot, now - started, now - self._began_ns)

    def pause_ns(self) -> int:
        """Return until when to pause before the next attempt: several that try at once must not do so in step."""
        if self._again <= 2 or not self._kind.apart:
            return 0
        policy = self._policy
        return self.now_ns + policy.retry.again_ns(self._again, self.now_ns - self.started_ns, policy.random())

    def waited(self, waited: bool) -> None:
        """Note whether there was anything to wait for."""
        self.pauses = 0 if waited else self.pauses + 1
        self._again = 0
        if waited or self._first < 0:
            self.reached()
        else:  # not twice in a row without a wait: a key that one master has kept must not keep everybody out
            self._first = -1

    def reached(self) -> None:
        """Have the next attempt ask one master first: others may try at this moment, too."""
        if self._kind.leads:
            self._first = self._lines.first_of(self._policy, self._hold.key, self.now_ns)


def new_attempt(policy: Policy, lines: Lines, hold: Hold, ttl_ms: int, until_ns: int, began_ns: int) -> Attempt:
    """Return an Attempt. Compiled, it costs less than the constructor (see `new_ballot`)."""
    attempt: Attempt = Attempt.__new__(Attempt)
    attempt._set(policy, lines, hold, ttl_ms, until_ns, began_ns)
    return attempt
