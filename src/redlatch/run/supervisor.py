"""Watches a program while a lock is held: passes signals on, and ends the program before the lock ends.

If the renewals fail, the program gets SIGTERM `kill_after` before the lease's deadline, and SIGKILL just before it. So
no other holder runs beside it, except beside a process in an uninterruptible sleep, or one that has left the process
group.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any

from redlatch.run.keeper import Keeper
from redlatch.run.program import Program
from redlatch.run.terminal import BLOCKED, STOPPING, WANTING, stop
from redlatch.votes.units import MILLISECOND
from redlatch.wire.engine.net import now_ns

# SIGKILL is sent this long before the deadline, or a twentieth of the ttl if that is less.
BEFORE_NS = 50 * MILLISECOND

# All signals that a process may handle, except those for faults of this process.
PASSED_ON = frozenset(signal.valid_signals()) - {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGCHLD,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGTRAP,
    signal.SIGSYS,
    signal.SIGPIPE,
}

# Seconds in which a second signal must not interrupt the undo. A later one may: Python drops an exception in a
# finalizer.
UNDO = 2.0

NOTING = 0.1

# For renewals after this process was stopped.
RESUMING_NS = 500 * MILLISECOND

OFTEN_NS = 10 * MILLISECOND

# The signals that end a process while it waits for the lock.
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})


class OnLoss(Enum):
    TERM = "term"
    WARN = "warn"
    RESTART = "restart"


class Ended(BaseException):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Alerts:
    """A pipe that wakes the supervisor: it carries the numbers of signals, and 0 for a lost lock.

    Attributes:
        waiting: True while this process waits for the lock. Then signals raise `Ended`, so that the acquire is undone.
        running: True while the program runs. Otherwise a Ctrl-Z stops this process alone.
        ended_by: the last signal that ends a process; 0 if none has come.
        children: the processes that this one has started. PID 1 of a container reaps others that it inherits.
    """

    def __init__(self) -> None:
        self.lost = ""
        self.waiting = False
        self.running = False
        self.ended_by = 0
        self.children: frozenset[int] = frozenset()
        self._raised = -math.inf
        self._unread: list[int] = []
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._poll = select.poll()
        self._poll.register(self._reading, select.POLLIN)

    def note_loss(self, _: Any, reason: str) -> None:
        self.lost = reason
        # A full pipe wakes the supervisor, too.
        with suppress(BlockingIOError):
            os.write(self._writing, b"\0")

    def take_signals(self) -> None:
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in PASSED_ON | {signal.SIGCHLD}:
            # Keep what nohup has set, for the program, too.
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGCHLD:
                signal.signal(number, self._take)

    def _take(self, number: int, _: object) -> None:
        if number in ENDING:
            self.ended_by = number
        if number == signal.SIGCHLD:
            self._reap()
        elif number in STOPPING and not self.running:
            stop(number, os.getpid())
        elif number in ENDING and self.waiting and time.monotonic() > self._raised + UNDO:
            self._raised = time.monotonic()
            raise Ended(number)

    def _reap(self) -> None:
        if sys.platform != "linux" or not self.children:
            return
        with suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in self.children:
                    return
                os.waitpid(ended.si_pid, 0)

    def end_the_wait(self) -> None:
        # Not earlier: in a fork, Python would drop the exception.
        self.waiting = True
        if self.ended_by:
            self._take(self.ended_by, None)

    def begin(self) -> None:
        """Drop earlier signals, unless one ends the program: then raise `Ended`."""
        self.waiting = False
        self.running = True
        self.wait(0)
        if self.ended_by:
            raise Ended(self.ended_by)

    def wait(self, seconds: float) -> list[int]:
        """Wait at most a second; return the signals."""
        if not self._unread:
            self._read(seconds)
        numbers, self._unread = self._unread, []
        return numbers

    def _read(self, seconds: float) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
        self._poll.poll(min(seconds, 1.0) * 1000)
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        with suppress(BlockingIOError):
            self._unread += [number for number in os.read(self._reading, 4096) if number]

    def stop_group(self, number: int) -> bool:
        """Stop this process group until it continues. Return False if no shell could continue it."""
        stop(number, -os.getpgrp())
        # If it was stopped, a thread is about to record the SIGCONT.
        end = time.monotonic() + NOTING
        while signal.SIGCONT not in self._unread and (left := end - time.monotonic()) > 0:
            self._read(left)
        return signal.SIGCONT in self._unread


class Supervisor:
    def __init__(
        self,
        program: Program,
        lock: Any,
        keeper: Keeper,
        alerts: Alerts,
        kill_after_ns: int,
        on_loss: OnLoss,
        say: Callable[[str], None],
    ) -> None:
        self._program = program
        self._lock = lock
        self._keeper = keeper
        self._alerts = alerts
        self._kill_after_ns = kill_after_ns
        self._on_loss = on_loss
        self._say = say
        self._ttl_ns = int(lock.ttl * 1e9)
        self._before_ns = min(BEFORE_NS, self._ttl_ns // 20)
        self._kill_ns = self._guarded_ns = 0
        self._resuming_ns = 0
        self._warned = False
        self._stopping = False
        self.lost = ""

    def watch(self) -> int:
        while True:
            for number in self._alerts.wait(self._left()):
                self._pass_on(number)
            status = self._program.look()
            if status is not None and os.WIFSTOPPED(status):
                self._stop_too(os.WSTOPSIG(status))
            elif status is not None:
                self._look_back(status)
                return status

    def _pass_on(self, number: int) -> None:
        """Handle a signal as the program would in this process's place."""
        program = self._program
        if number == signal.SIGCONT:
            self._resume()
            self._stopping = False
            program.go_on()
        elif number in PASSED_ON and not (number in WANTING and program.terminal.serve_neighbours()):
            self._stopping |= number == signal.SIGTSTP
            program.send(number)
        if number in ENDING:
            # A stopped program would not see the signal.
            program.send(signal.SIGCONT)

    def _look_back(self, status: int) -> None:
        # The keeper may have ended the program, because this process was stopped or slow.
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if killed and not self.lost and 0 < self._guarded_ns <= now_ns():
            self.lost = "redlatch was stopped or too slow to renew it, so the program was killed in time"
            self._say(f"the lock is lost: {self.lost}")

    def _guard(self, until_ns: int) -> None:
        self._guarded_ns = until_ns
        self._keeper.guard(self._program.pid, until_ns)

    def _left(self) -> float:
        """Do what is due; return the seconds until the next time."""
        now = now_ns()
        deadline_ns: int = self._lock.deadline_ns - self._before_ns
        if self._on_loss is OnLoss.WARN:
            if self._alerts.lost and not self._warned:
                self._warned = True
                self._say(f"the lock was lost, and the program goes on: {self._alerts.lost}")
            return math.inf
        due_ns = max(deadline_ns - self._kill_after_ns, min(deadline_ns, self._resuming_ns))
        if not self.lost and (self._alerts.lost or now >= due_ns):
            self._end(now, deadline_ns)
        if not self.lost:
            self._guard(deadline_ns)
            # A renewal begins after a third of the ttl. Look for it soon, so that the keeper learns the new deadline.
            # If it is late, look often.
            early = deadline_ns - self._ttl_ns // 2 - now
            often = OFTEN_NS if now < self._resuming_ns else self._ttl_ns // 20
            return max(0, early if early > 0 else min(due_ns - now, often)) / 1e9
        if now >= self._kill_ns:
            self._program.send(signal.SIGKILL)
            self._kill_ns = now + self._before_ns
        return (self._kill_ns - now) / 1e9

    def _resume(self) -> None:
        self._resuming_ns = now_ns() + RESUMING_NS

    def _end(self, now: int, deadline_ns: int) -> None:
        failed = "redlatch was stopped for too long" if now < self._resuming_ns else "its renewals have failed"
        self.lost = self._alerts.lost or failed
        self._kill_ns = min(deadline_ns, now + self._kill_after_ns)
        self._guard(self._kill_ns)
        self._program.send(signal.SIGTERM)
        self._program.send(signal.SIGCONT)
        self._say(f"the lock is lost ({self.lost}): the program ends within {self._kill_after_ns / 1e9:g} s")

    def _stop_too(self, number: int) -> None:
        """Stop like a shell whose job was stopped, or let the shell do it.

        Then this process renews nothing, and the keeper kills the program if the lease ends.
        """
        program = self._program
        if self.lost or not program.terminal.present:
            return
        stopping, self._stopping = self._stopping, False
        if program.serve(number):
            if stopping:
                # The kernel drops a Ctrl-Z when the program continues.
                program.send(signal.SIGTSTP)
            return
        program.terminal.take_back()
        # The keeper must know the latest deadline.
        self._left()
        if self.lost or self._alerts.stop_group(signal.SIGTSTP if number == signal.SIGSTOP else number):
            self._resume()
            return
        # The kernel now stops no program from the terminal, and hangs up one that waits for the terminal.
        if number in WANTING:
            program.send(signal.SIGHUP)
        if number != signal.SIGSTOP:
            program.go_on()


def sleep_until(monotonic: float, alerts: Alerts) -> None:
    while (left := monotonic - time.monotonic()) > 0:
        if ENDING.intersection(alerts.wait(left)):
            return
