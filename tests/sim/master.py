"""Model masters: a keyspace behind connections, a clock, and every fault that a master can have."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from hiredis import ProtocolError, Reader

from redlatch.errors import MasterRefused
from redlatch.guard.handshake import GuardHandshake
from redlatch.guard.marker import MARKER
from redlatch.testing.memory.keyspace import OK, READS, Keyspace
from redlatch.testing.memory.lua import Refusal, Status
from redlatch.testing.memory.master import encode
from redlatch.votes import scripts

from .transactions import NAMES, Transaction, call_of, wrong
from .world import EPOCH_MS, MILLISECOND, Drifting, World

if TYPE_CHECKING:
    from .alone import Alone
    from .network import Connection

NATIVE = {"valkey": frozenset([b"delifeq"]), "redis": frozenset([b"delex"]), "old": frozenset[bytes]()}
VERSIONS = {"valkey": ("valkey", "9.0.0"), "redis": ("redis", "8.4.0"), "old": ("redis", "7.0.15")}

# What a master without scripts answers to EVAL.
NO_SCRIPTS = "NOPERM User default has no permissions to run the 'eval' command"
SCRIPTING = frozenset([b"eval", b"evalsha", b"script"])

LOADING = "LOADING Redis is loading the dataset in memory"

# The longest time for which an expired key stays without being read: servers look ten times a second.
SWEEP_NS = 100 * MILLISECOND


# How long a master without replicas reports that it was a replica itself (repl-backlog-ttl).
BACKLOG_MS = 3_600_000


class Visitor:
    """The master's state of one connection."""

    def __init__(self, connection: Connection, transaction: Transaction) -> None:
        self.connection = connection
        self.transaction = transaction
        self.reader = Reader()
        # Commands that arrived while the master was stopped.
        self.waiting: deque[list[bytes]] = deque()
        # Whether the master tracks the key of the next read.
        self.caching = False
        # Whether the connection ended before the master read all of it.
        self.ended = False


