"""One lock object with several users: each ``with`` releases its own claim only (row 62)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from support.faces import PATIENCE, Face, Faced, await_true, wins

import redlatch
from redlatch import AlreadyHeld, NotOwned, impl
from redlatch.quorum.claim import FREE, HELD

pytestmark = pytest.mark.one_loop

LONG = 60.0

KINDS: dict[str, Callable[[Any, str], Any]] = {
    "plain": lambda client, name: client.lock(name, ttl=LONG),
    "fair": lambda client, name: client.fair_lock(name, ttl=LONG),
    "fenced": lambda client, name: client.lock(name, ttl=LONG, fence=True),
    "renewed": lambda client, name: client.lock(name, ttl=LONG, auto_renew=True),
    "semaphore": lambda client, name: client.semaphore(name, 1, ttl=LONG),
    "reader": lambda client, name: client.rw_lock(name, ttl=LONG).read(),
    "writer": lambda client, name: client.rw_lock(name, ttl=LONG).write(),
    "multi": lambda client, name: client.multi_lock([name, name + "-2"], ttl=LONG),
}
CONDITIONS = ["plain", "fair", "fenced", "renewed", "writer"]


class User:
    """One thread or task, in which the calls of a test run one after another."""

    def __init__(self, face: Face) -> None:
        self._loop = face._loop
        if self._loop is None:
            self._pool = ThreadPoolExecutor(1)
        else:
            self._calls: asyncio.Queue[Any] = asyncio.Queue()
            self._task = asyncio.run_coroutine_threadsafe(self._work(), self._loop)

    async def _work(self) -> None:
        while (taken := await self._calls.get()) is not None:
            call, future = taken
            try:
                future.set_result(await call())
            except BaseException as error:
                future.set_exception(error)

    def start(self, call: Callable[[], Any]) -> Future[Any]:
        """Begin a call, which returns an awaitable with asyncio."""
        if self._loop is None:
            return self._pool.submit(call)
        future: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._calls.put_nowait, (call, future))
        return future

    def does(self, call: Callable[[], Any]) -> Any:
        return self.start(call).result(PATIENCE)

    def enters(self, lock: Any) -> None:
        self.does(lock.__enter__ if self._loop is None else lock.__aenter__)

    def leaves(self, lock: Any, error: BaseException | None = None) -> Any:
        """End the ``with`` as Python does: with the exception of the body, or None."""
        leave = lock.__exit__ if self._loop is None else lock.__aexit__
        return self.does(lambda: leave(None if error is None else type(error), error, None))

    def end(self) -> None:
        if self._loop is None:
            self._pool.shutdown()
        else:
            self._loop.call_soon_threadsafe(self._calls.put_nowait, None)
            self._task.result(PATIENCE)


@pytest.fixture
def users(connect: Face) -> Iterator[list[User]]:
    made = [User(connect) for _ in range(3)]
    yield made
    for user in made:
        user.end()


@pytest.fixture
def rival(connect: Face, three: list[str]) -> Faced:
    """Another client."""
    return connect(three)


def is_free(rival: Faced, kind: str, name: str) -> bool:
    """Return whether another client wins the lock; it gives it back."""
    if kind == "reader":
        lock = rival.rw_lock(name, ttl=LONG).write()
    elif kind in ("fenced", "renewed"):
        lock = rival.lock(name, ttl=LONG)
    else:
        lock = Faced(KINDS[kind](rival.raw, name), rival._start)
    won = wins(lock)
    if won:
        lock.release()
    return won


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def taken_over(connect: Face, users: list[User], three: list[str], kind: str, name: str) -> Any:
    """A lock object that one user has released inside its ``with``, and that a second user has entered."""
    lock = KINDS[kind](connect(three).raw, name)
    first, second, _ = users
    first.enters(lock)
    first.does(lock.release)
    second.enters(lock)
    return lock


def test_the_end_of_a_with_does_not_release_the_lock_of_another_user(
    taken_over: Any, users: list[User], rival: Faced, kind: str, name: str
) -> None:
    first, second, _ = users
    with pytest.raises(NotOwned, match="another thread or task uses this lock object now; make one lock object for"):
        first.leaves(taken_over)
    taken_over.check()
    assert not is_free(rival, kind, name)
    second.leaves(taken_over)
    assert is_free(rival, kind, name)


def test_the_exception_of_a_body_whose_lock_another_user_has_now_arrives(
    taken_over: Any, users: list[User], rival: Faced, kind: str, name: str
) -> None:
    first, second, _ = users
    error = ValueError("of the body")
    assert not first.leaves(taken_over, error)
    assert "another thread or task uses this lock object" in error.__notes__[0]
    assert not is_free(rival, kind, name)
    second.leaves(taken_over)
    assert is_free(rival, kind, name)


def test_the_second_user_may_leave_first(
    taken_over: Any, users: list[User], rival: Faced, kind: str, name: str
) -> None:
    first, second, _ = users
    second.leaves(taken_over)
    assert is_free(rival, kind, name)
    # The body has released it: there is nothing to release, and nothing to report.
    first.leaves(taken_over)
    assert is_free(rival, kind, name)


def test_a_body_may_release_the_lock_and_acquire_it_again(
    connect: Face, users: list[User], three: list[str], rival: Faced, kind: str, name: str
) -> None:
    lock, user = KINDS[kind](connect(three).raw, name), users[0]
    user.enters(lock)
    for call in (lock.release, lock.acquire):
        user.does(call)
    assert not is_free(rival, kind, name)
    user.leaves(lock)
    assert is_free(rival, kind, name)


def test_a_claim_of_another_user_without_a_with_is_not_released_either(
    connect: Face, users: list[User], three: list[str], rival: Faced, kind: str, name: str
) -> None:
    lock = KINDS[kind](connect(three).raw, name)
    first, second, _ = users
    first.enters(lock)
    first.does(lock.release)
    second.does(lock.acquire)
    with pytest.raises(NotOwned):
        first.leaves(lock)
    assert not is_free(rival, kind, name)
    second.does(lock.release)


def test_a_with_inside_a_with_that_has_released_the_lock_ends_alone(
    connect: Face, users: list[User], three: list[str], rival: Faced, kind: str, name: str
) -> None:
    lock, user, other = KINDS[kind](connect(three).raw, name), users[0], users[1]
    user.enters(lock)
    user.does(lock.release)
    user.enters(lock)
    with pytest.raises(AlreadyHeld, match="for each thread or task"):
        other.enters(lock)
    user.leaves(lock)
    assert is_free(rival, kind, name)
    user.leaves(lock)
    # All of them have ended: the next one may end in another thread or task again.
    user.enters(lock)
    other.leaves(lock)
    assert is_free(rival, kind, name)


def test_a_with_may_end_in_another_thread_or_task(
    connect: Face, users: list[User], three: list[str], rival: Faced, kind: str, name: str
) -> None:
    """FastAPI runs the parts of a dependency with `yield` in different threads."""
    lock = KINDS[kind](connect(three).raw, name)
    for _ in range(2):
        users[0].enters(lock)
        users[1].leaves(lock)
        assert is_free(rival, kind, name)


def test_an_exit_without_an_enter_releases_the_lock(
    connect: Face, users: list[User], three: list[str], rival: Faced, kind: str, name: str
) -> None:
    """As `contextlib.ExitStack.push` calls it, after an acquire."""
    lock = KINDS[kind](connect(three).raw, name)
    users[0].does(lock.acquire)
    users[1].leaves(lock)
    assert is_free(rival, kind, name)
    users[1].leaves(lock)


def test_an_interrupted_end_of_a_with_does_not_release_the_lock_of_another_user(
    taken_over: Any, users: list[User], rival: Faced, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(type(taken_over), "_leaves", interrupt)
        users[0].leaves(taken_over)
    taken_over.check()
    assert not is_free(rival, kind, name)
    users[1].leaves(taken_over)
    assert is_free(rival, kind, name)


def test_after_a_with_of_several_users_the_lock_object_works_as_before(
    taken_over: Any, users: list[User], rival: Faced, kind: str, name: str
) -> None:
    first, second, third = users
    first.leaves(taken_over, ValueError())
    second.leaves(taken_over)
    third.enters(taken_over)
    assert not is_free(rival, kind, name)
    first.leaves(taken_over)
    assert is_free(rival, kind, name)


# --- conditions --------------------------------------------------------------------------------------


@pytest.fixture(params=CONDITIONS)
def waited(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def wait_inside(lock: Any, user: User, timeout: float | None = None) -> Future[Any]:
    """Let a user wait on the condition inside its ``with``; return the call once the lock is released."""
    user.enters(lock)
    call = user.start(lambda: lock.condition().wait(timeout))
    await_true(lambda: call.done() or lock._hold.state == FREE)
    return call


def test_a_lock_object_whose_user_waits_on_the_condition_is_refused_to_others(
    connect: Face, users: list[User], three: list[str], rival: Faced, waited: str, name: str
) -> None:
    client = connect(three)
    lock, own = KINDS[waited](client.raw, name), KINDS[waited](client.raw, name)
    first, second, _ = users
    call = wait_inside(lock, first)
    for attempt in (second.enters, lambda lock: second.does(lock.acquire)):
        with pytest.raises(AlreadyHeld, match=r"waits on the condition of this lock object.*make one lock object for"):
            attempt(lock)
    # With a lock object of its own it is served.
    second.enters(own)
    second.does(lambda: own.condition().notify())
    second.leaves(own)
    assert call.result(PATIENCE) is True
    assert not is_free(rival, waited, name)
    first.leaves(lock)
    assert is_free(rival, waited, name)
    second.enters(lock)
    second.leaves(lock)


def test_the_end_of_a_with_releases_the_lock_that_a_wait_has_acquired_again(
    connect: Face, users: list[User], three: list[str], rival: Faced, waited: str, name: str
) -> None:
    lock = KINDS[waited](connect(three).raw, name)
    assert wait_inside(lock, users[0], 0.01).result(PATIENCE) is False
    assert not is_free(rival, waited, name)
    # The wait continues the claim of the ``with``, in whatever thread or task it ends.
    users[1].leaves(lock)
    assert is_free(rival, waited, name)


def test_a_with_whose_wait_has_failed_does_not_release_the_lock_of_the_next_user(
    connect: Face, users: list[User], three: list[str], rival: Faced, name: str
) -> None:
    client = connect(three, max_waiters=1)
    lock, (first, second, third) = client.raw.lock(name, ttl=LONG), users
    call = wait_inside(lock, first, 0.5)
    # The queue of the client is full when the waiter wants the lock again.
    holder, queued = client.raw.lock(name, ttl=LONG), client.raw.lock(name, ttl=LONG)
    second.enters(holder)
    waiting = third.start(queued.acquire)
    with pytest.raises(redlatch.LockBusy) as failed:
        call.result(PATIENCE)
    second.leaves(holder)
    assert waiting.result(PATIENCE)
    third.does(queued.release)
    second.enters(lock)
    assert not first.leaves(lock, failed.value)
    assert "another thread or task" in failed.value.__notes__[0]
    assert not is_free(rival, "plain", name)
    second.leaves(lock)
    assert is_free(rival, "plain", name)


@pytest.mark.parametrize("kind", CONDITIONS)
def test_a_task_whose_wait_is_cancelled_does_not_release_the_lock_of_another_task(
    implementation: impl.Implementation, three: list[str], kind: str, name: str
) -> None:
    async def main() -> None:
        async with redlatch.AsyncClient(three) as client, redlatch.AsyncClient(three) as other:
            lock, ended = KINDS[kind](client, name), asyncio.Event()
            condition = lock.condition()

            async def wait() -> None:
                async with lock:
                    try:
                        await asyncio.wait_for(condition.wait(), 0.2)
                    finally:
                        ended.set()
                        # The other task comes in before this ``with`` ends.
                        while lock._hold.state != HELD:
                            await asyncio.sleep(0)

            waiting = asyncio.create_task(wait())
            await ended.wait()
            async with lock:
                with pytest.raises(TimeoutError) as failed:
                    await waiting
                assert "another thread or task" in failed.value.__notes__[0]
                lock.check()
                assert not await KINDS[kind](other, name).acquire(blocking=False)

    asyncio.run(main())


@pytest.mark.parametrize("kind", CONDITIONS)
def test_a_wait_in_a_task_of_its_own_continues_the_claim_of_the_with(
    implementation: impl.Implementation, three: list[str], kind: str, name: str
) -> None:
    async def main() -> None:
        async with redlatch.AsyncClient(three) as client, redlatch.AsyncClient(three) as other:
            lock = KINDS[kind](client, name)
            async with lock:
                await asyncio.create_task(lock.condition().wait(0.01))
                lock.check()
            assert await KINDS[kind](other, name).acquire(blocking=False)

    asyncio.run(main())


# --- re-entrant locks --------------------------------------------------------------------------------


def test_a_wait_in_a_task_of_its_own_continues_the_claim_of_a_with_inside_another(url: str, name: str) -> None:
    async def main() -> None:
        async with redlatch.AsyncClient(url) as client:
            lock, left = client.lock(name, ttl=LONG), asyncio.Event()

            async def release_and_stay() -> None:
                async with lock:
                    await lock.release()
                    await left.wait()

            first = asyncio.create_task(release_and_stay())
            while lock._hold.entered is None or lock._hold.state != FREE:
                await asyncio.sleep(0)
            async with lock:
                await asyncio.create_task(lock.condition().wait(0.01))
            assert lock._hold.state == FREE
            left.set()
            await first

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_an_acquire_in_a_task_of_its_own_belongs_to_the_task_that_called_it(url: str, name: str, kind: str) -> None:
    async def main() -> None:
        async with redlatch.AsyncClient(url) as client:
            lock = KINDS[kind](client, name)
            async with lock:
                await lock.release()
                assert await asyncio.create_task(lock.acquire())
            assert await KINDS[kind](client, name).acquire(blocking=False)

    asyncio.run(main())


def test_the_lock_inside_a_reentrant_lock_is_not_released_from_another_user(
    connect: Face, users: list[User], three: list[str], rival: Faced, name: str
) -> None:
    rlock, (first, second, _) = connect(three).raw.rlock(name, ttl=LONG), users
    inner: list[Any] = []

    async def note() -> None:
        inner.append(rlock.lock)

    first.enters(rlock)
    first.does(note if connect.name != "threads" else lambda: inner.append(rlock.lock))
    lock = inner[0]
    first.does(lock.release)
    second.enters(lock)
    with pytest.raises(NotOwned, match="another thread or task"):
        first.leaves(rlock)
    assert not is_free(rival, "plain", name)
    # It does not count as held: it would come in beside the second user.
    with pytest.raises(redlatch.LockTimeout):
        first.does(lambda: enter(connect, rlock, 0.05))
    second.leaves(lock)
    first.enters(rlock)
    first.leaves(rlock)
    assert is_free(rival, "plain", name)


def enter(face: Face, rlock: Any, timeout: float) -> Any:
    """Acquire a re-entrant lock; raise LockTimeout if that fails."""

    def judge(won: bool) -> None:
        if not won:
            raise redlatch.LockTimeout

    async def acquire() -> None:
        judge(await rlock.acquire(timeout=timeout))

    if face.name != "threads":
        return acquire()
    judge(rlock.acquire(timeout=timeout))
    return None


def test_an_exit_stack_releases_what_it_entered_and_what_was_pushed(client: redlatch.Client, name: str) -> None:
    lock = client.lock(name, ttl=LONG)
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock)
    with contextlib.ExitStack() as stack:
        assert lock.acquire()
        stack.push(lock)
    assert lock._hold.state == FREE
