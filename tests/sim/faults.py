"""All faults, by name."""

from __future__ import annotations

from collections.abc import Sequence

from redlatch.guard.marker import MARKER

from .host import Host
from .master import Master
from .parts import Fault
from .world import SECOND, World


class Faults:
    """Makes planned faults happen, and ends those that have a duration.

    Args:
        hosts, masters: the processes and masters that the faults affect.
    """

    def __init__(self, world: World, hosts: Sequence[Host], masters: list[Master]) -> None:
        self._world = world
        self._hosts = hosts
        self._masters = masters

    def plan(self, fault: Fault) -> None:
        """Schedule a fault for its time."""
        self._world.at(int(fault.at * SECOND), self._strike, fault)

    def _strike(self, fault: Fault) -> None:
        self._world.note(self._world.now, "FAULT", f"{fault.what} {' '.join(map(str, fault.details))}")
        getattr(self, fault.what)(*fault.details)

    def _later(self, seconds: float) -> int:
        return self._world.now + int(seconds * SECOND)

    # --- the network ---------------------------------------------------------------------------------------

    def block(self, client: int, master: int, way: str, seconds: float) -> None:
        """Block one direction or both for a while."""
        route = self._hosts[client].routes[master]
        for name, one in (("there", route.there), ("back", route.back)):
            if way in (name, "both"):
                one.blocked_until = max(one.blocked_until, self._later(seconds))

    def slow(self, client: int, master: int, seconds: float) -> None:
        """Increase the delay from the client to the master permanently."""
        self._hosts[client].routes[master].there.usual_ns += int(seconds * SECOND)

    def reset(self, client: int, master: int) -> None:
        """Break a connection."""
        for connection in self._hosts[client].connections_to(master):
            connection.reset()

    def cut(self, client: int, master: int, after: int) -> None:
        """Break a connection after `after` more bytes."""
        for connection in self._hosts[client].connections_to(master):
            connection.cut_after = after

    def hold_up(self, client: int, master: int, seconds: float, _: int = -1) -> None:
        """Delay what the client sends on its present connection; a new connection is not affected."""
        for connection in self._hosts[client].connections_to(master):
            connection.hold_up(int(seconds * SECOND))

    def late_raise(self, client: int, master: int, seconds: float, cut: int, rest: float) -> None:
        """Delay the next raise of a horizon that the client sends.

        Args:
            cut: how many bytes of the next reply arrive first; -1 means all.
            rest: after how many seconds the other bytes arrive; -1 means that the connection breaks instead.
        """
        self._hosts[client].routes[master].raising = int(seconds * SECOND), cut, int(rest * SECOND)

    def astray(self, client: int, master: int, seconds: float, left: int) -> None:
        """Break the client's end of a connection; the master later reads the bytes in transit, or `left` of them."""
        for connection in self._hosts[client].connections_to(master):
            connection.go_astray(int(seconds * SECOND), left)

    def touch(self, master: int) -> None:
        """Touch the keys of all locks, which keep their tokens, as a late extension does."""
        keys = self._masters[master].keys
        for key in [key for key in keys.over if not key.endswith(MARKER)]:
            keys.execute([b"PEXPIRE", key, b"%d" % (keys.execute([b"PTTL", key]) + 1)])

    def delete(self, master: int) -> None:
        """Delete the keys of all locks, as an operator does. Those of queues and fence counters stay."""
        keys = self._masters[master].keys
        for key in [key for key in keys.over if b"\0" not in key and not key.endswith(MARKER)]:
            keys.execute([b"DEL", key])

    # --- masters -------------------------------------------------------------------------------------------

    def stop(self, master: int, seconds: float) -> None:
        """Stop the master for a while."""
        self._masters[master].stop(int(seconds * SECOND))

    def restart(self, master: int, seconds: float) -> None:
        """Kill the master and restart it with its data."""
        self._masters[master].crash(int(seconds * SECOND), keeps=True)

    def restart_empty(self, master: int, seconds: float) -> None:
        """Kill the master and restart it without its data."""
        self._masters[master].crash(int(seconds * SECOND), keeps=False)

    def restart_older(self, master: int, age: float, seconds: float) -> None:
        """Kill the master `age` seconds later, and restart it with its keys as they are now."""
        self._masters[master].restart_older(int(age * SECOND), int(seconds * SECOND))

    def full(self, master: int, seconds: float) -> None:
        """Keep the master at maxmemory for a while."""
        self._masters[master].set_full(True)
        self._world.at(self._later(seconds), self._masters[master].set_full, False)

    def readonly(self, master: int, seconds: float) -> None:
        """Make the master a replica for a while."""
        self._masters[master].set_replica(True)
        self._world.at(self._later(seconds), self._masters[master].set_replica, False)

    def loading(self, master: int, seconds: float) -> None:
        """Let the master refuse every command for a while."""
        self._masters[master].set_loading(True)
        self._world.at(self._later(seconds), self._masters[master].set_loading, False)

    def forget_scripts(self, master: int) -> None:
        """Run SCRIPT FLUSH."""
        self._masters[master].keys.execute([b"SCRIPT", b"FLUSH"])

    def forget_scripts_amid(self, master: int, commands: int) -> None:
        """Run SCRIPT FLUSH after `commands` commands, which may be between two commands of one batch."""
        self._masters[master].scripts_left = commands

    def flush(self, master: int) -> None:
        """Run FLUSHALL."""
        self._masters[master].flush()

    def flush_pushing(self, master: int, _: float = 0.0) -> None:
        """Run FLUSHALL on a master that pushes it.

        Without the push, a client may learn of it too late, with its next pulse.
        """
        if self._masters[master].pushes:
            self.flush(master)

    def swap(self, master: int, seconds: float) -> None:
        """Run SWAPDB, and run it again `seconds` later; 0 means never."""
        self._masters[master].swap()
        if seconds:
            self._world.at(self._later(seconds), self._masters[master].swap)

    def fail_over(self, master: int, lag: float, away: float, backlog: float) -> None:
        """Fail over to a replica whose keys are `lag` seconds old, and fail back `away` seconds later; 0 means never.

        Args:
            backlog: the seconds after which a master forgets that it was a replica (repl-backlog-ttl).
        """
        self._masters[master].backlog_ms = int(backlog * 1000)
        self._masters[master].fail_over(int(lag * SECOND))
        if away:
            self._world.at(self._later(lag + away), self._masters[master].fail_over, 0)

    def evict(self, master: int) -> None:
        """Evict one key, as a full server does."""
        keys = self._masters[master].keys
        for key in sorted(keys.values)[:1]:
            keys.evict(key)

    def set_back(self, master: int, seconds: float) -> None:
        """Set the master's clock back, so that its keys stay longer."""
        self._masters[master].clock.step(-int(seconds * SECOND))

    def set_forward(self, master: int, seconds: float) -> None:
        """Set the master's clock forward, so that its keys expire sooner."""
        self._masters[master].set_forward(int(seconds * SECOND))

    def freeze(self, master: int, seconds: float) -> None:
        """Stop the master's clock for a while."""
        self._masters[master].freeze(int(seconds * SECOND))

    # --- clients -------------------------------------------------------------------------------------------

    def pause(self, client: int, seconds: float) -> None:
        """Pause the client (SIGSTOP), and resume it later (SIGCONT)."""
        self._hosts[client].pause(int(seconds * SECOND))

    def kill(self, client: int) -> None:
        """Kill the client (SIGKILL)."""
        self._hosts[client].kill()

    def set_wall(self, client: int, seconds: float) -> None:
        """Step the client's wall clock."""
        self._hosts[client].wall.step(int(seconds * SECOND))
