"""Ctrl-C at each place of an acquire at which Python may raise it (row 37) leaves no key and no waiter."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import itertools
import queue
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import pytest
from support.faces import PATIENCE, ask, await_true, descriptors, in_thread
from support.selection import ALL

from redlatch import AsyncClient, Client, ClientClosed, LockError, impl
from redlatch.drivers.background import BackgroundThread
from redlatch.drivers.leader import ROLE
from redlatch.locks.thread_lock import ThreadLock

LONG = 30.0
# A place is passed again in a loop or from another caller, after something else has happened. `make test` strikes at
# the first time only.
OFTEN = 3 if ALL else 1
# The seconds after which a waiter gives up, before the lock is free.
SHORT = 0.02


# A file, a line, the event there, and how often it occurred before in this call.
Place = tuple[str, int, str, int]


def strike(acquire: Callable[[], object], striking: Strike) -> Place | None:
    """Acquire a lock with an interrupt at a new place; return the place, or None if no place was new."""
    # Python swallows an interrupt inside the callback of a weak reference.
    gc.disable()
    sys.setprofile(striking)
    try:
        acquire()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
        sys.settrace(None)
        gc.enable()
    return striking.place


def left(urls: list[str], name: str) -> list[bytes]:
    """Return all keys of that name, except the fence counters."""
    found: list[bytes] = []
    for url in urls:
        with ask(url) as server:
            found += [key for key in server.keys(f"*{name}*") if not key.endswith(b"\0fence")]
    return found


class Strike:
    """Raises one KeyboardInterrupt at the first place that is not among the known ones, and adds that place to them.

    Places are where the interpreter checks for signals: at the beginning of a function of the package, and after each
    call of a function in C. At a place that is passed often, only the first few times count. The beginning of a
    coroutine is none: one that is cancelled checks for no signal before its own code runs.
    """

    def __init__(self, known: set[Place]) -> None:
        self._known = known
        self._passed: Counter[tuple[str, int, str]] = Counter()
        self.place: Place | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "c_return") or not str(frame.f_globals.get("__name__")).startswith("redlatch"):
            return
        if event == "call" and frame.f_code.co_flags & inspect.CO_COROUTINE:
            return
        here = frame.f_code.co_filename, frame.f_lineno, event
        place = (*here, self._passed[here])
        self._passed[here] += 1
        if self._passed[here] <= OFTEN and place not in self._known:
            self._known.add(place)
            self.place = place
            sys.setprofile(None)
            raise KeyboardInterrupt


class Twice(Strike):
    """Raises a KeyboardInterrupt after a function in C with the given name, and then another one as `Strike` does.

    The second one strikes only at the beginning of functions, because the interpreter has a separate hook for each of
    the two. It does not strike in generators: a generator begins once, and one that is closed checks for no signal
    before its own code runs.
    """

    def __init__(self, known: set[Place], first: str) -> None:
        super().__init__(known)
        self._first = first

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        ours = str(frame.f_globals.get("__name__")).startswith("redlatch")
        if event == "c_return" and ours and called.__name__ == self._first:
            self.strike_first()

    def strike_first(self) -> NoReturn:
        sys.setprofile(None)
        sys.settrace(self._again)
        raise KeyboardInterrupt

    def _again(self, frame: FrameType, event: str, called: Any) -> None:
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            return
        try:
            super().__call__(frame, event, called)
        finally:
            if self.place is not None:
                sys.settrace(None)


def holding(client: Client, name: str, then: Callable[[threading.Event], object]) -> Callable[[], None]:
    """Hold a lock in another thread until a waiter is in its queue, do something, and release it.

    Args:
        then: the call before the release; it gets an event that is set when no waiter is left.

    Returns:
        A function that sets that event, and waits for the release.
    """
    held, over = threading.Event(), threading.Event()
    queues = client._quorum.queues

    def hold() -> None:
        lock = client.lock(name, ttl=LONG)
        lock.acquire()
        held.set()
        await_true(lambda: bool(queues.by_key) or over.is_set())
        then(over)
        try:
            lock.release()
        except LockError:
            # `then` made the lock lost.
            pass

    call = in_thread(hold)
    assert held.wait(PATIENCE)

    def end() -> None:
        over.set()
        call.result(PATIENCE)

    return end


def nothing(_: Any = None) -> None:
    return None


class Search:
    """Runs of a call, each with an interrupt at a new place, until five in a row have found no new place."""

    def __init__(self) -> None:
        self.known: set[Place] = set()
        self._whole = 0

    def names(self, name: str) -> Iterator[str]:
        """Yield a name for each run."""
        # Do not strike in the finalizers of other tests' clients.
        gc.collect()
        for number in itertools.count():
            if self._whole == 5:
                return
            yield f"{name}-{number}"

    def strike(self, call: Callable[[], object], twice_behind: str = "") -> Place | None:
        """Strike in a call, as `strike` does; or twice, the first time after a function in C with that name."""
        return self.run(call, Twice(self.known, twice_behind) if twice_behind else Strike(self.known))

    def run(self, call: Callable[[], object], striking: Strike) -> Place | None:
        place = strike(call, striking)
        self._whole = 0 if place is not None else self._whole + 1
        return place


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Search:
    """A search in the pure implementation, in which Ctrl-C may strike anywhere."""
    monkeypatch.setattr(impl, "current", impl.load("python"))
    return Search()


KINDS = {
    "rlock": lambda client, name: client.rlock(name, ttl=LONG),
    "multi": lambda client, name: client.multi_lock([name, f"{name}-b"], ttl=LONG),
    "fenced": lambda client, name: client.lock(name, ttl=LONG, fence=True),
    "fair": lambda client, name: client.fair_lock(name, ttl=LONG),
    "permit": lambda client, name: client.semaphore(name, 2, ttl=LONG),
    "reader": lambda client, name: client.rw_lock(name, ttl=LONG).read(),
    "writer": lambda client, name: client.rw_lock(name, ttl=LONG).write(),
}


@pytest.mark.slow("each place of each kind; plain locks are tested beside it")
@pytest.mark.parametrize("kind", KINDS)
def test_row_37_an_interrupt_at_each_place_of_an_acquire_leaves_nothing_of_any_kind(
    kind: Any, search: Search, three: list[str], name: str
) -> None:
    with Client(three) as client:
        client.connect()
        for each in search.names(name):
            lock = KINDS[kind](client, each)
            place = search.strike(lock.acquire)
            if place is None:
                lock.release()
                continue
            assert lock.remaining() == 0.0, place
            await_true(partial(lambda each: not left(three, each), each), LONG / 6)
    assert len(search.known) > 50


def check_nobody_is_left(client: Client, other: Client, urls: list[str], name: str, place: Place | None) -> None:
    """Check that an interrupted acquire left no key, and no entry in a queue."""
    await_true(lambda: not left(urls, name), LONG / 6)
    nobodys = other.lock(name)
    assert nobodys.acquire(timeout=LONG / 6), place
    nobodys.release()
    await_true(lambda: not left(urls, name), LONG / 6)
    queues = client._quorum.queues.by_key
    assert not any(queue.entries for queue in queues.values()), place


@pytest.mark.usual(
    "a lock with `on_lost` is attended to like a renewed one",
    *[{"case": case} for case in ("free", "renewed", "late", "handed on", "handed on and lost")],
)
@pytest.mark.parametrize("case", ["free", "renewed", "watched", "late", "handed on", "handed on and lost"])
def test_row_37_an_interrupt_at_each_place_of_an_acquire_leaves_nothing(
    case: str, search: Search, three: list[str], name: str
) -> None:
    cases: dict[str, dict[str, Any]] = {"renewed": {"auto_renew": True}, "watched": {"on_lost": lambda *_: None}}
    options = cases.get(case, {})
    with Client(three) as client, Client(three) as other:
        client.connect()
        for each in search.names(name):
            end: Callable[[], object] = nothing
            if case == "late":
                end = holding(client, each, threading.Event.wait)
            elif case == "handed on":
                end = holding(client, each, nothing)
            elif case == "handed on and lost":
                end = holding(client, each, partial(lambda each, _: [ask(url).delete(each) for url in three[:2]], each))
            lock = client.lock(each, ttl=2 * LONG, timeout=SHORT if case == "late" else PATIENCE, **options)
            place = search.strike(lock.acquire)
            end()
            if place is None:
                if lock.token is not None:
                    lock.release()
                continue
            assert lock.token is None, place
            check_nobody_is_left(client, other, three, each, place)
    assert len(search.known) > 50


# "poll" waits for the sockets, "acquire" for the lock on which a waiter sleeps.
@pytest.mark.usual(
    "both waits are interrupted in a plain lock; the other calls have one of them each",
    {"kind": "plain"},
    {"kind": "rlock", "first": "acquire"},
    {"kind": "multi", "first": "acquire"},
    {"kind": "many", "first": "poll"},
)
@pytest.mark.parametrize("first", ["poll", "acquire"])
@pytest.mark.parametrize("kind", ["plain", "rlock", "multi", "many"])
def test_row_37_a_second_interrupt_while_the_first_is_handled_leaves_nothing(
    kind: str, first: str, search: Search, three: list[str], name: str
) -> None:
    with Client(three) as client, Client(three) as other:
        client.connect()
        for each in search.names(name):
            end = holding(client, each, threading.Event.wait) if first == "acquire" else nothing
            calls: dict[str, Callable[[], object]] = {
                "plain": client.lock(each, ttl=2 * LONG, timeout=SHORT).acquire,
                "rlock": client.rlock(each, ttl=2 * LONG, timeout=SHORT).acquire,
                "multi": client.multi_lock([f"{each}-b", each], ttl=2 * LONG, timeout=SHORT).acquire,
                "many": partial(client.acquire_many, [f"{each}-b", each], ttl=2 * LONG),
            }
            place = search.strike(calls[kind], twice_behind=first)
            end()
            check_nobody_is_left(client, other, three, each, place)
            assert not client._quorum.queues.heads, place
    assert len(search.known) > 10


def test_row_37_a_second_interrupt_just_after_the_driver_has_returned_leaves_nothing(
    search: Search, three: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python may raise an interrupt just after a compiled function has returned."""
    whole = ThreadLock._acquire
    with Client(three) as client, Client(three) as other:
        client.connect()
        for each in search.names(name):
            striking = Twice(search.known, "")

            def interrupted(lock: Any, *args: Any, striking: Twice = striking) -> NoReturn:
                assert whole(lock, *args)
                striking.strike_first()

            with monkeypatch.context() as patched:
                patched.setattr(ThreadLock, "_acquire", interrupted, raising=False)
                place = search.run(client.lock(each, ttl=2 * LONG).acquire, striking)
            check_nobody_is_left(client, other, three, each, place)
    assert len(search.known) > 5


