"""Replacements for modules of the standard library: they block in virtual time, and have their own descriptors."""

from __future__ import annotations

import errno
import os as real_os
import random as real_random
import select as real_select
import socket as real_socket
import sys as real_sys
import threading as real_threading
import time as real_time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

from .kernel import Kernel, Thread

LONGEST_WAIT = 9223372036.0  # seconds, as threading.TIMEOUT_MAX
PIPE_ROOM = 65536


class State:
    """The state of the running schedule."""

    kernel: Kernel | None = None
    gates: ModuleType
    at_exit: ClassVar[list[Callable[[], object]]] = []
    at_fork: ClassVar[list[Callable[[], object]]] = []
    files: ClassVar[dict[int, Any]] = {}


def enter() -> None:
    """Pass a point, as after any function that is not Python's."""
    State.gates.enter()


def _running() -> Thread:
    kernel = State.kernel
    assert kernel is not None and kernel.current is not None
    return kernel.current


def _blocks() -> bool:
    """Return whether the caller can block, which needs a running schedule."""
    return State.kernel is not None and State.kernel.current is not None and not State.kernel.over


class Lock:
    """Replaces threading.Lock; when it is released, all its waiters compete for it."""

    def __init__(self) -> None:
        self._locked = False
        self._waiters: list[Thread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if timeout > LONGEST_WAIT:
            raise OverflowError("timestamp too large to convert to C _PyTime_t")
        if self._locked and blocking and timeout != 0 and not self._wait(timeout):
            enter()
            return False
        won = not self._locked
        self._locked = True
        enter()
        return won

    def _wait(self, timeout: float) -> bool:
        kernel = State.kernel
        if not _blocks():
            return False
        assert kernel is not None
        until_ns = None if timeout < 0 else kernel.now() + int(timeout * 1e9)
        me = _running()
        while self._locked:
            if until_ns is not None and kernel.now() >= until_ns:
                return False
            self._waiters.append(me)
            try:
                kernel.block(until_ns)
            finally:
                self._waiters.remove(me)
        return True

    def release(self) -> None:
        if not self._locked:
            raise RuntimeError("release unlocked lock")
        self._locked = False
        kernel = State.kernel
        if kernel is not None:
            for thread in self._waiters:
                kernel.wake(thread)
        enter()

    def locked(self) -> bool:
        enter()
        return self._locked

    def __enter__(self) -> bool:
        """Acquire the lock; between this and the body of its `with` nothing can be raised."""
        if self._locked:
            self._wait(-1)
        self._locked = True
        return True

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._locked = False


def get_ident() -> int:
    enter()
    return _running().ident if _blocks() else 0


def start_new_thread(work: Callable[..., object], args: tuple[Any, ...] = ()) -> int:
    kernel = State.kernel
    if kernel is None or kernel.current is None:
        raise RuntimeError("can't start new thread")
    host = kernel.current.host
    name = f"{work.__module__.rpartition('.')[2]} {work.__name__.strip('_')}"
    thread = kernel.spawn(host, name, lambda: work(*args))
    enter()
    return thread.ident


def sleep(seconds: float) -> None:
    kernel = State.kernel
    if _blocks():
        assert kernel is not None
        kernel.sleep(int(seconds * 1e9))
        enter()


def clock_ns(_: int = 0) -> int:
    kernel = State.kernel
    if kernel is None or kernel.current is None:
        return 0
    now = kernel.current.host.read_clock()
    enter()
    return now


def monotonic() -> float:
    return clock_ns() / 1e9


# --- descriptors -------------------------------------------------------------------------------------------


class End:
    """One end of a socket pair or of a pipe."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.came: list[bytes] = []  # bytes to read
        self.size = 0
        self.room = room
        self.peer: End | None = None
        self.open = True
        self.told: Callable[[], object] | None = None  # called when the other end writes or closes
        self.watchers: list[Thread] = []

    def notify_watchers(self) -> None:
        kernel = State.kernel
        if kernel is not None:
            for thread in self.watchers:
                kernel.wake(thread)

    def read(self, most: int) -> bytes:
        if not self.came:
            if self.peer is None or not self.peer.open:
                return b""
            raise BlockingIOError(errno.EAGAIN, "it would block")
        data = b"".join(self.came)
        data, rest = data[:most], data[most:]
        self.came = [rest] if rest else []
        self.size = len(rest)
        return data

    def write(self, data: bytes) -> int:
        peer = self.peer
        if peer is None or not peer.open:
            raise BrokenPipeError(errno.EPIPE, "the other end is closed")
        if peer.size + len(data) > peer.room:
            raise BlockingIOError(errno.EAGAIN, "it is full")
        peer.came.append(bytes(data))
        peer.size += len(data)
        peer.notify_watchers()
        if peer.told is not None:
            peer.told()
        return len(data)

    def close(self) -> None:
        if self.open:
            self.open = False
            if self.peer is not None:
                self.peer.notify_watchers()
                if self.peer.told is not None:
                    self.peer.told()

    def readable(self) -> bool:
        return bool(self.came) or self.peer is None or not self.peer.open


class Socket:
    """A socket object over an end; it gets a descriptor of the process when it is detached."""

    def __init__(self, *, fileno: int = -1, end: End | None = None) -> None:
        self._fd = fileno
        self.end = end if end is not None else State.files.get(fileno)

    def setblocking(self, _: bool) -> None:
        return None

    def fileno(self) -> int:
        return -1 if self.end is None else max(self._fd, 0)

    def detach(self) -> int:
        assert self.end is not None
        end, self.end = self.end, None
        return _open(end)

    def recv(self, most: int) -> bytes:
        assert self.end is not None
        return self.end.read(most)

    def send(self, data: bytes) -> int:
        if self.end is None:
            raise OSError(errno.EBADF, "it is closed")
        return self.end.write(data)

    def close(self) -> None:
        end, self.end = self.end, None
        if end is not None:
            if self._fd >= 0:
                State.files.pop(self._fd, None)
            end.close()
        enter()


def socketpair() -> tuple[Socket, Socket]:
    """Return two connected sockets."""
    one, other = End(), End()
    one.peer, other.peer = other, one
    return Socket(end=one), Socket(end=other)


def _open(end: End) -> int:
    """Return the lowest free descriptor of the running process, and assign it to an end."""
    fd = _running().host.number * 1000 + 3 if _blocks() else 900_000
    while fd in State.files:
        fd += 1
    State.files[fd] = end
    return fd


def _file(fd: int) -> End:
    end: End | None = State.files.get(fd)
    if end is None:
        raise OSError(errno.EBADF, "no such descriptor")
    return end


def pipe() -> tuple[int, int]:
    into, out = End(PIPE_ROOM), End()
    into.peer, out.peer = out, into
    enter()
    return _open(into), _open(out)


def read(fd: int, most: int) -> bytes:
    enter()  # the GIL is released before the call
    data = _file(fd).read(most)
    enter()
    return data


def write(fd: int, data: bytes) -> int:
    enter()
    written = _file(fd).write(data)
    enter()
    return written


def close(fd: int) -> None:
    enter()
    if State.kernel is None or State.kernel.over:
        State.files.pop(fd, None)
        return
    _file(fd)
    State.files.pop(fd).close()
    enter()


class Poll:
    """Replaces select.poll()."""

    def __init__(self) -> None:
        self._wanted: dict[int, int] = {}
        self._running = False

    def register(self, fd: int, events: int = 0) -> None:
        self._wanted[fd] = events
        enter()

    modify = register

    def unregister(self, fd: int) -> None:
        del self._wanted[fd]
        enter()

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        if self._running:
            raise RuntimeError("concurrent poll() invocation")
        self._running = True
        try:
            enter()
            found = self._poll(timeout_ms)
        finally:
            self._running = False
        enter()
        return found

    def _poll(self, timeout_ms: float | None) -> list[tuple[int, int]]:
        kernel = State.kernel
        files = [(fd, events, State.files.get(fd)) for fd, events in self._wanted.items()]
        until_ns = None
        if kernel is not None and timeout_ms is not None and timeout_ms >= 0:
            until_ns = kernel.now() + int(timeout_ms * 1e6)
        while True:
            found = [(fd, came) for fd, events, end in files if (came := _came(end, events))]
            if found or timeout_ms == 0 or not _blocks():
                return found
            assert kernel is not None
            if until_ns is not None and kernel.now() >= until_ns:
                return found
            me = _running()
            for _, _, end in files:
                end.watchers.append(me)  # type: ignore[union-attr]  # the check above found closed ones
            try:
                kernel.block(until_ns)
            finally:
                for _, _, end in files:
                    end.watchers.remove(me)  # type: ignore[union-attr]


def _came(end: End | None, events: int) -> int:
    if end is None:
        return real_select.POLLNVAL
    came = real_select.POLLIN if end.readable() else 0
    return (came | real_select.POLLOUT) & events


# --- the modules -------------------------------------------------------------------------------------------


class _Instead:
    """A module with some of its names replaced."""

    def __init__(self, module: ModuleType, **names: Any) -> None:
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def uniform(low: float, high: float) -> float:
    """Draw from the random generator of the running schedule."""
    return real_random.uniform(low, high) if State.kernel is None else State.kernel.chance.uniform(low, high)


class _Random:
    """A generator of one's own, which draws from that of the running schedule."""

    uniform = staticmethod(uniform)

    def random(self) -> float:
        """Return a number from 0 to below 1."""
        return uniform(0.0, 1.0)

    def seed(self) -> None:
        """Keep the draws of the schedule after a fork, so that it can be repeated."""


def getpid() -> int:
    """Return the id of the running process."""
    enter()
    return _running().host.pid if _blocks() else 0


def is_finalizing() -> bool:
    """Return whether the running process is shutting down."""
    return _blocks() and _running().host.finalizing


def register(call: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `atexit.register`."""
    State.at_exit.append(call)
    return call


def all_of(gates: ModuleType) -> dict[str, Any]:
    """Return the replacement of each module, by name."""
    from .instrument import simulated_events

    State.gates = gates
    waiting = {"Lock": Lock, "_allocate_lock": Lock, "_time": monotonic, "get_ident": get_ident}
    made = simulated_events(gates, waiting)
    return {
        "threading": _Instead(
            real_threading,
            **{"Lock": Lock, "Event": made["Event"], "Condition": made["Condition"], "get_ident": get_ident},
        ),
        "_thread": SimpleNamespace(
            start_new_thread=start_new_thread,
            get_native_id=get_ident,
            get_ident=get_ident,
            allocate_lock=Lock,
            LockType=Lock,
            error=RuntimeError,
        ),
        "time": _Instead(real_time, sleep=sleep, monotonic=monotonic, clock_gettime_ns=clock_ns, monotonic_ns=clock_ns),
        "os": _Instead(
            real_os,
            pipe=pipe,
            read=read,
            write=write,
            close=close,
            getpid=getpid,
            set_blocking=lambda fd, blocking: None,
            register_at_fork=lambda after_in_child: State.at_fork.append(after_in_child),
        ),
        "select": _Instead(real_select, poll=Poll),
        "socket": _Instead(real_socket, socket=Socket, socketpair=socketpair),
        "atexit": SimpleNamespace(register=register),
        "random": _Instead(real_random, uniform=uniform, Random=_Random),
        "sys": _Instead(real_sys, is_finalizing=is_finalizing),
    }
