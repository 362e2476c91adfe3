"""Time the functions that every lock uses, with pytest-benchmark, in both implementations.

    make hot

The sockets are socketpairs without a server. Replies come a hundred at a time, so that system calls cost little.
`ns_each` in the extra info is the time for one vote, or one command, of one link.
"""

import socket
from types import SimpleNamespace

import pytest

from redlatch import impl
from redlatch.votes import commands
from redlatch.wire.dial.connect import Traits

LINKS = 5
QUORUM = 3
BATCH = 100
KEY = b"flash-sale:sku:4711"
TOKEN = b"0123456789abcdef0123"
VALKEY = {"run_id": "0" * 40, "role": "master", "server_name": "valkey", "valkey_version": "9.1.2"}


@pytest.fixture(params=["c", "python"])
def implementation(request):
    """Return each implementation in turn; skip the compiled one if it was not built."""
    try:
        return impl.load(request.param)
    except ImportError as error:
        pytest.skip(str(error))


@pytest.fixture
def wired(implementation):
    """Return a fleet whose links are up, and the masters' ends of their sockets."""
    engine = implementation.module("wire.engine.fleet")
    clock = implementation.module("wire.engine.net").BootClock()
    fleet = engine.Fleet([f"master-{i}" for i in range(LINKS)], QUORUM, clock)
    ends = []
    for index in range(LINKS):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        fleet.adopt(index, ours, Traits(VALKEY, 3), commands.DELIFEQ)
        ends.append(theirs)
    ballot = implementation.module("votes.ballot").Ballot
    yield SimpleNamespace(fleet=fleet, ends=ends, ballot=ballot, acquire=own(implementation, "Acquire"))
    fleet.wires.close()
    for end in ends:
        end.close()


def own(implementation, name):
    """Return the command class of this implementation."""
    return getattr(implementation.module("votes.commands"), name)


def submit_batch(wired):
    """Submit a batch of acquires and send them."""
    for _ in range(BATCH):
        ballot = wired.ballot(wired.acquire(KEY, TOKEN, 0, 10_000), LINKS, QUORUM)
        ballot.waiter = wired
        wired.fleet.submit(ballot)
    wired.fleet.flush()


def drain(wired):
    """Read everything that was sent to the masters."""
    for end in wired.ends:
        while True:
            try:
                end.recv(1 << 20)
            except BlockingIOError:
                break


def owed(wired):
    """Count the replies that the first link waits for."""
    return wired.fleet.links[0].owing()


def receive_all(wired):
    """Receive on every link and count the votes."""
    for index in range(LINKS):
        wired.fleet.receive(index)


def test_building_an_acquire(benchmark, implementation):
    acquire = own(implementation, "Acquire")
    text = benchmark(lambda: acquire(KEY, TOKEN, 0, 10_000).payload(commands.DELIFEQ))
    assert text.startswith(b"*6\r\n$3\r\nSET\r\n")


def test_building_a_release(benchmark, implementation):
    release = own(implementation, "Release")
    text = benchmark(lambda: release(KEY, TOKEN, 0).payload(commands.DELIFEQ))
    assert text.startswith(b"*3\r\n$7\r\nDELIFEQ\r\n")


def test_making_a_ballot(benchmark, implementation):
    command = own(implementation, "Acquire")(KEY, TOKEN, 0, 10_000)
    benchmark(implementation.module("votes.ballot").Ballot, command, LINKS, QUORUM)


def test_counting_votes(benchmark, wired):
    def setup():
        wired.fleet.decided.clear()
        submit_batch(wired)
        drain(wired)
        for end in wired.ends:
            end.send(b"+OK\r\n" * BATCH)
        return (wired,), {}

    benchmark.pedantic(receive_all, setup=setup, rounds=200, warmup_rounds=10)
    assert len(wired.fleet.decided) == BATCH
    benchmark.extra_info["ns_each"] = benchmark.stats.stats.median * 1e9 / LINKS / BATCH


def test_submitting_and_flushing(benchmark, wired):
    def setup():
        drain(wired)
        # Answer the previous batch, so that replies and ballots do not pile up.
        for end in wired.ends:
            end.send(b"+OK\r\n" * owed(wired))
        receive_all(wired)
        wired.fleet.decided.clear()
        return (wired,), {}

    benchmark.pedantic(submit_batch, setup=setup, rounds=200, warmup_rounds=10)
    assert owed(wired) == BATCH
    benchmark.extra_info["ns_each"] = benchmark.stats.stats.median * 1e9 / LINKS / BATCH


def test_reading_the_clock(benchmark, implementation):
    assert benchmark(implementation.module("wire.engine.net").now_ns) > 0