@pytest.mark.parametrize("what", ["acquire", "release"])
@pytest.mark.parametrize("kind", ["lock", "fair_lock"])
def test_row_37_an_interrupt_while_a_cancelled_task_cleans_up_leaves_nothing(
    kind: str, what: str, search: Search, three: list[str], name: str
) -> None:
    """The first Ctrl-C cancels the task of `asyncio.run`, and the second one is raised wherever the program is."""

    async def begin(lock: Any) -> asyncio.Task[Any]:
        if what == "release":
            await lock.acquire()
        task: asyncio.Task[Any] = asyncio.ensure_future(getattr(lock, what)())
        await asyncio.sleep(0)
        return task

    async def look(each: str, place: Place | None) -> None:
        for _ in range(1000):
            if not left(three, each):
                return
            await asyncio.sleep(0.001)
        raise AssertionError(place)

    async def connected(client: AsyncClient) -> None:
        """Wait until no connection is on its way. A strike at the beginning of its callback would leave it waiting."""
        await client.connect()
        while client._driver.status.state != "3 of 3 connected":
            await asyncio.sleep(0.001)

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        for each in search.names(name):
            # Of its own, because an interrupt may close the connections, and then they are made again.
            client = AsyncClient(three)
            runner.run(asyncio.wait_for(connected(client), PATIENCE))
            lock, place = getattr(client, kind)(each, ttl=LONG), None
            task = runner.run(begin(lock))
            if task.cancel():
                place = search.strike(partial(loop.run_until_complete, asyncio.sleep(0)))
                loop.stop()  # an interrupt may have come before the loop has stopped
                loop.run_forever()
                task.cancel()  # as `asyncio.run` does at its end
                with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
                    loop.run_until_complete(asyncio.wait_for(task, PATIENCE))
            elif what == "acquire":
                runner.run(lock.release())
            runner.run(look(each, place))
            runner.run(client.close())
    assert len(search.known) > 50


