"""One master in memory: the keyspace of a server behind socket pairs, with the time of a timeline."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections import deque
from functools import partial
from typing import Any

from hiredis import Reader

from redlatch.guard.handshake import GuardHandshake, HandshakeReport
from redlatch.masters.master import Master
from redlatch.testing.memory.keyspace import OK, READS, Keyspace
from redlatch.testing.memory.lua import Refusal, Status
from redlatch.testing.memory.timeline import Timeline
from redlatch.votes import scripts
from redlatch.votes.key import name_of
from redlatch.votes.units import UNBOUNDED
from redlatch.wire.dial.connect import Connection
from redlatch.wire.dial.scripting import SCRIPTS
from redlatch.wire.server_traits import Traits

VERSION = "9.0.0"
RECEIVE_BYTES = 1 << 20


class Line:
    """The master's end of one connection. It is a bare descriptor: a forgotten socket object would cause a warning."""

    def __init__(self, sock: socket.socket, poll: select.poll) -> None:
        sock.setblocking(False)
        self._fd = sock.detach()
        self._poll = poll
        poll.register(self._fd, select.POLLIN)
        self._unsent: deque[bytes] = deque()
        self.reader = Reader()
        self.caching = False

    def __del__(self) -> None:
        self.close()

    @property
    def fd(self) -> int:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._poll.unregister(fd)
            os.close(fd)

    def receive(self) -> list[list[bytes]]:
        try:
            data = os.read(self._fd, RECEIVE_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            self.close()
            return []
        self.reader.feed(data)
        commands = []
        while (words := self.reader.gets()) is not False:
            commands.append(words)
        return commands

    def send(self, data: bytes = b"") -> bool:
        if data:
            self._unsent.append(data)
        sent = False
        while self._unsent and self._fd >= 0:
            try:
                size = os.write(self._fd, self._unsent[0])
            except BlockingIOError:
                break
            except (BrokenPipeError, ConnectionResetError):
                self.close()
                break
            self._unsent[0] = self._unsent[0][size:]
            if not self._unsent[0]:
                self._unsent.popleft()
            sent = True
        return sent


class MemoryMaster(Master):
    def __init__(self, index: int, timeline: Timeline) -> None:
        self.address = f"memory-{index}:6379"
        self.db = 0
        self.group = None
        self.up = True
        self._index = index
        self._timeline = timeline
        self._lines: list[Line] = []
        self._poll = select.poll()
        self._tracked: dict[bytes, dict[Line, None]] = {}
        self._asking: Line | None = None
        self._looked_at: dict[bytes, int] = {}
        self.keys = Keyspace(timeline.clock.wall_us, self._changed, frozenset([b"delifeq"]))
        self.keys.scripts.update({script.sha: script.text for script in SCRIPTS})

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"

    # --- connections ---------------------------------------------------------------------------------------

    def dial(self, handshake: GuardHandshake | None, tracking: bool) -> Connection:
        if not self.up:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        traits = Traits(self._info(), 3, tracking)
        if handshake is not None:
            traits.report = self._shake(handshake, traits.run_id)
        near, far = socket.socketpair()
        near.setblocking(False)
        self._lines.append(Line(far, self._poll))
        return Connection(near, traits)

    def _info(self) -> dict[str, str]:
        run_id = f"{self._index:040x}"
        return {"run_id": run_id, "server_name": "valkey", "valkey_version": VERSION, "role": "master"}

    def _shake(self, handshake: GuardHandshake, run_id: str) -> HandshakeReport:
        clock = self._timeline.clock
        sent_ns = clock.now()
        if handshake.write is not None:
            old, new, kept_ms, made_us = handshake.write
            arguments = handshake.key, old, new, b"%d" % kept_ms, b"%d" % made_us
            self.keys.execute([b"EVAL", scripts.MARK.text, b"1", *arguments])
        marker = self.keys.execute([b"GET", handshake.key])
        return HandshakeReport(f"{run_id} {run_id}", marker, clock.wall_us(), sent_ns, clock.now(), True)

    def stop(self) -> None:
        self.up = False
        for line in self._lines:
            line.close()
        self._lines.clear()
        self._tracked.clear()
        self._timeline.touch()

    # --- commands ------------------------------------------------------------------------------------------

    def serve(self) -> bool:
        busy, ready = False, {fd for fd, _ in self._poll.poll(0)}
        for line in self._lines:
            commands = line.receive() if line.fd in ready else []
            replies = [self._answer(line, words) for words in commands]
            busy = line.send(b"".join(replies)) or bool(commands) or busy
        if ready:
            self._lines = [line for line in self._lines if line.fd >= 0]
        return busy

    def _answer(self, line: Line, words: list[bytes]) -> bytes:
        name = words[0].lower()
        if name == b"client":
            line.caching = True
            return encode(OK)
        caching, line.caching = line.caching, False
        self._asking = line
        reply = self.keys.execute(words)
        self._asking = None
        # Not before the command, which may find the key expired.
        read: list[bytes] = []
        if caching and name in READS:
            read = words[1:] if name == b"exists" else words[1:2]
        elif caching and name in (b"eval", b"evalsha"):
            read = words[3 : 3 + int(words[2])]
        for key in read:
            self._tracked.setdefault(key, {})[line] = None
        return encode(reply)

    def perform(self, payload: bytes) -> None:
        reader = Reader()
        reader.feed(payload)
        while (words := reader.gets()) is not False:
            self.keys.execute(words)

    def forget(self, key: bytes) -> bool:
        known = [other for other in self.keys.values if name_of(other)[0] == key]
        return bool(self.keys.execute([b"DEL", *known]))

    def clear(self, marker: bytes) -> None:
        for key in [key for key in self.keys.values if not key.endswith(marker)]:
            self.keys.evict(key)

    def _changed(self, key: bytes | None) -> None:
        """Push a changed key to the other clients that track it (NOLOOP), and let it expire in time."""
        assert key is not None, "nobody flushes a master in memory"
        self._expire_later(key)
        push = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$%d\r\n%b\r\n" % (len(key), key)
        for line in self._tracked.pop(key, ()):
            if line is not self._asking:
                line.send(push)
                self._timeline.touch()

    def _expire_later(self, key: bytes) -> None:
        over_ms = self.keys.over.get(key)
        if over_ms is not None:
            due_ns = self._timeline.clock.first_ns(over_ms)
            if due_ns < self._looked_at.get(key, UNBOUNDED):
                self._looked_at[key] = due_ns
                self._timeline.at(due_ns, partial(self._expire, key, due_ns))

    def _expire(self, key: bytes, due_ns: int) -> None:
        if self._looked_at.get(key) == due_ns:
            del self._looked_at[key]
            self.keys.expire(key)
            self._expire_later(key)


def encode(reply: Any) -> bytes:
    if reply is None:
        return b"_\r\n"
    if isinstance(reply, Status):
        return b"+%b\r\n" % reply.encode()
    if isinstance(reply, Refusal):
        return b"-%b\r\n" % str(reply).encode()
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n%b" % (len(reply), b"".join([encode(item) for item in reply]))
