"""The demo's side of a buyer process: it starts the process and its sale, reads its events, and kills it."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

import redlatch


class Face(StrEnum):
    THREADS = "threads"
    ASYNCIO = "asyncio"


class Kind(StrEnum):
    """The kinds of events.

    Attributes:
        READY: every buyer of the process waits for the start; `text` is the implementation of the lock.
        DOOMED: the process holds the lock, has written nothing and waits to be killed.
        LOST, UNANSWERED: the lease ran out, or no quorum answered; the buyer wrote nothing and tries again.
    """

    READY = "ready"
    BOUGHT = "bought"
    EMPTY = "empty"
    DOOMED = "doomed"
    LOST = "lost"
    UNANSWERED = "unanswered"
    FAILED = "failed"
    DONE = "done"


@dataclass(frozen=True)
class Plan:
    """The plan of one buyer process.

    Args:
        doomed_at: the first buyer that finds so many items left waits to be killed.
        waits: whether the buyers wait for masters that do not answer, such as a shard that fails over.
    """

    folder: str
    face: Face
    buyers: tuple[int, ...]
    urls: tuple[str, ...]
    name: str
    ttl: float
    patience: float
    longest_pause: float
    doomed_at: int
    guarded: bool
    waits: bool = False

    @property
    def options(self) -> dict[str, Any]:
        guard = redlatch.Guard(max_ttl=self.ttl) if self.guarded else None
        waiting = {"patience": self.patience} if self.waits else {}
        return {"ttl": self.ttl, "retry": redlatch.Retry(longest=self.longest_pause), "guard": guard} | waiting

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Plan:
        fields: dict[str, Any] = json.loads(line)
        fields.update(face=Face(fields["face"]), buyers=tuple(fields["buyers"]), urls=tuple(fields["urls"]))
        return cls(**fields)


@dataclass(frozen=True)
class Event:
    """An event in a buyer process; `wait` is the length in seconds of the acquire before it."""

    kind: Kind
    wait: float | None = None
    text: str = ""

    def send(self) -> None:
        # A line is shorter than PIPE_BUF, so lines of threads do not mix.
        line = json.dumps({"kind": self.kind, "wait": self.wait, "text": self.text[:2000]})
        os.write(1, line.encode() + b"\n")

    @classmethod
    def from_line(cls, line: bytes) -> Event:
        fields: dict[str, Any] = json.loads(line)
        return cls(Kind(fields["kind"]), fields["wait"], fields["text"])


class BuyerProcess:
    def __init__(self, plan: Plan, inbox: Inbox, errors: Path) -> None:
        self.plan = plan
        self.finished = False
        with errors.open("ab") as stderr:
            # In its own session, Ctrl-C reaches only the demo. With -P and our own path it imports the same modules.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "redlatch.demo.buyer"],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, args=(inbox,), daemon=True)
        self._reader.start()
        self._write(plan.to_line())

    @property
    def pid(self) -> int:
        return self._process.pid

    def open_door(self) -> None:
        self._write(b"go\n")

    def kill(self) -> None:
        self.finished = True
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            os.write(self._process.stdin.fileno(), line)

    def _read(self, inbox: Inbox) -> None:
        assert self._process.stdout is not None
        try:
            with os.fdopen(os.dup(self._process.stdout.fileno()), "rb") as lines:
                for line in lines:
                    if line.endswith(b"\n"):
                        inbox.put((self, Event.from_line(line)))
        finally:
            # Otherwise the demo would wait until its time limit, for example after a malformed line.
            inbox.put((self, None))


Inbox: TypeAlias = "queue.SimpleQueue[tuple[BuyerProcess, Event | None]]"