def test_row_37_an_interrupt_at_each_place_of_a_lost_acquire_many_leaves_nothing(
    search: Search, three: list[str], name: str
) -> None:
    """One master grants each name, and two refuse."""
    with Client(three) as client:
        client.connect()
        for each in search.names(name):
            wanted = [f"{each}-a", f"{each}-b"]
            for url in three[1:]:
                ask(url).mset(dict.fromkeys(wanted, "somebody else's"))
            place = search.strike(partial(client.acquire_many, wanted, ttl=2 * LONG))
            await_true(partial(lambda each: not left(three[:1], each), each), LONG / 6)
            assert not client._quorum.queues.heads, place
            for url in three[1:]:
                ask(url).delete(*wanted)
    assert len(search.known) > 50


def begins(call: Callable[..., object], place: Place | None) -> bool:
    """Return whether the interrupt struck before a method's first instruction, where it cannot be caught."""
    code = call.__func__.__code__  # type: ignore[attr-defined]
    return place is not None and place[:3] == (code.co_filename, code.co_firstlineno, "call")


@pytest.mark.parametrize("kind", ["plain", "renewed", *(KINDS if ALL else ())])
@pytest.mark.parametrize("how", ["with", "release"])
def test_row_37_an_interrupt_at_each_place_of_a_release_releases(
    how: str, kind: Any, search: Search, three: list[str], name: str
) -> None:
    kinds = KINDS | {
        "plain": lambda client, name: client.lock(name, ttl=LONG),
        "renewed": lambda client, name: client.lock(name, ttl=LONG, auto_renew=True),
    }
    with Client(three) as client:
        client.connect()
        for each in search.names(name):
            lock = kinds[kind](client, each)
            lock.__enter__()
            end = partial(lock.__exit__, None, None, None) if how == "with" else lock.release
            place = search.strike(end)
            if begins(lock.__exit__ if how == "with" else lock.release, place):
                end()
            assert lock.remaining() == 0.0, place
            await_true(partial(lambda each: not left(three, each), each), LONG / 6)
            assert not client._quorum.queues.heads, place
            assert lock.acquire(timeout=LONG / 6), place
            lock.release()
    assert len(search.known) > 20


