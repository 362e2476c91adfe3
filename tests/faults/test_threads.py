"""Races between threads of one client (rows 40, 41, 46, 47 and 63).

In the pure build, CPython may switch threads between two bytecodes. Some tests here play one such order step by step: a
container runs the steps of the other thread in the middle of a call, where CPython could switch. The compiled build
cannot switch there, so these tests use only the pure build. The other tests run on both builds.
`quorum/waiting/test_races.py` plays the orders that need no connected client.
"""

from __future__ import annotations

import _thread
import asyncio
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import redis
from support.client_queues import World
from support.faces import PATIENCE, Face, ask, await_true, finish, in_thread, run_script, wins
from support.interleaving import interpose
from support.scripted_votes import KEY

from redlatch import Client, ClientClosed, impl
from redlatch.masters.listed import masters_of
from redlatch.quorum.lease import new_lease
from redlatch.testing import Masters
from redlatch.wire.dial import connect as dialling
from redlatch.wire.dial.connect import Connection, Dialler

from .forks import IGNORED, IN_CHILD

LONG = 60.0
SECOND = 1_000_000_000
UNBOUNDED = 2**63 - 1


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Holds and queues of the pure build."""
    monkeypatch.setattr(impl, "current", impl.load("python"))
    return World(impl.current, tenure=1000.0)


# --- row 40: lost calls ----------------------------------------------------------------------------------


class Asleep:
    """A sleeper that records whether it was woken."""

    def __init__(self) -> None:
        self.woken = False

    def wake(self) -> None:
        self.woken = True


@pytest.fixture
def driver(world: World, three: list[str]) -> Any:
    """The connected driver of a client of the pure build."""
    with Client(three) as client:
        client.connect()
        yield client._driver


def test_row_40_a_second_call_of_a_ballot_wakes_it_although_the_first_one_is_being_removed(
    world: World, driver: Any
) -> None:
    ballot = world.watches.Watch(world.play.commands.Look(KEY), 3, 2, 0)
    ballot.waiter, second = Asleep(), Asleep()

    def meanwhile(called: Any) -> None:
        called.remove(ballot)  # a third thread took the first call
        ballot.waiter = second  # the owner waits a second time
        called.append(ballot)  # and is called again

    called = interpose(deque, "remove", meanwhile, before=True)([ballot])
    driver.queues.called = driver.queues.watches.called = called
    driver._leader.wake_called()
    assert second.woken and not called


def test_row_40_a_waiter_whose_call_another_thread_takes_at_once_goes_on(
    world: World, driver: Any, three: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps = [0]

    class Sleeper(impl.current.module("drivers.sleeper").Sleeper):  # type: ignore[misc]
        def sleep(self, *args: Any) -> None:
            sleeps[0] += 1
            super().sleep(*args)

    monkeypatch.setattr(impl.current.module("drivers.followers"), "Sleeper", Sleeper)
    with Client(three) as client:
        held, lock = client.lock(name, ttl=LONG), client.lock(name, ttl=LONG)
        assert held.acquire()
        sleeps[0] = 0
        waiting = in_thread(lock.acquire)
        await_true(lambda: sleeps[0] == 1)

        def meanwhile(_: object) -> None:
            driver: Any = client._driver
            driver._leader.wake_called()
            await_true(lambda: sleeps[0] == 2 or waiting.done())  # the waiter has checked its ballot

        queues = client._quorum.queues
        queues.called = queues.watches.called = interpose(deque, "append", meanwhile)()
        held.release()
        assert waiting.result(5)
        lock.release()


def test_row_40_a_driver_that_is_called_right_before_it_polls_does_not_poll(world: World, driver: Any) -> None:
    ballot = world.watches.Watch(world.play.commands.Look(KEY), 3, 2, driver._clock.now() + 3600 * SECOND)
    driver.queues.watches.add(KEY, ballot)
    leader = driver._leader
    clock = leader._clock

    class Clock:
        """Lets another thread change the key when the driver asks how long it may poll."""

        def now(self) -> int:
            if sys._getframe(1).f_code.co_name == "_drive":
                leader._clock = clock
                driver.queues.watches.notify(KEY)
                leader.wake_called()
            return int(clock.now())

    def drive() -> None:
        leader._clock = Clock()
        sleeper = impl.current.module("drivers.sleeper").Sleeper()
        driver._followers.wait_for(ballot, sleeper)  # no master answers anything

    calling = in_thread(drive)
    try:
        calling.result(5)
    finally:
        driver._leader.fleet.wires.wake()
    assert ballot.decided


HOT = """
import os, random, sys, threading, time, redlatch
name, *urls = sys.argv[1:]
sys.setswitchinterval(1e-5)
client = redlatch.Client(urls)
over = time.monotonic() + 6
done, errors = [0] * 16, []
def work(number):
    chance = random.Random(number)
    while time.monotonic() < over:
        try:
            with client.lock(f"{name}-{chance.randrange(3)}", ttl=60):
                done[number] += 1
        except BaseException as error:
            errors.append(repr(error))
threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(max(0, over + 10 - time.monotonic()))
print(sum(thread.is_alive() for thread in threads), "asleep,", min(done) > 0, errors[:3], flush=True)
os._exit(0)
"""


def test_row_40_and_41_sixteen_threads_that_switch_constantly_all_finish_without_errors(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    process = run_script(HOT, implementation.name, name, *three, wait=False)
    assert finish(process) == ("0 asleep, True []\n", "")


# --- row 41: two threads that check a queue and then pop from it -----------------------------------------


def test_row_41_two_threads_may_promote_the_last_sleeper_at_once(world: World, driver: Any) -> None:
    sleeper = impl.current.module("drivers.sleeper").Sleeper()
    leader = driver._leader
    leader.sleepers = interpose(deque, "popleft", lambda _: leader.promote(), before=True)([sleeper])
    leader.promote()
    assert not sleeper.asleep and not leader.sleepers


def test_a_late_close_does_not_delay_the_upkeep(driver: Any) -> None:
    began, may_end = threading.Event(), threading.Event()
    ended: list[bool] = []

    def close_late() -> None:
        began.set()
        may_end.wait(PATIENCE)
        ended.append(True)

    driver._closing.close_late, driver._closing.overdue = close_late, True
    driver.read_late_replies()
    try:
        assert not ended  # it did not wait for the close
        assert began.wait(PATIENCE)
    finally:
        may_end.set()


def test_a_driver_that_may_not_be_used_leaves_its_background_thread_ringable(driver: Any) -> None:
    driver._background.wake_ns = UNBOUNDED
    driver._connections.lifecycle.usable = False
    try:
        assert driver.attend() is None
        assert driver._background.wake_ns == UNBOUNDED
    finally:
        driver._connections.lifecycle.usable = True


def test_row_41_two_threads_may_report_the_last_loss_at_once(world: World, driver: Any) -> None:
    told: list[str] = []

    class Farewell:
        def _report_loss(self) -> None:
            told.append("lost")

    ballot = world.watches.Watch(world.play.commands.Look(KEY), 3, 2, 0)
    ballot.released_lock, ballot.refusers = Farewell(), 0b11
    ballot.released_lease = new_lease(b"token", 0, UNBOUNDED)
    notify_lost = driver._connections.notify_lost
    driver._leader.fleet.lost = interpose(list, "pop", lambda _: notify_lost(), before=True)([ballot])
    notify_lost()
    assert told == ["lost"]


# --- row 46: close() while another thread has the role ----------------------------------------------------

CLOSED_AT_SHUTDOWN = """
import sys, threading, time, redlatch
name, *urls = sys.argv[1:]
class Service:
    def __init__(self):
        self.client = redlatch.Client(urls)
    def __del__(self):
        self.client.close()
        print("closed", flush=True)
service = Service()
other = redlatch.Client(urls)
held = other.lock(name, ttl=60)
assert held.acquire()
threading.Thread(target=service.client.lock(name, ttl=2).acquire, daemon=True).start()
waiting = service.client._quorum.queues.everybody
while not any(getattr(waiter, "reopened", False) for waiter in waiting()):  # then it polls the sockets
    time.sleep(0.001)
