"""Who waits for whom in this client: a line for each name, and at its head who asks the masters, or holds.

Rules:
  * `heads` names for each key the one hold that asks the masters for it, or has it. All others of this client stand in
    the key's line; so a thousand tasks on one name are one contender. It decides who asks, never who holds: that is up
    to the masters, so that two heads, as an interrupt may leave them, cost a command and no safety.
  * A lease passes from a hold to the first in line without a word to the masters. It is put on the turn and the turn
    is called; who leaves its turn says so first and looks for a lease afterwards, who gives one looks afterwards
    whether the turn was left. So at least one of them sees the other, and has the lease released whatever the other
    does: a lease that was left is never passed to anybody else.
  * Nobody is forgotten. Who joins a line looks for the head afterwards, and who gives the head up looks into the line
    afterwards. A ballot is called in two steps: first `decided` is set, then the ballot is appended to `called`. Any
    thread may take a ballot from `called`, and the sleeper that it wakes must find `decided` set. There is no call
    between the two steps, so no interrupt can separate them. The driver for threads removes the ballot from `called`
    after it has woken the waiter. (`_have_it_look` appends an undecided ballot: its waiter wakes up only to look.)
  * A watch waits for masters to say that a key has changed. They do not say it of what this client changed itself, so
    that is told here (`stir`).

Longer than a module should be: heads, lines and watches change together, and who reads of one looks for the others.

Between a question and the step that follows from it there is never a call, as in `hold`. One text, twice: it is
compiled as `redlatch._c.protocol.waiting` (see `redlatch._c`).
"""

from __future__ import annotations

from collections import deque
from zlib import crc32

from redlatch.errors import LockBusy

from .ballot import Ballot
from .commands import Command
from .hold import HELD, PASSED, RELEASING, WAITING, Hold
from .lease import Lease
from .policy import MILLISECOND, SECOND, Policy

# A fenced lease has numbers for so many others: as many microseconds as mostly pass meanwhile, or fewer.
MAX_SUCCESSORS = 1024

# So many heads there may be, and twice as many as are busy.
MOST_HEADS = 1024

# How many deletions by hand are remembered for attempts that are under way.
LOSSES = 64

UNKNOWN_NS = SECOND // 10  # after so long a head that held nothing is looked at again
STILL_NS = 5 * MILLISECOND  # after this time without a hand-off, the first in line watches the holder's key
_NO_COMMAND = Command(b"", b"", 0)  # on which a line waits


class Turn:
    """One place in a line.

    Attributes:
        hold: whose it is.
        ballot: what its owner waits for: decided when the turn has come.
        left: whether its owner is gone.
        lease: what came with it; None where the masters must be asked.
        giver: the hold that gave it.
        courteous: whether other processes are to have a chance first.
        looks: whether its owner watches the holder's key when it is the first in line.
        watch: the ballot on the holder's key that its owner is waiting for as well; or None.
    """

    __slots__ = ("ballot", "courteous", "giver", "hold", "lease", "left", "looks", "watch")

    def __init__(self, hold: Hold, until_ns: int) -> None:
        self.hold = hold
        self.ballot = Ballot(_NO_COMMAND, 0, 0, until_ns)
        self.left = False
        self.lease: Lease | None = None
        self.giver: Hold | None = None
        self.courteous = False
        self.looks = False
        self.watch: Ballot | None = None

    def take(self) -> Lease | None:
        """Take the lease, if there is one; only one of all who try gets it."""
        lease = self.lease
        self.lease = None
        return lease

    def inherit(self) -> bool:
        """Move the lease to the hold; return whether there was one.

        After an interrupt the lease is in the turn, in the hold, or in both.
        """
        lease, giver = self.lease, self.giver
        if lease is None or giver is None:
            return False
        self.hold.inherit(lease, giver)
        if self.take() is None:  # the giver has taken it back and releases it
            self.hold.state = WAITING
            return False
        return True


class Line:
    """The turns on one name, first come first served, and how fast it moves."""

    __slots__ = ("moved_ns", "pace_ns", "turns")

    def __init__(self) -> None:
        self.turns: deque[Turn] = deque()
        self.moved_ns = 0
        self.pace_ns = 0

    def move(self, now_ns: int) -> None:
        """Note that the lock has changed its owner."""
        if self.moved_ns:
            self.pace_ns += (now_ns - self.moved_ns - self.pace_ns) // 8
        self.moved_ns = now_ns