def test_an_interrupt_at_each_place_of_an_inner_exit_leaves_the_lock_to_the_outer_one(
    search: Search, three: list[str], name: str
) -> None:
    with Client(three) as client:
        client.connect()
        for each in search.names(name):
            lock = client.rlock(each, ttl=LONG)
            with lock:
                lock.__enter__()
                place = search.strike(partial(lock.__exit__, None, None, None))
                if begins(lock.__exit__, place):
                    lock.__exit__(None, None, None)
                assert lock.count == 1, place
                assert left(three, each), place
            assert lock.count == 0, place
            await_true(partial(lambda each: not left(three, each), each), LONG / 6)
    assert len(search.known) > 5


# "poll" waits for the sockets, "append" queues a call.
@pytest.mark.parametrize(("first", "waited_for"), [("poll", False), ("append", True)])
def test_a_second_interrupt_while_a_release_is_sent_again_leaves_nothing(
    first: Any, waited_for: Any, search: Search, three: list[str], name: str
) -> None:
    with Client(three) as client, Client(three) as other:
        client.connect()
        for each in search.names(name):
            lock = client.lock(each, ttl=LONG)
            lock.acquire()
            end = waiting(client, each) if waited_for else nothing
            place = search.strike(lock.release, twice_behind=first)
            end()
            check_nobody_is_left(client, other, three, each, place)
    assert len(search.known) > 5


def test_a_second_interrupt_in_an_extension_leaves_a_usable_lock(search: Search, three: list[str], name: str) -> None:
    with Client(three) as client:
        for each in search.names(name):
            lock = client.lock(each, ttl=LONG)
            lock.acquire()
            place = search.strike(lock.extend, twice_behind="poll")
            assert client._driver._leader.role == {}, place  # type: ignore[attr-defined]
            lock.extend()
            lock.release()
    assert len(search.known) > 5


