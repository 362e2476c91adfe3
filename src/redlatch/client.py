"""The face for threads: `Client` and `Lock`.

Longer than a module should be for its docstrings: every public call tells of its arguments and errors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from .config import seconds_of, timeout_of
from .errors import LockError
from .locks.batch import Batch, insist
from .locks.decorate import AnyFunction, locking
from .locks.factory import BaseClient
from .locks.lock import BaseLock, note_failure
from .locks.multi import MultiLock, distinct
from .locks.options import Options, PlainOptions, check_permits, several
from .locks.owner import of_threads
from .locks.readwrite import RWLock
from .locks.reentrant import RLock
from .protocol.policy import DEFAULT_GUARD, SECOND, Guard, Handoff, Retry

if TYPE_CHECKING:  # at run time `impl` gives the driver of the build that was chosen
    from .drivers.threads import Driver


class Lock(BaseLock):
    """A distributed lock for threads; made by `Client.lock`. One object is one holder at a time."""

    __slots__ = ()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock.

        Args:
            blocking: False makes one attempt.
            timeout: seconds to wait; None takes the lock's own, and where that is None waits for ever.

        Returns:
            Whether it was won.

        Raises:
            AlreadyHeld: this object holds it already, or is acquiring it in another thread.
            LockBusy: as many of this client wait already as the client's `max_waiters` says.
            QuorumUnavailable: too many masters failed; `causes` has each one's reason.
            ConfigurationError, TypeError: an argument cannot work.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        if timeout is None and blocking is True:
            timeout = self._timeout
        else:
            timeout = timeout_of(timeout, blocking)
        driver, hold, ticket = self._shared.driver, self._hold, object()
        try:
            won: bool = driver.acquire(hold, self._ttl_ms, timeout, ticket)
            if won and self._care is not None:
                self._begin_care(True)
            return won
        except BaseException:  # not in `driver.acquire`: Python may raise an interrupt just after a compiled call
            try:  # not in a function: a second interrupt may strike at its beginning
                driver.abandon(hold, ticket)
            except BaseException:
                driver.abandon(hold, ticket)
                raise
            raise

    def release(self, wait: bool = True) -> None:
        """Release the lock. An interrupted release is still sent; it may be called again, to wait for the answer.

        Args:
            wait: for a quorum's answer. False only sends the release: that the lock had been lost before is then
                told to the client's `on_lost`, or logged, when the answers come.

        Raises:
            NotOwned: nothing is held.
            LockLost: the lock had been lost before; without waiting only where its validity is over.
            QuorumUnavailable: too many masters failed; their keys go when they are back, or with their ttl.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        driver, hold = self._shared.driver, self._hold
        ticket = hold.ticket
        try:
            if wait:
                driver.release(hold, self._ttl_ms)
            else:
                driver.part(hold, self)
        except BaseException as error:
            try:  # not in a function, as in `acquire`
                driver.insist(hold, ticket, error)
            except BaseException:
                driver.insist(hold, ticket, error)
                raise
            raise

    def extend(self, ttl: float | None = None) -> None:
        """Let the lock live `ttl` seconds from now on (not longer than before by that much).

        A `ttl` below the remaining time moves this holder's deadline at once, whatever the masters answer. They never
        shorten the key, so others wait until the release or until the key's old expiry.

        Args:
            ttl: seconds; None takes the lock's own.

        Raises:
            NotOwned: nothing is held.
            LockLost: no quorum had extended it before the validity was over, or a quorum has forgotten it.
            QuorumUnavailable: too many masters failed; the earlier of the old and the new deadline counts.
            ConfigurationError, TypeError: the ttl cannot work.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        try:
            self._shared.driver.run(self._extending(ttl))
        finally:
            self._go_on()

    @property
    def lost(self) -> threading.Event:
        """Set when the lock is lost: at its local deadline, or as soon after it as the process gets to run.

        CPU-bound threads can delay it, each by 5 ms or more; `check` is never late. There is a new event after each
        loss.
        """
        return self._loss_event(threading.Event)  # type: ignore[no-any-return]

    def locked(self) -> bool:
        """Ask the masters whether anybody holds the lock.

        Returns:
            Whether a quorum of masters says so; of a semaphore, that all its permits are taken.

        Raises:
            QuorumUnavailable: too many masters failed.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        return bool(self._shared.driver.run(self._asking("locked")))

    def owned(self) -> bool:
        """Ask the masters whether this object still holds the lock.

        Returns:
            Whether its validity is not over and a quorum of masters has its token.

        Raises:
            QuorumUnavailable: too many masters failed.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        return bool(self._shared.driver.run(self._asking("owned")))

    def __enter__(self) -> Self:
        if not self.acquire():
            raise self._not_won()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        driver, hold = self._shared.driver, self._hold
        ticket = hold.ticket
        try:
            if self._left_to_release:
                self.release(self._shared.wait_release)
        except LockError as failure:
            if error is None:
                raise
            note_failure(error, failure)
        except BaseException as interrupt:  # it may have struck before `release` began its work
            try:  # not in a function, as in `acquire`
                driver.insist(hold, ticket, interrupt)
            except BaseException:
                driver.insist(hold, ticket, interrupt)
                raise
            raise


class Client(BaseClient):
    """A lock client for any number of threads.

    It connects with its first use, or with `connect`. A client that has connected cannot be used in a
    forked child.

    Args:
        masters: URLs (redis://, rediss://, valkey://, valkeys://, unix://) or redis-py clients whose
            settings are taken over, of independent servers; one of them makes a single-server lock.
        ttl: seconds that a lock lives unless it is extended. Default 10.
        prefix: put before every name to make its key. Default none.
        drift_factor: share of the ttl by which clocks may differ in rate. Default 0.01; 2 ms are added.
        attempt_timeout: seconds that one round waits for silent masters. Default 5 % of the ttl, from 0.1 to 1.
        retry: the pauses between attempts. Default `Retry()`.
        wait_release: whether leaving a ``with`` waits for the answer to the release. Default True.
        on_lost: called with the lock and the reason, in a thread of the client, when a lock is lost: when its validity
            is over, when a renewal finds it forgotten, or when one that was released without waiting turns out to
            have been lost before. Default: a warning in the log.
        wakeups: "auto" has the masters say when a lock that is waited for is released (CLIENT TRACKING), where they
            can; "poll" tries again after the pauses of `retry`. Default "auto".
        handoff: for how long a lock may pass from one waiter of this client to the next without a word to the masters.
            Default `Handoff()`: 0.1 s; then other processes have their turn first.
        max_waiters: how many of this client may wait for one name; `LockBusy` beyond. Default any number.
        refuse_late: whether who would wait for longer than its timeout, as fast as the line moves, is refused at once
            with `LockBusy`. Default False.
        guard: what keeps a master out that may have forgotten locks, or whose clock has jumped; and the longest ttl of
            any lock, the same for all clients of these masters and this prefix. None trusts every master. Default
            `Guard()`: 60 s.
        gil_patience: seconds that a thread of the compiled build keeps the GIL while it waits for replies, unless other
            threads use this client, too, and only where one computes: giving it up costs 5 ms each time then.
            Default: about what replies usually take, and nothing where that is more than 0.5 ms. 0: never.

    Raises:
        ConfigurationError, TypeError: naming the argument that cannot work.
    """

    _driver: Driver

    def __init__(
        self,
        masters: object,
        *,
        ttl: float = 10.0,
        prefix: str | bytes = "",
        drift_factor: float = 0.01,
        attempt_timeout: float | None = None,
        retry: Retry | None = None,
        wait_release: bool = True,
        on_lost: Callable[[Lock, str], object] | None = None,
        wakeups: str = "auto",
        handoff: Handoff | None = None,
        max_waiters: int | None = None,
        refuse_late: bool = False,
        guard: Guard | None = DEFAULT_GUARD,
        gil_patience: float | None = None,
    ) -> None:
        patience = seconds_of("gil_patience", gil_patience)
        super().__init__(
            "threads",
            masters,
            ttl,
            prefix,
            drift_factor,
            attempt_timeout,
            retry,
            wait_release,
            on_lost,
            wakeups,
            handoff,
            max_waiters,
            refuse_late,
            guard,
            gil_patience_ns=-1 if patience is None else int(patience * SECOND),
        )

    def lock(  # longer than a function should be for what it tells of its arguments
        self,
        name: str | bytes,
        ttl: float | None = None,
        *,
        timeout: float | None = None,
        auto_renew: bool = False,
        max_hold: float | None = None,
        fence: bool = False,
        fair: bool = False,
        on_lost: Callable[[Lock, str], object] | None = None,
    ) -> Lock:
        """Make a lock object; nothing is sent yet.

        Args:
            name: what to lock, 1 to 512 bytes.
            ttl: seconds; None takes the client's.
            timeout: seconds that ``with`` and `Lock.acquire` wait; None is for ever, 0 one attempt.
            auto_renew: whether it is renewed when a third of its ttl is over, again and again, until it is released.
                Default False.
            max_hold: seconds for which it is renewed at most. Default for ever.
            fence: whether each holder gets a number of its own, higher than those of all before it, for the resource
                to compare: `Lock.fence`. Default False.
            fair: whether waiters of all processes have their turn in the order in which they came, as for `fair_lock`.
                Default False.
            on_lost: called with the lock and the reason, in a thread of the client, when it is lost. Default: what
                the client has.

        Raises:
            ConfigurationError, TypeError: naming the argument that cannot work.
        """
        if auto_renew or fence or fair or on_lost or max_hold is not None or self._shared.on_lost:
            options = dict(
                timeout=timeout, auto_renew=auto_renew, max_hold=max_hold, fence=fence, fair=fair, on_lost=on_lost
            )
            return self._new(Lock, name, ttl, options)
        return Lock(
            self._shared,
            self._hold_of(name, self._key_of(self._prefix, name), self._plain),
            self._ttl_ms if ttl is None else self._ttl_of(ttl),
            None if timeout is None else seconds_of("timeout", timeout),
        )

    def rlock(self, name: str | bytes, ttl: float | None = None, **options: Unpack[PlainOptions]) -> RLock:
        """Make a re-entrant lock: the thread that holds it may acquire it again, and releases it as often.

        Args:
            name: what to lock.
            ttl: seconds; None takes the client's.
            options: as for `lock`.

        Raises:
            ConfigurationError, TypeError: naming the argument that cannot work.
        """
        return RLock(partial(self._new, Lock, name, ttl, options))

    def fair_lock(self, name: str | bytes, ttl: float | None = None, **options: Unpack[Options]) -> Lock:
        """Make a lock whose waiters of all processes have their turn in the order in which they came.

        Args:
            name: what to lock.
            ttl: seconds; None takes the client's.
            options: as for `lock`, except `fence` and `fair`.

        Raises:
            ConfigurationError, TypeError: naming the argument that cannot work.
        """
        return self._new(Lock, name, ttl, dict(options, fair=True))

    def rw_lock(self, name: str | bytes, ttl: float | None = None, **options: Unpack[Options]) -> RWLock[Lock]:
        """Make a lock for any number of readers or one writer; `read()` and `write()` make a lock for each holder.

        A writer that waits keeps new readers out. A thread may read again inside its own read, even while a writer
        waits. It cannot write inside its own read, nor read or write inside its own write: it would wait for itself, so
        this raises AlreadyHeld. These rules apply to locks made by the same object that is returned here.

        Args:
            name: what to lock.
            ttl: seconds; None takes the client's.
            options: as for `lock`, except `fence` and `fair`.

        Raises:
            ConfigurationError, TypeError: naming the argument that cannot work.
        """
        return RWLock(partial(self._new, Lock, name, ttl, options), self._family, of_threads())

    def semaphore(self, name: str | bytes, permits: int, ttl: float | None = None, **options: Unpack[Options]) -> Lock:
        """Make a lock that as many may hold at once as there are permits; one object is one holder.

        Args:
            name: what to lock.
            permits: how many, 1 to 1,000,000; the same number for everybody who uses the name.
            ttl: seconds; None takes the client's.
            options: as for `lock`, except `fence` and `fair`.

        Raises:
            ConfigurationError, TypeError: naming the argument that cannot work.
        """
        check_permits(permits)
        kind = partial(self._family.Slot, permits=permits)
        return self._new(Lock, name, ttl, options, kind, b"\0slots")

    def multi_lock(
        self, names: Iterable[str | bytes], ttl: float | None = None, *, timeout: float | None = None
    ) -> MultiLock:
        """Make a lock on many names: all of them are acquired, or none.

        Who cannot have all holds none while it waits, so that no two that want some of the same wait for each other.

        Args:
            names: at least one, each as for `lock`; one that comes twice counts once.
            ttl: seconds; None takes the client's.
            timeout: seconds that ``with`` and `MultiLock.acquire` wait; None is for ever, 0 one attempt.

        Raises:
            ConfigurationError, TypeError: naming the argument that cannot work.
        """
        locks = self._locks_on(Lock, distinct(names), ttl)
        return MultiLock(self._shared, locks, seconds_of("timeout", timeout))

    def locked(
        self, template: str, ttl: float | None = None, **options: Unpack[PlainOptions]
    ) -> Callable[[AnyFunction], AnyFunction]:
        """Make a decorator: the function runs while it holds a lock.

        A body that runs only after its function has returned, such as a generator's, would run without the lock. It
        raises TypeError when it is decorated, or when it returns, before any of it runs.

        Args:
            template: the lock's name, with arguments of the function in braces: "report:{day}".
            ttl: seconds; None takes the client's.
            options: as for `lock`.

        Raises:
            ConfigurationError, TypeError: naming the argument that cannot work.
        """
        return locking(partial(self._new, Lock), template, ttl, options)

    def acquire_many(self, names: Iterable[str | bytes], ttl: float | None = None) -> list[Lock | None]:
        """Try once to acquire a lock on each of many names, all in one round trip; each has a verdict of its own.

        Args:
            names: any number of them, each as for `lock`.
            ttl: seconds; None takes the client's.

        Returns:
            A held lock for each name, in order; None where somebody else holds it (or the name came before).

        Raises:
            QuorumUnavailable: too many masters failed; then none is held.
            ConfigurationError, TypeError: an argument cannot work; nothing was sent.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        batch = Batch(self._shared, self._locks_on(Lock, names, ttl))
        try:
            self._driver.run(batch.acquiring())
            return batch.won()
        except BaseException:
            try:  # not in a function, as in `Lock.acquire`
                batch.undo()
            except BaseException:
                batch.undo()
                raise
            raise

    def release_many(self, locks: Iterable[Lock | None], wait: bool = True) -> list[bool]:
        """Release many locks in one round trip.

        Args:
            locks: of this client; None is passed over, so that what `acquire_many` returned will do.
            wait: as for `Lock.release`.

        Returns:
            Whether each was held until now; False where it had been lost, was not held, or is None.

        Raises:
            QuorumUnavailable: too many masters failed for some; those may be released again, the others are.
            TypeError: it is no lock, or of another client; nothing was sent.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        batch: Batch[Lock] | None = None
        drawn: list[Lock | None] = []
        try:
            batch = Batch(self._shared, several("locks", locks, drawn))
            self._driver.run(batch.releasing(wait))
        except BaseException as error:
            try:  # not in a function, as in `Lock.acquire`
                insist(self._shared, batch, locks, drawn, error)
            except BaseException:
                insist(self._shared, batch, locks, drawn, error)
                raise
            raise
        return batch.verdicts()

    def extend_many(self, locks: Iterable[Lock | None], ttl: float | None = None) -> list[bool]:
        """Let many locks live `ttl` seconds from now on, in one round trip; a shorter `ttl` works as in `extend`.

        Args:
            locks: of this client; None is passed over.
            ttl: seconds; None takes each lock's own.

        Returns:
            Whether each was extended; False where it is lost, was not held, or is None.

        Raises:
            QuorumUnavailable: too many masters failed for some; the earlier of the old and the new deadline counts.
            ConfigurationError, TypeError: the ttl cannot work, or it is no lock of this client; nothing was sent.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        batch = Batch(self._shared, locks)
        steps = batch.extending(ttl)
        try:
            self._driver.run(steps)
        finally:
            batch.go_on()
        return batch.verdicts()

    def connect(self) -> None:
        """Connect now instead of with the first use.

        Raises:
            ConfigurationError: a master is a replica, or the same server stands in the list twice.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        self._driver.connect()

    def close(self) -> None:
        """Wait up to a second for releases under way, then close every connection; harmless when repeated.

        Locks that are still held stay on the masters until their ttl is over.
        """
        self._driver.close()

    def __enter__(self) -> Self:
        try:
            self.connect()
        except BaseException:  # the body does not run, and neither does __exit__
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
