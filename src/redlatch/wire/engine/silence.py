"""Masters that are silent: ballots do not wait for their votes.

A master is suspected if a quorum has voted without it and it then stays silent for several times the quorum's round
time. Attempts, releases and looks no longer wait for its vote. Commands still go to it. Its next byte, or its next
connection, ends the suspicion. A master that is only far away answers soon after each suspicion. From its second such
answer on, attempts wait for it as long as it needs, so that its vote counts.
"""

from __future__ import annotations

from ...votes.ballot import Ballot
from ...votes.units import UNBOUNDED, Clock
from .link import SILENT_NS, Link

# After a quorum has voted, each missing master is suspected after SILENT_ROUNDS times the quorum's round time, and at
# least SILENT_NS.
SILENT_ROUNDS = 4

# A suspected master that votes within this time after the suspicion is only far away. If its vote comes later, the
# master had stopped.
FAR_NS = 250_000_000


class Silence:
    """The suspected links of a fleet, and the ballots that wait for links which may be silent.

    Attributes:
        waiting: the ballots that a quorum has voted on and that were undecided then; the first is due at `due_ns`.
        round_ns: how long a quorum took to vote on the last attempt that had missing votes.
    """

    def __init__(self, links: list[Link], clock: Clock) -> None:
        self._links = links
        self._clock = clock
        self.suspects = 0
        self.waiting: list[Ballot] = []
        self.due_ns = UNBOUNDED
        self.round_ns = 0

    def lacks_only_suspects(self, ballot: Ballot) -> bool:
        return ballot.spares(sum([link.suspected and ballot.asked >> link.voter & 1 for link in self._links]))

    def spares(self, ballot: Ballot) -> bool:
        """Return whether a ballot that a quorum has voted on lacks only the votes of suspected masters.

        If not, set the time at which the missing masters are suspected.
        """
        if self.suspects and self.lacks_only_suspects(ballot):
            return True
        if not ballot.hurry_ns and ballot.spares(len(self._links)):
            now = self._clock.now()
            # Only an attempt measures the round time: its command was made just before it was sent. The bound keeps one
            # late reply from making the client wait much longer for the next silent master.
            if ballot.command.undo() is not None:
                self.round_ns = min(now - ballot.command.since_ns, 2 * self.round_ns + SILENT_NS)
            silences = [link.silent_ns for link in self._links if not link.suspected and ballot.asked >> link.voter & 1]
            self._wait_for(ballot, now, max(silences, default=SILENT_NS))
        return False

    def watch(self, ballot: Ballot, link: Link, now_ns: int) -> None:
        """Suspect a link if it does not answer this ballot, which only it was sent, as soon as others would.

        A byte may have ended an earlier suspicion. Then the time begins again.
        """
        if ballot.hurry_ns <= now_ns:
            self._wait_for(ballot, now_ns, link.silent_ns)

    def remind(self, reminder: Ballot, due_ns: int) -> None:
        """Have `suspect` called at that time; `reminder` is a new ballot, which no link is sent."""
        reminder.hurry_ns = due_ns
        self.waiting.append(reminder)
        self.due_ns = min(self.due_ns, due_ns)

    def _wait_for(self, ballot: Ballot, now_ns: int, silent_ns: int) -> None:
        ballot.hurry_ns = now_ns + max(SILENT_ROUNDS * self.round_ns, silent_ns)
        self.waiting.append(ballot)
        self.due_ns = min(self.due_ns, ballot.hurry_ns)

    def suspect(self, now_ns: int) -> list[Ballot]:
        """Suspect the late masters; return the ballots to tally again."""
        for link in self._links:
            if not link.suspected:
                self._suspect_if_late(link, now_ns)
        return [ballot for ballot in self.waiting if not ballot.decided]

    def forget(self, now_ns: int) -> None:
        self.waiting = [ballot for ballot in self.waiting if not ballot.decided and ballot.hurry_ns > now_ns]
        self.due_ns = min([ballot.hurry_ns for ballot in self.waiting], default=UNBOUNDED)

    def _suspect_if_late(self, link: Link, now_ns: int) -> None:
        """Suspect a link with a due ballot, in one pass, because it may owe many votes."""
        late = -1
        for at in range(link.head, len(link.pending)):
            ballot = link.pending[at]
            if 0 < ballot.hurry_ns <= now_ns and not ballot.decided:
                late = at
                break
        if late >= 0 and link.missing_vote < 0:
            link.missing_vote, link.suspected_ns = link.cut + late, now_ns
        parked = [ballot for ballot in link.parked if 0 < ballot.hurry_ns <= now_ns and not ballot.decided]
        if late >= 0 or parked:
            link.suspected = True
            self.suspects += 1

    def trust(self, link: Link) -> None:
        if link.suspected:
            link.suspected = False
            self.suspects -= 1

    def learn(self, link: Link) -> None:
        """Learn from a late vote how far away its master is.

        The smaller of the last two delays counts: one late vote does not make the client wait longer for a master that
        stops.
        """
        if link.cut + link.head > link.missing_vote:
            late_ns = self._clock.now() - link.suspected_ns
            late_ns = link.silent_ns + late_ns if late_ns < FAR_NS else 0
            link.silent_ns = max(link.silent_ns, min(2 * min(link.late_ns, late_ns), 2 * FAR_NS))
            link.late_ns = late_ns
            link.missing_vote = -1