class Lines:
    """All lines of one client."""

    def __init__(self) -> None:
        self.heads: dict[bytes, Hold] = {}
        self.lines: dict[bytes, Line] = {}
        self.watches: dict[bytes, list[Ballot]] = {}
        self.called: deque[Ballot] = deque()  # decided; to be woken by the driver
        self.crowded: set[bytes] = set()  # keys that were refused when they were last asked for
        self._most = MOST_HEADS  # before those that are not busy are swept out
        self.round_ns = 0  # how long the last attempt took that asked all masters at once and was not won
        self._lost: deque[tuple[bytes, int]] = deque(maxlen=LOSSES)  # keys that were deleted by hand, and when
        self._shunned: dict[int, int] = {}  # until when, by index of the master

    # --- the line ----------------------------------------------------------------------------------

    def enter(self, hold: Hold, now_ns: int) -> bool:
        """Become the head where nobody is, or where the one who is need not be waited for; tell whether that was so."""
        while True:
            head = self.heads.setdefault(hold.key, hold)
            if head is hold:
                if len(self.heads) > self._most:
                    self._sweep(now_ns)
                return True
            if head.busy(now_ns):
                return False
            if self.heads.get(hold.key) is head:  # else it has handed its lease off since we looked
                break
        line = self.lines.get(hold.key)
        if line is not None and _is_others(line, hold):
            self._call_next(line, now_ns, False)
            return False
        self.heads[hold.key] = hold
        return True

    def _sweep(self, now_ns: int) -> None:
        """Forget heads that were never released, and have run out."""
        for key, head in list(self.heads.items()):
            if not head.busy(now_ns) and key not in self.lines and self.heads.get(key) is head:
                self.heads.pop(key, None)
        self._most = MOST_HEADS + 2 * len(self.heads)

    def join(self, policy: Policy, turn: Turn, now_ns: int) -> None:
        """Put a turn at the end of its line; the caller has it already, to step out with if this is interrupted.

        Raises:
            LockBusy: as many as may wait here.
        """
        hold, give_up_ns = turn.hold, turn.ballot.until_ns
        while True:
            line = self.lines.get(hold.key)
            if line is None:
                line = self.lines.setdefault(hold.key, Line())
            depth = len(line.turns)
            if depth >= policy.max_waiters:
                self._dissolve(hold.key, line)
                raise _busy(hold, depth, f"only {policy.max_waiters} may")
            if policy.refuse_late and now_ns + line.pace_ns * (depth + 1) > give_up_ns:
                self._dissolve(hold.key, line)
                raise _busy(hold, depth, f"each takes {line.pace_ns / SECOND:.6f} s, too long for the timeout")
            line.turns.append(turn)
            if self.lines.get(hold.key) is line:  # else it was dissolved meanwhile, and nobody will look into it
                return

    def step_out(self, turn: Turn, now_ns: int) -> Lease | None:
        """Leave the line; return a lease that came too late, or None. If interrupted, it may be repeated.

        The hold then has this lease. The caller releases it and leaves the head afterwards.
        """
        turn.left = True
        self.drop(turn)
        lease = turn.lease
        if turn.inherit():
            return lease
        if self.heads.get(turn.hold.key) is turn.hold:
            self.leave(turn.hold, now_ns, False)
        return None

    def drop(self, turn: Turn) -> None:
        """Take a turn out of its line, if it is there still."""
        line = self.lines.get(turn.hold.key)
        if line is not None:
            _discard(line, turn)
            self._dissolve(turn.hold.key, line)

    def pass_on(self, policy: Policy, hold: Hold, now_ns: int) -> bool:
        """Give the lease of a hold that is being released to the next in line; tell whether somebody took it.

        Not when its tenure is over: other processes wait for it, too. Longer than a function should be: between the
        check of the head and the first `append` there may be no call, so nothing can move to a helper.
        """
        line = self.lines.get(hold.key)
        if line is None:
            return False
        # An extension may reach the masters behind the next one's own.
        busy = hold.extending is not None
        lease = hold.lease
        over = now_ns - lease.since_ns >= policy.tenure_ns or lease.passed >= policy.tenure_count
        turn = None if busy or over or policy.doubts(lease.asked_ns) else _next(line)
        if turn is None or not hold.may_pass_to(turn.hold):
            return False
        line.move(now_ns)
        lease = hold.lease.handed_on()
        # No call from here until the turn is called, so neither an interrupt nor another thread can come in between.
        # After an interrupt the lease belongs to exactly one of the two holds. If another thread has already put the
        # turn at the head, to ask the masters, the first check fails and the turn gets no lease. If another thread has
        # already sent a release of this lock, after an interrupt, the second one fails.
        if hold.key not in self.heads or self.heads[hold.key] is not hold:
            return False
        if hold.state not in (HELD, RELEASING):
            return False
        hold.state = PASSED
        if hold.shown:  # since we looked
            hold.state = RELEASING
            return False
        self.heads[hold.key] = turn.hold
        turn.giver = hold  # whose loss, from now on too, is that of the next one
        turn.lease = lease
        turn.ballot.decided = True  # before it is appended to `called`
        watch = turn.watch
        if watch is not None:  # as in `_call`
            watch.yes = watch.quorum
            if watch.decided:
                watch = None
            else:
                watch.decided = True
        kept = True
        try:
            self.called.append(turn.ballot)
        finally:  # also after an interrupt: otherwise the lease would stay on the masters until its ttl
            if turn.left and turn.lease is not None:  # its owner has left while we gave it, and will not find it
                turn.lease = None  # no call since the question: it is taken once
                hold.state = RELEASING
                kept = False
                self.leave(turn.hold, now_ns, False)
            elif watch is not None:
                self.called.append(watch)
        _discard(line, turn)
        return kept

    def leave(self, hold: Hold, now_ns: int, courteous: bool) -> None:
        """Give the head up to the next in line, who is called to ask the masters; call who watches the key.

        Args:
            courteous: whether other processes are to have a chance first.
        """
        key = hold.key
        self.stir(key)
        if self.heads.get(key) is not hold:
            return
        line = self.lines.get(key)
        if line is not None and self._call_next(line, now_ns, courteous):
            return
        self.heads.pop(key, None)
        line = self.lines.get(key)  # who joined before that may have seen us at the head
        if line is not None and not self._call_next(line, now_ns, courteous):
            self._dissolve(key, line)

    def overtake(self, policy: Policy, hold: Hold, now_ns: int) -> None:
        """Take note that a hold has won: another one at the head, which was not believed, has lost its key then."""
        if not policy.hearsay and self.heads.get(hold.key) is not hold:
            self.lose(hold.key, now_ns)

    def lose(self, key: bytes, now_ns: int) -> None:
        """Take note that somebody has deleted a key: who holds it here has lost it."""
        self._lost.append((key, now_ns))
        head = None
        while head is not self.heads.get(key):  # of two who pass it on meanwhile one is told
            head = self.heads.get(key)
            if head is not None:
                head.lose(now_ns)

    def deleted(self, hold: Hold) -> bool:
        """Tell whether somebody has deleted the key of a hold since its attempt began.

        `lose` marks only the hold at the head. Attempts beside the head rely on this check.
        """
        since_ns = hold.lease.since_ns
        if self._lost:
            lost = list(self._lost)
            if len(lost) == LOSSES and lost[0][1] >= since_ns:  # a deletion of this key may have been dropped
                return True
            for key, lost_ns in lost:
                if key == hold.key and lost_ns >= since_ns:
                    return True
        return hold.lost_ns >= since_ns

    def is_next(self, hold: Hold) -> bool:
        """Tell whether a waiting hold is the first in its line."""
        line = self.lines.get(hold.key)
        return line is not None and not _is_others(line, hold)

    def successors(self, policy: Policy, key: bytes) -> int:
        """Return to how many others a lease may be passed on: none while nobody waits for it."""
        line = self.lines.get(key)
        return min(policy.tenure_count, MAX_SUCCESSORS) if line is not None and line.turns else 0

    def _call_next(self, line: Line, now_ns: int, courteous: bool) -> bool:
        """Put the next in line at the head, and call it; False where nobody is left."""
        while True:
            turn = _next(line)
            if turn is None:
                return False
            line.move(now_ns)
            if turn.ballot.decided:  # another thread has called it, or handed it a lease
                return True
            turn.courteous = courteous
            self.heads[turn.hold.key] = turn.hold  # no call from here until the turn is called
            turn.ballot.decided = True
            self.called.append(turn.ballot)
            if turn.watch is not None:
                self._call(turn.watch)
            _discard(line, turn)
            if not turn.left or self.heads.get(turn.hold.key) is not turn.hold:  # else its owner has called nobody
                return True

    def _dissolve(self, key: bytes, line: Line) -> None:
        """Forget a line where nobody stands."""
        try:
            if not line.turns and self.lines[key] is line:  # no call before the next step: a thread could join
                del self.lines[key]
        except KeyError:
            pass  # another thread was faster

    def expire(self, now_ns: int) -> int:
        """Call the next in line where the head need not be waited for; return when to look again, 0 if never."""
        earliest = 0
        for key, line in list(self.lines.items()):
            if not line.turns:
                self._dissolve(key, line)
                continue
            head = self.heads.get(key)
            if head is None or not head.busy(now_ns):
                if self.heads.get(key) is head:  # else the head has changed since we looked
                    self._call_next(line, now_ns, False)
                head = None
            until = now_ns + UNKNOWN_NS if head is None or head.state != HELD else head.lease.deadline_ns
            if head is not None and self._have_it_look(line, now_ns):
                until = min(until, now_ns + UNKNOWN_NS)
            earliest = min(earliest or until, until)
        return earliest

    def _have_it_look(self, line: Line, now_ns: int) -> bool:
        """Wake the first waiter of an idle line to watch the holder's key; tell whether to call this again soon."""
        turn = _next(line)
        if turn is None or not turn.looks:
            return False
        if turn.watch is None and now_ns - line.moved_ns >= STILL_NS:
            turn.ballot.until_ns = min(turn.ballot.until_ns, now_ns)
            self.called.append(turn.ballot)
        return True

    # --- which master is asked first ---------------------------------------------------------------

    def first_of(self, policy: Policy, key: bytes, now_ns: int) -> int:
        """Return the index of the master that everybody asks first for a contended key; -1 where it is no use."""
        if policy.size == 1:
            return -1
        start = crc32(key)
        for step in range(policy.size):
            index = policy.order[(start + step) % policy.size]
            if self._shunned.get(index, 0) <= now_ns:
                return index
        return -1

    def shun(self, index: int, now_ns: int) -> None:
        """Ask another master first for a second: this one did not answer."""
        self._shunned[index] = now_ns + SECOND

    def crowd(self, key: bytes) -> None:
        """Note that a key was refused; it is a hint only."""
        if len(self.crowded) >= MOST_HEADS:
            self.crowded.clear()
        self.crowded.add(key)

    # --- keys that are watched ---------------------------------------------------------------------

    def watch(self, key: bytes, ballot: Ballot) -> None:
        """Have a ballot told of changes of a key."""
        while True:
            ballots = self.watches.setdefault(key, [])
            ballots.append(ballot)
            if self.watches.get(key) is ballots:  # else it was forgotten meanwhile
                return

    def unwatch(self, key: bytes, ballot: Ballot) -> None:
        """Take it back."""
        ballots = self.watches.get(key)
        if ballots is not None and ballot in ballots:
            ballots.remove(ballot)
            try:
                if not ballots and self.watches[key] is ballots:  # no call before the next step, as in `_dissolve`
                    del self.watches[key]
            except KeyError:
                pass  # another thread was faster

    def changed(self, index: int, key: bytes | None) -> None:
        """Take note of what master `index` said: that the key has changed, or that all have (None)."""
        for watched in [key] if key is not None else list(self.watches):
            for ballot in list(self.watches.get(watched, ())):
                if ballot.change(index):
                    self.called.append(ballot)  # `change` has set `decided`

    def stir(self, key: bytes) -> None:
        """Call those who watch a key that this client is about to change."""
        if self.watches:
            for ballot in list(self.watches.get(key, ())):
                self._call(ballot)

    def stir_all(self) -> None:
        """Call everybody who watches: a connection broke, and what its master would have said is lost."""
        for key in list(self.watches):
            self.stir(key)

    def everybody(self) -> list[Ballot]:
        """Return what all who wait here wait for; for a client that closes."""
        waiting = [turn.ballot for line in list(self.lines.values()) for turn in list(line.turns)]
        return waiting + [ballot for ballots in list(self.watches.values()) for ballot in list(ballots)]

    def _call(self, ballot: Ballot) -> None:
        ballot.yes = max(ballot.yes, ballot.quorum)  # so that a watch that begins only now ends at once
        if not ballot.decided:
            ballot.decided = True
            self.called.append(ballot)


def _next(line: Line) -> Turn | None:
    """Return the first turn that was neither left nor called; it stays in the line until it is called."""
    while True:
        try:
            turn = line.turns[0]
        except IndexError:
            return None
        if not (turn.left or turn.ballot.decided):
            return turn
        _discard(line, turn)


def _discard(line: Line, turn: Turn) -> None:
    try:
        line.turns.remove(turn)
    except ValueError:
        pass  # it is out already


def _is_others(line: Line, hold: Hold) -> bool:
    """Tell whether the next turn is somebody else's."""
    try:
        turn = line.turns[0]
    except IndexError:
        return False
    return turn.hold is not hold


def _busy(hold: Hold, depth: int, why: str) -> LockBusy:
    return LockBusy(f"{hold.name!r}: {depth} of this client stand in line for it; {why}", name=hold.name, depth=depth)