"""


def test_row_46_close_at_shutdown_returns_although_a_dead_daemon_thread_was_driving(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    process = run_script(CLOSED_AT_SHUTDOWN, implementation.name, name, *three, wait=False)
    assert finish(process) == ("closed\n", "")
    assert process.returncode == 0


CLOSED_BY_ATEXIT = """
import atexit, sys, redlatch
name, *urls = sys.argv[1:]
client = redlatch.Client(urls)
client.connect()
atexit.register(lambda: (client.close(), print("closed", flush=True)))
"""


def test_row_46_close_in_an_exit_handler_starts_no_thread(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    """Since Python 3.12, exit handlers cannot start threads."""
    process = run_script(CLOSED_BY_ATEXIT, implementation.name, name, *three, wait=False)
    assert finish(process) == ("closed\n", "")
    assert process.returncode == 0


class Stuck(logging.Handler):
    """A log handler that blocks the driving thread when it logs a broken connection."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.free = threading.Event(), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "broke" in record.getMessage():
            self.entered.set()
            self.free.wait(PATIENCE)


@pytest.fixture
def stuck(caplog: pytest.LogCaptureFixture) -> Any:
    logger, handler = logging.getLogger("redlatch"), Stuck()
    logger.addHandler(handler)
    with caplog.at_level(logging.INFO, "redlatch"):
        yield handler
    handler.free.set()
    logger.removeHandler(handler)


def connections(urls: list[str]) -> int:
    """Return how many connections of redlatch the masters have."""
    return sum(each["name"] == "redlatch" for url in urls for each in ask(url).client_list())


def test_row_46_close_is_bounded_while_a_thread_keeps_the_role_and_closes_once_it_leaves(
    implementation: impl.Implementation, fleet: Any, name: str, stuck: Stuck
) -> None:
    urls = fleet(3).urls
    for url in urls:
        ask(url).set(name, "somebody else's", px=60_000)
    client = Client(urls)
    client.connect()
    waiting = in_thread(client.lock(name, ttl=LONG).acquire)
    await_true(lambda: any(getattr(ballot, "reopened", False) for ballot in client._quorum.queues.everybody()))
    ask(urls[0]).client_kill_filter(_type="normal", skipme=True)
    assert stuck.entered.wait(PATIENCE)
    try:
        in_thread(client.close).result(10)
        assert connections(urls[1:]) == 2  # the thread may still use them
    finally:
        stuck.free.set()
    with pytest.raises(ClientClosed):
        waiting.result(PATIENCE)
    await_true(lambda: connections(urls) == 0)
    assert [ask(url).get(name) for url in urls] == [b"somebody else's"] * 3


# --- row 47: forks while masters are dialled --------------------------------------------------------------

FORKS = """
import socket, threading, redlatch
name, *urls = sys.argv[1:]
nobody = [socket.socket() for _ in range(3)]
for each in nobody:
    each.bind(("127.0.0.1", 0))
down = ["redis://127.0.0.1:%d" % each.getsockname()[1] for each in nobody]
"""

A_LOCK_IS_TAKEN = """
import gc
from redlatch.wire.dial.connect import Dialler
client = redlatch.Client(down)
try:
    client.connect()
except redlatch.LockError:
    pass
dialler, = [each for each in gc.get_objects() if type(each) is Dialler]
for value in vars(dialler).values():  # a thread of the parent may hold it at the fork
    if isinstance(value, threading.Event):
        value._cond.acquire()
def child():
    client.close()
    with redlatch.Client(urls) as own, own.lock(name, timeout=20):
        pass
in_child(child)
print("whole", flush=True)
os._exit(0)
"""

MANY_FORKS = """
import logging
logging.disable()  # redlatch logs that the masters are unreachable
sys.setswitchinterval(1e-6)
for _ in range(8):
    client = redlatch.Client(down)
    threading.Thread(target=client.connect, daemon=True).start()
    for _ in range(8):
        time.sleep(0.002)
        in_child(client.close)
    client.close()
sys.setswitchinterval(0.005)
with redlatch.Client(urls) as client, client.lock(name, timeout=20):
    print("whole", flush=True)
"""

