from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from redlatch.client import Client
from redlatch.errors import ConfigurationError, LockError, LockLost, QuorumUnavailable
from redlatch.run.keeper import Keeper
from redlatch.run.program import Program
from redlatch.run.supervisor import ENDING, Alerts, Ended, OnLoss, Supervisor, sleep_until
from redlatch.run.terminal import BLOCKED
from redlatch.votes.redaction import shown

# Exit statuses of sysexits.h.
USAGE, UNAVAILABLE, SOFTWARE, LOST = 64, 69, 70, 75

# Added to the number of a signal, as in shells.
SIGNALLED = 128


@dataclass(frozen=True)
class Job:
    """A program and the lock under which it runs. Times are in seconds, and `busy` and `lost` are exit statuses."""

    name: str | bytes
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
        # The program's end must not wait for a reader of stderr.
        name = self.name if isinstance(self.name, str) else self.name.decode(errors="backslashreplace")
        line = f"redlatch run: {shown(name, 200)}: {text}\n".encode(errors="backslashreplace")
        with suppress(OSError):
            if select.select([], [2], [], 0)[1]:
                os.write(2, line)

    def note(self, text: str) -> None:
        if self.verbose:
            self.say(text)

    def run(self) -> int:
        """Return the exit status, or -SIGINT to die of a Ctrl-C as the program did."""
        _prepare()
        alerts = Alerts()
        alerts.take_signals()
        # Both fork, so they come before the client's threads. The keeper comes first: it must not inherit the pipe to
        # the program.
        keeper = Keeper()
        program = Program(self.command)
        alerts.children = frozenset({keeper.pid, program.pid})
        try:
            client = Client(**self.client)
            lock = self._lock_of(client, alerts)
        except (ConfigurationError, TypeError) as error:
            return self._refuse(program, keeper, USAGE, str(error))
        try:
            try:
                alerts.end_the_wait()
                refused = self._acquire(lock, alerts)
                alerts.begin()
            except Ended as ended:
                alerts.waiting = False
                refused = _signalled(ended.number, program.terminal.ours), ""
            if refused is not None:
                return self._refuse(program, keeper, *refused)
            self.note(f"acquired within {lock.elapsed:.3f} s")
            status = self._supervise(program, lock, keeper, alerts)
        except BaseException:
            # The lock must not be released while the program runs.
            program.send(signal.SIGKILL)
            raise
        finally:
            client.close(release=True)
        return self._again(alerts) if status is None else status

    def _acquire(self, lock: Any, alerts: Alerts) -> tuple[int, str] | None:
        while True:
            try:
                if lock.acquire(blocking=False) if self.wait == 0 else lock.acquire(timeout=self.wait):
                    return None
                break
            except ConfigurationError as error:
                return USAGE, str(error)
            except LockError as error:
                # A standby service also waits for the masters.
                if self.on_loss is not OnLoss.RESTART or self.wait is not None:
                    return UNAVAILABLE, str(error)
                self.note(f"waiting for the masters: {error}")
                alerts.wait(1.0)
        holder = "" if self.slots or self.shared or not self.verbose else _holder(lock)
        return self.busy, f"busy{holder}" if self.verbose else ""

    def _lock_of(self, client: Client, alerts: Alerts) -> Any:
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
        """Return the exit status, or None to run everything again."""
        began = time.monotonic()
        supervisor = Supervisor(program, lock, keeper, alerts, int(self.kill_after * 1e9), self.on_loss, self.say)
        keeper.guard(program.pid, 0)
        program.start(self._environment(lock))
        code = os.waitstatus_to_exitcode(supervisor.watch())
        alerts.running = False
        typed = program.terminal.ours
        if code == -signal.SIGINT and program.terminal.lent:
            _interrupt_group()
        program.terminal.take_back()
        if supervisor.lost:
            program.send(signal.SIGKILL)
        if program.denied:
            self.say("the program could not be signalled, because it runs as another user")
        keeper.end()
        self.note(f"ended with {code} after {time.monotonic() - began:.3f} s")
        if supervisor.lost:
            self._release(lock)
            if alerts.ended_by:
                return SIGNALLED + alerts.ended_by
            return None if self.on_loss is OnLoss.RESTART else self.lost
        sleep_until(began + self.min_hold, alerts)
        kept = self._release(lock)
        if not kept and self.on_loss is not OnLoss.WARN and not self.min_hold:
            return self.lost
        return code if code >= 0 else _signalled(-code, typed)

    def _release(self, lock: Any) -> bool:
        try:
            lock.release()
        except LockLost as error:
            self.say(f"the lock was lost before it was released: {error}")
            return False
        except QuorumUnavailable as error:
            self.say(f"the lock was not released, and runs out with its ttl: {error}")
        return True

    def _environment(self, lock: Any) -> dict[str, str | bytes]:
        # Never add the token, which could release the lock.
        fence = {} if lock.fence is None else {"REDLATCH_FENCE": str(lock.fence)}
        return {"REDLATCH_NAME": self.name, "REDLATCH_OWNER": self.client["owner"], **fence}

    def _again(self, alerts: Alerts) -> int:
        """Restart this process, to run the program again. Return only for a signal."""
        self.say("waiting for the lock, to start the program again")
        # A signal from now on ends the new process when it unblocks them.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        if alerts.ended_by:
            return SIGNALLED + alerts.ended_by
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _prepare() -> None:
    """Undo settings of a parent: closed streams, blocked signals, and the fence of another lock."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # Otherwise the first pipe would get this number: an open takes the lowest one.
            os.open(os.devnull, os.O_RDWR)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, BLOCKED)
    os.environ.pop("REDLATCH_FENCE", None)


def _signalled(number: int, typed: bool) -> int:
    # A shell ends its loop or script only if it sees the death by a Ctrl-C.
    return -number if number == signal.SIGINT and typed else SIGNALLED + number


def _interrupt_group() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.killpg(os.getpgrp(), signal.SIGINT)


def _holder(lock: Any) -> str:
    try:
        holder = lock.holder()
    except LockError:
        return ""
    return "" if holder is None else f": {holder}"
