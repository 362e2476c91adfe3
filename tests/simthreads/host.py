"""A simulated process with threads: a Client whose time, chance, threads and connections are simulated."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from sim import network
from sim.host import Host
from sim.master import Master
from sim.network import Connection
from sim.world import MICROSECOND, Drifting

from redlatch import Client, impl
from redlatch.protocol.sighting import Errand
from redlatch.wire import connect

from . import fakes
from .kernel import Kernel, SimWorld, Thread

STEP_NS = 1 * MICROSECOND

network.socket = fakes  # type: ignore[attr-defined]  # its pairs are ours


class Idents:
    """The idents of one process's threads; the one that was given back last is taken first, as by the OS."""

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
        threads: those that run.
        finalizing: whether its interpreter ends.
        pid: its number, which changes with a fork.
    """

    def __init__(
        self,
        world: SimWorld,
        kernel: Kernel,
        number: int,
        masters: list[Master],
        clock: Drifting,
        wall: Drifting,
        killed: Callable[[Host], object],
    ) -> None:
        self.kernel = kernel
        super().__init__(world, number, masters, clock, wall, 0.0, killed)
        self.idents = Idents()
        self.threads: list[Thread] = []
        self.finalizing = False
        self.pid = 100 * (number + 1)
        self.paused_until = 0
        self.ended: Callable[[Thread], object] = _nothing

    # --- time ----------------------------------------------------------------------------------------------

    @property  # type: ignore[override]
    def local(self) -> int:
        """The time that this process has reached: the world's."""
        return self.kernel.now()

    @local.setter
    def local(self, _: int) -> None:
        """Leave it as it is."""

    def read_clock(self) -> int:
        """Return nanoseconds since boot."""
        return self.clock.read(self.kernel.now())

    def paused(self) -> bool:
        """Tell whether it stands still."""
        return self.paused_until > self.world.now

    def pause(self, ns: int) -> None:
        """Stand still with all threads, as after SIGSTOP."""
        self.world.note(self.world.now, self.name, f"is paused for {ns / 1e6:.3f} ms")
        self.paused_until = max(self.paused_until, self.world.now + ns)
        self.world.at(self.paused_until, _nothing)

    # --- threads and connections ---------------------------------------------------------------------------

    def wants_turn(self) -> None:
        """Leave it to the threads that wait for a descriptor."""

    def _collect(self) -> None:
        """Leave it to the descriptors: what is written is sent on at once."""

    def gain(self, connection: Connection) -> None:
        """Take note of a new connection."""
        self.connections[connection] = None
        self._made.append(connection)
        connection.far.end.told = connection.collect  # type: ignore[attr-defined]

    def lose(self, connection: Connection) -> None:
        """Take note that a connection is over."""
        self.connections.pop(connection, None)

    def kill(self) -> None:
        """Die as after SIGKILL."""
        self.kernel.vanish(list(self.threads))
        super().kill()

    def end(self) -> None:
        """Be over."""
        self.dead = True


def dial(address: Any, timeout: float, tracking: bool = True, errand: Errand | None = None) -> Any:
    """Connect to a simulated master; in place of `redlatch.wire.connect.dial`."""
    kernel = fakes.State.kernel
    assert kernel is not None and kernel.current is not None
    host = kernel.current.host
    index = int(address.address.partition("-")[2].partition(":")[0])
    sent_ns = host.read_clock()
    kernel.sleep(3 * host.routes[index].there.usual_ns)
    kernel.gates.enter()
    made = host.connect(index, errand, sent_ns)
    kernel.gates.enter()
    return made


connect.dial = dial


class ThreadClient(Client):
    """A `Client` whose time, chance and threads are its host's."""

    def __init__(self, host: ThreadHost, masters: list[Any], **options: Any) -> None:
        self._host = host
        super().__init__(masters, **options)

    @staticmethod
    def _masters_of(masters: Any) -> Any:
        return masters

    def _policy_of(self, **numbers: Any) -> Any:
        policies = impl.current.module("protocol.policy")
        host, enter = self._host, self._host.kernel.gates.enter

        class HostClock(policies.Clock):  # type: ignore[misc,name-defined]
            def now(self) -> int:
                shown = host.read_clock()
                enter()
                return shown

        return policies.Policy(
            clock=HostClock(),
            random=random.Random(host.world.chance.random()).random,
            tokens=policies.Tokens(host.draw_tokens),
            fences=policies.Fences(host.read_wall),
            **numbers,
        )


def _nothing(*_: object) -> None:
    return None
