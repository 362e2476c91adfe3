"""Calls that are cancelled, interrupted by a signal, or ended with the process leave nothing (rows 10, 11, 37).

The ttl of a lock is a minute here. A key that is gone within the bounded wait was therefore deleted and did not expire.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
from support.faces import PATIENCE, await_true, finish, in_thread, line_of, run_script
from support.masters import Keys
from support.proxy import Proxy

from redlatch import AsyncClient, Client, ClientClosed, ClientUnusable, LockError, QuorumUnavailable, impl

LONG = 60.0


def no_key_without_ttl(urls: Any) -> Any:
    """Return whether every key on the masters has a ttl."""
    for url in urls:
        with redis.Redis.from_url(url, socket_timeout=PATIENCE, retry=None) as server:
            if any(server.pttl(key) == -1 for key in server.scan_iter("*lock-*")):
                return False
    return True


def steps_to_cancel_at() -> Iterator[Any]:
    """Yield numbers of loop turns before a cancel: every number at first, then at growing distances."""
    turn = 0
    while True:
        yield turn
        turn += 1 + turn // 12


async def cancel_after(turns: Any, coroutine: Any) -> Any:
    """Run a coroutine as a task and cancel it after some turns of the loop; return whether it had ended before."""
    task = asyncio.ensure_future(coroutine)
    for _ in range(turns):
        await asyncio.sleep(0)
        if task.done():
            break
    ended = task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return ended


async def gone(keys: Any, urls: Any, name: Any) -> None:
    """Wait, while the loop runs, until no master has the key."""
    async with asyncio.timeout(PATIENCE):
        while await asyncio.to_thread(keys, urls, name):
            await asyncio.sleep(0.001)


# --- row 10: cancelled acquires --------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [False, True], ids=["connected", "connecting"])
def test_row_10_an_acquire_cancelled_at_any_turn_of_the_loop_leaves_nothing(
    fresh: bool, implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        client = AsyncClient(three)
        if not fresh:
            await client.connect()
        for turns in steps_to_cancel_at():
            if fresh:
                await client.close()
                client = AsyncClient(three)
            lock = client.lock(f"{name}-{turns}", ttl=LONG)
            ended = await cancel_after(turns, lock.acquire())
            if ended:
                break
            assert lock.remaining() == 0.0
            await gone(keys, three, f"{name}-{turns}")
        assert turns > 1
        await lock.release()
        assert not await asyncio.to_thread(keys, three, f"{name}-{turns}")
        await client.close()

    asyncio.run(main())
    assert no_key_without_ttl(three)


def test_row_10_an_acquire_that_waits_for_another_holder_can_be_cancelled_at_any_time(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            held = client.lock(name, ttl=LONG)
            assert await held.acquire()
            for turns in itertools.islice(steps_to_cancel_at(), 60):
                lock = client.lock(name, ttl=LONG)
                assert not await cancel_after(turns, lock.acquire())
            assert await held.owned()
            await held.release()
            await gone(keys, three, name)
            assert await client.lock(name).acquire(timeout=PATIENCE)

    asyncio.run(main())


def test_row_10_an_acquire_cancelled_before_its_replies_come_is_undone(
    implementation: impl.Implementation,
    three: list[str],
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    keys: Keys,
) -> None:
    before = proxies(three)

    async def main() -> None:
        async with AsyncClient([proxy.url for proxy in before]) as client:
            await asyncio.to_thread(await_true, lambda: all(proxy.greeted() for proxy in before))
            for proxy in before:
                proxy.replies.clear()
            lock = client.lock(name, ttl=LONG)
            acquiring = asyncio.ensure_future(lock.acquire())
            async with asyncio.timeout(PATIENCE):
                while len(await asyncio.to_thread(keys, three, name)) < 3:
                    await asyncio.sleep(0.001)
            acquiring.cancel()
            with pytest.raises(asyncio.CancelledError):
                await acquiring
            await gone(keys, three, name)
            for proxy in before:
                proxy.replies.set()
            # The lock object can be used again.
            assert await lock.acquire(timeout=PATIENCE)
            await lock.release()

    asyncio.run(main())


def test_row_10_a_timeout_around_an_acquire_ends_it_and_leaves_nothing(
    implementation: impl.Implementation,
    three: list[str],
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    keys: Keys,
) -> None:
    before = proxies(three)

    async def main() -> None:
        async with AsyncClient([proxy.url for proxy in before]) as client:
            await asyncio.to_thread(await_true, lambda: all(proxy.greeted() for proxy in before))
            for proxy in before:
                proxy.replies.clear()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.lock(name, ttl=LONG).acquire()
            for proxy in before:
                await asyncio.to_thread(await_true, partial(lambda proxy: proxy.count("SET", name) == 1, proxy))
            await gone(keys, three, name)
            for proxy in before:
                proxy.replies.set()

    asyncio.run(main())


def test_row_10_many_tasks_cancelled_at_random_do_not_disturb_the_others(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    chance = random.Random(7)

    async def cycle(client: Any, number: Any) -> Any:
        for _ in range(10):
            async with client.lock(f"{name}-{number}", ttl=LONG) as lock:
                lock.check()
        return number

    async def main() -> None:
        async with AsyncClient(three) as client:
            tasks = [asyncio.ensure_future(cycle(client, number)) for number in range(40)]
            doomed = chance.sample(tasks, 20)
            for task in doomed:
                for _ in range(chance.randrange(12)):
                    await asyncio.sleep(0)
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            for number, (task, end) in enumerate(zip(tasks, ends, strict=True)):
                assert end == number or (task in doomed and isinstance(end, asyncio.CancelledError)), end
            for number in range(40):
                await gone(keys, three, f"{name}-{number}")

    asyncio.run(main())


# --- row 11: cancelled releases --------------------------------------------------------------------------


def test_row_11_a_release_cancelled_at_any_turn_of_the_loop_completes(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            for turns in steps_to_cancel_at():
                lock = client.lock(f"{name}-{turns}", ttl=LONG)
                assert await lock.acquire()
                ended = await cancel_after(turns, lock.release())
                if ended:
                    break
                # The release had not begun.
                if turns == 0:
                    await lock.release()
                await gone(keys, three, f"{name}-{turns}")
            assert turns > 1

    asyncio.run(main())


def test_row_11_a_cancelled_release_can_be_called_again(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            for turns in range(1, 8):
                lock = client.lock(f"{name}-{turns}", ttl=LONG)
                assert await lock.acquire()
                if not await cancel_after(turns, lock.release()):
                    await lock.release()
                await gone(keys, three, f"{name}-{turns}")
                assert await lock.acquire(blocking=False)
                await lock.release()

    asyncio.run(main())


def test_row_11_a_cancelled_body_releases_its_lock(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            inside = asyncio.Event()

            async def body() -> None:
                async with client.lock(name, ttl=LONG):
                    inside.set()
                    await asyncio.Event().wait()

            task = asyncio.ensure_future(body())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await gone(keys, three, name)

    asyncio.run(main())


def test_row_11_a_body_cancelled_twice_releases_its_lock(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            for turns in range(8):
                inside = asyncio.Event()

                async def body(inside: Any = inside, turns: Any = turns) -> None:
                    async with client.lock(f"{name}-{turns}", ttl=LONG):
                        inside.set()
                        await asyncio.Event().wait()

                task = asyncio.ensure_future(body())
                await inside.wait()
                task.cancel()
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                # With no turn in between, the two cancels are one.
                if turns:
                    await gone(keys, three, f"{name}-{turns}")

    asyncio.run(main())


# --- row 37: KeyboardInterrupt ---------------------------------------------------------------------------


def called(interrupt: Any) -> Any:
    """Return the function that was called last, by the test or below it, when an interrupt struck."""
    frames = traceback.extract_tb(interrupt.__traceback__)
    return frames[min(1, len(frames) - 1)].name


def interrupted_cycle(client: Any, name: Any, strike: Any, seconds: Any) -> Any:
    """Acquire and release with an interrupt at some moment; return whether it struck inside."""
    lock = client.lock(name, ttl=LONG)
    try:
        strike(seconds)
        lock.acquire(timeout=PATIENCE)
        lock.release()
        strike.off()
    except KeyboardInterrupt as interrupt:
        if lock.token is not None:
            # Between the two calls the caller has to release the lock, because only the caller knows that it was
            # acquired. A release that had not begun may be called again.
            assert called(interrupt) in {"interrupted_cycle", "release"}
            lock.release()
        return True
    except QuorumUnavailable:
        # An interrupt that cut every connection may end an attempt with this error.
        strike.off()
        return True
    return False


def length_of_a_cycle(client: Any, name: Any) -> Any:
    """Return the usual duration of a cycle, so that interrupts can be aimed inside it."""
    lengths = []
    for _ in range(21):
        began = time.perf_counter()
        with client.lock(name):
            pass
        lengths.append(time.perf_counter() - began)
    return sorted(lengths)[10]


def test_row_37_an_interrupt_at_any_moment_leaves_no_key_and_a_usable_client(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys, strike: Any
) -> None:
    chance = random.Random(11)
    with Client(three) as client:
        span = length_of_a_cycle(client, f"{name}-warm")
        struck = sum(interrupted_cycle(client, name, strike, chance.uniform(1e-6, span)) for _ in range(400))
        assert struck > 40
        await_true(lambda: not keys(three, name))
        with client.lock(name, ttl=LONG, timeout=PATIENCE) as lock:
            lock.check()
    assert no_key_without_ttl(three)
    assert not keys(three, name)


def test_row_37_an_interrupt_leaves_the_other_threads_of_the_client_working(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys, strike: Any
) -> None:
    chance = random.Random(13)
    over = threading.Event()

    def work(client: Any, number: Any) -> Any:
        done = 0
        while not over.is_set():
            try:
                with client.lock(f"{name}-{number}", ttl=LONG, timeout=PATIENCE) as lock:
                    lock.check()
                done += 1
            except QuorumUnavailable:
                # Two interrupts of the main thread cut the connections one after the other.
                pass
        return done

    with Client(three) as client:
        client.connect()
        workers = [in_thread(work, client, number) for number in range(3)]
        for _ in range(200):
            interrupted_cycle(client, name, strike, chance.uniform(1e-6, 0.002))
        over.set()
        assert all(worker.result(PATIENCE) > 0 for worker in workers)
        with client.lock(name, ttl=LONG, timeout=PATIENCE):
            pass
        for each in (name, *(f"{name}-{number}" for number in range(3))):
            await_true(partial(lambda each: not keys(three, each), each))
    assert no_key_without_ttl(three)


def test_row_37_an_interrupt_while_masters_are_silent_ends_the_call(
    implementation: impl.Implementation,
    three: list[str],
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    keys: Keys,
    strike: Any,
) -> None:
    before = proxies(three)
    with Client([proxy.url for proxy in before], attempt_timeout=PATIENCE) as client:
        for proxy in before:
            proxy.replies.clear()
        with pytest.raises(KeyboardInterrupt):
            strike(0.05)
            client.lock(name, ttl=LONG).acquire()
        await_true(lambda: not keys(three, name))
        for proxy in before:
            proxy.replies.set()
        with client.lock(name, ttl=LONG, timeout=PATIENCE):
            pass


def test_row_37_an_interrupt_while_waiting_for_another_holder_ends_the_call(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys, strike: Any
) -> None:
    with Client(three) as client, client.lock(name, ttl=LONG) as held:
        for number in range(20):
            with pytest.raises(KeyboardInterrupt):
                strike(0.001 * (number + 1))
                client.lock(name, ttl=LONG).acquire()
        assert held.owned()


def test_row_37_an_interrupt_during_connect_leaves_a_usable_client(
    implementation: impl.Implementation, three: list[str], name: str, strike: Any
) -> None:
    chance = random.Random(17)
    for _ in range(40):
        client = Client(three)
        try:
            strike(chance.uniform(1e-6, 0.01))
            client.connect()
            strike.off()
        except KeyboardInterrupt:
            pass
        with client.lock(name, ttl=LONG, timeout=PATIENCE):
            pass
        client.close()


# --- row 37: the end of the process ----------------------------------------------------------------------

HELD_AT_EXIT = """
import sys, redlatch
client = redlatch.Client(sys.argv[2:], attempt_timeout=10)
lock = client.lock(sys.argv[1], ttl=2)
assert lock.acquire()
"""

HELD_AT_EXIT_ASYNCIO = """
import asyncio, sys
from redlatch import AsyncClient  # here, so that the loop does not wait for it
async def main():
    global client, lock
    client = AsyncClient(sys.argv[2:], attempt_timeout=10)
    lock = client.lock(sys.argv[1], ttl=2)
    assert await lock.acquire()
