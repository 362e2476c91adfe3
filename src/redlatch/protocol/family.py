# cython: annotation_typing=True
# (A .pxd cannot type the arguments and locals of a generator.)
"""The lock family beside the plain lock: what each kind asks the masters, and how it is acquired, as a generator.

Longer than a module should be: each kind is short, and they are read side by side.

A hold of a kind is held, extended and released as any other (`quorum`); only its commands are others, and it is passed
on by nobody but `Fenced`. Compiled as `redlatch._c.protocol.family`, too (see `redlatch._c`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from redlatch.errors import AlreadyHeld
from redlatch.protocol import family_scripts as scripts

from .acquire import reach_the_head, wait_for_pushes
from .ballot import Ballot
from .commands import NOTHING, REFUSAL, AcquireFenced, Command, Confirm, Extend, Locked, Look, Owned, Release, Scripted
from .effects import Effect, Pause, Steps, Tell
from .hold import ASKING, WAITING, Hold
from .outcome import granted, is_final, no_quorum
from .policy import UNBOUNDED, Policy
from .waiting import Lines

# A waiter that has not asked for so long is dead: it asks once a second at least.
ALIVE_MS = 2500

# When the time is over, what the masters answered is still heeded so many times.
LATE = 8

# An answer reports this many slots of a semaphore, one bit each, and one more bit says that all slots are taken. Lua
# represents integers of up to 53 bits exactly.
WINDOW = 50
FULL_BIT = 1 << WINDOW


class Kind:
    """What one hold of a kind asks the masters.

    Attributes:
        queues: whether only the head of the client's line asks.
        shares: whether others of the same client may hold it, too.
        orderly: whether the masters know who is next, so that nobody needs to be let pass.
        undoes: whether an attempt is undone although no master is known to have said yes. Not where the token was
            chosen: what is there may be of others, who chose the same one.
        passes: whether its lease may pass to the next of its kind in this client.
        late: how many more attempts may follow the masters' answers after the timeout.
        apart: whether attempts in quick succession must pause, because those of rivals may collide with them.
    """

    queues = True
    shares = False
    orderly = False
    undoes = True
    passes = False
    late = LATE
    apart = True

    def caller(self) -> Any:
        """Return the calling thread or task if the kind needs it; else None."""
        return None

    def called_by(self, caller: Any) -> None:
        """Note which thread or task has called acquire; called before `begin`."""

    def begin(self, policy: Policy, hold: Hold) -> None:
        """Take note that an acquire begins; or refuse."""

    def end(self, hold: Hold) -> None:
        """Take note that nothing is held any more."""

    def token(self, policy: Policy) -> bytes:
        """Return the token of an attempt that is about to begin."""
        return policy.tokens.take()

    def acquiring(self, policy: Policy, lines: Lines, hold: Hold, ttl_ms: int) -> Command:
        """Return the command of an attempt."""
        raise NotImplementedError

    def undoing(self, hold: Hold) -> Command:
        """Return what undoes an attempt after which another follows."""
        return self.releasing(hold)

    def releasing(self, hold: Hold) -> Command:
        """Return what releases it, or undoes the last attempt."""
        return Release(hold.key, hold.lease.token, hold.lease.since_ns)

    def extending(self, hold: Hold, ttl_ms: int) -> Command:
        """Return what extends it."""
        return Extend(hold.key, hold.lease.token, hold.lease.since_ns, ttl_ms)

    def owned(self, hold: Hold) -> Command:
        """Return the question whether it is ours."""
        return Owned(hold.key, hold.lease.token, hold.lease.since_ns)

    def locked(self, hold: Hold) -> Command:
        """Return the question whether anybody has it; of a semaphore, whether all permits are taken."""
        return Locked(hold.key, b"", 0)

    def second_round(self, policy: Policy, hold: Hold, ballot: Ballot) -> Ballot | None:
        """Return what is to be asked when a quorum would say yes in a second round; None where it need not."""
        return None

    def won(self, policy: Policy, hold: Hold) -> None:
        """Take note that it is held."""

    def heed(self, policy: Policy, ballot: Ballot) -> bool:
        """Take note of what the masters answered; tell whether it is worth asking again at once."""
        return False

    def behind(self) -> Ballot | None:
        """Return what is to be asked right behind the attempt."""
        return None

    def rest(self, lines: Lines, hold: Hold) -> None:
        """Take note that nothing is waited for any more."""

    def try_again(
        self, policy: Policy, lines: Lines, hold: Hold, ttl_ms: int, times: tuple[int, int], pauses: int
    ) -> Generator[Effect, None, bool]:
        """Wait for a change and make one more attempt.

        The masters are asked about the key together with the attempt, and before it: so they push whatever happens
        after it, and what was refused may change at no moment without being told.

        Args:
            times: until when it is tried, and when that began.
            pauses: how many times in a row there was nothing to wait for.

        Returns:
            Whether there was anything to wait for now.
        """
        waited = True
        look = policy.ballot(Look(hold.key, True), policy.clock.now() + policy.patience_ns(ttl_ms))
        try:
            lines.watch(hold.key, look)
            yield from attempt(policy, lines, hold, ttl_ms, times, look)
            if hold.state == ASKING:
                yield [look]
                # A master where this attempt created the key and deleted it again pushes nothing more.
                sure = look.quorum == policy.quorum or look.yes + look.standing() >= look.quorum
                waited = yield from wait_for_pushes(policy, look, look.left_ns(), pauses, times[0], sure)
        finally:
            lines.unwatch(hold.key, look)
        return waited


class Fenced(Kind):
    """A plain lock whose holders are numbered: "propose and confirm" (docs/fencing.md).

    A number is proposed with the key, above all that this client has seen; where a quorum has the key for us, but some
    masters have higher numbers, a second round takes more than those. Only masters are asked then whose answer is among
    those that it exceeds. Numbers for who may get the lease passed on are taken at the same time.
    """

    def acquiring(self, policy: Policy, lines: Lines, hold: Hold, ttl_ms: int) -> Command:
        fence = policy.fences.propose()
        hold.number(fence, fence + lines.successors(policy, hold.key))
        lease = hold.lease
        return AcquireFenced(hold.key, lease.token, lease.since_ns, ttl_ms, lease.fence, lease.fence_end)

    def second_round(self, policy: Policy, hold: Hold, ballot: Ballot) -> Ballot | None:
        if ballot.yes >= ballot.quorum or not ballot.won():
            return None
        answers = dict(ballot.answers or {})  # a copy: another thread may add an answer meanwhile
        lease = hold.lease
        highest = max([lease.fence_end] + [-answer for answer in answers.values()])
        first, last = highest + 1, highest + 1 + lease.fence_end - lease.fence
        hold.number(first, last)
        policy.fences.note(highest)
        command = Confirm(hold.key, lease.token, lease.since_ns, first, last)
        again = Ballot(command, len(answers), policy.quorum, ballot.until_ns)
        again.asked = sum([1 << index for index in answers])
        return again

    def won(self, policy: Policy, hold: Hold) -> None:
        policy.fences.note(hold.lease.fence_end)


class ReaderOrWriter(Kind):
    """What readers and writers have in common.

    Args:
        key: of who is in.
        holders: the holds that each thread or task has through one object; a weak mapping.
        owner: returns the calling thread or task.

    Attributes:
        writes: whether it is a writer.
    """

    writes = False

    def __init__(self, key: bytes, holders: Any, owner: Callable[[], Any]) -> None:
        self._keys = [key, key + b"\0writer", key + b"\0waits"]
        self._holders = holders
        self._owner = owner
        self._mine: list[Hold] = []  # holds of the same thread or task; a reference to that would keep it alive

    def caller(self) -> Any:
        return self._owner()

    def called_by(self, caller: Any) -> None:
        if caller is None:  # a coroutine that was created outside any task belongs to the task that runs it
            caller = self._owner()
        self._mine = [] if caller is None else self._holders.setdefault(caller, [])

    def won(self, policy: Policy, hold: Hold) -> None:
        self._mine.append(hold)

    def end(self, hold: Hold) -> None:
        if hold in self._mine:  # an interrupt may have struck before `won` added it
            self._mine.remove(hold)

    def _has(self, writes: bool, policy: Policy) -> bool:
        """Tell whether the same thread or task holds a write lock (`writes`) or a read lock (not `writes`)."""
        now = policy.clock.now()
        return any([mine.kind.writes == writes and mine.held(now) for mine in list(self._mine)])

    def locked(self, hold: Hold) -> Command:
        return Scripted(hold, scripts.FULL, self._keys[:1], [b"1"])


class Reader(ReaderOrWriter):
    """One of any number of readers. It waits while a writer holds the lock or waits for it.

    A nested read of the same thread or task does not wait for waiting writers: they wait for the outer read, which
    cannot end before the nested one. In place of the waiting writers' key it names a key that is never written.
    """

    queues = False
    shares = True

    def begin(self, policy: Policy, hold: Hold) -> None:
        if self._has(True, policy):
            raise AlreadyHeld(
                f"{hold.name!r} is written by the same thread or task, which would wait for itself; "
                "read without a read lock, since the write lock excludes all others, or release it first",
                name=hold.name,
            )

    def acquiring(self, policy: Policy, lines: Lines, hold: Hold, ttl_ms: int) -> Command:
        arguments = [hold.lease.token, b"%d" % ttl_ms]
        keys = [*self._keys[:2], self._keys[0] + b"\0nested"] if self._has(False, policy) else self._keys
        return Scripted(hold, scripts.READ_ACQUIRE, keys, arguments, undo=self.releasing(hold))

    def releasing(self, hold: Hold) -> Command:
        return Scripted(hold, scripts.READ_RELEASE, self._keys, [hold.lease.token], NOTHING, True)

    def extending(self, hold: Hold, ttl_ms: int) -> Command:
        return Scripted(hold, scripts.READ_EXTEND, self._keys, [hold.lease.token, b"%d" % ttl_ms])

    def owned(self, hold: Hold) -> Command:
        return Scripted(hold, scripts.READ_OWNED, self._keys, [hold.lease.token])


class Writer(ReaderOrWriter):
    """The one writer, while there are no readers and no other writer; new readers stay out while any writer waits."""

    writes = True

    _waiter = b""  # its name on the masters while it waits: the token of its first attempt
    _since_ns = 0

    def begin(self, policy: Policy, hold: Hold) -> None:
        self._waiter = b""
        self._since_ns = policy.clock.now()
        if self._has(False, policy):
            raise AlreadyHeld(
                f"{hold.name!r} is read by the same thread or task, which would wait for itself; "
                "a read lock cannot be upgraded, release it first",
                name=hold.name,
            )
        if self._has(True, policy):
            raise AlreadyHeld(
                f"{hold.name!r} is written by the same thread or task, which would wait for itself; "
                "a write lock is not re-entrant, release it first",
                name=hold.name,
            )

    def acquiring(self, policy: Policy, lines: Lines, hold: Hold, ttl_ms: int) -> Command:
        self._waiter = self._waiter or hold.lease.token
        arguments = [hold.lease.token, b"%d" % ttl_ms, b"%d" % ALIVE_MS, self._waiter]
        return Scripted(hold, scripts.WRITE_ACQUIRE, self._keys, arguments, undo=self.releasing(hold))

    def undoing(self, hold: Hold) -> Command:
        return Scripted(hold, scripts.WRITE_RELEASE, self._keys, [hold.lease.token, b""], NOTHING, True)

    def releasing(self, hold: Hold) -> Command:
        command = Scripted(hold, scripts.WRITE_RELEASE, self._keys, [hold.lease.token, self._waiter], NOTHING, True)
        command.since_ns = self._since_ns  # its first attempt may have named it as a waiting writer on a master
        return command

    def extending(self, hold: Hold, ttl_ms: int) -> Command:
        return Scripted(hold, scripts.WRITE_EXTEND, self._keys, [hold.lease.token, b"%d" % ttl_ms])

    def owned(self, hold: Hold) -> Command:
        return Scripted(hold, scripts.WRITE_OWNED, self._keys, [hold.lease.token])


class Slot(Kind):
    """One of the numbered slots of a semaphore: a quorum must agree on the number, so that no two have the same one."""

    shares = True

    def __init__(self, key: bytes, permits: int) -> None:
        self._keys = [key, key + b"\0tokens"]
        self._permits = permits
        self.late = LATE + (permits - 1) // WINDOW  # enough to look at every window
        self._slot = self._next = 0
        self._unseen: list[int] = []  # windows that nothing is known of yet

    def begin(self, policy: Policy, hold: Hold) -> None:
        self._start_over(policy)

    def _start_over(self, policy: Policy) -> None:
        self._next = self._any_of(policy, range(self._permits))
        self._unseen = list(range(0, self._permits, WINDOW))

    def _any_of(self, policy: Policy, slots: range | list[int]) -> int:
        return slots[int(policy.random() * len(slots))]

    def _window(self) -> range:
        first = self._slot - self._slot % WINDOW
        return range(first, min(first + WINDOW, self._permits))

    def acquiring(self, policy: Policy, lines: Lines, hold: Hold, ttl_ms: int) -> Command:
        self._slot = self._next  # not before: until now the last attempt may have to be undone
        window = self._window()
        numbers = ttl_ms, self._slot, window.start, len(window), self._permits
        arguments = [hold.lease.token] + [b"%d" % number for number in numbers]
        return Scripted(hold, scripts.SLOT_ACQUIRE, self._keys, arguments, REFUSAL, undo=self.releasing(hold))

    def releasing(self, hold: Hold) -> Command:
        return Scripted(hold, scripts.SLOT_RELEASE, self._keys, [hold.lease.token, b"%d" % self._slot], NOTHING, True)

    def extending(self, hold: Hold, ttl_ms: int) -> Command:
        arguments = [hold.lease.token, b"%d" % self._slot, b"%d" % ttl_ms]
        return Scripted(hold, scripts.SLOT_EXTEND, self._keys, arguments)

    def owned(self, hold: Hold) -> Command:
        return Scripted(hold, scripts.SLOT_OWNED, self._keys, [hold.lease.token, b"%d" % self._slot])

    def locked(self, hold: Hold) -> Command:
        return Scripted(hold, scripts.FULL, self._keys[:1], [b"%d" % self._permits])

    def heed(self, policy: Policy, ballot: Ballot) -> bool:
        """Choose another slot; tell whether it may be free on a quorum: it looks so, or nothing is known of it yet."""
        taken = [-answer for answer in list((ballot.answers or {}).values())]  # a copy, as in `second_round`
        lost = policy.size - policy.quorum
        if sum([mask >= FULL_BIT for mask in taken]) > lost:  # no slot can be free on a quorum
            self._start_over(policy)
            return False
        window = self._window()
        free = [
            slot
            for place, slot in enumerate(window)
            if sum([mask >> place & 1 for mask in taken]) <= lost and slot != self._slot
        ]
        if window.start in self._unseen:
            self._unseen.remove(window.start)
        self.apart = bool(free)
        if free:
            self._next = self._any_of(policy, free)
            return True
        if self._unseen:
            first = self._any_of(policy, self._unseen)
            self._next = self._any_of(policy, range(first, min(first + WINDOW, self._permits)))
            return True
        self._start_over(policy)
        return False


def acquire_of_kind(policy: Policy, lines: Lines, hold: Hold, ttl_ms: int, give_up_ns: int | None) -> Steps:
    """Try until it is won or the time is over, as `acquire` does for the plain lock.

    The thread or task that calls this owns the result, even if another one runs the generator.
    """
    return _acquire_for(hold.kind.caller(), policy, lines, hold, ttl_ms, give_up_ns)


def _acquire_for(caller: Any, policy: Policy, lines: Lines, hold: Hold, ttl_ms: int, give_up_ns: int | None) -> Steps:
    kind: Kind = hold.kind
    hold.state = WAITING
    kind.called_by(caller)
    kind.begin(policy, hold)
    until = UNBOUNDED if give_up_ns is None else give_up_ns
    now = policy.clock.now()
    alone = not kind.queues or (kind.shares and now >= until)  # who has no time asks once, whoever is at the head
    if not alone and not lines.enter(hold, now):
        reached = yield from reach_the_head(policy, lines, hold, ttl_ms, until)
        if not reached:
            return
    times = until, policy.clock.now()
    pauses = 0
    try:
        yield from attempt(policy, lines, hold, ttl_ms, times)
        while hold.state == ASKING:
            waited = yield from kind.try_again(policy, lines, hold, ttl_ms, times, pauses)
            pauses = 0 if waited else pauses + 1
    finally:
        kind.rest(lines, hold)


def attempt(
    policy: Policy, lines: Lines, hold: Hold, ttl_ms: int, times: tuple[int, int], look: Ballot | None = None
) -> Steps:
    """Make one attempt, and again at once what its answers ask for; then it is HELD, FREE, or still ASKING.

    Longer than a function should be, as `acquire` is.

    Args:
        times: until when it is tried, and when that began.
        look: to be asked before the attempt.
    """
    kind: Kind = hold.kind
    until_ns, began_ns = times
    failures = again = 0
    while True:
        started = policy.clock.now()
        deadline = started + policy.validity_ns(ttl_ms)
        hold.ask(kind.token(policy), started, deadline)
        command = kind.acquiring(policy, lines, hold, ttl_ms)
        until = min(deadline, started + policy.patience_within(ttl_ms, until_ns - started if until_ns else UNBOUNDED))
        ballot = policy.ballot(command, until)
        if look is not None and not failures + again:
            yield Tell([look])
        ballot.behind = kind.behind()
        yield ballot
        second = kind.second_round(policy, hold, ballot)
        if second is not None:
            ballot = second
            yield ballot
        won = ballot.yes >= ballot.quorum
        now = policy.clock.now()  # after the last counted vote, whatever is counted later
        if granted(policy, lines, hold, won, deadline, now):
            hold.keep(now - started)
            kind.won(policy, hold)
            lines.overtake(policy, hold, now)
            if (kind.shares and kind.queues) or (hold.shown and hold.key in lines.lines):
                lines.leave(hold, now, False)
            return
        failures = failures + 1 if ballot.unavailable() else 0
        if second is None and ballot.decided and not ballot.yes and ballot.no < ballot.size:
            ballot.wait_for_all(min(now + 2 * (now - started), until_ns))  # mostly there is nothing to undo then
            yield [ballot]
            now = policy.clock.now()
        heeded = not failures and kind.heed(policy, ballot) and (now < until_ns or again < kind.late)
        late = now >= until_ns and not failures  # a first failure is no verdict, as for the plain lock
        over = not heeded and (late or (failures > 0 and is_final(ballot, failures)))
        if (over or ballot.no < policy.size) and (kind.undoes or ballot.yes > 0):  # else all have refused
            undo = kind.releasing(hold) if over else kind.undoing(hold)
            yield Tell([policy.ballot(undo)])
            if look is not None:  # where it is, or may be, undone nothing is told: it counts as free
                look.quorum = min(look.quorum, max(1, policy.quorum - (ballot.size - ballot.no - ballot.failed)))
            kind.rest(lines, hold)  # what was asked before is not told of what the undo changes: it is asked anew
        if over:
            lines.leave(hold, now, False)
            hold.free()
            if failures:
                raise no_quorum("acquire", policy, hold, ballot, now - started, now - began_ns)
            return
        if not (heeded or failures):
            return
        again += heeded
        if again > 2 and kind.apart:  # several that try at once must not do so in step
            yield Pause(now + policy.retry.again_ns(again, now - started, policy.random()))
