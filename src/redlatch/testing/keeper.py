"""The process that owns one fleet of embedded masters, and the link to it.

The keeper is the parent process of the masters and owns their folder. It runs as a program (``python -I -S keeper.py
PARENT_PID FOLDER``) on the standard library alone, so it starts in about 20 ms. It executes one-line JSON commands from
stdin, and reports every change of a master on stdout.

Commands:  {"start": index, "argv": [program, config path], "folder": path, "config": text, or null to keep it}
           {"signal": index, "numbers": [...]}
           {"quit": true}
Reports:   {"index": n, "pid": pid, "paused": bool}     the master is running
           {"index": n, "pid": null, "status": n}       the master has ended

Why no process and no folder is left behind:

- When the keeper ends, it ends the fleet. It ends at the command "quit", at the end of stdin, and when its parent
  process has changed, which it checks once a second: a child forked off the parent keeps stdin open.
  (PR_SET_PDEATHSIG on the keeper would fire when the *thread* that started it ends.)
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

REPLY_TIMEOUT = 15.0


class Link:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.owner = 0
        self.pending = b""
        self.socket: socket.socket
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        self.owner = os.getpid()
        command = [sys.executable, "-I", "-S", __file__, str(self.owner), self.folder]
        self.socket, theirs = socket.socketpair()
        with theirs:
            pipe = theirs.fileno()
            # In its own session, so that a Ctrl-C signals only this process, and the masters keep running.
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd="/", start_new_session=True)

    def send(self, **command: object) -> None:
        self.socket.settimeout(REPLY_TIMEOUT)
        self.socket.sendall(json.dumps(command).encode() + b"\n")

    def listen(self, seconds: float) -> list[dict[str, Any]]:
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
        # A forked child only closes its copy.
        with self.socket:
            if self.owner != os.getpid():
                # After this, Popen's finalizer does not warn about a process that is not a child.
                self.process.poll()
                return
            with contextlib.suppress(OSError):
                # Closing stdin is not enough: a forked child may hold it open.
                self.send(quit=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(REPLY_TIMEOUT)
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Keeper:
    def __init__(self, parent: int, folder: str) -> None:
        self.parent = parent
        self.folder = folder
        self.masters: dict[int, int] = {}
        self.pending = b""
        self.set_death_signal = find_death_signal()
        # A signal only wakes the select in `turn`. The masters would inherit SIG_IGN.
        self.wakeup, write_end = os.pipe()
        os.set_blocking(self.wakeup, False)
        os.set_blocking(write_end, False)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        # The starting thread may have blocked some signals.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def run(self) -> None:
        os.mkdir(self.folder, 0o700)
        try:
            while self.turn():
                pass
        except ConnectionError:
            pass
        finally:
            self.end()

    def turn(self) -> bool:
        """Wait for a command, a signal or a timeout, and handle it; return False to end."""
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
        if "start" in command:
            self.start(command["start"], command["argv"], command["folder"], command["config"])
        elif "signal" in command:
            # The process id of a child that was reaped may belong to another process.
            for pid in [pid for pid, index in self.masters.items() if index == command["signal"]]:
                for number in command["numbers"]:
                    os.kill(pid, number)
        return "quit" not in command

    def start(self, index: int, argv: list[str], folder: str, config: str | None) -> None:
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
        try:
            log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            self.set_death_signal()
            # If the parent is another one, the keeper died before the death signal was set.
            if os.getppid() == keeper:
                os.execv(argv[0], argv)
        except (OSError, ValueError) as error:
            os.write(2, f"cannot run {argv[0]}: {error}\n".encode())
        finally:
            os._exit(127)

    def reap(self) -> None:
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
        for pid in self.masters:
            os.kill(pid, signal.SIGKILL)
        for pid in self.masters:
            os.waitpid(pid, 0)
        shutil.rmtree(self.folder, ignore_errors=True)


def find_death_signal() -> Callable[[], object]:
    if sys.platform == "linux":
        try:
            import ctypes

            prctl = ctypes.CDLL(None).prctl
            return lambda: prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        except (ImportError, OSError, AttributeError):
            pass
    return lambda: None


def report(**what: int | None) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    Keeper(int(sys.argv[1]), sys.argv[2]).run()