@pytest.mark.parametrize("kind", ["fenced", "fair", "crowded"])
def test_an_interrupt_at_each_place_of_an_acquire_that_times_out_leaves_no_watch(
    kind: str, search: Search, three: list[str], name: str
) -> None:
    with Client(three) as holder, Client(three) as client:
        watches = client._quorum.queues.watches
        client.connect()

        def lock_of(owner: Client) -> Any:
            return owner.lock(name, ttl=LONG, fence=True) if kind == "fenced" else owner.fair_lock(name, ttl=LONG)

        assert lock_of(holder).acquire()
        for _ in search.names(name):
            if kind == "crowded":  # the first attempt watches, too
                client._quorum.queues.crowd(name.encode())
            place = search.strike(partial(lock_of(client).acquire, timeout=0.01))
            assert not any(watches.by_key.values()), place
    assert len(search.known) > 50


@pytest.mark.parametrize("wait", [True, False])
def test_an_interrupt_at_each_place_of_release_many_releases_all(
    wait: bool, search: Search, three: list[str], name: str
) -> None:
    with Client(three) as client:
        client.connect()
        for each in search.names(name):
            locks: list[Any] = client.acquire_many([each, f"{each}-b"], ttl=LONG)
            place = search.strike(partial(client.release_many, locks, wait))
            if begins(client.release_many, place):
                client.release_many(locks)
            assert not any(lock.remaining() for lock in locks), place
            await_true(partial(lambda each: not left(three, each) + left(three, f"{each}-b"), each), LONG / 6)
    assert len(search.known) > 20


@pytest.mark.slow("each place of each iterator; a list is tested beside it")
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("kind", [iter, partial(map, lambda lock: lock)], ids=["iterator", "map"])
def test_an_interrupt_at_each_place_of_release_many_releases_all_locks_drawn_from_an_iterator(
    kind: Any, wait: bool, search: Search, three: list[str], name: str
) -> None:
    with Client(three) as client:
        client.connect()
        for each in search.names(name):
            locks: list[Any] = client.acquire_many([each, f"{each}-b"], ttl=LONG)
            given = kind(locks)
            place = search.strike(partial(client.release_many, given, wait))
            drawn = len(locks) - len(list(given))
            assert drawn in (0, 2), place
            assert not any(lock.remaining() for lock in locks[:drawn]), place
            client.release_many(locks)
    assert len(search.known) > 20


