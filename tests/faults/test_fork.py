"""A forked child owns none of its parent's locks (rule 10, row 29).

Each scenario is a process of its own. It forks while threads run, although Python warns of that, because this is the
case under test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.faces import await_true, finish, run_script
from support.masters import Keys
from support.proxy import Proxy

from redlatch import impl

from .forks import IGNORED, IN_CHILD

LONG = 60.0

PREAMBLE = """
import asyncio, multiprocessing, threading, redlatch
from redlatch import *
name, *urls = sys.argv[1:]

def raises(kind, call, *args, **named):
    try:
        call(*args, **named)
    except kind:
        return
    raise AssertionError(f"{call} did not raise {kind.__name__}")
"""


@pytest.fixture
def run(implementation: impl.Implementation) -> Any:
    def run(text: Any, *args: Any) -> Any:
        process = run_script(IN_CHILD + PREAMBLE + text, implementation.name, *args, wait=False, options=IGNORED)
        out, err = finish(process)
        assert (process.returncode, err) == (0, "")
        return out

    return run


def test_row_29_the_child_of_a_holder_owns_nothing_and_the_parent_goes_on(
    run: Any, three: list[str], name: str, keys: Keys
) -> None:
    run(
        """
client = Client(urls)
lock = client.lock(name, ttl=60)
assert lock.acquire()
def child():
    raises(ClientForked, lock.check)
    assert lock.remaining() == 0.0
    raises(ClientForked, lock.release)
    raises(ClientForked, lock.extend)
    raises(ClientForked, lock.owned)
    raises(ClientForked, client.lock("other").acquire)
    raises(ClientForked, client.connect)
    client.close()
in_child(child)
assert lock.remaining() > 50
assert lock.owned()
lock.extend()
lock.release()
client.close()
""",
        name,
        *three,
    )
    assert not keys(three, name)


def test_row_29_the_child_of_an_asyncio_holder_owns_nothing_and_the_parent_goes_on(
    run: Any, three: list[str], name: str, keys: Keys
) -> None:
    run(
        """
async def main():
    async with AsyncClient(urls) as client:
        lock = client.lock(name, ttl=60)
        assert await lock.acquire()
        def child():
            raises(ClientForked, lock.check)
            assert lock.remaining() == 0.0
            for call in (lock.release, lock.extend, lock.owned, client.lock("other").acquire):
                raises(ClientForked, asyncio.run, call())
        in_child(child)
        assert await lock.owned()
        await lock.extend()
        await lock.release()
asyncio.run(main())
""",
        name,
        *three,
    )
    assert not keys(three, name)


def test_the_repr_of_a_client_in_a_child_says_that_it_is_the_parents(run: Any, three: list[str]) -> None:
    run(
        """
client, unused = Client(urls), Client(urls)
client.connect()
def child():
    assert repr(client).endswith(" (of the parent process)>"), client
    assert repr(unused).endswith(" (not connected)>"), unused
    client.close()
    assert repr(client).endswith(" (closed)>"), client
in_child(child)
assert repr(client).endswith(" of 3 connected)>"), client
client.close()
""",
        "unnamed",
        *three,
    )


def test_row_29_nothing_of_the_child_reaches_the_parents_sockets(
    run: Any, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    run(
        """
client = Client(urls)
lock = client.lock(name, ttl=60)
assert lock.acquire()
def child():
    for call in (lock.release, lock.extend, lock.owned, lock.locked, client.lock("of-the-child").acquire):
        raises(ClientForked, call)
    client.close()
    del globals()["lock"], globals()["client"]
in_child(child)
assert client.lock(name + "-of-the-parent", ttl=60).acquire()
""",
        name,
        *(proxy.url for proxy in before),
    )
    # Two of the masters were a quorum already.
    await_true(lambda: all(proxy.count("SET") == 2 for proxy in before))
    for proxy in before:
        assert proxy.accepted == 1
        assert [command[1:2] for command in proxy.commands if command[0] == b"SET"] == [
            (name.encode(),),
            (f"{name}-of-the-parent".encode(),),
        ]
        token = next(command[2] for command in proxy.commands if command[0] == b"SET")
        assert proxy.count(token) == 1


def test_a_child_that_leaves_a_body_does_not_release_its_parents_lock(
    run: Any, three: list[str], name: str, keys: Keys
) -> None:
    run(
        """
client = Client(urls)
client.connect()
with client.lock(name, ttl=60) as lock:
    child = os.fork()
    if child == 0:
        try:
            with lock:
                pass
        except LockError:
            pass
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert lock.owned()
client.close()
""".replace("sys.exit(0)", "os._exit(0)"),
        name,
        *three,
    )
    assert not keys(three, name)


def test_a_child_that_exits_normally_inside_the_body_does_not_release_its_parents_lock(
    run: Any, three: list[str], name: str, keys: Keys
) -> None:
    run(
        """
