"""One command's votes. Compiled as `redlatch._c.protocol.ballot`, too (see `redlatch._c`)."""

from __future__ import annotations

from typing import Any

from .commands import GONE, NO, REFUSAL, VOTE, Command

# What whoever put the ballot waits for.
VERDICT, CHANGE, ALL = range(3)

# A key without a ttl stays for so long.
FOREVER_MS = 1 << 40


class Ballot:
    """A command put to the vote of every master, and what they said.

    The verdict stands as soon as no further vote can change it; votes that come later are still counted.

    Attributes:
        command: what is asked.
        size, quorum: how many masters are asked, and how many must agree.
        asked: bit i says that master i is asked; -1 is everybody.
        until_ns: when whoever asked stops waiting, in nanoseconds since boot.
        yes, no, failed: the votes so far; whoever is in none of them is silent.
        decided: whether the verdict stands.
        causes: the errors of the failed votes by index of the master, or None.
        silent: who had not answered when the time was over, by index of the master.
        answers: the numbers that are kept, by index of the master (see `Command.tells`), or None.
        waits_for: a verdict, or only for a change of votes to a "yes", or for what all have to say.
        waiter: whom the driver tells when it is decided; None where nobody is to be told.
        behind: a ballot that is put right behind this one, or None.
        farewell: the lock that was released by it without waiting; told if it turns out that it had been lost.
        resent: bit i says that master i got the full text of the script already.
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
        "farewell",
        "hurry_ns",
        "no",
        "quorum",
        "resent",
        "silent",
        "size",
        "until_ns",
        "waiter",
        "waits_for",
        "yes",
    )

    def __init__(self, command: Command, size: int, quorum: int, until_ns: int = 0) -> None:
        self._begin(command, size, quorum, until_ns)

    def _begin(self, command: Command, size: int, quorum: int, until_ns: int) -> None:
        self.command = command
        self.size = size
        self.quorum = quorum
        self.until_ns = until_ns
        self.asked = -1
        self.yes = 0
        self.no = 0
        self.failed = 0
        self.decided = False
        self.answers: dict[int, int] | None = None
        self.waits_for = VERDICT
        self.causes: dict[int, BaseException] | None = None
        self.silent: tuple[int, ...] = ()
        self.waiter: Any = None
        self.behind: Ballot | None = None
        self.farewell: Any = None
        self.resent = 0
        self.hurry_ns = 0

    def settled(self) -> bool:
        """Tell whether the verdict stands: a quorum said yes, or no quorum can any more.

        Of a release more is asked, since it is over only when a quorum has answered: a "no", too, says that
        the key is not ours (any more). It is settled when one kind of vote has decided it, or all have come.
        And a question on which a waiter waits is settled when a quorum has said yes, or will push that.
        """
        if self.waits_for:  # not for a verdict
            wanted, told = self.quorum, self.yes
            if self.waits_for == ALL:
                wanted, told = self.size, told + self.no + self.failed + self.undecided()
            return told >= wanted
        lost = self.size - self.quorum
        if self.command.tells and self.command.tells == NO:  # a constant costs a look-up, nothing else does
            kept = 0 if self.answers is None else len(self.answers)
            return self.yes + kept >= self.quorum or self.no - kept + self.failed > lost
        undecided = self.undecided()
        if undecided:
            told = self.no + self.failed
            return self.yes >= self.quorum or told > lost or (self.won() and told + undecided > lost)
        if self.yes >= self.quorum or self.no > lost or self.failed > lost:
            return True
        told = self.no + self.failed
        return told + self.yes >= self.size if self.command.releases else told > lost

    def ask_only(self, index: int, until_ns: int) -> None:
        """Put it to one master first, whose vote decides."""
        self.asked = 1 << index
        self.size = self.quorum = 1
        self.until_ns = until_ns

    def ask_others(self, size: int, quorum: int, until_ns: int) -> Ballot:
        """Return the ballot for all the other masters of `size`, of whom one less than `quorum` must agree."""
        ballot = new_ballot(self.command, size - 1, quorum - 1, until_ns)
        ballot.asked = ~self.asked
        return ballot

    def watchable(self) -> bool:
        """Tell whether so many masters said yes, or will say when it changes, that a change makes a quorum."""
        return self.yes + (0 if self.answers is None else len(self.answers)) >= self.quorum

    def left_ns(self) -> int:
        """Return after which time a quorum should say yes by itself: when so many of the keys looked at are gone."""
        told = list((self.answers or {}).values())  # one call: another thread may add an answer meanwhile
        answers = sorted([answer if answer >= 0 else FOREVER_MS for answer in told])
        missing = self.quorum - self.yes
        return answers[missing - 1] * 1_000_000 if 0 < missing <= len(answers) else 0  # else they told meanwhile

    def standing(self) -> int:
        """Count the masters that had the key when they were asked, and will push its next change."""
        return sum([answer != GONE for answer in list((self.answers or {}).values())])

    def tell(self, index: int, answer: int, pushes: bool) -> None:
        """Count a number that is neither `yes` nor `no`; `pushes` says that the master will tell when it changes."""
        if self.command.tells >= REFUSAL:
            self.no += 1
        elif answer > 0:
            self.yes += 1
        if pushes or self.command.tells != NO:
            if self.answers is None:
                self.answers = {}
            self.answers[index] = answer

    def undecided(self) -> int:
        """Count the masters that answered neither yes nor no, but with a number to be settled in a second round."""
        if self.answers is None or self.command.tells != VOTE:
            return 0
        return len(self.answers) - self.yes

    def missing(self) -> int:
        """Count the masters that have not answered."""
        return self.size - self.yes - self.no - self.failed - self.undecided()

    def lone(self) -> bool:
        """Tell whether this ballot asks one master before the others."""
        return self.size == 1 and self.asked > 0

    def spares(self, suspects: int) -> bool:
        """Tell whether a ballot can be decided without the votes of `suspects` silent masters.

        It can if a quorum has voted and only these masters are missing. An attempt then counts as refused and is tried
        again; a release is done. Extensions, and questions such as `owned`, keep waiting: a late vote may still change
        their result. So does a release that reports its lock as lost: no caller waits for it, and a late vote may prove
        the loss.
        """
        command = self.command
        if self.waits_for or not 0 < self.missing() <= suspects:
            return False
        if not (command.releases or command.tells == NO or command.undo() is not None):
            return False
        if self.farewell is not None:
            return False
        return self.lone() or self.yes + self.no + self.undecided() >= self.quorum

    def won(self) -> bool:
        """Tell whether a quorum said yes, or would in a second round."""
        return self.yes + self.undecided() >= self.quorum

    def watch(self, until_ns: int) -> None:
        """Wait until so many of the masters that said "no" told of a change that a quorum may say "yes"."""
        self._wait_on(CHANGE, until_ns)

    def wait_for_all(self, until_ns: int) -> None:
        """Wait, after the verdict, for those that have not answered."""
        self._wait_on(ALL, until_ns)

    def _wait_on(self, what: int, until_ns: int) -> None:
        self.until_ns = until_ns
        self.waits_for = what
        self.decided = False  # before the question: what another thread counts meanwhile decides it again
        if self.settled():
            self.decided = True

    def change(self, index: int) -> bool:
        """Turn the "no" of a master that told of a change into a "yes"; tell whether that decides it."""
        if self.answers is None or self.answers.pop(index, None) is None:
            return False
        self.no -= 1
        self.yes += 1
        if self.decided or self.yes < self.quorum:
            return False
        self.decided = True
        return True

    def withdraw(self) -> None:
        """Note that what it asked for is undone already, so that it cannot be won any more."""
        self.yes = -self.size

    def refused(self) -> bool:
        """Tell whether so many masters said no that no quorum can have said yes."""
        return self.no > self.size - self.quorum

    def unavailable(self) -> bool:
        """Tell whether failed and silent masters alone made a verdict impossible."""
        silent = 0 if self.decided else self.size - self.yes - self.no - self.failed - self.undecided()
        return self.failed + silent > self.size - self.quorum


def new_ballot(command: Command, size: int, quorum: int, until_ns: int) -> Ballot:
    """Return a ballot. Compiled, a constructor would make Python objects of all its arguments first."""
    ballot: Ballot = Ballot.__new__(Ballot)
    ballot._begin(command, size, quorum, until_ns)
    return ballot