class Master:
    """One of N independent servers.

    Args:
        kind: the server, of `VERSIONS`.
        pushes: whether the master pushes the change of a key that a client asked about.
        executed: called with each command and its reply.
        scripts: whether it runs scripts.
    """

    def __init__(
        self,
        world: World,
        index: int,
        clock: Drifting,
        kind: str,
        pushes: bool,
        executed: Callable[[int, list[bytes], Any], object],
        scripts: bool = True,
    ) -> None:
        self.scripts = scripts
        self.world = world
        self.index = index
        self.clock = clock
        self.kind = kind
        self.pushes = pushes
        self.up = True
        self.loading = False
        self.stopped_until = 0
        # Which of two servers has the address; 1 is the promoted replica.
        self.server = 0
        # How often each server was started.
        self.starts = [0, 0]
        # How often the replication id changed.
        self.histories = 0
        # Whether the master still reports that it was a replica.
        self.promoted = False
        # How long it reports this.
        self.backlog_ms = BACKLOG_MS
        # Whether clients may keep the master out.
        self.doubted = False
        # Whether its clock has ever stood still. Clients give up the connections that they make meanwhile, too.
        self.froze = False
        # Whether some keys were out of reach for a while, so that no client could delete them.
        self.swapped = False
        # After how many more commands the master forgets its scripts; 0 means never.
        self.scripts_left = 0
        self.visitors: dict[Connection, Visitor] = {}
        self.keys = Keyspace(self._now_us, self._changed, NATIVE[kind])
        # The times at which it forgot keys.
        self.forgets: list[int] = []
        # How often its keys were replaced by others, or by none.
        self.memories = 0
        # Records what it tells its clients about that (see `alone`).
        self.told: Alone | None = None
        self._executed = executed
        self._tracked: dict[bytes, dict[Visitor, None]] = {}
        self._asking: Visitor | None = None

    @property
    def name(self) -> str:
        """Its name in traces."""
        return f"master {self.index}"

    @property
    def voter(self) -> int:
        """The number of its vote; all nodes of a cluster have one vote together."""
        return self.index

    def wrong_role(self, role: str) -> Exception:
        """Return why a client cannot use it as a master."""
        return MasterRefused(f"{self.name} is a {role}")

    def info(self) -> dict[str, str]:
        """Return its reply to INFO."""
        server, version = VERSIONS[self.kind]
        return {
            "run_id": f"{self.index:04x}{self.server:x}{self.starts[self.server]:035x}",
            "master_replid": f"{self.index:04x}{self.histories:036x}",
            "server_name": server,
            f"{server}_version": version,
            "role": "slave" if self.keys.replica else "master",
        }

    def _now_us(self) -> int:
        return EPOCH_MS * 1000 + self.clock.read(self.world.now) // 1000

    # --- connections ---------------------------------------------------------------------------------------

    def welcome(self, connection: Connection, scripts: dict[bytes, bytes]) -> None:
        """Take a connection whose handshake has loaded the scripts, by SHA."""
        self.visitors[connection] = Visitor(
            connection, Transaction(self.keys, partial(self._look_at, connection), self._in_transaction)
        )
        self.keys.scripts.update(scripts)
        connection.excused = connection.excused or self.froze
        if self.told is not None:
            self.told.tells(connection, self.world.now)

    def shake(self, handshake: GuardHandshake) -> tuple[bytes | None, int]:
        """Do what a handshake asks for about the marker; return it, and the clock in microseconds since 1970."""
        if handshake.write is not None:
            old, new, kept_ms, made_us = handshake.write
            arguments = handshake.key, old, new, b"%d" % kept_ms, b"%d" % made_us
            # A handshake takes no time here, so a transaction would do the same.
            written = self.keys.execute([b"EVAL", scripts.MARK.text, b"1", *arguments])
            if isinstance(written, Refusal):
                raise written
        marker = self.keys.execute([b"GET", handshake.key])
        if isinstance(marker, Refusal):
            raise marker
        return marker, self._now_us()

    def forget(self, connection: Connection) -> None:
        """Record that a connection has ended."""
        visitor = self.visitors.get(connection)
        if visitor is None:
            return
        for noted in self._tracked.values():
            noted.pop(visitor, None)
        # The master is stopped. It will read these commands before it sees the end.
        if visitor.waiting and self.up:
            visitor.ended = True
        else:
            del self.visitors[connection]

    def receive(self, connection: Connection, data: bytes) -> None:
        """Receive bytes from a connection."""
        visitor = self.visitors.get(connection)
        if visitor is None:
            return
        visitor.reader.feed(data)
        try:
            while (words := visitor.reader.gets()) is not False:
                visitor.waiting.append(words)
        except ProtocolError as error:
            self.world.violate(f"{connection.host.name} sent {self.name} what is no command: {error}")
            connection.close()
            return
        self._serve(visitor)

    def _serve(self, visitor: Visitor) -> None:
        if self.world.now < self.stopped_until:
            return
        replies: list[bytes] = []
        tells = False
        while visitor.waiting:
            words = visitor.waiting.popleft()
            self._asking = visitor
            reply = self._answer(visitor, words)
            self._asking = None
            replies.append(encode(reply))
            pulse = scripts.PULSE.sha in words or scripts.PULSE.text in words
            tells = tells or (pulse and not isinstance(reply, Refusal))
            self._forget_amid()
        if visitor.ended:
            self.visitors.pop(visitor.connection, None)
        if replies:
            visitor.connection.answer(b"".join(replies))
            if tells and self.told is not None:
                self.told.tells(visitor.connection, visitor.connection.arrives_ns)

    def _forget_amid(self) -> None:
        """Forget the scripts after `scripts_left` commands, even in the middle of a batch."""
        if self.scripts_left > 0:
            self.scripts_left -= 1
            if self.scripts_left == 0:
                self.keys.execute([b"SCRIPT", b"FLUSH"])

    def _answer(self, visitor: Visitor, words: list[bytes]) -> Any:
        name = words[0].lower()
        if name == b"client":
            visitor.caching = True
            return OK
        caching, visitor.caching = visitor.caching, False
        if not self.scripts and name in SCRIPTING:
            self.world.violate(f"{self.name} was sent {name.decode()}")
        if name in NAMES or visitor.transaction.queued is not None:
            return self._transact(visitor, words)
        reply = Refusal(LOADING) if self.loading else self.keys.execute(words)
        # Only after the command: it may have found the key expired.
        if caching and name in READS and not self.loading:
            for key in words[1:] if name == b"exists" else words[1:2]:
                self._tracked.setdefault(key, {})[visitor] = None
        elif caching and name in (b"eval", b"evalsha") and not isinstance(reply, Refusal):
            # A script that a client has noted only reads its keys.
            for key in words[3 : 3 + int(words[2])]:
                self._tracked.setdefault(key, {})[visitor] = None
        self._executed(self.index, self._belongs(visitor, words), reply)
        return reply

    def _transact(self, visitor: Visitor, words: list[bytes]) -> Any:
        """Answer a command of a transaction."""
        reply = visitor.transaction.answer(words, Refusal(LOADING) if self.loading else None)
        bridge = visitor.connection.bridge
        name = words[0].lower()
        if bridge is None or not ((name == b"exec" and isinstance(reply, list)) or name == b"discard"):
            self._executed(self.index, self._belongs(visitor, words), reply)
            return reply
        inside = zip(visitor.transaction.performed, reply, strict=True) if name == b"exec" else ()
        answers = [(call_of(bridge.current, each), 1 if isinstance(one, Status) else one) for each, one in inside]
        for call in bridge.current:
            self.keys.made.clear()
            self._executed(self.index, call, next((answer for other, answer in answers if other is call), 0))
        return reply

    def _look_at(self, connection: Connection, words: list[bytes]) -> None:
        """Check that a change inside EXEC strikes the key of its token only."""
        found = self.keys.values.get(words[1]) if len(words) > 1 else None
        rule = wrong(connection.bridge.current, words, found) if connection.bridge is not None else ""
        if rule:
            self.world.violate(f"{self.name}: {rule}")

    def _in_transaction(self, words: list[bytes], reply: Any) -> None:
        """Record a command inside EXEC."""
        self._executed(self.index, words, reply)

    def _belongs(self, visitor: Visitor, words: list[bytes]) -> list[bytes]:
        """Return a command with all words of the call of the script that it belongs to."""
        bridge = visitor.connection.bridge
        if bridge is None or not bridge.performs:
            return words
        return [b"PART", *words, *[word for call in bridge.current for word in call]]

    @property
    def reading(self) -> Connection | None:
        """The connection of the current command."""
        return None if self._asking is None else self._asking.connection

    def reads_what_was_given_up(self) -> bool:
        """Return whether the current command's client has given up the connection, but goes on without it."""
        connection = self.reading
        return connection is not None and connection.near.fileno() < 0 and not connection.host.closing

    def end_of(self, key: bytes) -> int:
        """Return the world's time at which the ttl of a key is over; 0 if it has none."""
        over = self.keys.over.get(key)
        return 0 if over is None else self.clock.when((over + 1 - EPOCH_MS) * MILLISECOND)

    def _changed(self, key: bytes | None) -> None:
        """Push a changed key to the clients that track it, and stop tracking it.

        The client that changed the key gets no push (NOLOOP).
        """
        for other in self.visitors.values():
            other.transaction.touch(key)
        if key is not None:
            due = self.end_of(key)
            if due:
                self.world.at(due + int(self.world.chance.random() * SWEEP_NS), self._sweep, key)
            noted = self._tracked.pop(key, None)
            push = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$%d\r\n%b\r\n" % (len(key), key)
        else:
            noted = dict.fromkeys(self.visitors.values())
            self._tracked.clear()
            push = b">2\r\n$10\r\ninvalidate\r\n_\r\n"
        if key is None or key.endswith(MARKER):
            self.excuse()
        for visitor in noted or ():
            if visitor is not self._asking and self.pushes:
                visitor.connection.answer(push)

    def excuse(self) -> None:
        """Allow clients to give their connections up and to keep this master out: they have a reason."""
        self.doubted = True
        for connection in self.visitors:
            connection.excused = True

    def _sweep(self, key: bytes) -> None:
        if self.up and key in self.keys.over:
            self.keys.expire(key)

    # --- faults --------------------------------------------------------------------------------------------

    def stop(self, ns: int) -> None:
        """Stop for a while, as after SIGSTOP or in a long script; bytes that arrive are read afterwards."""
        self.stopped_until = max(self.stopped_until, self.world.now + ns)
        self.world.at(self.stopped_until, self._go_on)

    def _go_on(self) -> None:
        if self.world.now >= self.stopped_until and self.up:
            for visitor in list(self.visitors.values()):
                self._serve(visitor)

    def crash(self, down_ns: int, keeps: bool) -> None:
        """Die and restart after `down_ns`, with all keys (an AOF that is always written) or with none."""
        self.up = False
        self.starts[self.server] += 1
        self.histories += 1
        self.promoted = False
        self._disconnect()
        if not keeps:
            self._forget_keys()
            self.keys.values.clear()
            self.keys.over.clear()
            self.doubted = True
        self.stopped_until = 0
        self.world.at(self.world.now + down_ns, self._start)

    def _start(self) -> None:
        self.up = True

    def _forget_keys(self) -> None:
        self.forgets.append(self.world.now)
        self.memories += 1

    def restart_older(self, age_ns: int, down_ns: int) -> None:
        """Crash after `age_ns`, and restart with the keys as they are now: an old dump, or an AOF without its end."""
        self.world.at(self.world.now + age_ns, self._crash_to, self.keys.copies(), down_ns)

    def _crash_to(self, kept: tuple[dict[bytes, Any], dict[bytes, int]], down_ns: int) -> None:
        self.crash(down_ns, keeps=False)
        self.keys.values, self.keys.over = kept

    def _disconnect(self) -> None:
        """Reset all connections; bytes in transit are lost."""
        for connection in list(self.visitors):
            connection.reset()
            connection.lose()
        self.visitors.clear()
        self._tracked.clear()
        self.keys.scripts.clear()

    def fail_over(self, lag_ns: int) -> None:
        """Let the replica take over after `lag_ns`, with the keys as they are now.

        The old master becomes the replica: a second fail-over returns to the same process, which was not restarted.
        """
        self.world.at(self.world.now + lag_ns, self._take_over, self.keys.copies())

    def _take_over(self, kept: tuple[dict[bytes, Any], dict[bytes, int]]) -> None:
        self._disconnect()
        self.server = 1 - self.server
        self.histories += 1
        self.memories += 1
        self.promoted = True
        self.world.at(self.world.now + self.backlog_ms * MILLISECOND, self._forget_history, self.histories)
        self.keys.values, self.keys.over = kept
        self.keys.replica = False
        self.doubted = True
        self.stopped_until = 0

    def _forget_history(self, number: int) -> None:
        """Draw a new replication id and forget the old one, as a master without replicas does after its backlog."""
        if self.promoted and self.histories == number:
            self.histories += 1
            self.promoted = False

    def flush(self) -> None:
        """Run FLUSHALL."""
        self._forget_keys()
        self.keys.flush()
        for connection in self.visitors if self.told is not None and self.pushes else ():
            assert self.told is not None
            self.told.tells(connection, connection.arrives_ns)

    def swap(self) -> None:
        """Run SWAPDB with another database: all keys go or come back, and the master sends no push."""
        self.excuse()
        self.swapped = True
        self._forget_keys()
        before = set(self.keys.values)
        self.keys.swap()
        for visitor in self.visitors.values():
            visitor.transaction.touch_any(lambda key: key in before or key in self.keys.values)

    def set_full(self, full: bool) -> None:
        """Reach maxmemory, or get below it."""
        self.keys.full = full

    def set_replica(self, replica: bool) -> None:
        """Become a replica, or a master again."""
        self.excuse()
        self.keys.replica = replica

    def set_loading(self, loading: bool) -> None:
        """Refuse every command, as while the server loads a dataset."""
        self.excuse()
        self.loading = loading

    def set_forward(self, ns: int) -> None:
        """Set the clock forward."""
        self.excuse()
        self.clock.step(ns)

    def freeze(self, ns: int) -> None:
        """Stop the clock for a while."""
        self.excuse()
        self.froze = True
        self.clock.freeze(self.world.now)
        self.world.at(self.world.now + ns, self._thaw)

    def _thaw(self) -> None:
        self.clock.thaw(self.world.now)

    def has_no_ttl(self) -> list[bytes]:
        """Return the keys that would stay for ever."""
        return [key for key in self.keys.values if key not in self.keys.over]
