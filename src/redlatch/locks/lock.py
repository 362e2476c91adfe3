"""The part of a lock that both faces share: its state, its checks, and the seam to the driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

from .. import config, impl
from ..errors import ClientForked, LockError, LockLost, NotOwned
from ..holder import Holder
from ..loss import LOST_BEFORE, Loss
from ..quorum.calls import Calls
from ..quorum.claim import FREE, HELD
from ..quorum.effects import Steps
from ..quorum.hold import Hold
from ..quorum.inquiry import holder_of
from ..quorum.outcome import loss, why_invalid
from ..quorum.upkeep import Term, Upkeep
from ..votes.commands import Command
from ..votes.units import SECOND
from .with_statement import Refusal, leaves, may_leave

# At run time `impl` provides the build.
if TYPE_CHECKING:
    from .core import Core, SharedFields
else:
    _core = impl.current.module("locks.core")
    Core, SharedFields = _core.Core, _core.SharedFields

logger = logging.getLogger("redlatch")


class Driver(Protocol):
    """The methods that a lock needs of its client's driver, which runs the calls of `quorum.calls`.

    The driver for threads blocks the calling thread, that for asyncio returns an awaitable.
    """

    # A `drivers.status.ClientStatus`.
    status: Any

    def run(self, steps: Steps) -> Any: ...

    def send(self, commands: list[Command]) -> None: ...

    def wake_called(self) -> None:
        """Wake callers whose turn has come, and callers that watch a key that has changed."""

    def add_upkeep(self, term: Term) -> None: ...


class ThreadDriver(Driver, Protocol):
    def connect(self, all_of_them: bool = False) -> None: ...

    def close(self, release: bool = False, drain_ns: int | None = None) -> None: ...


class TaskDriver(Driver, Protocol):
    @property
    def home(self) -> Any:
        """The event loop, once the client is connected."""

    def connect(self, all_of_them: bool = False) -> Coroutine[Any, Any, None]: ...

    def close(self, release: bool = False, drain_ns: int | None = None) -> Coroutine[Any, Any, None]: ...

    def stands_for(self, owner: object) -> None:
        """Let go of the loop when `owner` is collected, to which the client and all its locks refer."""

    def drop(self) -> None:
        """Close the connections at once: the event loop cannot run `close`."""


AnyDriver = TypeVar("AnyDriver", bound=Driver)


class Shared(SharedFields, Generic[AnyDriver]):
    """The data that all locks of one client share; `no_scripts` says why it has no locks that need scripts, or ""."""

    __slots__ = ()

    driver: AnyDriver
    quorum: Calls
    wait_release: bool
    on_lost: Callable[[Any, Loss], object] | None
    no_scripts: str


class BaseLock(Core):
    """One holder's lock on one name."""

    __slots__ = ()

    _shared: Shared[Any]
    _hold: Hold
    # `Acquiring.end` begins it. None: the lock is not renewed, and its loss is not reported.
    _upkeep: Upkeep | None

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: it belongs to one holder in one process")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._described()} {held_for(self.remaining())}>"

    def _described(self) -> str:
        label = self._hold.kind.declared.label
        return f"{self.name!r} ({label})" if label else f"{self.name!r}"

    @property
    def name(self) -> str | bytes:
        """The name as you gave it."""
        return self._hold.name

    @property
    def group(self) -> str:
        """The group of locks in whose figures this one counts; "" without one, "(others)" if there were too many."""
        return self._shared.quorum.groups.name_of(self._hold.figures)

    @property
    def ttl(self) -> float:
        """The time to live in seconds, in whole milliseconds."""
        return self._ttl_ms / 1000

    @property
    def token(self) -> bytes | None:
        """The value under the key while this object holds the lock; otherwise None. Each attempt has a new token."""
        return self._hold.token if self._hold.state == HELD else None

    @property
    def fence(self) -> int | None:
        """The number of this holder while it holds a lock that was made with ``fence=True``; otherwise None.

        It is higher than that of every holder before. The resource keeps the highest number that it has seen, and
        refuses requests with a lower one.
        """
        hold = self._hold
        return hold.fence if hold.kind.numbers and hold.state == HELD else None

    @property
    def deadline_ns(self) -> int:
        """The end of the validity, in ns of CLOCK_BOOTTIME; 0 while the lock is free."""
        return self._hold.deadline_ns

    @property
    def elapsed(self) -> float:
        """The duration of the last successful `acquire` or `extend`, in seconds.

        It runs from before the first byte was sent to after the last vote that counts.
        """
        return self._hold.elapsed_ns / SECOND

    def remaining(self) -> float:
        """Return the seconds of validity that are left, or 0.0; no I/O.

        It is also 0.0 if a master that voted for the lock may have forgotten it, until `extend` or a renewal has found
        that a quorum has the lock without that vote.
        """
        hold = self._hold
        quorum = self._shared.quorum
        doubted = quorum.doubts.cover(hold.lease.asked_ns, hold.key)
        if hold.state != HELD or doubted or self._shared.driver.status.forked:
            return 0.0
        return max(0, hold.deadline_ns - quorum.clock.now()) / SECOND

    def check(self) -> None:
        """Raise an exception unless the lock is still valid; no I/O.

        Raises:
            LockLost: the validity is over, or a master that voted for the lock may have forgotten it.
            NotOwned: the lock was never acquired, or was released.
            ClientForked: this process is a forked child of the holder's process.
        """
        if self._shared.driver.status.forked:
            raise ClientForked(f"{self.name!r} is held by the parent process, not by this child", name=self.name)
        if self._hold.state != HELD:
            raise NotOwned(f"{self.name!r} is not held", name=self.name)
        if self.remaining() <= 0:
            raise self._loss()

    # --- its loss ----------------------------------------------------------------------------------

    def _begin_upkeep(self, acquired: bool = False) -> None:
        upkeep = self._upkeep
        if upkeep is not None:
            if acquired:
                upkeep.end()
            self._shared.driver.add_upkeep(upkeep.begin(self._shared.quorum.clock.now()))

    def _go_on(self) -> None:
        # Even an extension that failed may have moved the deadline.
        if self._upkeep is not None and self._upkeep.live():
            self._begin_upkeep()

    def _let_run_out(self, why: Loss) -> None:
        upkeep = self._upkeep
        if upkeep is not None and upkeep.live():
            upkeep.let_run_out(self, why)

    def _loss_event(self, kind: Callable[[], Any]) -> Any:
        """Return the event that a loss sets.

        Signal handlers may call this. So it waits for no other thread, and does not set an event that is set, which
        could wait for its own thread. No call comes between the check of a field and its change, so all threads get
        the same event.
        """
        while (upkeep := self._upkeep) is None:
            made = Upkeep(self, self._hold, self._ttl_ms)
            if self._upkeep is None:
                self._upkeep = made
        unasked = not upkeep.asked
        upkeep.asked = True
        while (event := upkeep.event) is None:
            event = kind()
            if upkeep.event is None:
                upkeep.event = event
        term = upkeep.term
        # An interrupt may have ended an earlier request early, so each request checks this.
        if self._hold.state == HELD:
            if upkeep.reason is not None:
                if not event.is_set():
                    event.set()
            elif term is None or not term.number or unasked:
                self._begin_upkeep()
        return event

    def _mark_lost(self, term: Term) -> None:
        """Set the event of the loss, and cancel the body, unless the lock was acquired again meanwhile."""
        upkeep = self._upkeep
        if upkeep is not None and upkeep.term is term:
            if upkeep.event is not None:
                upkeep.event.set()
            if upkeep.scope is not None:
                upkeep.scope.cancel()

    def _loss(self) -> LockLost:
        return loss(why_invalid(self._shared.quorum, self._hold, self._upkeep), self._hold)

    def _report_loss(self, reason: Loss = LOST_BEFORE, term: Term | None = None) -> None:
        upkeep = self._upkeep
        on_lost = self._shared.on_lost if upkeep is None or upkeep.on_lost is None else upkeep.on_lost
        try:
            # From here on an interrupt is logged, with the loss.
            if term is not None:
                term.reported = True
            elif reason is LOST_BEFORE:
                self._hold.figures_in(self._shared.quorum).lose(LOST_BEFORE.kind.value)
            else:
                self._hold.count_end(self._shared.quorum, self._shared.quorum.clock.now(), reason)
            if on_lost is None:
                logger.warning("lock %r was lost: %s", self.name, reason)
            else:
                on_lost(self, reason)
        except BaseException as error:
            logger.exception("on_lost failed for lock %r, which was lost: %s", self.name, reason)
            if not isinstance(error, Exception):
                raise

    # --- the calls ---------------------------------------------------------------------------------

    def _extending(self, ttl: float | None) -> Steps:
        shared = self._shared
        ttl_ms = (
            self._ttl_ms if ttl is None else config.ttl_ms_of(ttl, shared.quorum.drift_factor, shared.quorum.max_ttl_ms)
        )
        return shared.quorum.extend(self._hold, ttl_ms)

    def _holder_of(self, found: tuple[bytes, int, int] | None) -> Holder | None:
        return None if found is None else holder_of(self._shared.quorum, self._hold, found)

    def _refusal(self) -> Refusal:
        return Refusal(self._shared, [self._hold], self._timeout or 0.0)

    # Returns whether the calling thread or task has made a ticket.
    _made_here: Callable[[object], bool]

    def _may_leave(self, ticket: object, entered: object) -> bool:
        return may_leave(ticket, entered, self._made_here)

    def _leaves(self, ticket: object, entered: object) -> bool:
        return leaves(self._hold, [ticket], entered, self._made_here, self.name)

    @property
    def _left_to_release(self) -> bool:
        # Held, or its release is unconfirmed.
        return self._hold.state != FREE


def held_for(seconds: float) -> str:
    return f"held for {seconds:.3f} s more" if seconds else "not held"


def note_failure(body: BaseException, error: LockError) -> None:
    body.add_note(f"redlatch: {type(error).__name__} when the lock was released: {error}")
