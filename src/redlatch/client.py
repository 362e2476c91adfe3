# Generated from aio.py by tests/support/threads_face.py: change the source, and run `make faces`.
"""The face for threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Literal, Self, Unpack

from . import impl
from .config import check_count, closing_of, distinct, seconds_of
from .holder import Holder
from .locks.batch import Batch, resend_release
from .locks.connecting import ALL, check_connected
from .locks.decorate import AnyFunction, locking
from .locks.factory import BaseClient
from .locks.lock import ThreadDriver
from .locks.owner import of_threads
from .locks.rate_limit import BaseRateLimit
from .locks.readwrite import RWLock
from .locks.reentrant import RLock
from .locks.thread_condition import Condition
from .locks.thread_latch import Latch
from .locks.thread_lock import ThreadLock
from .locks.thread_multi import MultiLock
from .options import ClientOptions, LockOptions, PlainOptions, spelled_out, takes
from .votes.kinds import RATE_LIMIT, SEMAPHORE

# At run time `impl` provides the build.
if TYPE_CHECKING:
    from .drivers.threads import Driver
    from .locks.core import new_lock

    _FITS: type[ThreadDriver] = Driver
else:
    new_lock = impl.current.module("locks.core").new_lock
    # See `impl.load`.
    impl.for_clients()


class Lock(ThreadLock):
    """A distributed lock for threads; made by `Client.lock`. One object is one holder at a time."""

    __slots__ = ()

    def extend(self, ttl: float | None = None) -> None:
        """Let the lock live `ttl` seconds from now. The ttl is not added to the time that is left.

        A `ttl` below the remaining time moves this holder's deadline at once, whatever the masters answer. They never
        shorten the key, so others wait until the release or until the key's old expiry.

        Args:
            ttl: the new time to live, in seconds. None takes the ttl of the lock.

        Raises:
            NotOwned: the lock is not held.
            LockLost: the validity was over before a quorum extended the lock, or a quorum has forgotten it.
            QuorumUnavailable: too many masters failed. The earlier of the old and the new deadline counts.
            ConfigurationError, TypeError, ClientUnusable: as for `acquire`.
        """
        try:
            self._shared.run(self._extending(ttl))
        finally:
            try:
                self._go_on()
            except BaseException:
                # An interrupt must not make the report of a loss late.
                self._go_on()
                raise

    @property
    def lost(self) -> threading.Event:
        """An event that is set when the lock is lost.

        That is when its key is gone on a majority of masters, or when its deadline passes. From the first use on, the
        client watches the key; if the masters push no changes, the loss is found at the next renewal, or at the
        deadline. CPU-bound threads can delay the event by 5 ms or more each; `check` is never late. After each loss
        there is a new event.
        """
        return self._loss_event(threading.Event)  # type: ignore[no-any-return]

    def locked(self) -> bool:
        """Ask the masters whether any holder has the lock.

        Returns:
            Whether a quorum of masters says that the lock is held; for a semaphore, that all permits are taken.

        Raises:
            QuorumUnavailable, ClientUnusable: as for `acquire`.
        """
        shared = self._shared
        return bool(shared.run(shared.quorum.locked(self._hold, self._ttl_ms)))

    def owned(self) -> bool:
        """Ask the masters whether this object still holds the lock.

        Returns:
            Whether its validity is not over and a quorum of masters has its token.

        Raises:
            QuorumUnavailable, ClientUnusable: as for `acquire`.
        """
        shared = self._shared
        return bool(shared.run(shared.quorum.owned(self._hold, self._ttl_ms)))

    def holder(self) -> Holder | None:
        """Ask the masters who holds the lock.

        Returns:
            The holder that a quorum of masters names, or None if there is none.

        Raises:
            ConfigurationError: the lock may have several holders: it is a reader's, or a semaphore's.
            QuorumUnavailable, ClientUnusable: as for `acquire`.
        """
        shared = self._shared
        return self._holder_of(shared.run(shared.quorum.holder(self._hold, self._ttl_ms)))

    def condition(self, name: str | bytes = "") -> Condition:
        """Make a condition of this lock: a holder waits in it until another holder, in any process, calls it.

        Args:
            name: the name of the condition, if the lock has several.

        Raises:
            ConfigurationError: several holders may have this lock at a time.
            TypeError: the name is neither str nor bytes.
        """
        return Condition(self, name)


class Semaphore(Lock):
    """One holder's place in a semaphore; `Client.semaphore` makes it."""


