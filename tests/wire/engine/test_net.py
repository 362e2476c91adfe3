"""The system calls: both builds give the same results, on real sockets."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redlatch import impl

pytestmark = pytest.mark.each_build

# The limit for an event that has happened already, or that the test itself causes.
PATIENCE_NS = 10_000_000_000
# More bytes than the two socket buffers of a pair hold.
BIG = 2_000_000


@pytest.fixture
def net(implementation: impl.Implementation) -> ModuleType:
    return implementation.module("wire.engine.net")


def waited(wires: Any, timeout_ns: int, count: int = 3) -> list[tuple[int, Any]]:
    """Wait once, and return the results: (index, bytes or error)."""
    if not wires.wait(timeout_ns):
        return []
    came = [(index, wires.collect(index)) for index in range(count)]
    assert [wires.collect(index) for index in range(count)] == [None] * count
    return [(index, data) for index, data in came if data is not None]


class Bench:
    """Wires of N socket pairs, and their far ends."""

    def __init__(self, net: ModuleType, count: int) -> None:
        self.wires = net.Wires(count)
        self.near: list[socket.socket] = []
        self.far: list[socket.socket] = []
        for index in range(count):
            near, far = socket.socketpair()
            near.setblocking(False)
            far.settimeout(10)
            self.wires.attach(index, near)
            self.near.append(near)
            self.far.append(far)

    def wait(self, timeout_ns: int) -> list[tuple[int, Any]]:
        return waited(self.wires, timeout_ns)

    def close(self) -> None:
        self.wires.close()
        for each in (*self.near, *self.far):
            each.close()


@pytest.fixture
def bench(net: ModuleType) -> Iterator[Bench]:
    bench = Bench(net, 3)
    yield bench
    bench.close()


def drain(sock: socket.socket) -> bytes:
    """Read all bytes that a far end has now."""
    chunks = []
    sock.setblocking(False)
    try:
        while chunk := sock.recv(1 << 20):
            chunks.append(chunk)
    except BlockingIOError:
        pass
    return b"".join(chunks)


# --- sending -----------------------------------------------------------------------------------------


def test_staged_bytes_are_not_written_before_a_send(bench: Bench) -> None:
    bench.wires.stage(0, b"abc")
    assert bench.wires.unsent(0) == 3
    assert drain(bench.far[0]) == b""


def test_one_send_offers_every_socket_its_own_bytes_in_order(bench: Bench) -> None:
    for data in (b"a", b"b", b"c"):
        bench.wires.stage(0, data)
    bench.wires.stage(2, b"z")
    assert bench.wires.send() == []
    assert [drain(far) for far in bench.far] == [b"abc", b"", b"z"]
    assert [bench.wires.unsent(index) for index in range(3)] == [0, 0, 0]


def test_sending_twice_sends_nothing_twice(bench: Bench) -> None:
    bench.wires.stage(0, b"abc")
    bench.wires.send()
    bench.wires.send()
    assert drain(bench.far[0]) == b"abc"


def test_sending_with_nothing_staged_does_nothing(bench: Bench) -> None:
    assert bench.wires.send() == []


def test_bytes_that_a_full_socket_does_not_accept_stay_staged(bench: Bench) -> None:
    data = bytes(range(256)) * (BIG // 256)
    bench.wires.stage(0, data)
    assert bench.wires.send() == []
    left = bench.wires.unsent(0)
    assert 0 < left < len(data)
    assert drain(bench.far[0]) == data[: len(data) - left]


def test_waiting_sends_the_rest_as_soon_as_there_is_room(bench: Bench) -> None:
    data = bytes(range(251)) * (BIG // 251)
    bench.wires.stage(0, data)
    bench.wires.send()
    bench.wires.stage(0, b"the end")
    taken = b""
    while bench.wires.unsent(0):
        taken += drain(bench.far[0])
        assert bench.wait(PATIENCE_NS) == []
    taken += drain(bench.far[0])
    assert taken == data + b"the end"


def test_a_full_socket_holds_up_no_other(bench: Bench) -> None:
    bench.wires.stage(0, b"x" * BIG)
    bench.wires.stage(1, b"abc")
    assert bench.wires.send() == []
    assert drain(bench.far[1]) == b"abc"


def test_a_socket_that_has_been_full_sends_and_receives_as_before(bench: Bench) -> None:
    bench.wires.stage(0, b"x" * BIG)
    bench.wires.send()
    while bench.wires.unsent(0):
        drain(bench.far[0])
        bench.wait(PATIENCE_NS)
    drain(bench.far[0])
    bench.wires.stage(0, b"after")
    bench.wires.send()
    assert drain(bench.far[0]) == b"after"
    assert bench.wait(0) == []
    bench.far[0].send(b"reply")
    assert bench.wait(PATIENCE_NS) == [(0, b"reply")]


def test_a_socket_can_be_full_and_have_replies_at_once(bench: Bench) -> None:
    bench.wires.stage(0, b"x" * BIG)
    bench.wires.send()
    bench.far[0].send(b"reply")
    drain(bench.far[0])
    came: list[Any] = []
    while not came:
        came = bench.wait(PATIENCE_NS)
        drain(bench.far[0])
    assert came == [(0, b"reply")]


def test_sending_to_a_closed_peer_is_that_sockets_error_and_no_signal(bench: Bench) -> None:
    bench.far[1].close()
    for index in range(3):
        bench.wires.stage(index, b"abc")
    [(index, error)] = bench.wires.send()
    assert index == 1
    assert isinstance(error, BrokenPipeError)
    assert (drain(bench.far[0]), drain(bench.far[2])) == (b"abc", b"abc")


@given(
    sizes=st.lists(st.integers(0, 70_000), max_size=12),
    sends=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_any_mixture_of_staging_and_sending_keeps_every_byte_in_its_place(sizes: list[int], sends: list[bool]) -> None:
    results = []
    for name in ("c", "python"):
        try:
            bench = Bench(impl.load(name).module("wire.engine.net"), 1)
        except ImportError:
            pytest.skip("the compiled implementation was not built")
        try:
            taken = b""
            for number, (size, send) in enumerate(zip(sizes, sends, strict=False)):
                bench.wires.stage(0, bytes([number]) * size)
                if send:
                    assert bench.wires.send() == []
                    taken += drain(bench.far[0])
            while bench.wires.unsent(0):
                assert bench.wires.send() == []
                taken += drain(bench.far[0])
            results.append(taken)
        finally:
            bench.close()
    assert results == [b"".join(bytes([number]) * size for number, size in enumerate(sizes))] * 2


# --- receiving ---------------------------------------------------------------------------------------


def test_a_wait_without_input_returns_nothing(bench: Bench) -> None:
    assert bench.wait(0) == []
    assert bench.wait(-5) == []


def test_a_wait_returns_the_bytes_of_every_socket_at_once(bench: Bench) -> None:
    bench.far[0].send(b"zero")
    bench.far[2].send(b"two")
    assert sorted(bench.wait(PATIENCE_NS)) == [(0, b"zero"), (2, b"two")]


def test_a_wait_reads_a_bounded_piece_and_the_next_wait_reads_the_rest(bench: Bench) -> None:
    bench.far[0].sendall(b"x" * 40_000)
    pieces: list[bytes] = []
    while sum(map(len, pieces)) < 40_000:
        [(index, piece)] = bench.wait(PATIENCE_NS)
        assert index == 0
        pieces.append(piece)
    assert max(map(len, pieces)) == len(pieces[0]) == 16_384


def test_the_end_of_a_stream_is_an_error(bench: Bench) -> None:
    bench.far[1].close()
    [(index, error)] = bench.wait(PATIENCE_NS)
    assert (index, type(error)) == (1, ConnectionResetError)


def test_bytes_before_the_end_of_a_stream_come_first(bench: Bench) -> None:
    bench.far[1].send(b"last words")
    bench.far[1].close()
    assert bench.wait(PATIENCE_NS) == [(1, b"last words")]
    [(index, error)] = bench.wait(PATIENCE_NS)
    assert (index, type(error)) == (1, ConnectionResetError)


def test_a_connection_reset_by_the_peer_is_an_error_of_that_kind(net: ModuleType) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    near.setblocking(False)
    wires = net.Wires(1)
    wires.attach(0, near)
    # The close sends a reset, because the socket lingers for no time.
    far.close()
    [(index, error)] = waited(wires, PATIENCE_NS, 1)
    wires.close()
    assert (index, type(error)) == (0, ConnectionResetError)


def test_receiving_from_one_socket_leaves_the_others_alone(bench: Bench) -> None:
    bench.far[0].send(b"zero")
    bench.far[1].send(b"one")
    assert bench.wires.receive(1) == b"one"
    assert bench.wires.receive(1) is None
    assert bench.wires.receive(0) == b"zero"


def test_receiving_from_a_closed_peer_is_an_error(bench: Bench) -> None:
    bench.far[0].close()
    assert isinstance(bench.wires.receive(0), ConnectionResetError)


def test_taken_is_true_after_a_wait_that_received_bytes(bench: Bench) -> None:
    assert not bench.wires.taken
    bench.far[0].send(b"x")
    bench.wait(PATIENCE_NS)
    assert bench.wires.taken


# --- waking ------------------------------------------------------------------------------------------


def test_a_wake_before_a_wait_makes_it_return(bench: Bench) -> None:
    bench.wires.wake()
    done = threading.Thread(target=bench.wires.wait, args=(3600 * 10**9,), daemon=True)
    done.start()
    done.join(10)
    assert not done.is_alive()


def test_a_wake_from_another_thread_makes_a_wait_return_empty(bench: Bench) -> None:
    results: list[object] = []
    waiter = threading.Thread(target=lambda: results.append(bench.wait(3600 * 10**9)), daemon=True)
    waiter.start()
    bench.wires.wake()
    waiter.join(10)
    assert results == [[]]


def test_bytes_of_an_interrupted_wait_do_not_reach_the_next_connection(bench: Bench) -> None:
    bench.far[0].sendall(b"old")
    # Ctrl-C strikes before the caller has the bytes.
    assert bench.wires.wait(PATIENCE_NS)
    bench.wires.detach(0).close()
    near, far = socket.socketpair()
    with far:
        bench.wires.attach(0, near)
        assert bench.wires.collect(0) is None
        far.sendall(b"new")
        assert bench.wait(PATIENCE_NS) == [(0, b"new")]


def test_a_wake_is_used_up_by_one_wait(bench: Bench) -> None:
    bench.wires.wake()
    bench.wires.wake()
    bench.wait(PATIENCE_NS)
    bench.wires.taken = False
    assert bench.wait(0) == []
    assert not bench.wires.taken


def test_any_number_of_wakes_is_harmless(bench: Bench) -> None:
    # More bytes than a pipe holds.
    for _ in range(100_000):
        bench.wires.wake()
    assert bench.wait(PATIENCE_NS) == []


class Struck(Exception):
    """Raised by a signal handler."""


@contextlib.contextmanager
def alarms(handler: Callable[..., object]) -> Iterator[None]:
    """Call `handler` as a signal handler every 10 ms."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_whose_handler_raises_ends_a_wait(bench: Bench) -> None:
    waiting: list[bool] = []

    def strike(*_: object) -> None:
        if waiting:
            waiting.clear()
            raise Struck

    with alarms(strike), pytest.raises(Struck):
        waiting.append(True)
        bench.wait(PATIENCE_NS)