asyncio.run(main())
"""

LEFT_UNUSED = """
import sys, redlatch
client, other = redlatch.Client(sys.argv[2:]), redlatch.AsyncClient(sys.argv[2:])
lock = client.lock(sys.argv[1])
"""

EXIT_WHILE_OTHERS_WAIT = """
import sys, threading, redlatch
client = redlatch.Client(sys.argv[2:], attempt_timeout=10)
lock = client.lock(sys.argv[1], ttl=2)
assert lock.acquire()
def wait():
    client.lock(sys.argv[1], ttl=2).acquire()
for _ in range(3):
    threading.Thread(target=wait, daemon=True).start()
"""

OTHERS_CANCELLED_AT_EXIT = """
import asyncio, sys
from redlatch import AsyncClient  # here, so that the loop does not wait for it
async def main():
    client = AsyncClient(sys.argv[2:], attempt_timeout=10)
    lock = client.lock(sys.argv[1], ttl=2)
    assert await lock.acquire()
    tasks.extend(asyncio.create_task(client.lock(sys.argv[1], ttl=2).acquire()) for _ in range(3))
    await asyncio.sleep(0)
tasks = []
asyncio.run(main())
"""

MASTERS_OUT_OF_REACH = """
import logging, sys, redlatch
logging.disable()  # that they are out of reach is logged, rightly
client = redlatch.Client(["redis://127.0.0.1:1", "redis://127.0.0.1:2"])
try:
    client.lock(sys.argv[1]).acquire(blocking=False)
