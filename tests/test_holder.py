"""Who holds a lock: the label of tokens, `Lock.holder`, and the holder in errors."""

from __future__ import annotations

import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.faces import PATIENCE, Face, finish, in_thread, run_script
from support.proxy import Proxy

from redlatch import Client, ConfigurationError, Holder, LockBusy, LockTimeout, impl

# A ttl that no test outlives.
LONG = 60.0


@pytest.mark.parametrize("options", [{}, {"fair": True}, {"fence": True}], ids=["plain", "fair", "fenced"])
def test_the_holder_is_told_with_what_is_known_of_it(
    connect: Face, three: list[str], name: str, options: dict[str, Any]
) -> None:
    lock = connect(three, owner="web-1:orders").lock(name, ttl=LONG, **options)
    other = connect(three).lock(name, **options)
    assert other.holder() is None
    assert lock.acquire()
    for asked in (lock, other):
        found = asked.holder()
        assert isinstance(found, Holder)
        assert found.owner == "web-1:orders"
        assert 0 < found.ttl_left <= LONG
        assert found.held_for is not None and 0 <= found.held_for < 30
        assert found.fence == lock.fence
    lock.release()
    assert other.holder() is None


def test_an_owner_without_a_name_is_its_host_and_process(connect: Face, three: list[str], name: str) -> None:
    lock = connect(three).lock(name)
    assert lock.acquire()
    assert lock.holder().owner == f"{socket.gethostname()}:{os.getpid()}"
    lock.release()


def test_a_client_that_was_made_before_a_fork_names_the_child(implementation: impl.Implementation, url: str) -> None:
    program = """if True:
        import os, sys, redlatch
        client = redlatch.Client(sys.argv[1])
        child = os.fork()
        if not child:
            with client.lock("a forked holder") as lock:
                print(os.getpid() == int(lock.holder().owner.rpartition(":")[2]), flush=True)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    process = run_script(program, implementation.name, url, wait=False)
    assert finish(process)[0] == "True\n"


def test_tokens_without_an_owner_are_short_and_name_nobody(connect: Face, three: list[str], name: str) -> None:
    lock = connect(three, owner="").lock(name)
    assert lock.acquire()
    assert len(lock.token) == 32
    found = lock.holder()
    assert (found.owner, found.held_for) == ("", None)
    lock.release()


def test_the_key_of_another_tool_names_nobody_and_may_live_for_ever(connect: Face, url: str, name: str) -> None:
    import redis

    with redis.Redis.from_url(url) as server:
        server.set(name, "x\r\n+OK\r\n" + "y" * 10_000)
        found = connect(url).lock(name).holder()
        assert (found.owner, found.ttl_left, found.held_for) == ("", math.inf, None)
        server.delete(name)


def test_the_holder_is_found_while_a_minority_is_silent(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], owner="me", attempt_timeout=PATIENCE)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    before[2].replies.clear()
    assert lock.holder().owner == "me"
    before[2].replies.set()
    lock.release()


def test_the_holder_is_found_without_scripts(connect: Face, three: list[str], name: str) -> None:
    lock = connect(three, owner="me").lock(name, ttl=LONG, fence=True)
    other = connect(three, scripts="watch").lock(name, fence=True)
    assert other.holder() is None
    assert lock.acquire()
    found = other.holder()
    assert (found.owner, found.fence) == ("me", lock.fence)
    lock.release()


def test_a_writer_is_found_and_readers_are_too_many_to_name(connect: Face, three: list[str], name: str) -> None:
    locks = connect(three, owner="me").rw_lock(name)
    writer = locks.write()
    assert writer.acquire()
    assert writer.holder().owner == "me"
    writer.release()
    with pytest.raises(ConfigurationError, match="may have several holders"):
        locks.read().holder()


@pytest.mark.parametrize("owner", ["x" * 65, "ü" * 33, "two\nlines", "\x1b[31m"])
def test_an_owner_that_cannot_be_shown_is_refused(owner: str, url: str) -> None:
    with pytest.raises(ConfigurationError, match="at most 64 bytes that can be printed"):
        Client(url, owner=owner)
    with pytest.raises(TypeError):
        Client(url, owner=7)  # type: ignore[arg-type]


# --- in errors -------------------------------------------------------------------------------------------


def refusal(client: Client, name: str, timeout: float) -> Any:
    """Return the error of a ``with`` that does not get the lock."""
    with pytest.raises((LockTimeout, LockBusy)) as caught, client.lock(name, timeout=timeout):
        raise AssertionError("it was acquired")
    return caught.value


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_thread_that_waits_for_itself_is_told_so(client: Client, name: str, timeout: float) -> None:
    with client.lock(name, ttl=LONG) as lock:
        error = refusal(client, name, timeout)
        assert re.search(
            r"this thread has held it itself for 0\.\d{3} s, .*: use one client\.rlock\(\) for both$", str(error)
        )
        assert error.holder is not None
        assert error.holder.owner == f"{socket.gethostname()}:{os.getpid()}"
        assert 0 < error.holder.ttl_left <= lock.remaining() + 1


def test_a_holder_in_another_thread_of_the_same_client_is_named(client: Client, name: str) -> None:
    with client.lock(name, ttl=LONG, fence=True) as lock:
        error = in_thread(refusal, client, name, 0.05).result(30)
        assert "this client has held it for 0." in str(error)
        assert error.holder is not None and error.holder.fence == lock.fence


def test_a_thread_that_ended_is_not_taken_for_the_one_that_waits(client: Client, name: str) -> None:
    lock = client.lock(name, ttl=LONG)
    holder = threading.Thread(target=lock.acquire)
    holder.start()
    holder.join()
    # While this thread lives its ident is its own.
    assert "this client has held it" in str(refusal(client, name, 0))
    lock.release()


def test_the_time_of_a_label_is_that_of_the_acquire(client: Client, name: str) -> None:
    with client.lock(name):
        pass
    before = int(time.time())
    with client.lock(name, ttl=LONG) as lock:
        assert lock.token is not None
        assert before <= int(lock.token.split(b":")[1], 16) + 1 <= time.time() + 1
