"""Handovers in the simulated world: the real mover, whose handshakes go through simulated messages.

Each mover runs in a greenlet, which waits for messages and for time. It may crash at any step: before a handshake,
after it, or while the bytes of a write are on their way.
"""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from greenlet import GreenletExit, getcurrent, greenlet

from redlatch.guard.handshake import GuardHandshake, HandshakeReport
from redlatch.guard.marker import MARKER, Marker, MarkerWrite
from redlatch.operate import mover
from redlatch.operate.markers import CannotMove, Markers, Seen
from redlatch.operate.mover import Mover
from redlatch.testing.memory.lua import Refusal

from .plan import Move
from .world import EPOCH_MS, MILLISECOND, SECOND, World

if TYPE_CHECKING:
    from .master import Master

# The time of a message between a mover and a master.
FAR_NS = MILLISECOND


@dataclass(frozen=True)
class Named:
    """A master as a mover knows it."""

    name: str
    index: int


class SimMarkers(Markers):
    """Reads and writes markers through the simulated world.

    Args:
        moves: what runs the mover.
        move: when it crashes, and which masters it cannot reach.
    """

    def __init__(self, moves: Moves, move: Move) -> None:
        super().__init__(MARKER)
        self._moves = moves
        self._move = move
        self._steps = 0

    def _shake(self, master: Any, write: MarkerWrite | None) -> Seen:
        moves, move = self._moves, self._move
        self._steps += 1
        crashes = self._steps == move.crash
        if crashes and move.how == "before":
            raise GreenletExit
        handshake = GuardHandshake(self.key, write)
        server = moves.masters[master.index]
        if crashes and move.how == "late":
            moves.world.at(moves.world.now + int(move.late * SECOND), moves.reach, server, handshake)
            raise GreenletExit
        sent_ns = moves.world.now
        moves.sleep(FAR_NS / SECOND)
        if master.index in move.cut:
            raise CannotMove(f"{master.name} cannot be used: it is out of reach")
        answer = moves.reach(server, handshake)
        if answer is None:
            raise CannotMove(f"{master.name} cannot be used: it does not answer")
        moves.sleep(FAR_NS / SECOND)
        if crashes:
            raise GreenletExit
        run_id, marker, server_us = answer
        seen = True, server.promoted, server.backlog_ms
        report = HandshakeReport(run_id, marker, server_us, sent_ns, moves.world.now, *seen)
        return Seen(report, Marker.read(marker))


def each(masters: Iterable[Any], work: Callable[[Any], Seen]) -> tuple[dict[str, Seen], dict[str, CannotMove]]:
    """Do something with one master after the other, in place of `redlatch.operate.markers.each`."""
    done: dict[str, Seen] = {}
    failed: dict[str, CannotMove] = {}
    for master in masters:
        try:
            done[master.name] = work(master)
        except CannotMove as error:
            failed[master.name] = error
    return done, failed


def every(masters: Iterable[Any], work: Callable[[Any], Seen]) -> dict[str, Seen]:
    """The same in place of `redlatch.operate.markers.every`."""
    return {master.name: work(master) for master in masters}


class Moves:
    """Runs the movers of a plan.

    Args:
        lists: the indexes of the masters of both lists.
    """

    def __init__(self, world: World, masters: list[Master], lists: tuple[tuple[int, ...], ...], seed: int) -> None:
        self.world = world
        self.masters = masters
        self._lists = lists
        self._chance = random.Random(f"movers {seed}")
        self._hub = getcurrent()
        self._begun: list[greenlet] = []
        self._over = False

    def plan(self, move: Move) -> None:
        """Schedule a mover for its time."""
        self.world.at(int(move.at * SECOND), self._begin, move)

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Let movers take time and random numbers from the world."""
        clock = types.SimpleNamespace(time_ns=lambda: EPOCH_MS * MILLISECOND + self.world.now)
        of_world: dict[str, Any] = {"now_ns": lambda: self.world.now, "time": clock, "random": self._chance}
        with patch.multiple(mover, each=each, every=every, **of_world):
            yield
        self._over = True
        for begun in self._begun:
            begun.throw(GreenletExit)

    def say(self, line: str) -> None:
        """Note what a mover says."""
        self.world.note(self.world.now, "mover", line)

    def sleep(self, seconds: float) -> None:
        """Let the mover that runs wait."""
        self.world.at(self.world.now + max(1, int(seconds * SECOND)), getcurrent().switch)
        self._hub.switch()

    def reach(self, server: Master, handshake: GuardHandshake) -> tuple[str, bytes | None, int] | None:
        """Shake hands with a master; return its identity, its marker and its clock, or None if it does not answer."""
        if not server.up or server.loading or server.keys.replica or self.world.now < server.stopped_until:
            return None
        self.world.note(self.world.now, server.name, "< mover", b"" if handshake.write is None else handshake.write.new)
        try:
            marker, server_us = server.shake(handshake)
        except Refusal:
            return None
        info = server.info()
        return f"{info['run_id']} {info['master_replid']}", marker, server_us

    def _begin(self, move: Move) -> None:
        if self._over:  # its time comes after the end of the schedule
            return
        made = greenlet(self._run, parent=self._hub)
        self._begun.append(made)
        made.switch(move)

    def _run(self, move: Move) -> None:
        self.say("begins")
        try:
            old, new = ([Named(f"master-{index}:6379", index) for index in indexes] for indexes in self._lists)
            found: Any = SimMarkers(self, move)
            Mover(old, new, found, say=self.say, sleep=self.sleep).run()  # type: ignore[arg-type]
        except CannotMove as error:
            self.say(f"cannot move: {error}")
        except GreenletExit:
            self.say("crashes")