def test_a_wait_goes_on_after_a_signal_whose_handler_returns(bench: Bench) -> None:
    strikes: list[int] = []

    def count(*_: object) -> None:
        strikes.append(1)
        if len(strikes) == 3:
            bench.far[0].send(b"from the handler")

    with alarms(count):
        assert bench.wait(PATIENCE_NS) == [(0, b"from the handler")]


# --- attaching and detaching -------------------------------------------------------------------------


def test_a_detached_socket_is_returned_open_and_no_longer_served(bench: Bench) -> None:
    bench.wires.stage(0, b"never sent")
    detached = bench.wires.detach(0)
    assert detached.fileno() >= 0
    assert (bench.wires.fileno(0), bench.wires.unsent(0)) == (-1, 0)
    assert bench.wires.send() == []
    bench.far[0].send(b"x")
    assert bench.wait(0) == []
    assert bench.wires.receive(0) is None
    assert drain(bench.far[0]) == b""
    detached.close()


def test_detaching_where_there_is_no_socket_gives_none(net: ModuleType) -> None:
    wires = net.Wires(1)
    assert wires.detach(0) is None
    assert wires.fileno(0) == -1
    wires.close()


def instead_of_a_full_one(bench: Bench) -> tuple[socket.socket, socket.socket]:
    """Fill the socket and detach it; return both ends of one for its place, which must not inherit that."""
    bench.wires.stage(0, b"x" * BIG)
    bench.wires.send()
    bench.wires.detach(0).close()
    near, far = socket.socketpair()
    near.setblocking(False)
    return near, far