def test_an_interrupt_ends_release_many_that_waits_for_an_iterator(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    with Client(three) as client:
        locks: list[Any] = client.acquire_many([name], ttl=LONG)
        come: queue.Queue[Any] = queue.Queue()
        come.put(locks[0])
        struck = []

        def strike() -> Any:
            if come.empty():
                struck.append(True)
                raise KeyboardInterrupt
            return come.get()

        with pytest.raises(KeyboardInterrupt):
            client.release_many(iter(strike, None))
        assert struck == [True]
        assert not locks[0].remaining()


def test_an_interrupt_of_release_many_is_raised_although_its_argument_is_wrong(
    search: Search, three: list[str], name: str
) -> None:
    with Client(three) as client:
        client.connect()

        def refused() -> None:
            with pytest.raises(TypeError) as caught:
                client.release_many(5)  # type: ignore[arg-type]
            assert caught.value.__context__ is None

        for _ in search.names(name):
            search.strike(refused)
    assert len(search.known) > 3


@pytest.mark.parametrize("twice", ["", "popleft"])
@pytest.mark.parametrize("what", ["acquire", "extend", "locked"])
def test_an_interrupt_at_each_place_of_submitting_another_threads_command_does_not_delay_it(
    what: str, twice: str, search: Search, three: list[str], name: str
) -> None:
    """The other thread's call tries again at once; it does not wait until its time limit for a lost command."""
    with Client(three) as client:
        client.connect()
        driver: Any = client._driver
        leader = driver._leader
        for each in search.names(name):
            lock = client.lock(each, ttl=LONG)
            if what != "acquire":
                lock.acquire()
            # The other thread therefore leaves its command to this one.
            leader.role[ROLE] = threading.get_ident()
            call = in_thread(getattr(lock, what))
            await_true(lambda: bool(leader.inbox))
            place = search.strike(leader.serve, twice_behind=twice)
            # The interrupt struck before `serve` took the role.
            if leader.role.get(ROLE) == threading.get_ident():
                leader.serve()
            failure = call.exception(PATIENCE)
            assert failure is None, place
            lock.release()
    assert len(search.known) > 5


@pytest.mark.parametrize("wait", [True, False])
def test_an_interrupt_at_each_place_of_submitting_another_threads_release_reports_no_loss(
    wait: bool, search: Search, three: list[str], name: str
) -> None:
    """The lock stands on two of three masters. The release is sent twice, and the second copy finds no key.

    That is no loss.
    """
    told: list[str] = []
    with Client(three, on_lost=lambda lock, why: told.append(why)) as client:
        client.connect()
        driver: Any = client._driver
        leader = driver._leader
        for each in search.names(name):
            lock = client.lock(each, ttl=LONG)
            lock.acquire()
            ask(three[1]).delete(each)
            # The other thread therefore leaves its command to this one.
            leader.role[ROLE] = threading.get_ident()
            call = in_thread(lock.release, wait)
            await_true(lambda: bool(leader.inbox))
            place = search.strike(leader.serve)
            # The interrupt struck before `serve` took the role.
            if leader.role.get(ROLE) == threading.get_ident():
                leader.serve()
            assert call.exception(PATIENCE) is None, place
            await_true(partial(lambda each: not left(three, each), each))
            # Its answers come after all answers to the release.
            client.lock(each).locked()
            assert not told, place
    assert len(search.known) > 5


def waiting(client: Client, name: str) -> Callable[[], None]:
    """Wait for a lock in another thread and hold it once; return a function that waits for its release."""

    def hold() -> None:
        with client.lock(name, ttl=LONG, timeout=LONG / 3):
            pass

    call = in_thread(hold)
    await_true(lambda: bool(client._quorum.queues.by_key))
    return lambda: call.result(PATIENCE)


def test_an_interrupt_at_each_place_of_a_hand_off_loses_no_lease(search: Search, three: list[str], name: str) -> None:
    """The waiter gets the lease or has left; in both cases no key and no queue entry is left afterwards."""
    with Client(three) as client, Client(three) as other:
        client.connect()
        for number, each in enumerate(search.names(name)):
            lock = client.lock(each, ttl=2 * LONG)
            lock.acquire()
            queues = client._quorum.queues
            waiter = client.lock(each, ttl=2 * LONG)
            waits = in_thread(waiter.acquire, True, SHORT if number % 2 else PATIENCE)
            await_true(partial(lambda waits, queues: bool(queues.by_key) or waits.done(), waits, queues))
            place = search.strike(lock.release)
            if begins(lock.release, place):
                lock.release()
            if waits.result(PATIENCE):
                waiter.check()
                assert waiter.owned(), place
                waiter.release()
            check_nobody_is_left(client, other, three, each, place)
    assert len(search.known) > 20


def test_an_interrupt_at_each_place_of_a_close_leaves_nothing_open(search: Search, three: list[str], name: str) -> None:
    for each in search.names(name):
        before = descriptors()
        client = Client(three)
        client.lock(each, ttl=LONG).acquire()
        waits = in_thread(client.lock(each).acquire)
        await_true(partial(lambda client: bool(client._quorum.queues.by_key), client))
        search.strike(client.close)
        client.close()
        assert isinstance(waits.exception(PATIENCE), ClientClosed)
        await_true(partial(lambda before: descriptors() <= before, before))
        for url in three:
            with ask(url) as server:
                server.delete(each)
    assert len(search.known) > 20


class Attended:
    """A driver that counts how often its background thread calls `attend`."""

    closed = True

    def __init__(self) -> None:
        self.times = 0

    def attend(self) -> None:
        self.times += 1


def test_an_interrupt_at_each_place_of_the_first_request_leaves_a_thread_that_attends(
    search: Search,
) -> None:
    for _ in search.names("request"):
        driver = Attended()
        background = BackgroundThread(driver)
        search.strike(partial(background.attend_by, 1))
        background.attend_by(1)
        await_true(partial(lambda driver: driver.times > 0, driver))
    assert search.known