FORK_WHILE_CONNECT_BEGINS = """
from redlatch.drivers import connections
parent, begun, go_on = os.getpid(), threading.Event(), threading.Event()
register = connections.disown_at_fork
def slowly(each):
    if os.getpid() == parent:
        begun.set()
        go_on.wait(20)
    register(each)
connections.disown_at_fork = slowly
client = redlatch.Client(urls)
connecting = threading.Thread(target=client.connect)
connecting.start()
begun.wait(20)
def child():
    with client.lock(name, timeout=20):
        pass
in_child(child)
go_on.set()
connecting.join()
with client.lock(name, timeout=20):
    print("whole", flush=True)
client.close()
"""


@pytest.mark.parametrize("text", [A_LOCK_IS_TAKEN, MANY_FORKS, FORK_WHILE_CONNECT_BEGINS])
def test_row_47_no_child_hangs_on_a_lock_that_a_thread_of_the_parent_held(
    text: str, implementation: impl.Implementation, three: list[str], name: str
) -> None:
    process = run_script(IN_CHILD + FORKS + text, implementation.name, name, *three, wait=False, options=IGNORED)
    out, err = finish(process)
    assert (out, process.returncode) == ("whole\n", 0), err


def test_row_47_a_dialling_thread_ends_at_once_when_its_client_closes_in_a_long_pause(url: str) -> None:
    before = _thread._count()
    dialler = Dialler(masters_of(url), PATIENCE, lambda *_: None, lambda *_: None)
    dialler.start(0, 3600.0)
    await_true(lambda: len(dialler._pauses) == 1)
    dialler.close()
    await_true(lambda: not dialler._pauses and _thread._count() <= before)


# --- dialling threads that an exception ends --------------------------------------------------------------

ENDS = [SystemExit, KeyboardInterrupt, asyncio.CancelledError]


class Dialling:
    """A dialler of one master, with the failures that it reported.

    Args:
        errors: the exceptions that the first attempts to connect raise, in order.
        told: the exception that the first report of a failure raises, if any.
    """

    def __init__(self, url: str, errors: list[BaseException], told: BaseException | None = None) -> None:
        self.failures: list[Exception] = []
        self._arrived = threading.Event()
        self._connections: list[Connection] = []
        [master] = masters_of(url)
        connect = master.connect

        def connect_late(timeout: float) -> Any:
            if errors:
                raise errors.pop(0)
            return connect(timeout)

        def failed(index: int, failure: Exception) -> None:
            self.failures.append(failure)
            if told is not None and len(self.failures) == 1:
                raise told

        def ready(index: int, connection: Connection) -> None:
            self._connections.append(connection)
            self._arrived.set()

        master.connect = connect_late  # type: ignore[method-assign]
        self._dialler = Dialler([master], PATIENCE, ready, failed)

    def run(self) -> None:
        """Dial until the master is reached."""
        self._dialler.start(0)
        arrived = self._arrived.wait(10)
        self._dialler.close()
        assert arrived
        self._connections[0].sock.close()


@pytest.mark.parametrize("error", ENDS)
def test_a_dialling_thread_survives_an_exit_in_foreign_code_and_reports_it(
    url: str, error: type[BaseException]
) -> None:
    dialling = Dialling(url, [error()])
    dialling.run()
    [failure] = dialling.failures
    assert str(failure) == f"dialling was ended by {error.__name__}"
    assert isinstance(failure.__cause__, error)


def test_another_thread_dials_a_master_whose_dialling_thread_has_ended(url: str) -> None:
    dialling = Dialling(url, [ConnectionRefusedError("one"), ConnectionRefusedError("two")], SystemExit())
    dialling.run()
    assert [str(failure) for failure in dialling.failures] == ["one", "two"]


def test_a_credential_provider_that_first_raises_an_exit_does_not_stop_the_dialling(
    connect: Any, three: list[str], name: str
) -> None:
    class Provider(redis.CredentialProvider):
        asked = 0

        def get_credentials(self) -> Any:
            self.asked += 1
            if self.asked <= 3:
                raise SystemExit
            return ()

    provider = Provider()
    masters = [redis.Redis.from_url(url, credential_provider=provider) for url in three]
    client = connect(masters)
    await_true(lambda: bool(wins(client.lock(name, ttl=LONG))))
    assert provider.asked > 3


# --- row 63: helper threads that die before their first statement --------------------------------------------