def test_another_socket_takes_the_place_of_a_detached_one(bench: Bench) -> None:
    near, far = instead_of_a_full_one(bench)
    with far:
        descriptor = near.fileno()
        bench.wires.attach(0, near)
        assert bench.wires.fileno(0) == descriptor
        assert bench.wires.unsent(0) == 0
        bench.wires.stage(0, b"abc")
        bench.wires.send()
        assert drain(far) == b"abc"
        far.send(b"xyz")
        assert bench.wait(PATIENCE_NS) == [(0, b"xyz")]


def test_a_socket_in_the_place_of_a_full_one_is_waited_for_when_it_is_full_itself(bench: Bench) -> None:
    near, far = instead_of_a_full_one(bench)
    with far:
        bench.wires.attach(0, near)
        bench.wires.stage(0, b"y" * BIG)
        bench.wires.send()
        drain(far)
        left = bench.wires.unsent(0)
        bench.wait(PATIENCE_NS)
        assert bench.wires.unsent(0) < left


def test_closing_closes_every_socket_and_may_be_repeated(bench: Bench) -> None:
    bench.wires.close()
    bench.wires.close()
    assert [far.recv(1) for far in bench.far] == [b"", b"", b""]


def test_a_wire_that_does_not_exist_is_an_index_error(bench: Bench) -> None:
    calls: tuple[Callable[[], Any], ...] = (
        lambda: bench.wires.stage(3, b"x"),
        lambda: bench.wires.unsent(3),
        lambda: bench.wires.detach(3),
        lambda: bench.wires.fileno(3),
        lambda: bench.wires.receive(3),
    )
    for call in calls:
        with pytest.raises(IndexError):
            call()


