"""Forks: a file of SQLite is closed before them, and a session that begins meanwhile has no copy in the child."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.faces import PATIENCE

from redlatch import sql
from redlatch.sql.files import file_at
from redlatch.sql.forks import forked_since, forks_so_far, give_up_at_fork, no_fork, was_inherited

from .conftest import SERVERS, FindUrl, execute

each_journal = pytest.mark.parametrize("journal", ["delete", "wal"])

IGNORED = ("-W", "error", "-W", "ignore::DeprecationWarning")

# The client of the parent is idle at the fork, and is closed afterwards. Then another process comes and goes: if it
# believed to be the last one, it would delete the journal that the child writes to.
IDLE = """
import os, sys, time
from redlatch import sql
url, name, patience = sys.argv[1], sys.argv[2], float(sys.argv[3])
client = sql.Client(url)
with client.lock(name + "x"):
    pass
ready, done = os.pipe()
again, go = os.pipe()
if not (child := os.fork()):
    with sql.Client(url, ttl=300.0) as own:
        with own.lock(name + "y"):
            pass
        os.write(done, b"x")
        os.read(again, 1)
        held = own.lock(name)
        assert held.acquire(timeout=patience)
        os.write(done, b"x")
        os.read(again, 1)
    os._exit(0)
assert os.read(ready, 1)
client.close()
os.write(1, b"closed\\n")
sys.stdin.readline()
os.write(go, b"x")
assert os.read(ready, 1)
os.write(1, b"held\\n")
sys.stdin.readline()
os.write(go, b"x")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *IGNORED, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@each_journal
def test_a_child_of_an_idle_client_excludes_others_after_the_client_was_closed(
    with_table: FindUrl, journal: str, name: str
) -> None:
    url = with_table("sqlite")
    execute(url, f"PRAGMA journal_mode = {journal}")
    command = [sys.executable, *IGNORED, "-c", IDLE, url, name, str(PATIENCE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        assert parent.stdout.readline() == b"closed\n"
        with sql.Client(url) as client:
            assert client.lock(name + "z").acquire(timeout=PATIENCE)
        parent.stdin.write(b"\n")
        assert parent.stdout.readline() == b"held\n"
        with sql.Client(url) as client:
            assert not client.lock(name).acquire(timeout=0.2)
        parent.stdin.write(b"\n")
        assert parent.wait(PATIENCE) == 0


# Two threads use the client while children are forked off, one after the other; each takes a lock of its own.
BUSY = """
import os, signal, sys, threading, time
from redlatch import sql
url, name, patience = sys.argv[1], sys.argv[2], float(sys.argv[3])
client, failures, ended = sql.Client(url), 0, threading.Event()
def work(number):
    while not ended.is_set():
        with client.lock(f"{name}{number}", ttl=300.0):
            pass
threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
for _ in range(10):
    time.sleep(0.005)
    if not (child := os.fork()):
        signal.alarm(int(patience) + 1)
        with sql.Client(url) as own:
            held = own.lock(name)
            if not held.acquire(timeout=patience):
                os._exit(1)
            held.release()
        os._exit(0)
    failures += os.waitpid(child, 0)[1] != 0
    with client.lock(name + "parent", timeout=patience):
        pass
ended.set()
for thread in threads:
    thread.join()
sys.exit(failures)
"""


@each_journal
def test_children_that_are_forked_while_threads_use_the_client_get_locks(
    with_table: FindUrl, journal: str, name: str
) -> None:
    url = with_table("sqlite")
    execute(url, f"PRAGMA journal_mode = {journal}")
    done = run(BUSY, url, name, str(PATIENCE))
    assert (done.returncode, done.stderr) == (0, "")


# The file stays open at the fork: the driver has a thread of its own, or only the thread that opened it may close it.
LEFT_OPEN = """
import asyncio, os, sqlite3, sys
import sqlalchemy as sa
from redlatch import ConfigurationError, sql
url, name = sys.argv[1:]
path = sa.make_url(url).database
async def hold(client):
    assert await client.lock(name, ttl=300.0).acquire(timeout=5)
    return client
if "aiosqlite" in url:
    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(hold(sql.AsyncClient(url)))
else:
    client = sql.Client(sa.create_engine(url, creator=lambda: sqlite3.connect(path)))
    assert client.lock(name, ttl=300.0).acquire(timeout=5)
if not (child := os.fork()):
    try:
        sql.Client("sqlite:///" + path).lock(name + "x").acquire(timeout=1)
    except ConfigurationError as error:
        assert "was open when this process was forked" in str(error), error
        os._exit(0)
    os._exit(1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
if "aiosqlite" in url:
    loop.run_until_complete(client.close())
    loop.close()
else:
    client.close()
sys.exit(code)
"""


@pytest.mark.parametrize("driver", ["sqlite", "sqlite+aiosqlite"])
def test_a_child_refuses_a_file_that_was_open_at_the_fork(with_table: FindUrl, driver: str, name: str) -> None:
    done = run(LEFT_OPEN, with_table(driver), name)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


# A thread connects for locks of a session; the fork comes when the connection is just there. Then the parent dies.
CONNECTING = """
import asyncio, os, signal, sys, time
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from redlatch import sql
url, name, patience = sys.argv[1], sys.argv[2], float(sys.argv[3])
asynchronous = "async" in url
engine = create_async_engine(url) if asynchronous else sa.create_engine(url)
children = []
def fork(*_):
    if not children:
        children.append(os.fork())
        if not children[0]:
            os.close(1)
            time.sleep(10 * patience)
            os._exit(0)
sa.event.listen(engine.sync_engine if asynchronous else engine, "connect", fork)
client = sql.Client(engine, mode="session", ttl=300.0, attempt_timeout=patience)
assert client.lock(name).acquire(timeout=patience)
os.write(1, str(children[0]).encode())
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("driver", SERVERS)
def test_a_child_that_is_forked_during_the_connect_keeps_no_session_alive(
    url_of: FindUrl, driver: str, name: str
) -> None:
    url = url_of(driver)
    command = [sys.executable, *IGNORED, "-c", CONNECTING, url, name, str(PATIENCE)]
    parent = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert parent.returncode == -signal.SIGKILL
    try:
        with sql.Client(url, mode="session") as client:
            assert client.lock(name).acquire(timeout=PATIENCE)
    finally:
        os.kill(int(parent.stdout), signal.SIGKILL)


class Connection:
    working = False


def test_each_fork_is_counted() -> None:
    forks = forks_so_far()
    assert not forked_since(forks)
    if not (number := os.fork()):
        os._exit(0)
    os.waitpid(number, 0)
    assert forked_since(forks) and forks_so_far() == forks + 1


def test_a_connection_is_marked_while_it_works() -> None:
    connection = Connection()
    with no_fork(connection):
        assert connection.working
    assert not connection.working


def test_a_file_that_nobody_had_open_was_not_inherited(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    assert not was_inherited(file_at(str(path)))


class Holder:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def descriptors(self) -> list[int]:
        return [self._sock.fileno()]


def test_a_child_gives_up_what_its_parent_holds() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        holder = Holder(ours)
        give_up_at_fork(holder)
        child = os.fork()
        if not child:
            try:
                ours.send(b"from the child")
            except OSError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        ours.send(b"from the parent")
        assert theirs.recv(100) == b"from the parent"
