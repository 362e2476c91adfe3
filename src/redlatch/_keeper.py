"""The process that owns one fleet of embedded masters, and the link to it.

The keeper is the masters' parent and owner of their folder. It runs as a program
(``python -I -S _keeper.py PARENT_PID FOLDER``) on the standard library alone, so that it is there after some 20 ms. It
decides nothing: it obeys one-line JSON commands on stdin and reports every change of a master on stdout, also those
that nobody asked for. `Link` is the other end, for `redlatch.embedded`.

Commands:  {"start": index, "argv": [program, config path], "folder": path, "config": text, or null to keep it}
           {"signal": index, "numbers": [...]}
           {"quit": true}
Reports:   {"index": n, "pid": pid, "paused": bool}     it lives
           {"index": n, "pid": null, "status": n}       it is gone

Why nothing is left behind:

- The fleet ends with its keeper, and the keeper ends when told to, at the end of stdin, or when its parent is not the
  one it had at first. The last is asked once a second, because a child forked off the parent keeps stdin open after
  the parent's death. (PR_SET_PDEATHSIG on the keeper would be wrong: it fires when the *thread* that started it ends.)
- If the keeper itself is killed, Linux kills the masters: they have PR_SET_PDEATHSIG, and the keeper has one thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG = 1
PARENT_CHECK_SECONDS = 1.0
REPLY_TIMEOUT = 15.0  # for the keeper to take a command, or to end


class Link:
    """The keeper as its parent sees it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.owner = 0  # the process that started the keeper; no other may talk to it
        self.pending = b""  # a report whose end has not arrived
        self.socket: socket.socket
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        """Start the keeper; it makes the folder and removes it in the end."""
        self.owner = os.getpid()
        command = [sys.executable, "-I", "-S", __file__, str(self.owner), self.folder]
        self.socket, theirs = socket.socketpair()
        with theirs:
            pipe = theirs.fileno()
            # Its own session: a Ctrl-C in the terminal is for us, and the masters must outlive what we do about it.
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd="/", start_new_session=True)

    def send(self, **command: object) -> None:
        """Give the keeper a command."""
        self.socket.settimeout(REPLY_TIMEOUT)
        self.socket.sendall(json.dumps(command).encode() + b"\n")

    def listen(self, seconds: float) -> list[dict[str, Any]]:
        """Return what the keeper has to report, as soon as it has something, after `seconds` in any case.

        Raises:
            EOFError: the keeper has ended, and the masters with it.
        """
        self.socket.settimeout(max(0.0, seconds))
        try:
            chunk = self.socket.recv(65536)
        except (BlockingIOError, TimeoutError):
            return []
        except ConnectionError:
            chunk = b""
        if not chunk:
            raise EOFError("the keeper process of this fleet of masters has ended, and the masters with it")
        *lines, self.pending = (self.pending + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self) -> None:
        """End the keeper and wait until nothing is left of the fleet; in a forked child, only let go of it."""
        with self.socket:
            if self.owner != os.getpid():
                self.process.poll()  # a forked child has no such child; this tells Popen's finalizer so
                return
            with contextlib.suppress(OSError):  # it may be gone
                self.send(quit=True)  # the end of stdin would not do: a forked child may hold it open
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(REPLY_TIMEOUT)
        self.process.kill()  # no effect unless it hangs; its masters die with it
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)  # nothing is there unless the keeper was killed


class Keeper:
    """Start, signal, reap and finally end the masters of one fleet."""

    def __init__(self, parent: int, folder: str) -> None:
        self.parent = parent
        self.folder = folder
        self.masters: dict[int, int] = {}  # pid -> index, every child not reaped yet
        self.pending = b""  # a command whose end has not arrived
        self.set_death_signal = find_death_signal()
        # A signal only wakes the select below. Not SIG_IGN: the masters would inherit that.
        self.wakeup, write_end = os.pipe()
        os.set_blocking(self.wakeup, False)
        os.set_blocking(write_end, False)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the thread that started us may have blocked some

    def run(self) -> None:
        """Serve until the fleet is to end, then leave nothing of it."""
        os.mkdir(self.folder, 0o700)
        try:
            while self.turn():
                pass
        except ConnectionError:  # nobody is left to report to
            pass
        finally:
            self.end()

    def turn(self) -> bool:
        """Wait for something to do and do it; return False when the fleet is to end."""
        ready, _, _ = select.select([0, self.wakeup], [], [], PARENT_CHECK_SECONDS)
        if os.getppid() != self.parent:
            return False
        if self.wakeup in ready and signal.SIGTERM in os.read(self.wakeup, 4096):
            return False
        self.reap()
        if 0 not in ready:
            return True
        chunk = os.read(0, 65536)
        *lines, self.pending = (self.pending + chunk).split(b"\n")
        return bool(chunk) and all(self.obey(json.loads(line)) for line in lines)

    def obey(self, command: dict[str, Any]) -> bool:
        """Carry out one command; return False for the last one."""
        if "start" in command:
            self.start(command["start"], command["argv"], command["folder"], command["config"])
        elif "signal" in command:
            # Only children that were not reaped, so a recycled pid is never hit.
            for pid in [pid for pid, index in self.masters.items() if index == command["signal"]]:
                for number in command["numbers"]:
                    os.kill(pid, number)
        return "quit" not in command

    def start(self, index: int, argv: list[str], folder: str, config: str | None) -> None:
        """Start one master; its configuration is written only if `config` is given."""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if config is not None:
            with open(os.open(argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(config)
        keeper = os.getpid()
        pid = os.fork()
        if pid == 0:
            self.become(argv, folder, keeper)
        self.masters[pid] = index
        report(index=index, pid=pid, paused=False)

    def become(self, argv: list[str], folder: str, keeper: int) -> None:
        """Turn this forked child into the server; what goes wrong stands in its log."""
        try:
            log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            self.set_death_signal()
            if os.getppid() == keeper:  # else it died before the death signal was set
                os.execv(argv[0], argv)
        except (OSError, ValueError) as error:
            os.write(2, f"cannot run {argv[0]}: {error}\n".encode())
        finally:
            os._exit(127)

    def reap(self) -> None:
        """Report the masters that ended, were stopped or were continued since the last look."""
        for pid, index in list(self.masters.items()):
            changed, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if not changed:
                continue
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                report(index=index, pid=pid, paused=os.WIFSTOPPED(status))
            else:
                del self.masters[pid]
                report(index=index, pid=None, status=os.waitstatus_to_exitcode(status))

    def end(self) -> None:
        """Kill every master, wait until it is gone and remove the folder."""
        for pid in self.masters:
            os.kill(pid, signal.SIGKILL)  # works on stopped processes too
        for pid in self.masters:
            os.waitpid(pid, 0)
        shutil.rmtree(self.folder, ignore_errors=True)


def find_death_signal() -> Callable[[], object]:
    """Return what a master calls so that the keeper's death is its own: prctl on Linux, nothing elsewhere."""
    if sys.platform == "linux":
        try:
            import ctypes

            prctl = ctypes.CDLL(None).prctl
            return lambda: prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        except (ImportError, OSError, AttributeError):  # a Python without ctypes or with a static libc
            pass
    return lambda: None


def report(**what: int | None) -> None:
    """Tell the parent; one line is one write, so it is never torn."""
    os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    Keeper(int(sys.argv[1]), sys.argv[2]).run()