def test_only_bytes_can_be_staged(bench: Bench) -> None:
    for wrong in (None, "text", 5):
        with pytest.raises(TypeError):
            bench.wires.stage(0, wrong)
    assert bench.wires.unsent(0) == 0


# --- the clock ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="there is no such clock")
def test_the_clock_is_the_one_since_boot(net: ModuleType) -> None:
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    now = net.now_ns()
    assert before <= now <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def test_the_clock_goes_on_while_the_machine_is_suspended(implementation: impl.Implementation) -> None:
    """Run in a time namespace whose clock since boot is an hour ahead of the monotonic clock, as after a suspend."""
    enter = ["unshare", "--user", "--map-root-user", "--fork", "--time", "--boottime", "3600"]
    try:
        subprocess.run([*enter, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no time namespace can be made here")
    program = (
        f"import time; from redlatch import impl; net = impl.load({implementation.name!r}).module('wire.engine.net'); "
        "print(net.now_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC))"
    )
    ahead = int(subprocess.check_output([*enter, sys.executable, "-c", program]))
    assert ahead > 3500 * 10**9


# --- patience with the GIL ---------------------------------------------------------------------------


@pytest.fixture
def turns() -> Iterator[list[int]]:
    """A thread that counts how often it gets the GIL, each time for as short as possible."""
    count, over, before = [0], threading.Event(), sys.getswitchinterval()

    def work() -> None:
        while not over.is_set():
            count[0] += 1
            time.sleep(0)

    # No thread is forced to release the GIL; only a thread that waits releases it.
    sys.setswitchinterval(60)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield count
    over.set()
    sys.setswitchinterval(before)
    thread.join(10)


def gives_the_gil_up(bench: Bench, turns: list[int]) -> bool:
    """Return whether a wait lets the other thread run; that thread may not get a CPU in the first wait."""
    before = turns[0]
    return any(bench.wait(50_000_000) or turns[0] > before for _ in range(100))


def test_a_wait_without_patience_releases_the_gil_at_once(bench: Bench, turns: list[int]) -> None:
    assert gives_the_gil_up(bench, turns)


def test_a_wait_with_patience_keeps_the_gil_where_it_can(
    bench: Bench, turns: list[int], implementation: impl.Implementation
) -> None:
    bench.wires.gil_patience_ns = 50_000_000
    bench.wires.busy_until_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + PATIENCE_NS
    bench.far[0].send(b"reply")
    before = turns[0]
    assert bench.wait(PATIENCE_NS) == [(0, b"reply")]
    bench.wires.stage(0, b"command")
    assert bench.wires.send() == []
    assert implementation.name == "python" or turns[0] == before


def test_a_wait_with_patience_releases_the_gil_when_the_patience_is_over(bench: Bench, turns: list[int]) -> None:
    bench.wires.gil_patience_ns = 1_000_000
    bench.wires.busy_until_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + PATIENCE_NS
    assert gives_the_gil_up(bench, turns)


def test_without_a_computing_thread_there_is_no_patience(bench: Bench, turns: list[int]) -> None:
    bench.wires.gil_patience_ns = 50_000_000
    assert gives_the_gil_up(bench, turns)


def test_a_wait_for_the_gil_reveals_a_computing_thread(bench: Bench, implementation: impl.Implementation) -> None:
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    try:
        for _ in range(100):
            bench.wait(1_000_000)
            if bench.wires.busy_until_ns:
                break
        assert bool(bench.wires.busy_until_ns) == (implementation.name == "c")
    finally:
        over.set()
        thread.join(10)


def test_patience_follows_the_usual_time_of_replies(bench: Bench, implementation: impl.Implementation) -> None:
    assert implementation.name == "python" or bench.wires.usual_gil_patience_ns() > 0
    # Each reply takes far more than a millisecond, so patience is not worth it.
    for _ in range(200):
        threading.Timer(0.002, bench.far[0].send, (b"reply",)).start()
        bench.wait(PATIENCE_NS)
    assert bench.wires.usual_gil_patience_ns() == 0


def test_a_timeout_is_waited_for_with_patience_too(bench: Bench) -> None:
    bench.wires.gil_patience_ns = 5_000_000
    bench.wires.busy_until_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + PATIENCE_NS
    before = time.monotonic_ns()
    assert bench.wait(20_000_000) == []
    assert time.monotonic_ns() - before >= 19_000_000