except redlatch.QuorumUnavailable:
    pass
"""

EXITS = {
    "threads": HELD_AT_EXIT,
    "asyncio": HELD_AT_EXIT_ASYNCIO,
    "unused": LEFT_UNUSED,
    "waiting threads": EXIT_WHILE_OTHERS_WAIT,
    "waiting tasks": OTHERS_CANCELLED_AT_EXIT,
    "dialling": MASTERS_OUT_OF_REACH,
}


# A line that asyncio's debug mode writes on a busy machine.
SLOW_CALLBACK = re.compile(r"(?m)^Executing .* took [0-9.]+ seconds\n")


@pytest.mark.parametrize("how", EXITS)
def test_row_37_a_process_ends_without_output_whatever_it_left_open(
    how: Any, implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    process = run_script(
        EXITS[how], implementation.name, name, *three, wait=False, options=("-W", "error", "-X", "dev")
    )
    out, err = finish(process)
    assert (process.returncode, out, SLOW_CALLBACK.sub("", err)) == (0, "", "")
    assert no_key_without_ttl(three)
    # The ttl removes the key.
    await_true(lambda: not keys(three, name))


TERMINATED = """
import signal, sys, redlatch
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
client = redlatch.Client(sys.argv[2:])
with client.lock(sys.argv[1], ttl=60):
    print("held", flush=True)
    signal.pause()