client = Client(urls)
lock = client.lock(name, ttl=60)
assert lock.acquire()
child = os.fork()
if child == 0:
    sys.exit(0)  # with all its finalizers
assert os.waitpid(child, 0)[1] == 0
assert lock.owned()
lock.release()
""",
        name,
        *three,
    )
    assert not keys(three, name)


def test_a_fork_during_calls_of_other_threads_neither_hangs_nor_disturbs_them(
    run: Any, three: list[str], name: str, keys: Keys
) -> None:
    run(
        """
client = Client(urls)
client.connect()
over = threading.Event()
counts = [0] * 3
def work(number):
    while not over.is_set():
        with client.lock(f"{name}-{number}", ttl=60):
            counts[number] += 1
threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
def child():
    raises(ClientForked, client.lock("x").acquire)
    client.close()
    with Client(urls) as own, own.lock(f"{name}-child-{os.getpid()}", ttl=60):
        pass
for _ in range(15):
    seen = list(counts)
    in_child(child)
    while any(now == before for now, before in zip(counts, seen)):
        os.sched_yield()
over.set()
for thread in threads:
    thread.join()
client.close()
""",
        name,
        *three,
    )
    for number in range(3):
        assert not keys(three, f"{name}-{number}")


def test_a_fork_while_masters_are_dialled_leaves_parent_and_child_usable(run: Any, three: list[str], name: str) -> None:
    run(
        """
for _ in range(10):
    client = Client(urls)
    dialling = threading.Thread(target=client.connect)
    dialling.start()
    def child():
        with Client(urls) as own, own.lock(f"{name}-child", timeout=20):
            pass
    in_child(child)
    dialling.join()
    with client.lock(name, timeout=20):
        pass
    client.close()
""",
        name,
        *three,
    )


@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_a_client_made_before_the_fork_works_in_both_processes_with_different_tokens(
    face: str, run: Any, three: list[str], name: str
) -> None:
    threads = """
client = Client(urls)
def use():
    tokens = []
    for _ in range(3):
        with client.lock(name, ttl=60, timeout=20) as lock:
            tokens.append(lock.token.decode())
    client.close()
    print(*tokens, flush=True)
in_child(use)
use()
"""
    aio = """
client = AsyncClient(urls)
async def main():
    tokens = []
    for _ in range(3):
        async with client.lock(name, ttl=60, timeout=20) as lock:
            tokens.append(lock.token.decode())
    await client.close()
    print(*tokens, flush=True)
def use():
    asyncio.run(main())
in_child(use)
use()
"""
    lines = run(threads if face == "threads" else aio, name, *three).splitlines()
    tokens = [token for line in lines for token in line.split()]
    assert len(lines) == 2
    assert len(set(tokens)) == len(tokens) == 6


def test_the_counts_of_a_client_made_before_the_fork_open_a_latch(run: Any, three: list[str], name: str) -> None:
    run(
        """
client = Client(urls)
def count():
    client.latch(name, 2).count_down()
in_child(count)
count()
assert client.latch(name, 2).wait(timeout=20)
client.close()
""",
        name,
        *three,
    )


def test_waiters_for_a_fair_lock_have_places_of_their_own_after_a_fork(run: Any, three: list[str], name: str) -> None:
    numbers = run(
        """
client = Client(urls)
def use():
    with client.lock(name, fair=True, timeout=20) as lock:
        print(lock._hold.kind.number, flush=True)
in_child(use)
in_child(use)
use()
client.close()
""",
        name,
        *three,
    ).split()
    assert len(set(numbers)) == 3


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_row_29_a_process_of_multiprocessing_excludes_its_parent(
    method: str, implementation: impl.Implementation, three: list[str], name: str, keys: Keys, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
import multiprocessing, sys
from redlatch import Client

def child(name, urls, answers):
    with Client(urls) as client:
        answers.put(client.lock(name, ttl=60).acquire(blocking=False))
        with client.lock(name, ttl=60, timeout=20):
            answers.put("won")

if __name__ == "__main__":
    method, name, *urls = sys.argv[1:]
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    with Client(urls) as client:
        with client.lock(name, ttl=60):
            process = context.Process(target=child, args=(name, urls, answers))
            process.start()
            assert answers.get(timeout=20) is False
        assert answers.get(timeout=20) == "won"
        process.join(20)
        assert process.exitcode == 0
"""
    )
    text = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    if method != "fork":
        text = f"import os, sys; os.execv(sys.executable, [sys.executable, {str(script)!r}, *sys.argv[1:]])"
    process = run_script(text, implementation.name, method, name, *three, wait=False, options=IGNORED)
    _, err = finish(process)
    assert (process.returncode, err) == (0, "")
    assert not keys(three, name)


