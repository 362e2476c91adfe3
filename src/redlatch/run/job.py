"""One run of a program under a lock: take the lock, run, release, and the exit status."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

from redlatch.client import Client
from redlatch.errors import ConfigurationError, LockError, LockLost, QuorumUnavailable
from redlatch.run.keeper import Keeper
from redlatch.run.program import Program
from redlatch.run.supervisor import Alerts, Ended, OnLoss, Supervisor, sleep_until
from redlatch.wire.net import now_ns

# Exit statuses, beside those of the program (sysexits.h).
USAGE, UNAVAILABLE, LOST = 64, 69, 75

# A program that died by signal n: as shells have it.
SIGNALLED = 128


@dataclass(frozen=True)
class Job:
    """What to run, and under which lock.

    Attributes:
        name: the name of the lock.
        command: the program and its arguments.
        client: the arguments of `Client`.
        wait: how long to wait for the lock, in seconds; None is for ever.
        busy: the exit status if another holder has the lock.
        slots: how many may run at the same time, as a semaphore; 0 is a lock.
        shared: whether to take a read lock.
        options: the arguments `fair` and `fence` of the lock.
        min_hold: the lock is held for at least this time, in seconds.
        kill_after: between SIGTERM and SIGKILL after a loss, in seconds.
        on_loss: what a loss does.
        lost: the exit status if the lock was lost.
        verbose: whether to say what happens.
    """

    name: str
    command: list[str]
    client: dict[str, Any]
    wait: float | None = None
    busy: int = 1
    slots: int = 0
    shared: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    min_hold: float = 0.0
    kill_after: float = 5.0
    on_loss: OnLoss = OnLoss.TERM
    lost: int = LOST
    verbose: bool = False

    def say(self, text: str) -> None:
        """Write a message for the user."""
        sys.stderr.write(f"redlatch run: {self.name}: {text}\n")

    def note(self, text: str) -> None:
        """Write a message that only a user who asked for it reads."""
        if self.verbose:
            self.say(text)

    def run(self) -> int:
        """Run the program under the lock; return the exit status."""
        # First: both fork, and from the first use of the client on the process has several threads. The keeper must not
        # have the pipe to the program, which would then not see that this process has ended.
        keeper = Keeper(now_ns)
        program = Program(self.command)
        alerts = Alerts()
        try:
            client = Client(**self.client)
            lock = self._lock_of(client, alerts)
        except (ConfigurationError, TypeError) as error:
            return self._refuse(program, keeper, USAGE, str(error))
        with client:
            alerts.take_signals()
            try:
                refused = self._acquire(lock)
                alerts.waiting = False
            except Ended as ended:
                client.close(release=True)
                refused = SIGNALLED + ended.number, ""
            if refused is not None:
                return self._refuse(program, keeper, *refused)
            self.note(f"acquired within {lock.elapsed:.3f} s")
            status = self._supervise(program, lock, keeper, alerts)
        if status is None:
            self._again()
        return status

    def _acquire(self, lock: Any) -> tuple[int, str] | None:
        """Acquire the lock; return an exit status and a message if that fails."""
        try:
            if lock.acquire(blocking=False) if self.wait == 0 else lock.acquire(timeout=self.wait):
                return None
        except ConfigurationError as error:
            return USAGE, str(error)
        except LockError as error:
            return UNAVAILABLE, str(error)
        holder = "" if self.slots or self.shared or not self.verbose else _holder(lock)
        return self.busy, f"busy{holder}" if self.verbose else ""

    def _lock_of(self, client: Client, alerts: Alerts) -> Any:
        """Return the lock, which is renewed until it is released."""
        options: dict[str, Any] = {"auto_renew": True, "on_lost": alerts.note_loss}
        if self.slots:
            return client.semaphore(self.name, self.slots, **options)
        if self.shared:
            return client.rw_lock(self.name, **options).read()
        return client.lock(self.name, **options, **self.options)

    def _refuse(self, program: Program, keeper: Keeper, status: int, why: str) -> int:
        program.give_up()
        keeper.end()
        if why:
            self.say(why)
        return status

    def _supervise(self, program: Program, lock: Any, keeper: Keeper, alerts: Alerts) -> int | None:
        """Run the program and release the lock; return the exit status, or None to run all again."""
        began = time.monotonic()
        supervisor = Supervisor(
            program, lock, keeper, alerts, now_ns, int(self.kill_after * 1e9), self.on_loss, self.say
        )
        # From now on it kills the program if this process is killed.
        keeper.guard(program.pid, 0)
        program.start(self._environment(lock))
        code = os.waitstatus_to_exitcode(supervisor.watch())
        program.take_terminal()
        status = code if code >= 0 else SIGNALLED - code
        if supervisor.lost:
            # The program may have left processes behind.
            program.send(signal.SIGKILL)
        keeper.end()
        if supervisor.lost:
            self._release(lock, 0)
            return None if self.on_loss is OnLoss.RESTART else self.lost
        self.note(f"ended with {status} after {time.monotonic() - began:.3f} s")
        ended = sleep_until(began + self.min_hold, alerts)
        return self._release(lock, SIGNALLED + ended[0] if ended else status)

    def _release(self, lock: Any, status: int) -> int:
        try:
            lock.release()
        except LockLost as error:
            self.say(f"the lock was lost while the program ran: {error}")
            return status if self.on_loss is OnLoss.WARN else self.lost
        except QuorumUnavailable as error:
            self.say(f"the lock was not released, and runs out with its ttl: {error}")
        return status

    def _environment(self, lock: Any) -> dict[str, str]:
        """Return what the program finds in its environment; never the token, which could release the lock."""
        fence = {} if lock.fence is None else {"REDLATCH_FENCE": str(lock.fence)}
        return {"REDLATCH_NAME": self.name, "REDLATCH_OWNER": self.client["owner"], **fence}

    def _again(self) -> NoReturn:
        """Start this process anew, to wait for the lock and to run the program again."""
        self.say("waiting for the lock, to start the program again")
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _holder(lock: Any) -> str:
    """Return who holds a lock, for a message; "" if that is not known."""
    try:
        holder = lock.holder()
    except LockError:
        return ""
    return "" if holder is None else f": {holder}"
