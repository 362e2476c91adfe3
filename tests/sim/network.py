"""Connections between clients and masters: bytes arrive in order, late, or never, and may be cut off anywhere.

A client has one end of a real socket pair, so that real system calls read and write, compiled or not.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import TYPE_CHECKING

from redlatch.votes.scripts import PULSE

from .transactions import Bridge
from .world import MICROSECOND, World

if TYPE_CHECKING:
    from .host import Host
    from .master import Master

ROOM = 1 << 20


class Way:
    """One direction between a client and a master, over all their connections.

    Attributes:
        usual_ns: the minimum delay of bytes.
        blocked_until: until when nothing gets through. Blocked bytes are sent again then, as TCP does.
    """

    def __init__(self, usual_ns: int) -> None:
        self.usual_ns = usual_ns
        self.blocked_until = 0

    def arrival(self, world: World, sent_ns: int) -> int:
        """Return when bytes arrive."""
        chance = world.chance.random()
        delay = self.usual_ns + int(self.usual_ns * chance * (0.5 if chance < 0.99 else 50.0))
        arrives_ns = max(sent_ns, self.blocked_until) + delay
        if chance >= 0.99:
            world.stragglers.append((arrives_ns, delay))
        return arrives_ns


class Route:
    """Both directions between one client and one master."""

    def __init__(self, there_ns: int, back_ns: int) -> None:
        self.there, self.back = Way(there_ns), Way(back_ns)
        # What happens to the next raise of a horizon (see `faults.Faults.late_raise`).
        self.raising: tuple[int, int, int] | None = None


def raises(data: bytes, default_ttl_ms: int) -> bool:
    """Return whether a client's bytes have a pulse that raises the horizon above the client's default ttl."""
    words = data.split(b"\r\n")
    # Of each word, the line before it has the length: EVALSHA, its SHA, 1, the key, the identity, the ttl.
    places = [place for place, word in enumerate(words) if word == PULSE.sha and place + 8 < len(words)]
    return any(int(words[place + 8]) > default_ttl_ms for place in places)


class Connection:
    """One connection, after its handshake.

    Attributes:
        far: our end of the client's socket.
        open: whether both ends are connected.
        astray: whether only the client's end broke, so that the master still reads the bytes in transit.
        held_until: the time until which nothing more arrives at the master.
        memory: how often the master had forgotten its keys when the connection was made.
        left: how many bytes still arrive after the connection went astray; -1 means all.
    """

    def __init__(self, world: World, host: Host, master: Master, route: Route) -> None:
        self.world = world
        self.host = host
        self.master = master
        self.route = route
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.open = True
        self.memory = master.memories
        # Translates for a master that refuses scripts.
        self.bridge = None if master.scripts else Bridge(self)
        # Whether the client has sent anything; whether it has a reason to give the connection up.
        self.used = False
        # A client that goes over to other masters has a reason.
        self.excused = bool(host.lists)
        # How many more bytes get to the master before the connection breaks; -1 means that it does not.
        self.cut_after = -1
        # Whether the connection breaks after the bytes in transit, so that no later ones arrive.
        self._severed = False
        self.astray = False
        self.held_until = 0
        self._held: list[bytes] = []
        self.left = -1
        # Arguments of `go_astray`, which the client's next write calls.
        self.strays: tuple[int, int] | None = None
        self._last_there = self._last_back = 0
        # Replies in transit.
        self._coming: deque[bytes] = deque()
        # The second piece of a reply that arrives in two.
        self._rest = b""
        # How many bytes the first piece of the next reply has, and after how many ns the second one arrives.
        self._cut: tuple[int, int] | None = None

    @property
    def answering(self) -> bool:
        """Whether replies are in transit to the client."""
        return bool(self._coming or self._rest)

    def is_given_up(self) -> bool:
        """Return whether the client has closed its end. It may have passed the descriptor of `near` on."""
        if not self.open:
            return True
        try:
            return not self.far.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    def collect(self) -> None:
        """Take the bytes that the client has written, and send them on."""
        if not self.open:
            return
        try:
            data = self.far.recv(ROOM)
        except BlockingIOError:
            return
        except ConnectionResetError:
            # The client closed its end without reading all bytes.
            data = b""
        self.used = self.used or bool(data)
        if self.bridge is None:
            self.send(data)
        elif data:
            self._give(self.bridge.take(data))
        elif not self.bridge.ended:
            # It still performs the commands that it has.
            self.bridge.ended = True
            self._give(self.bridge.take(b""))
        if self.strays is not None and data and self.open:
            self.go_astray(*self.strays)

    def send(self, data: bytes) -> None:
        """Send bytes to the master; none means the end."""
        if not self.open or self.host.dead:
            return
        # A bridge also sends when a reply has come, unless the process is paused then.
        sent_ns = self.host.local if self.bridge is None else max(self.host.local, self.world.now)
        self._last_there = max(self._last_there, self.route.there.arrival(self.world, sent_ns))
        if self._severed:
            return
        if self.route.raising is not None and raises(data, self.host.default_ttl_ms):
            late_ns, cut, rest_ns = self.route.raising
            self.route.raising = None
            if late_ns:
                self.hold_up(late_ns)
            self._cut = (cut, rest_ns) if cut >= 0 else None
        if self.cut_after >= 0 and len(data) > self.cut_after:
            if self.cut_after:
                self.world.at(self._last_there, self._arrive, data[: self.cut_after])
            self.world.at(self._last_there, self.reset)
            self._severed = True
        else:
            self.world.at(self._last_there, self._arrive, data)

    def _give(self, data: bytes) -> None:
        """Give bytes to the client."""
        if data and self.open:
            try:
                self.far.send(data)
            except OSError:
                # The client has closed its end.
                return
            self.host.wants_turn()

    def finish(self) -> None:
        """Close the connection after the written bytes, for a client that is dead."""
        self._last_there = max(self._last_there, self.route.there.arrival(self.world, self.host.local))
        self.world.at(self._last_there, self._arrive, b"")

    def _arrive(self, data: bytes) -> None:
        if self._held or self.world.now < self.held_until:
            self._held.append(data)
            if len(self._held) == 1:
                self.world.at(self.held_until, self._let_go)
        else:
            self._come(data)

    def _let_go(self) -> None:
        """Deliver the delayed bytes in their order."""
        if self.world.now < self.held_until:
            self.world.at(self.held_until, self._let_go)
            return
        held, self._held = self._held, []
        for data in held:
            self._come(data)

    def _come(self, data: bytes) -> None:
        if self.astray:
            self._arrive_astray(data)
        elif not self.open:
            return
        elif data:
            self.world.note(self.world.now, self.master.name, f"< {self.host.name}", data)
            self.master.receive(self, data)
        else:
            if not (self.host.dead or self.host.closing or self.excused) and self.used:
                self.world.violate(f"{self.host.name} has given the connection to {self.master.name} up")
            self.close()

    def _arrive_astray(self, data: bytes) -> None:
        """Deliver bytes of a connection that the client has lost; no reply gets back."""
        ends = not data
        if self.left >= 0:
            data = data[: self.left]
            self.left -= len(data)
        if data:
            self.world.note(self.world.now, self.master.name, f"< {self.host.name}, late", data)
            self.master.receive(self, data)
        if ends:
            self.astray = False
            self.master.forget(self)

    def hold_up(self, ns: int) -> None:
        """Delay everything that the client sends on this connection, and on no other."""
        self.held_until = max(self.held_until, self.world.now + ns)

    def go_astray(self, late_ns: int, left: int) -> None:
        """Break the connection for the client alone, as a middlebox does; the master later reads the bytes in transit.

        Args:
            late_ns: how long nothing arrives.
            left: how many bytes arrive after that; -1 means all. A truncated command is never executed.
        """
        if not self.open:
            return
        # First send what the client has written.
        self.collect()
        if not self.open or self._severed:
            return
        self.world.note(self.world.now, self.host.name, f"loses {self.master.name}, which does not see it")
        self.open = False
        self.astray = True
        self.left = left
        self.hold_up(late_ns)
        self.world.at(max(self._last_there, self.world.now), self._arrive, b"")
        self.host.lose(self)
        self.far.close()
        self.host.wants_turn()

    def lose(self) -> None:
        """Lose the bytes in transit: the master is gone."""
        self.astray = False

    def answer(self, data: bytes) -> None:
        """Send bytes to the client."""
        if self.open:
            self._last_back = max(self._last_back, self.route.back.arrival(self.world, self.world.now))
            self._coming.append(data)
            self.world.at(self._last_back, self._come_back)

    @property
    def arrives_ns(self) -> int:
        """When the bytes that were sent to the client last arrive."""
        return self._last_back

    def _come_back(self) -> None:
        if not self.open:
            return
        data = self._coming.popleft()
        # Nothing overtakes the second piece.
        if self._rest:
            self._rest += data
            return
        if self._cut is not None:
            self._come_back_in_halves(data, *self._cut)
            return
        # Sometimes a reply arrives in two pieces.
        if self.world.chance.random() < 0.02 and len(data) > 1:
            cut = self.world.chance.randrange(1, len(data))
            data, self._rest = data[:cut], data[cut:]
            self.world.at(self.world.now + 20 * MICROSECOND, self._come_back_whole)
        self._come_back_for_sure(data)

    def _come_back_in_halves(self, data: bytes, cut: int, rest_ns: int) -> None:
        """Deliver the beginning of a reply; the rest comes later, or the connection breaks (-1)."""
        self._cut = None
        first, self._rest = data[:cut], data[cut:]
        if first:
            self._come_back_for_sure(first)
        if rest_ns < 0:
            self.reset()
        elif self._rest:
            self.world.at(self.world.now + rest_ns, self._come_back_whole)

    def _come_back_whole(self) -> None:
        rest, self._rest = self._rest, b""
        self._come_back_for_sure(rest)

    def _come_back_for_sure(self, data: bytes) -> None:
        if self.open:
            self.world.note(self.world.now, self.host.name, f"< {self.master.name}", data)
            self._give(data if self.bridge is None else self.bridge.come_back(data))

    def reset(self) -> None:
        """Break the connection for both ends.

        Bytes in transit are lost, but the client may get the beginning of a reply.
        """
        if self.open:
            self.world.note(self.world.now, self.host.name, f"loses {self.master.name}")
            coming = b"".join(self._coming)
            if coming and not self._rest:
                self._come_back_for_sure(coming[: self.world.chance.randrange(len(coming) + 1)])
            self.close()
            self.host.wants_turn()

    def close(self) -> None:
        """End the connection for the master and for us; the client closes its own end."""
        self.open = False
        self.host.lose(self)
        self.far.close()
        self.master.forget(self)