"""

TERMINATED_ASYNCIO = """
import asyncio, signal, sys, redlatch
async def main():
    client = redlatch.AsyncClient(sys.argv[2:])
    task = asyncio.current_task()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with client.lock(sys.argv[1], ttl=60):
        print("held", flush=True)
        await asyncio.Event().wait()
try:
    asyncio.run(main())
except asyncio.CancelledError:
    sys.exit(3)
"""


@pytest.mark.parametrize("text", [TERMINATED, TERMINATED_ASYNCIO], ids=["threads", "asyncio"])
def test_row_37_sigterm_in_the_body_releases_the_lock(
    text: Any, implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    process = run_script(text, implementation.name, name, *three, wait=False)
    assert line_of(process) == "held\n"
    process.send_signal(signal.SIGTERM)
    _, err = finish(process)
    assert (process.returncode, err) == (3, "")
    await_true(lambda: not keys(three, name))


def test_row_37_sigint_in_a_waiting_acquire_ends_the_process_quickly(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    text = """
import sys, redlatch
client = redlatch.Client(sys.argv[2:])
client.connect()
print("waiting", flush=True)
try:
    client.lock(sys.argv[1], ttl=60).acquire()
except KeyboardInterrupt:
    sys.exit(4)
"""
    with Client(three) as rival, rival.lock(name, ttl=LONG) as held:
        process = run_script(text, implementation.name, name, *three, wait=False)
        assert line_of(process) == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, err = finish(process)
        assert process.returncode in (4, -signal.SIGINT), err
        assert held.owned()


def test_an_interrupted_lock_object_can_be_used_again(
    implementation: impl.Implementation, three: list[str], name: str, strike: Any
) -> None:
    with Client(three) as client:
        client.connect()
        lock = client.lock(name, ttl=LONG)
        for seconds in (1e-5, 1e-4, 2e-4, 3e-4, 5e-4):
            try:
                strike(seconds)
                lock.acquire()
                lock.release()
                strike.off()
            except KeyboardInterrupt:
                with contextlib.suppress(LockError):
                    lock.release()
            assert lock.acquire(timeout=PATIENCE)
            lock.release()


# --- a call inside a call --------------------------------------------------------------------------------


def test_a_signal_handler_that_uses_the_client_inside_a_call_of_it_is_refused(
    implementation: impl.Implementation, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    told: list[object] = []
    with Client(three) as rival, Client([proxy.url for proxy in before], attempt_timeout=PATIENCE) as client:
        client.connect()

        def handler(*_: Any) -> None:
            for call in (lambda: client.lock(f"{name}-inner", ttl=LONG).acquire(blocking=False), client.close):
                try:
                    told.append(call())
                except ClientUnusable as error:
                    told.append(error)
            for proxy in before:
                proxy.replies.set()

        former = signal.signal(signal.SIGALRM, handler)
        try:
            with rival.lock(name, ttl=LONG):
                for proxy in before:
                    proxy.replies.clear()
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                assert not client.lock(name, ttl=LONG).acquire(blocking=False)
        finally:
            signal.signal(signal.SIGALRM, former)
        assert [type(each) for each in told] == [ClientUnusable, ClientUnusable]
        with client.lock(name, ttl=LONG, timeout=PATIENCE) as lock:
            assert lock.owned()


def test_a_signal_handler_may_close_the_client_during_its_close(
    implementation: impl.Implementation, three: list[str], proxies: Callable[[list[str]], list[Proxy]]
) -> None:
    before = proxies(three)
    told: list[object] = []
    client = Client([proxy.url for proxy in before])
    lock = client.lock("held", ttl=LONG)
    assert lock.acquire()
    await_true(lambda: all(proxy.quiet() for proxy in before))
    for proxy in before:
        proxy.replies.clear()
    # `close` waits for the answers.
    lock.release(wait=False)
    close: Callable[[], object] = client.close
    former = signal.signal(signal.SIGALRM, lambda *_: told.append(close()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        client.close()
    finally:
        signal.signal(signal.SIGALRM, former)
        for proxy in before:
            proxy.replies.set()
    assert told == [None]
    with pytest.raises(ClientClosed):
        lock.acquire()