def test_row_29_a_fork_while_threads_wait_in_a_queue_disturbs_none_of_them(
    run: Any, three: list[str], name: str, keys: Keys
) -> None:
    run(
        """
from concurrent.futures import ThreadPoolExecutor
with Client(urls, handoff=Handoff(tenure=60)) as client, Client(urls) as other, ThreadPoolExecutor() as pool:
    held = other.lock(name, ttl=60)
    assert held.acquire()
    locks = [client.lock(name, ttl=60) for _ in range(3)]
    calls = [pool.submit(lock.acquire) for lock in locks]
    waiting = client._quorum.queues.everybody
    while len(waiting()) < 3 or not any(getattr(waiter, "reopened", False) for waiter in waiting()):
        time.sleep(0.001)
    def child():
        for lock in (client.lock(name), other.lock("other")):
            raises(ClientForked, lock.acquire)
        for lock in (held, *locks):
            raises(LockError, lock.acquire)
            assert lock.remaining() == 0.0
        raises(ClientForked, held.release)
        client.close()
        other.close()
        with Client(urls) as mine:
            assert not mine.lock(name).acquire(blocking=False)
    in_child(child)
    assert held.owned() and not any(call.done() for call in calls)
    held.release()
    for _ in calls:
        while not any(lock.token for lock in locks):
            time.sleep(0.001)
        [lock] = [lock for lock in locks if lock.token]
        assert lock.owned()
        lock.release()
    assert all(call.result(10) for call in calls)
""",
        name,
        *three,
    )
    assert not keys(three, name)


def test_a_fork_while_tasks_wait_in_a_queue_disturbs_none_of_them(
    run: Any, three: list[str], name: str, keys: Keys
) -> None:
    run(
        """
async def main():
    async with AsyncClient(urls, handoff=Handoff(tenure=60)) as client:
        held = client.lock(name, ttl=60)
        assert await held.acquire()
        locks = [client.lock(name, ttl=60) for _ in range(3)]
        calls = [asyncio.ensure_future(lock.acquire()) for lock in locks]
        await asyncio.sleep(0)
        def child():
            for lock in locks:
                raises(LockError, asyncio.run, lock.acquire())
            raises(ClientForked, asyncio.run, client.lock(name).acquire())
            raises(ClientForked, asyncio.run, held.release())
            assert held.remaining() == 0.0
        in_child(child)
        for lock, call in zip([held, *locks], [*calls, None]):
            await lock.release()
            assert call is None or await asyncio.wait_for(call, 10)
asyncio.run(main())
""",
        name,
        *three,
    )
    assert not keys(three, name)


# --- row 74: forks while a thread imports ---------------------------------------------------------------------

# The first import of a thread takes long, and the main thread forks in the middle of it. The child has the locks of
# these imports, and not the thread.
WHILE_A_THREAD_IMPORTS = """
import asyncio, sys, threading
name, top, face, url = sys.argv[1:]
if top == "eager":
    from redlatch import AsyncClient, Client
import redlatch

class Slow:
    importing, entered = threading.Event(), threading.Lock()

    @classmethod
    def find_spec(cls, found, path=None, target=None):
        # Imports of the main thread are no fault.
        if threading.current_thread() is not threading.main_thread() and cls.entered.acquire(blocking=False):
            cls.importing.set()
            time.sleep(0.3)

def use(name):
    if face == "threads":
        with redlatch.Client([url]) as client, client.lock(name):
            pass
        return
    async def main():
        async with redlatch.AsyncClient([url]) as client, client.lock(name):
            pass
    asyncio.run(main())

def first():
    use(name)
    Slow.importing.set()

sys.meta_path.insert(0, Slow)
thread = threading.Thread(target=first)
thread.start()
assert Slow.importing.wait(20)
in_child(lambda: use(f"{name}-child"))
in_child(lambda: use(f"{name}-child"))
thread.join()
use(name)
"""


@pytest.mark.parametrize("face", ["threads", "asyncio"])
@pytest.mark.parametrize("top", ["eager", "lazy"])
def test_row_74_a_child_that_was_forked_while_a_thread_made_the_first_client_can_make_one(
    top: str, face: str, implementation: impl.Implementation, url: str, name: str
) -> None:
    process = run_script(
        IN_CHILD + WHILE_A_THREAD_IMPORTS, implementation.name, name, top, face, url, wait=False, options=IGNORED
    )
    _, err = finish(process)
    assert (process.returncode, err) == (0, "")