class Struck(BaseException):
    """What another thread sets into the thread of a user, as the time limit of a dramatiq task."""


def dying(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Have the first start of each helper thread with a name die, as CPython 3.11 may do; return their names."""
    start, died = _thread.start_new_thread, []

    def strike(function: Any, args: Any) -> Any:
        helper = repr(function)
        if f"<{name}: " in helper and helper not in died:
            died.append(helper)
            return start(int, ())
        return start(function, args)

    monkeypatch.setattr(_thread, "start_new_thread", strike)
    return died


def cut(urls: list[str]) -> None:
    """Break every connection to the masters."""
    for url in urls:
        ask(url).execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def test_row_63_a_master_is_dialled_again_whose_dialling_threads_died(
    connect: Face, fleet: Callable[..., Masters], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    masters = fleet(1)
    client = connect(masters.urls)
    assert wins(client.lock(name))
    died = dying(monkeypatch, "dial")
    for number in range(3):
        cut(masters.urls)
        assert wins(client.lock(f"{name}-{number}"))
    assert died


def test_row_63_a_master_stays_due_if_the_thread_that_starts_its_dialling_is_struck(
    implementation: impl.Implementation,
    fleet: Callable[..., Masters],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    masters = fleet(1)
    with Client(masters.urls) as client:
        assert wins(client.lock(name))

        def strike(*_: Any) -> None:
            monkeypatch.undo()
            raise Struck

        monkeypatch.setattr(dialling, "start_thread", strike)
        cut(masters.urls)
        struck: list[Struck] = []
        while not struck:
            try:
                client.lock(f"{name}-other").acquire(timeout=1.0)
            except Struck as error:
                struck.append(error)
        assert client.lock(name).acquire(timeout=PATIENCE)


@pytest.mark.parametrize("helper", ["upkeep", "renew"])
def test_row_63_a_lock_is_renewed_and_its_loss_reported_although_a_helper_thread_died(
    helper: str, implementation: impl.Implementation, three: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = dying(monkeypatch, helper)
    with Client(three) as client:
        lock = client.lock(name, ttl=0.6, auto_renew=True)
        assert lock.acquire()
        first = lock.deadline_ns
        await_true(lambda: lock.deadline_ns > first)
        for url in three:
            ask(url).delete(name)
        assert lock.lost.wait(PATIENCE)
    assert died


def test_row_63_a_bridge_is_started_again(
    implementation: impl.Implementation, three: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = dying(monkeypatch, "bridge")
    with Client(three, scripts="watch") as client:
        assert wins(client.lock(name))
    assert len(died) == 3


# An attack: it sets exceptions into a thread while that thread has masters dialled. The window is a few microseconds
# wide, so most rounds miss it.
STRUCK = """
import ctypes, random, sys, threading, time, redis
from redlatch import Client, LockError

class Struck(BaseException):
    pass

def strike(thread):
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Struck))

sys.unraisablehook = threading.excepthook = lambda _: None
sys.setswitchinterval(1e-6)
# The kill may end a handshake, and the next acquire must wait for another one.
admin, client, running = redis.Redis.from_url(sys.argv[1]), Client(sys.argv[1:], patience=10.0), True

def calls():
    while running:
        try:
            client.lock("used").acquire(timeout=0.05)
        except LockError:
            pass

def user():
    while running:
        try:
            calls()
        except BaseException:
            pass

for number in range(60):
    running, thread = True, threading.Thread(target=user, daemon=True)
    thread.start()
    time.sleep(0.002)
    admin.client_kill_filter(_type="normal", skipme=True)
    time.sleep(random.uniform(0, 0.0005))
    until = time.monotonic() + 0.003
    while time.monotonic() < until:
        strike(thread)
    running = False
    while thread.is_alive():
        strike(thread)
        thread.join(0.01)
    lock = client.lock("checked")
    assert lock.acquire(timeout=10.0)
    lock.release()
print("done")
"""


def test_row_63_a_client_survives_exceptions_that_are_set_into_its_threads(
    implementation: impl.Implementation, fleet: Callable[..., Masters]
) -> None:
    child = run_script(STRUCK, implementation.name, *fleet(1).urls, wait=False)
    assert "done" in finish(child)[0]
