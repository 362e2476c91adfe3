"""The votes on one command."""

from __future__ import annotations

from typing import Any

from .commands import NO, REFUSAL, SIGNED, TEXT, VOTE, Command


class Ballot:
    """One command, sent to several masters, and their votes on it.

    A ballot is decided as soon as no further vote can change its result. Later votes are still counted. All masks have
    bit i for master i.

    Attributes:
        asked: a mask of the masters that are asked; -1 for all.
        until_ns: when the submitter stops waiting.
        yes, no, failed: the votes so far. A master without any vote is silent.
        silent: the indexes of the masters that had not answered by `until_ns`.
        answers: the replies that are kept, by the index of the master (see `Command.meaning`).
        waiter: the object that the driver wakes when the ballot is decided.
        behind: a ballot that is submitted directly after this one. Of a repair, the extension before it.
        refusers: a mask of the masters that voted no on a release.
        unsent: a mask of the masters that were sent no earlier copy of a release, as far as was noted.
        released_lock, released_lease: the lock that this ballot releases without waiting, and its lease. The driver
            reports the lock as lost if the release is refused.
        resent: a mask of the masters that were sent the full text of the script.
        hops: how many times a node of a cluster has sent the ballot on.
        hurry_ns: when the masters that have not voted are suspected; 0 until a quorum has voted.
    """

    __slots__ = (
        "answers",
        "asked",
        "behind",
        "causes",
        "command",
        "decided",
        "failed",
        "hops",
        "hurry_ns",
        "no",
        "quorum",
        "refusers",
        "released_lease",
        "released_lock",
        "reopened",
        "resent",
        "silent",
        "size",
        "unsent",
        "until_ns",
        "waiter",
        "yes",
    )

    def __init__(self, command: Command, size: int, quorum: int, until_ns: int = 0) -> None:
        self._begin(command, size, quorum, until_ns)

    def _begin(self, command: Command, size: int, quorum: int, until_ns: int) -> None:
        self.command = command
        self.size = size
        self.quorum = quorum
        self.until_ns = until_ns
        self.decided = False
        self.reopened = False
        self.waiter: Any = None
        self.asked = -1
        self.yes = 0
        self.no = 0
        self.failed = 0
        self.refusers = 0
        self.unsent = 0
        self.answers: dict[int, Any] | None = None
        self.causes: dict[int, BaseException] | None = None
        self.silent: tuple[int, ...] = ()
        self.behind: Ballot | None = None
        self.released_lock: Any = None
        self.released_lease: Any = None
        self.resent = self.hops = 0
        self.hurry_ns = 0

    def settled(self) -> bool:
        """Return whether the result is final: a quorum voted yes, or a quorum of yes votes is no longer possible.

        Three kinds of ballots have other rules:

          * A release: a "no" also counts as an answer, since that master does not hold the key with our token. But it
            may be the work of an earlier copy; then a caller waits for all votes.
          * A `Look` or `Called`: a master also counts that will push a change of the key.
          * A ballot that was reopened has its own rule (`settled_again`).
        """
        if self.reopened:
            return self.settled_again()
        # The first test of `meaning` saves most commands the look-up of the global NO.
        lost = self.size - self.quorum
        if self.command.meaning and self.command.meaning == NO:
            kept = 0 if self.answers is None else len(self.answers)
            return self.yes + kept >= self.quorum or self.no - kept + self.failed > lost
        undecided = _undecided(self)
        if undecided:
            against = self.no + self.failed
            return (
                self.yes >= self.quorum
                or against > lost
                or (self.yes + undecided >= self.quorum and against + undecided > lost)
            )
        if self.yes >= self.quorum or self.failed > lost:
            return True
        if self.no > lost and (not self.command.tried or self.released_lock is not None):
            return True
        against = self.no + self.failed
        return against + self.yes >= self.size if self.command.releases else against > lost

    def ask_only(self, index: int, until_ns: int) -> None:
        self.asked = 1 << index
        self.size = self.quorum = 1
        self.until_ns = until_ns

    def ask_others(self, size: int, quorum: int, until_ns: int) -> Ballot:
        """Return a ballot that asks the other masters; `size` and `quorum` include the one that was asked first."""
        ballot = new_ballot(self.command, size - 1, quorum - 1, until_ns)
        ballot.asked = ~self.asked
        return ballot

    def count_answer(self, index: int, answer: Any, pushes: bool) -> None:
        """Count a reply that is neither `command.yes` nor `command.no`. A master that pushes tracks the key."""
        meaning = self.command.meaning
        if meaning == TEXT or ((meaning == SIGNED or meaning < REFUSAL) and answer > 0):
            self.yes += 1
        elif meaning >= REFUSAL:
            self.no += 1
        if pushes or self.command.meaning != NO:
            if self.answers is None:
                self.answers = {}
            self.answers[index] = answer

    def missing(self) -> int:
        return self.size - self.yes - self.no - self.failed - _undecided(self)

    def lone(self) -> bool:
        return self.size == 1 and self.asked > 0

    def spares(self, suspects: int) -> bool:
        """Return whether the ballot can be decided without the votes of `suspects` silent masters.

        It can if a quorum has voted. An attempt then counts as refused and is tried again; a release is done. But a
        late vote may still change the result of an extension or of a question such as `owned`, or prove the loss of a
        lock that is released without waiting.
        """
        command = self.command
        if self.reopened or not 0 < self.missing() <= suspects:
            return False
        if not (command.releases or command.meaning == NO or command.undo() is not None):
            return False
        if self.released_lock is not None:
            return False
        return self.lone() or self.yes + self.no + _undecided(self) >= self.quorum

    def won(self) -> bool:
        # A negative answer may become a yes in a second round.
        return self.yes + _undecided(self) >= self.quorum

    def settled_again(self) -> bool:
        return self.yes + self.no + self.failed + _undecided(self) >= self.size

    def reopen(self, until_ns: int) -> None:
        self.until_ns = until_ns
        self.reopened = True
        # Clear the flag before `settled` runs. A vote that another thread counts in between then sets it again.
        self.decided = False
        if self.settled():
            self.decided = True

    def withdraw(self) -> None:
        """Mark the command as undone, so that this ballot can no longer be won."""
        self.yes = -self.size

    def refused(self) -> bool:
        return self.no > self.size - self.quorum

    def unavailable(self) -> bool:
        silent = 0 if self.decided else self.size - self.yes - self.no - self.failed - _undecided(self)
        return self.failed + silent > self.size - self.quorum


def new_ballot(command: Command, size: int, quorum: int, until_ns: int) -> Ballot:
    """Return a new ballot faster than the compiled constructor, which makes a Python object of each argument."""
    ballot: Ballot = Ballot.__new__(Ballot)
    ballot._begin(command, size, quorum, until_ns)
    return ballot


def last_open(ballots: list[Ballot], end: int, late_ns: int) -> int:
    """Return the place of the last ballot before `end` that is undecided and was in time at `late_ns`, or -1.

    This is a function, because a coroutine has no C types.
    """
    for place in range(end - 1, -1, -1):
        ballot = ballots[place]
        if not ballot.decided and ballot.until_ns > late_ns:
            return place
    return -1


def _undecided(ballot: Ballot) -> int:
    # A function, because Cython calls the methods of a class with subclasses slower.
    if ballot.answers is None or ballot.command.meaning != VOTE:
        return 0
    return len(ballot.answers) - ballot.yes