class RateLimit(BaseRateLimit):
    """A rate limit for threads; made by `Client.rate_limit`. One object may have any number of users.

    ``with`` acquires a permit; its end gives nothing back.
    """

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire a permit. It is taken for the period, and never released.

        Args:
            blocking: False makes one attempt.
            timeout: how long to wait, in seconds. None takes the timeout of the rate limit; if that is None, no limit.

        Returns:
            Whether there was a permit. At most `limit` calls return True in any window of the period.

        Raises:
            ConfigurationError: an argument is invalid; or, without a timeout, the masters are too slow for this
                `period` and the `max_ttl` of the guard.
            LockBusy, QuorumUnavailable, TypeError, ClientUnusable: as for `Lock.acquire`.
        """
        won, _ = self._acquire(self._until_ns(blocking, timeout))
        return won

    def _acquire(self, until_ns: int) -> tuple[bool, Lock]:
        late = 0
        while True:
            lock: Lock = self._permit()
            try:
                if not lock.acquire(timeout=self._left(until_ns)):
                    return False, lock
                if self._counts(lock):
                    return True, lock
            except BaseException:
                self._give_back(lock)
                raise
            late += 1
            if self._gives_up(lock, until_ns, late):
                return False, lock

    def __enter__(self) -> Self:
        won, lock = self._acquire(self._until_ns(True, None))
        if not won:
            raise self._refused(lock)
        return self

    def __exit__(self, *_: object) -> None:
        """Give nothing back."""


class Client(BaseClient):
    """A lock client for any number of threads.

    It connects at its first use, or with `connect`. A client that has connected cannot be used in a forked child.

    Args:
        masters: the URLs (redis://, rediss://, valkey://, valkeys://, unix://, redis+sentinel://) of independent
            servers, or redis-py clients, whose settings are used. One string may have several URLs, with commas or
            spaces between them. One master makes a single-server lock. Or one cluster: its URL (redis+cluster://,
            rediss+cluster://), or a `redis.RedisCluster`, also that of `redis.asyncio`.
        ttl: how long a lock lives unless it is extended, in seconds. Default 10.
        timeout: how long ``with`` and `Lock.acquire` wait for a lock without a timeout of its own, in
            seconds. Default: no limit.
        patience: how long an acquire keeps trying while no quorum of masters votes, within its timeout, in seconds,
            before it raises `QuorumUnavailable`. A single attempt has no patience. Default 0.
        prefix: the text before each name in its key. Default none.
        drift_factor: the share of the ttl by which clocks may differ in rate. 2 ms are added. Default 0.01.
        attempt_timeout: how long one round waits for silent masters, in seconds. Default 5 % of the ttl, at least 0.1
            and at most 1.
        retry: the back-off between attempts. Default `Retry()`.
        wait_release: whether the end of ``with`` waits for the answer to the release. Default True.
        on_lost: called with the lock and the reason, in a thread of the client, when a lock is lost. Default: a warning
            in the log, for locks with `auto_renew`, for locks whose `lost` was used, and for releases without
            waiting.
        wakeups: "auto" makes the masters push the release of a lock that a waiter waits for (CLIENT TRACKING), if they
            can. "poll" tries again after the pauses of `retry`. Default "auto".
        handoff: for how long a lease may pass from one waiter of this client to the next without a command to the
            masters, before other processes get a chance. Default `Handoff()`: 0.1 s.
        max_waiters: how many waiters of this client may queue for one name. One more raises `LockBusy`. Default no
            limit.
        refuse_late: whether `acquire` raises `LockBusy` at once if, at the current speed of the queue, its timeout
            would end before its turn. Default False.
        guard: keeps out a master that may have forgotten locks or whose clock has jumped, and limits the ttl. All
            clients of these masters and this prefix must give the same guard. None lets every master vote. Default
            `Guard()`: 60 s.
        next: the masters to go over to, if a handover (`redlatch masters move`) is planned. Default none.
        host_map: where the nodes of a cluster are reached, behind NAT or a tunnel: a mapping from the addresses
            ("host:port") that the cluster announces, or a function of such an address, which is called in threads of
            the client. The hosts of the URL are reached as they are. Default none.
        owner: whose locks these are, as `Lock.holder` shows it to others: at most 64 bytes that can be printed.
            None takes the host and the process, as "host:pid"; "" is none, and shortens the tokens. Default None.
        scripts: "lua" uses scripts, and refuses a master that forbids them. "watch" uses transactions (WATCH, MULTI,
            EXEC), which take two round trips and need no right to scripts; it has no fair locks, semaphores, rate
            limits, read-write locks, conditions and latches. "auto" uses transactions on those masters that refuse
            scripts, and scripts on the others. Default "auto".
        synced: have each vote on the replicas of its master before it counts, so that a fail-over by Sentinel or of a
            cluster forgets no lock: True for all replicas that are connected, or so many. An acquire or extension takes
            a round trip to them longer (WAIT), and fails while they lag (`NotReplicated` in `causes`); a master without
            a replica does not vote. What stays: a former master that is cut off still answers, unless it has
            `min-replicas-to-write`. Default False.
        heartbeat: ends the renewal of held locks after this client could not run for that many seconds: the process was
            stopped, an extension kept the GIL, or a call blocked the event loop. Then the locks run out. This matters
            only for locks with a longer ttl. It does not notice a deadlock of your own code: see `max_hold`. At least
            0.001. Default: no limit.
        gil_patience: how long a thread of the compiled build keeps the GIL while it waits for replies, in seconds. It
            keeps the GIL only while no other thread uses this client and another thread computes: then releasing the
            GIL costs 5 ms each time. Default: about the usual time of a reply, or 0 if that is more than 0.5 ms.
            0: never.

    Raises:
        ConfigurationError, TypeError: an argument is invalid; the message names it.
    """

    _driver: ThreadDriver

    @takes(ClientOptions)
    def __init__(self, options: ClientOptions) -> None:
        self._open(options)

    @spelled_out(PlainOptions)
    def lock(self, name: str | bytes, ttl: float | None = None, **options: Unpack[PlainOptions]) -> Lock:
        """Make a lock object; nothing is sent yet.

        Args:
            name: the name to lock, 1 to 512 bytes.
            ttl: the time to live, in seconds. None takes the ttl of the client.
            timeout: how long ``with`` and `Lock.acquire` wait, in seconds. None takes the timeout of the
                client; without one there is no limit, as with ``math.inf``. 0 is one attempt.
            auto_renew: whether the lock is renewed whenever a third of its ttl is over, until it is released. Default
                False.
            max_hold: for how long the lock is renewed, in seconds. Default: no limit.
            fence: whether each holder gets a number, higher than those of all holders before, for the resource
                to compare (`Lock.fence`). Default False.
            fair: whether the waiters of all processes are served in the order in which they came. Default False.
            on_lost: called with the lock and the reason, in a thread of the client, when the lock is lost. Default: the
                `on_lost` of the client.
            group: the group of locks in whose figures this one counts (`Client.stats`), such as "orders". There
                may be a hundred groups, so it must not be the name of the lock. Default none.

        Raises:
            ConfigurationError, TypeError: an argument is invalid; the message names it.
        """
        timeout = options.pop("timeout", None) if options else None
        if options or self._shared.on_lost is not None:
            return self._new(Lock, name, ttl, {"timeout": timeout, **options})
        return new_lock(  # type: ignore[no-any-return]
            Lock,
            self._shared,
            self._hold_named,
            self._prefix,
            name,
            self._plain,
            self._ttl_ms if ttl is None else self._ttl_of(ttl),
            self._timeout if timeout is None else seconds_of("timeout", timeout),
        )

    @spelled_out(PlainOptions)
    def rlock(self, name: str | bytes, ttl: float | None = None, **options: Unpack[PlainOptions]) -> RLock:
        """Make a re-entrant lock: the thread that holds it may acquire it again, and must release it as often.

        Arguments and errors are those of `lock`.
        """
        return RLock(partial(self._new, Lock, name, ttl, options))

    @spelled_out(LockOptions)
    def fair_lock(self, name: str | bytes, ttl: float | None = None, **options: Unpack[LockOptions]) -> Lock:
        """Make a lock that serves the waiters of all processes in the order in which they came.

        Arguments and errors are those of `lock`, without `fence` and `fair`.
        """
        return self._new(Lock, name, ttl, dict(options, fair=True))

    @spelled_out(LockOptions)
    def rw_lock(self, name: str | bytes, ttl: float | None = None, **options: Unpack[LockOptions]) -> RWLock[Lock]:
        """Make a lock for many readers or one writer; `read()` and `write()` make a lock for each holder.

        A waiting writer keeps new readers out. `RWLock.read` and `RWLock.write` say what a holder may do again inside
        its own read or write.

        Arguments and errors are those of `lock`, without `fence` and `fair`.
        """
        self._need_scripts()
        return RWLock(partial(self._new, Lock, name, ttl, options), self._kind_of, of_threads())

    @spelled_out(LockOptions)
    def semaphore(
        self, name: str | bytes, permits: int, ttl: float | None = None, **options: Unpack[LockOptions]
    ) -> Semaphore:
        """Make a semaphore: a lock with several permits, one for each holder. One object is one holder.

        Args:
            permits: the number of permits, 1 to 1,000,000. All users of the name must give the same number.
            name, ttl, options: as for `lock`, except `fence` and `fair`.

        Raises:
            ConfigurationError, TypeError: an argument is invalid.
        """
        check_count("permits", permits, 1_000_000)
        make = partial(self._kind_of[SEMAPHORE], permits=permits)
        return self._new(Semaphore, name, ttl, options, SEMAPHORE, make)

    def rate_limit(
        self,
        name: str | bytes,
        limit: int,
        period: float,
        *,
        timeout: float | None = None,
        group: str | None = None,
    ) -> RateLimit:
        """Make a rate limit: at most `limit` acquires in any window of `period` seconds, in all processes together.

        Args:
            name: the name of the rate limit, 1 to 512 bytes. A lock may have the same name.
            limit: the number of permits, 1 to 1,000,000. All users of the name must give the same number.
            period: how long a permit is taken, in seconds: 0.01 to the `max_ttl` of the guard.
            timeout, group: as for `lock`.

        Raises:
            ConfigurationError, TypeError: an argument is invalid.
        """
        make = partial(self._new, Lock, name, None, {"timeout": timeout, "group": group}, RATE_LIMIT)
        return RateLimit(self._shared, make, self._kind_of[RATE_LIMIT], limit, period)

    def latch(self, name: str | bytes, count: int, ttl: float | None = None) -> Latch:
        """Make a latch: it opens after `count` calls of `Latch.count_down`, by any processes, and stays open.

        Args:
            name: the name of the latch, 1 to 512 bytes. A lock may have the same name.
            count: how many counts open it, 1 to 10,000. All users of the name must give the same number.
            ttl: for how long the masters keep the latch after the last count or wait, in seconds. Then it is new again.
                None takes 60, or the `max_ttl` of the guard if that is less.

        Raises:
            ConfigurationError, TypeError: an argument is invalid.
        """
        return Latch(self._shared, self._latch_hold(name), count, self._latch_ttl(ttl))

    def multi_lock(
        self,
        names: Iterable[str | bytes],
        ttl: float | None = None,
        *,
        timeout: float | None = None,
        group: str | None = None,
    ) -> MultiLock:
        """Make a lock on many names: it acquires all of them, or none.

        While it waits, it holds none of the names. So two multi-locks with common names never wait for each other.

        Args:
            names: one name or more, each as for `lock`. A name that comes twice counts once.
            ttl, timeout, group: as for `lock`.

        Raises:
            ConfigurationError, TypeError: an argument is invalid.
        """
        locks = self._locks_on(Lock, distinct(names), ttl, group)
        return MultiLock(self._shared, locks, self._timeout_of(timeout))

    @spelled_out(PlainOptions)
    def locked(
        self, template: str, ttl: float | None = None, **options: Unpack[PlainOptions]
    ) -> Callable[[AnyFunction], AnyFunction]:
        """Make a decorator: the function runs while it holds a lock.

        A generator, for example, would run its body without the lock, after its function has returned. Such a function
        raises TypeError when it is decorated or when it returns, before any of its body runs.

        Args:
            template: the name of the lock, with arguments of the function in braces: "report:{day}".
            ttl, options: as for `lock`.

        Raises:
            ConfigurationError, TypeError: an argument is invalid.
        """
        return locking(partial(self._new, Lock), template, ttl, options)

    def rate_limited(
        self,
        template: str,
        limit: int,
        period: float,
        *,
        timeout: float | None = None,
        group: str | None = None,
    ) -> Callable[[AnyFunction], AnyFunction]:
        """Make a decorator: each call of the function first acquires a permit of a rate limit.

        Args:
            template: the name of the rate limit, with arguments of the function in braces: "mail:{customer}".
            limit, period, timeout, group: as for `rate_limit`.

        Raises:
            ConfigurationError, TypeError: an argument is invalid.
        """

        def make(name: str, *_: object) -> RateLimit:
            return self.rate_limit(name, limit, period, timeout=timeout, group=group)

        return locking(make, template, None, {})

    def acquire_many(
        self, names: Iterable[str | bytes], ttl: float | None = None, *, group: str | None = None
    ) -> list[Lock | None]:
        """Make one attempt to lock each of many names, all in one round trip; each name has its own result.

        Args:
            names: any number of names, each as for `lock`.
            ttl, group: as for `lock`.

        Returns:
            For each name, in order, a lock that is held; or None if another holder has it, or the name came before.

        Raises:
            QuorumUnavailable: too many masters failed. Then no lock is held.
            ConfigurationError, TypeError: an argument is invalid. Nothing was sent.
            ClientUnusable: as for `Lock.acquire`.
        """
        batch = Batch(self._shared, self._locks_on(Lock, names, ttl, group))
        try:
            self._driver.run(batch.acquiring())
            return batch.won()
        except BaseException:
            # `recovering` says why this is repeated, and why it stands here.
            try:
                batch.undo()
            except BaseException:
                batch.undo()
                raise
            raise

    def release_many(self, locks: Iterable[Lock | None], wait: bool = True) -> list[bool]:
        """Release many locks in one round trip.

        Args:
            locks: locks of this client. None is skipped, so the result of `acquire_many` works.
            wait: as for `Lock.release`.

        Returns:
            For each lock, whether it was held until now. False if it was lost, was not held, or is None.

        Raises:
            QuorumUnavailable: too many masters failed for some locks, which may be released again; the others are
                released.
            TypeError: an element is not a lock of this client. Nothing was sent.
            ClientUnusable: as for `Lock.acquire`.
        """
        batch: Batch[Lock] | None = None
        drawn: list[Lock | None] = []
        try:
            batch = Batch(self._shared, locks, drawn)
            self._driver.run(batch.releasing(wait))
        except BaseException as error:
            # As in `acquire_many`.
            try:
                resend_release(self._shared, batch, locks, drawn, error)
            except BaseException:
                resend_release(self._shared, batch, locks, drawn, error)
                raise
            raise
        return batch.verdicts()

    def extend_many(self, locks: Iterable[Lock | None], ttl: float | None = None) -> list[bool]:
        """Let many locks live `ttl` seconds from now, in one round trip; a shorter `ttl` works as in `extend`.

        Args:
            locks: as for `release_many`.
            ttl: the new time to live, in seconds. None takes the ttl of each lock.

        Returns:
            For each lock, whether it was extended. False if it is lost, was not held, or is None.

        Raises:
            QuorumUnavailable: as for `Lock.extend`, for some of the locks.
            ConfigurationError, TypeError: an argument is invalid. Nothing was sent.
            ClientUnusable: as for `Lock.acquire`.
        """
        batch = Batch(self._shared, locks)
        steps = batch.extending(ttl)
        try:
            self._driver.run(steps)
        finally:
            batch.go_on()
        return batch.verdicts()

    def connect(self, require: Literal["all", "quorum"] | None = None) -> None:
        """Connect now, not at the first use. Wait a few seconds at most for masters that do not answer.

        Args:
            require: "all" raises an exception unless all masters vote, "quorum" unless a quorum does. Default None:
                masters that are down are connected when they are back.

        Raises:
            ConfigurationError: a master is a replica, or the list has the same server twice; or no quorum is possible
                until a setting is changed, such as a password. The message has the cure.
            QuorumUnavailable: too few masters vote for `require`.
            ClientUnusable: as for `Lock.acquire`.
        """
        self._driver.connect(require == ALL)
        check_connected(self._driver, require)

    def close(self, release: bool = False, timeout: float = 1.0) -> None:
        """Wait for releases under way, then close all connections. A later call changes nothing.

        From now on every call raises `ClientClosed`, even one that waits for a lock.

        Args:
            release: whether to release the locks of this client that are still held, of every kind. Before a release is
                sent, `check` of its holder raises LockLost, `lost` is set, and `on_lost` is called. Default False: they
                stay on the masters until their ttl is over.
            timeout: how long to wait for the answers to releases, in seconds. Default 1. Releases that a master has not
                read by then may be lost; its keys stay until their ttl is over.

        Raises:
            ConfigurationError, TypeError: an argument is invalid. Nothing was closed.
        """
        self._driver.close(*closing_of(release, timeout))

    def __enter__(self) -> Self:
        try:
            self.connect()
        except BaseException:
            # Neither the body nor `__exit__` runs.
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
