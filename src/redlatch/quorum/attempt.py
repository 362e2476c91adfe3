"""The attempts of one acquire, and what follows from their votes.

  begin           before the first byte leaves: take a new token; return the ballot on it
  second          return a second ballot, if the first one does not decide
  keep_if_won     judge the votes: if a quorum came in time, the hold is HELD
  reopen_for_all  after a lost attempt: return whether to wait for the masters that have not answered
  judge           decide how to go on; return the ballot that undoes the attempt, if it must be undone

Between these steps the driver does what `acquire` yields.
"""

from __future__ import annotations

from ..votes.ballot import Ballot
from ..votes.units import UNBOUNDED
from .hold import Hold
from .outcome import broke, granted, is_final, may_heal, no_quorum, repeated
from .policy import Outage
from .quorum import Quorum


class Attempt:
    """The attempts of one acquire; `new_attempt` makes them (see `new_ballot`).

    Attributes:
        until_ns: the end of the caller's timeout; 0 if it had ended when the acquire began.
        now_ns: when the last votes were counted; at first, when the acquire began.
        waits: whether the next attempt follows only after a change.
        pauses: how many times in a row there was nothing to wait for.
    """

    __slots__ = (
        "_again",
        "_ballot",
        "_began_ns",
        "_deadline_ns",
        "_doubted",
        "_failures",
        "_figures",
        "_first",
        "_first_silent",
        "_kind",
        "_outage",
        "_rides_until_ns",
        "_split",
        "_waiting_for_all",
        "counted",
        "hold",
        "now_ns",
        "over",
        "pauses",
        "quorum",
        "started_ns",
        "ttl_ms",
        "until_ns",
        "wait_ns",
        "waits",
    )

    def _begin(self, quorum: Quorum, hold: Hold, ttl_ms: int, until_ns: int, began_ns: int) -> None:
        self.quorum = quorum
        self.hold = hold
        self._kind = hold.kind
        self._figures = hold.figures_in(quorum)
        self.ttl_ms = ttl_ms
        self.until_ns = until_ns
        self._began_ns = began_ns
        # The master that the next attempt asks first; -1 for all at once.
        self._first = -1
        self.now_ns = began_ns
        self.over = self.waits = self.counted = False
        self.pauses = 0
        self._failures = 0
        self._again = 0
        # Attempts in a row that were lost because a vote was in doubt.
        self._doubted = 0
        self._outage: Outage | None = None
        self._rides_until_ns = 0

    def begin(self, started_ns: int) -> Ballot:
        quorum = self.quorum
        deadline = started_ns + quorum.validity_ns(self.ttl_ms)
        end = self._rides_until_ns or self.until_ns
        wait = quorum.wait_within(self.ttl_ms, end - started_ns if end else UNBOUNDED)
        until = min(deadline, started_ns + wait)
        ballot = self.hold.attempt(quorum, self.ttl_ms, started_ns, deadline, until)
        if self._first >= 0:
            ballot.ask_only(self._first, started_ns + quorum.lone_ns(wait, self.quorum.queues.first_master.round_ns))
        ballot.behind = self._kind.behind()
        self.started_ns = started_ns
        self.wait_ns = wait
        self._deadline_ns = deadline
        self._ballot = ballot
        self._split = self._waiting_for_all = False
        return ballot

    def second(self) -> Ballot | None:
        quorum, ballot = self.quorum, self._ballot
        if self._first >= 0 and ballot.yes >= ballot.quorum:
            until = min(self._deadline_ns, self.started_ns + self.wait_ns)
            second: Ballot | None = ballot.ask_others(quorum.size, quorum.majority, until)
        else:
            second = self._kind.second_round(quorum, self.hold, ballot)
        if second is not None:
            self._ballot = second
            self._split = True
        return second

    def keep_if_won(self) -> bool:
        quorum, hold, kind = self.quorum, self.hold, self._kind
        # The vote of the master that was asked first may come after `second`. Alone it is no quorum.
        whole = self._split or self._first < 0
        won = whole and self._ballot.yes >= self._ballot.quorum
        # Read after the last vote that counts (see `granted`).
        now = quorum.clock.now()
        self.now_ns = now
        if not granted(quorum, hold, won, self._deadline_ns, now):
            doubted = won and quorum.doubts.cover(hold.lease.since_ns, hold.key)
            self._doubted = self._doubted + 1 if doubted else 0
            return False
        if self.quorum.queues.outages:
            self.quorum.queues.end_outage(hold.key)
        # First: once the hold is HELD, another thread may release and acquire it again.
        kind.end_watch(self.quorum, hold.key)
        hold.won_ns = now
        hold.keep(now - self.started_ns)
        self.count_win(now)
        kind.won(quorum, hold)
        self.quorum.queues.overtake(quorum, hold, now)
        if (kind.shares and kind.enters_queue) or (hold.token_exposed and hold.key in self.quorum.queues.by_key):
            self.quorum.queues.note_unqueued(hold, now)
            self.quorum.queues.leave(hold, now, False)
        return True

    def reopen_for_all(self) -> bool:
        ballot = self._ballot
        self._first_silent = self._first >= 0 and not self._split and not ballot.no
        if not self._first_silent:
            self._failures = self._failures + 1 if ballot.unavailable() else 0
        # If all masters refuse, nothing must be undone.
        if not self._kind.waits_for_all or self._split or not ballot.decided or ballot.yes or ballot.no >= ballot.size:
            return False
        ballot.reopen(min(self.now_ns + 2 * (self.now_ns - self.started_ns), self.until_ns))
        self._waiting_for_all = True
        return True

    def judge(self) -> Ballot | None:
        quorum, kind, ballot, failures = self.quorum, self._kind, self._ballot, self._failures
        self._figures.count_split(ballot)
        if self._waiting_for_all:
            self.now_ns = quorum.clock.now()
        in_time = self.now_ns < self.until_ns
        asks_again = not failures and kind.note_answers(quorum, ballot) and (in_time or self._again < kind.late)
        # Masters that had just forgotten their locks have said yes, so the lock may be free: ask once more.
        asks_again = asks_again or self._doubted == 1
        if not (self._first_silent or asks_again):
            # A first failure is not final: the next commands wait for new connections.
            self.over = self._ends(ballot, failures) if failures else not in_time
        if not (failures or self._first_silent):
            self._rides_until_ns = 0
            self._outage = None
            self.quorum.queues.end_outage(self.hold.key)
        self.waits = not (self._first_silent or asks_again or failures)
        self._again = self._again + asks_again
        self._note_first_master()
        return self._undo(ballot)

    def _note_first_master(self) -> None:
        first_master = self.quorum.queues.first_master
        if self._kind.asks_one_first and self._first < 0:
            first_master.round_ns = self.now_ns - self.started_ns
        if self._first_silent:
            first_master.deprioritise(self._first, self.now_ns)
            self._first = -1

    def _undo(self, ballot: Ballot) -> Ballot | None:
        """Return the ballot that undoes the attempt; None if no master can have stored anything."""
        hold, kind = self.hold, self._kind
        refused = not self._split and ballot.no >= ballot.size
        if (refused and not (self.over and kind.signs_off)) or not (kind.undoes or ballot.yes > 0):
            return None
        return self.quorum.ballot(kind.undoing(hold.key, hold.lease, self.over))

    def _ends(self, ballot: Ballot, failures: int) -> bool:
        quorum, hold, outage = self.quorum, self.hold, self._outage
        error = no_quorum("acquire", quorum, hold, ballot, self.now_ns - self.started_ns)
        if outage is None:
            outage = self._outage = self.quorum.queues.note_outage(hold, Outage(self.started_ns, error))
            self._rides_until_ns = outage.rides_until_ns(quorum.patience_ns, self._began_ns, self.until_ns)
        outage.error = error
        if self.now_ns < max(self._rides_until_ns, min(quorum.moving_ns, self.until_ns)) and may_heal(ballot):
            return False
        if failures == 2 and broke(ballot):
            return False
        if not is_final(ballot, failures):
            return False
        outage.give_up(self.started_ns)
        return True

    def undone(self) -> None:
        self._kind.undone(self.quorum, self.hold.key, self._ballot)

    def end(self) -> None:
        """Give up, after the watch of the acquire has ended; raise QuorumUnavailable if too many masters failed."""
        hold, now = self.hold, self.now_ns
        self.quorum.queues.leave(hold, now, False)
        hold.free()
        if self._outage is None:
            self.count_refusal(self.until_ns <= self._began_ns)
        else:
            self.count_outage()
            raise repeated(self._outage.error, now - self._began_ns)

    def count_win(self, won_ns: int) -> None:
        self._figures.win(won_ns - self._began_ns)
        self.counted = True

    def count_refusal(self, at_once: bool) -> None:
        self._figures.refuse(at_once)
        self.counted = True

    def count_outage(self) -> None:
        self._figures.unavailable = self._figures.unavailable + 1
        self.counted = True

    def count_break(self) -> None:
        if not self.counted:
            self._figures.cancelled = self._figures.cancelled + 1
            self.counted = True

    def pause_ns(self) -> int:
        """Return when the pause before the next attempt ends; 0 for no pause."""
        if self._failures > 1:
            pause_ns = self.quorum.retry.back_off_ns(self.quorum.random())
            if self._rides_until_ns <= self.now_ns:
                return self.now_ns + pause_ns
            # Up to eight times as long, because many callers may ride the outage out.
            return min(self.now_ns + (pause_ns << min(self._failures - 2, 3)), self._rides_until_ns)
        if self._again <= 2 or not self._kind.apart:
            return 0
        quorum = self.quorum
        return self.now_ns + quorum.retry.again_ns(self._again, self.now_ns - self.started_ns, quorum.random())

    def waited(self, waited: bool) -> None:
        self.pauses = 0 if waited else self.pauses + 1
        self._again = 0
        if waited or self._first < 0 or self._split:
            self.reached()
        else:
            # The first master refused although the key is free elsewhere: it may have kept a key without a holder.
            self._first = -1

    def reached(self) -> None:
        if self._kind.asks_one_first:
            self._first = self.quorum.queues.first_master.first_of(self.quorum.order, self.hold.key, self.now_ns)


def new_attempt(quorum: Quorum, hold: Hold, ttl_ms: int, until_ns: int, began_ns: int) -> Attempt:
    attempt: Attempt = Attempt.__new__(Attempt)
    attempt._begin(quorum, hold, ttl_ms, until_ns, began_ns)
    return attempt
