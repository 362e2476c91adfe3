"""What one lock object knows of its claim. Compiled as `redlatch._c.protocol.hold`, too (see `redlatch._c`)."""

from __future__ import annotations

import threading

from redlatch.errors import AlreadyHeld

from .commands import Release

# What a Hold is doing. SETTLING: a release was sent whose answer is not known.
FREE, ASKING, HELD, SETTLING = range(4)


class Hold:
    """One holder's claim on one name: the token of its last attempt and until when it may be believed.

    The token is noted here before the first byte with it leaves, so that whoever interrupts an attempt
    at any point can undo it (`abandon`). One Hold is one holder: a second `acquire` while one is under
    way or held is refused, since two holders that share a token would release each other's lock.
    """

    __slots__ = ("_gate", "deadline_ns", "elapsed_ns", "key", "name", "since_ns", "state", "token")

    def __init__(self, name: str | bytes, key: bytes) -> None:
        self.name = name
        self.key = key
        self.state = FREE
        self.token = b""
        self.since_ns = 0
        self.deadline_ns = 0
        self.elapsed_ns = 0
        self._gate = threading.Lock()

    def claim(self) -> None:
        """Reserve this Hold for one acquire, or refuse."""
        if self.state == SETTLING:
            self.free()
        if not self._gate.acquire(blocking=False):
            raise AlreadyHeld(
                f"{self.name!r} is held, or asked for, through this lock object already; "
                "release it first, or take one lock object per holder",
                name=self.name,
            )

    def ask(self, token: bytes, since_ns: int) -> None:
        """Note the token of an attempt that is about to begin."""
        self.token = token
        self.since_ns = since_ns
        self.state = ASKING

    def keep(self, deadline_ns: int, elapsed_ns: int) -> None:
        """Hold the lock until the deadline; the attempt took elapsed_ns."""
        self.deadline_ns = deadline_ns
        self.elapsed_ns = elapsed_ns
        self.state = HELD

    def free(self) -> None:
        """Hold nothing; the gate opens last."""
        self.state = FREE
        self.deadline_ns = 0
        if self._gate.locked():
            self._gate.release()

    def abandon(self) -> Release | None:
        """Give up whatever an interrupted call may have left on the masters.

        Returns:
            The command that undoes it, or None where nothing was sent.
        """
        undo = Release(self.key, self.token, self.since_ns) if self.state != FREE else None
        self.free()
        return undo

    def insist(self) -> Release | None:
        """Settle for an interrupted release: return the command to send again, or None where nothing is held."""
        if self.state not in (HELD, SETTLING):
            return None
        self.state = SETTLING
        return Release(self.key, self.token, self.since_ns)

    def held(self, now_ns: int) -> bool:
        """Tell whether the holder may still believe that the lock is its own."""
        return self.state == HELD and now_ns < self.deadline_ns
