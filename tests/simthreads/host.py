"""A simulated process with threads, and a client whose clock, randomness, threads and connections are simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sim import network
from sim.host import Host
from sim.network import Connection

from redlatch import Client
from redlatch.wire.dial import connect, scripting

from . import fakes
from .kernel import Kernel, Thread

T = TypeVar("T")

network.socket = fakes  # type: ignore[attr-defined]  # so that its socket pairs are simulated


class Idents:
    """The thread idents of one process; the last one to be freed is reused first, as by the OS."""

    def __init__(self) -> None:
        self._made = 0
        self._free: list[int] = []

    def take(self) -> int:
        if self._free:
            return self._free.pop()
        self._made += 1
        return 4096 * self._made

    def give(self, ident: int) -> None:
        self._free.append(ident)


class ThreadHost(Host):
    """One process with threads.

    Attributes:
        threads: the threads that have not ended.
        clients: the clients that were made in it.
        finalizing: whether its interpreter is shutting down.
        pid: its process id, which changes at a fork.
    """

    def __init__(self, kernel: Kernel, *args: Any) -> None:
        self.kernel = kernel
        super().__init__(*args)
        self.idents = Idents()
        self.threads: list[Thread] = []
        self.finalizing = False
        self.pid = 100 * (self.number + 1)
        self.paused_until = 0
        self.ended: Callable[[Thread], object] = _nothing
        self.clients: list[ThreadClient] = []

    # --- time ----------------------------------------------------------------------------------------------

    @property
    def local(self) -> int:
        """The time that this process has reached, which is the world's time."""
        return self.kernel.now()

    @local.setter
    def local(self, _: int) -> None:
        """Ignore the new value."""

    def read_clock(self) -> int:
        """Return nanoseconds since boot."""
        return self.clock.read(self.kernel.now())

    def read_clock_of_client(self) -> int:
        """Return the same; the thread can be preempted afterwards."""
        shown = self.read_clock()
        self.kernel.gates.enter()
        return shown

    def at_no_time(self, call: Callable[[], T]) -> T:
        """Return the result of a call, as if it took no time."""
        return self.kernel.at_no_time(call)

    def paused(self) -> bool:
        """Return whether the process is stopped."""
        return self.paused_until > self.world.now

    def pause(self, ns: int) -> None:
        """Stop all threads for a while, as SIGSTOP does."""
        self.world.note(self.world.now, self.name, f"is paused for {ns / 1e6:.3f} ms")
        self.paused_until = max(self.paused_until, self.world.now + ns)
        self.world.at(self.paused_until, _nothing)

    # --- threads and connections ---------------------------------------------------------------------------

    def gain(self, connection: Connection) -> None:
        """Record a new connection, whose bytes are sent as soon as they are written."""
        super().gain(connection)
        connection.far.end.told = connection.collect  # type: ignore[attr-defined]

    def interrupted(self) -> None:
        """Let a client close its connections if an operation on them was cut short."""
        for client in self.clients:
            driver: Any = client._driver
            fleet = driver._leader.fleet
            if fleet is not None and (fleet.torn or fleet.wires.taken):
                for connection in self.connections:
                    connection.excused = True

    def kill(self) -> None:
        """Kill the process, as SIGKILL does."""
        self.kernel.vanish(list(self.threads))
        super().kill()


def dial(
    master: Any,
    timeout: float,
    tracking: bool = True,
    extension: Any = None,
    scripts: scripting.Scripts = "auto",
    synced: bool = False,
) -> Any:
    """Connect to a simulated master; replaces `redlatch.wire.dial.connect.dial`."""
    kernel = fakes.State.kernel
    assert kernel is not None and kernel.current is not None
    host = kernel.current.host
    index = int(master.address.partition("-")[2].partition(":")[0])
    sent_ns = host.read_clock()
    kernel.sleep(3 * host.routes[index].there.usual_ns)
    kernel.gates.enter()
    made = host.connect(index, extension, sent_ns)
    kernel.gates.enter()
    return made


connect.dial = dial


class ThreadClient(Client):
    """A `Client` with the clock, the randomness and the threads of its host."""

    def __init__(self, host: ThreadHost, masters: list[Any], **options: Any) -> None:
        self._host = host
        super().__init__(masters, **options)
        host.clients.append(self)

    @staticmethod
    def _masters_of(masters: Any) -> Any:
        return masters

    def _quorum_of(self, **numbers: Any) -> Any:
        return self._host.quorum(**numbers)


def _nothing(*_: object) -> None:
    return None
