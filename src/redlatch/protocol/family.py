# cython: annotation_typing=True
# (A .pxd cannot type the arguments and locals of a generator.)
"""The lock family beside the plain lock: what each kind asks the masters.

A hold of a kind is acquired, held, extended and released as any other; only its commands are others. Compiled as
`redlatch._c.protocol.family`, too (see `redlatch._c`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from redlatch.errors import AlreadyHeld
from redlatch.protocol import family_scripts as scripts

from .ballot import Ballot
from .commands import NOTHING, REFUSAL, AcquireFenced, Command, Confirm, Look, Scripted
from .contention import wait_for_pushes
from .effects import Effect
from .hold import Hold
from .kind import LATE, PLAIN_ONES, Kind
from .lease import NO_LEASE, Lease, new_lease
from .policy import Policy
from .waiting import Lines

# A waiter that has not asked for so long is dead: it asks once a second at least.
ALIVE_MS = 2500

# An answer reports this many slots of a semaphore, one bit each, and one more bit says that all slots are taken. Lua
# represents integers of up to 53 bits exactly.
WINDOW = 50
FULL_BIT = 1 << WINDOW


class FamilyKind(Kind):
    """A kind whose waiters ask the masters about the key together with each attempt after the first.

    The question goes out before the attempt: so the masters push whatever happens after it, and what was refused may
    change at no moment without a push.
    """

    def __init__(self) -> None:
        super().__init__()
        self._look: Ballot | None = None  # on the key; its pushes are waited for
        self._ahead: Ballot | None = None  # the same, until it is asked

    def ahead(self) -> Ballot | None:
        look, self._ahead = self._ahead, None
        return look

    def undone(self, policy: Policy, lines: Lines, key: bytes, ballot: Ballot) -> None:
        """Count masters that may have had the key for us as free: they push no change that we make ourselves."""
        look: Ballot | None = self._look
        if look is not None:
            look.quorum = min(look.quorum, max(1, policy.quorum - (ballot.size - ballot.no - ballot.failed)))

    def wait(
        self,
        policy: Policy,
        lines: Lines,
        hold: Hold,
        ttl_ms: int,
        round_ns: int,
        patience_ns: int,
        pauses: int,
        until_ns: int,
    ) -> Generator[Effect, None, bool]:
        waited = True
        look: Ballot | None = self._look
        if look is not None:
            yield [look]
            # A master where the attempt created the key and deleted it again pushes nothing more.
            sure = look.quorum == policy.quorum or look.yes + look.standing() >= look.quorum
            waited = yield from wait_for_pushes(policy, look, look.left_ns(), pauses, until_ns, sure)
            self.rest(lines, hold.key)
        look = policy.ballot(Look(hold.key, True), policy.clock.now() + policy.patience_ns(ttl_ms))
        self._look = self._ahead = look
        lines.watch(hold.key, look)
        return waited

    def rest(self, lines: Lines, key: bytes) -> None:
        look, self._look = self._look, None
        if look is not None:
            self._ahead = None
            lines.unwatch(key, look)


class Fenced(FamilyKind):
    """A plain lock whose holders are numbered: "propose and confirm" (docs/fencing.md).

    A number is proposed with the key, above all that this client has seen; where a quorum has the key for us, but some
    masters have higher numbers, a second round takes more than those. Only masters are asked then whose answer is among
    those that it exceeds. Numbers for who may get the lease passed on are taken at the same time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.passes = PLAIN_ONES
        self.numbers = True

    def lease(self, policy: Policy, lines: Lines, key: bytes, since_ns: int, deadline_ns: int) -> Lease:
        fence = policy.fences.propose()
        lease = new_lease(policy.tokens.take(), since_ns, deadline_ns)
        return lease.numbered(fence, fence + lines.successors(policy, key))

    def acquiring(self, policy: Policy, lines: Lines, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        return AcquireFenced(key, lease.token, lease.since_ns, ttl_ms, lease.fence, lease.fence_end)

    def second_round(self, policy: Policy, hold: Hold, ballot: Ballot) -> Ballot | None:
        if ballot.yes >= ballot.quorum or not ballot.won():
            return None
        answers = dict(ballot.answers or {})  # a copy: another thread may add an answer meanwhile
        lease = hold.lease
        highest = max([lease.fence_end] + [-answer for answer in answers.values()])
        first, last = highest + 1, highest + 1 + lease.fence_end - lease.fence
        hold.lease = lease.numbered(first, last)
        policy.fences.note(highest)
        command = Confirm(hold.key, lease.token, lease.since_ns, first, last)
        again = Ballot(command, len(answers), policy.quorum, ballot.until_ns)
        again.asked = sum([1 << index for index in answers])
        return again

    def won(self, policy: Policy, hold: Hold) -> None:
        policy.fences.note(hold.lease.fence_end)


class ReaderOrWriter(FamilyKind):
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
        super().__init__()
        self._keys = [key, key + b"\0writer", key + b"\0waits"]
        self._holders = holders
        self._owner = owner
        self._mine: list[Hold] = []  # holds of the same thread or task; a reference to that would keep it alive

    def caller(self) -> Any:
        return self._owner()

    def begin(self, policy: Policy, hold: Hold, caller: Any) -> None:
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
        return any([_writes(mine) == writes and mine.held(now) for mine in list(self._mine)])

    def locked(self, key: bytes) -> Command:
        return Scripted(key, NO_LEASE, scripts.FULL, self._keys[:1], [b"1"])


def _writes(hold: Hold) -> bool:
    kind: Any = hold.kind
    return bool(kind.writes)


class Reader(ReaderOrWriter):
    """One of any number of readers. It waits while a writer holds the lock or waits for it.

    A nested read of the same thread or task does not wait for waiting writers: they wait for the outer read, which
    cannot end before the nested one. In place of the waiting writers' key it names a key that is never written.
    """

    def __init__(self, key: bytes, holders: Any, owner: Callable[[], Any]) -> None:
        super().__init__(key, holders, owner)
        self.queues = False
        self.shares = True

    def begin(self, policy: Policy, hold: Hold, caller: Any) -> None:
        super().begin(policy, hold, caller)
        if self._has(True, policy):
            raise AlreadyHeld(
                f"{hold.name!r} is written by the same thread or task, which would wait for itself; "
                "read without a read lock, since the write lock excludes all others, or release it first",
                name=hold.name,
            )

    def acquiring(self, policy: Policy, lines: Lines, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        arguments = [lease.token, b"%d" % ttl_ms]
        keys = [*self._keys[:2], self._keys[0] + b"\0nested"] if self._has(False, policy) else self._keys
        return Scripted(key, lease, scripts.READ_ACQUIRE, keys, arguments, undo=self.releasing(key, lease))

    def releasing(self, key: bytes, lease: Lease) -> Command:
        return Scripted(key, lease, scripts.READ_RELEASE, self._keys, [lease.token], NOTHING, True)

    def extending(self, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        return Scripted(key, lease, scripts.READ_EXTEND, self._keys, [lease.token, b"%d" % ttl_ms])

    def owned(self, key: bytes, lease: Lease) -> Command:
        return Scripted(key, lease, scripts.READ_OWNED, self._keys, [lease.token])


class Writer(ReaderOrWriter):
    """The one writer, while there are no readers and no other writer; new readers stay out while any writer waits."""

    writes = True

    _waiter = b""  # its name on the masters while it waits: the token of its first attempt
    _since_ns = 0

    def begin(self, policy: Policy, hold: Hold, caller: Any) -> None:
        super().begin(policy, hold, caller)
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

    def acquiring(self, policy: Policy, lines: Lines, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        self._waiter = self._waiter or lease.token
        arguments = [lease.token, b"%d" % ttl_ms, b"%d" % ALIVE_MS, self._waiter]
        return Scripted(key, lease, scripts.WRITE_ACQUIRE, self._keys, arguments, undo=self.releasing(key, lease))

    def undoing(self, key: bytes, lease: Lease) -> Command:
        return Scripted(key, lease, scripts.WRITE_RELEASE, self._keys, [lease.token, b""], NOTHING, True)

    def releasing(self, key: bytes, lease: Lease) -> Command:
        command = Scripted(key, lease, scripts.WRITE_RELEASE, self._keys, [lease.token, self._waiter], NOTHING, True)
        command.since_ns = self._since_ns  # its first attempt may have named it as a waiting writer on a master
        return command

    def extending(self, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        return Scripted(key, lease, scripts.WRITE_EXTEND, self._keys, [lease.token, b"%d" % ttl_ms])

    def owned(self, key: bytes, lease: Lease) -> Command:
        return Scripted(key, lease, scripts.WRITE_OWNED, self._keys, [lease.token])


class Slot(FamilyKind):
    """One of the numbered slots of a semaphore: a quorum must agree on the number, so that no two have the same one."""

    def __init__(self, key: bytes, permits: int) -> None:
        super().__init__()
        self.shares = True
        self._keys = [key, key + b"\0tokens"]
        self._permits = permits
        self.late = LATE + (permits - 1) // WINDOW  # enough to look at every window
        self._slot = self._next = 0
        self._unseen: list[int] = []  # windows that nothing is known of yet

    def begin(self, policy: Policy, hold: Hold, caller: Any) -> None:
        self._start_over(policy)

    def _start_over(self, policy: Policy) -> None:
        self._next = self._any_of(policy, range(self._permits))
        self._unseen = list(range(0, self._permits, WINDOW))

    def _any_of(self, policy: Policy, slots: range | list[int]) -> int:
        return slots[int(policy.random() * len(slots))]

    def _window(self) -> range:
        first = self._slot - self._slot % WINDOW
        return range(first, min(first + WINDOW, self._permits))

    def acquiring(self, policy: Policy, lines: Lines, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        self._slot = self._next  # not before: until now the last attempt may have to be undone
        window = self._window()
        numbers = ttl_ms, self._slot, window.start, len(window), self._permits
        arguments = [lease.token] + [b"%d" % number for number in numbers]
        return Scripted(
            key, lease, scripts.SLOT_ACQUIRE, self._keys, arguments, REFUSAL, undo=self.releasing(key, lease)
        )

    def releasing(self, key: bytes, lease: Lease) -> Command:
        return Scripted(key, lease, scripts.SLOT_RELEASE, self._keys, [lease.token, b"%d" % self._slot], NOTHING, True)

    def extending(self, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        arguments = [lease.token, b"%d" % self._slot, b"%d" % ttl_ms]
        return Scripted(key, lease, scripts.SLOT_EXTEND, self._keys, arguments)

    def owned(self, key: bytes, lease: Lease) -> Command:
        return Scripted(key, lease, scripts.SLOT_OWNED, self._keys, [lease.token, b"%d" % self._slot])

    def locked(self, key: bytes) -> Command:
        return Scripted(key, NO_LEASE, scripts.FULL, self._keys[:1], [b"%d" % self._permits])

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
