"""Real database servers for tests: PostgreSQL and MariaDB from Debian's packages, in a folder of their own.

A test that needs a server which is not installed is skipped, with the package to install. The servers listen on
loopback only. They run without fsync, so a test may kill the process, but not the machine.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from support.faces import await_true

# Seconds until a server that was started must answer.
START_TIMEOUT = 60.0

# The database that each server has for tests, and the only user, without a password.
DATABASE, USER = "locks", "redlatch"


def _without_sanitizers(more: Mapping[str, str] | None = None) -> dict[str, str]:
    # `make sanitize` preloads their libraries, with which the programs of PostgreSQL hang.
    sanitizers = os.environ.get("LD_PRELOAD", "").split()
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"} | dict(more or {})
    preloaded = [each for each in environment.pop("LD_PRELOAD", "").split() if each not in sanitizers]
    return environment | ({"LD_PRELOAD": " ".join(preloaded)} if preloaded else {})


class Server:
    """One database server. It begins to run in ``__enter__``, and its folder vanishes in ``__exit__``.

    Args:
        environment: more environment variables for the server, such as those of a preloaded clock.
        options: more arguments of the server program.
    """

    package: ClassVar[str]
    account: ClassVar[str]  # of the system, for a server that refuses to run as root
    scheme: ClassVar[str]

    def __init__(self, environment: Mapping[str, str] | None = None, options: tuple[str, ...] = ()) -> None:
        self._environment = _without_sanitizers({"LC_ALL": "C", **(environment or {})})
        self._options = options
        self._folder = Path(tempfile.mkdtemp(prefix=f"redlatch-{self.scheme}-"))
        # Two servers must not share the names of temporary files.
        self._environment["TMPDIR"] = str(self._folder)
        self._data = self._folder / "data"
        self._as = self.account if os.geteuid() == 0 else None
        if self._as is not None:
            entry = pwd.getpwnam(self._as)
            os.chown(self._folder, entry.pw_uid, entry.pw_gid)
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def url(self, driver: str = "") -> str:
        """Return the URL of the database for SQLAlchemy, with one of its drivers."""
        return f"{self.scheme}{'+' if driver else ''}{driver}://{USER}@127.0.0.1:{self.port}/{DATABASE}"

    def __enter__(self) -> Server:
        try:
            self._install()
            self.start()
            self._create()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.resume()
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start the server on its data, and wait until it accepts connections."""
        with (self._folder / "log").open("ab") as log:
            # In a group of its own, because the server may fork.
            self.process = subprocess.Popen(
                self._command(),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._as,
                group=self._as,
                extra_groups=[] if self._as else None,
                start_new_session=True,
                cwd=self._folder,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start:\n{(self._folder / 'log').read_text(errors='replace')}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the server and all processes of it at once, as `kill -9` does."""
        self._signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()

    def pause(self) -> None:
        """Stop all processes of the server (SIGSTOP), and wait until all their threads have stopped."""
        self._signal(signal.SIGSTOP)
        assert self.process is not None
        pids = [*_children(self.process.pid), self.process.pid]
        await_true(lambda: not any(_runs(pid) for pid in pids))

    def resume(self) -> None:
        """Let all processes of the server go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            # The session of the server is one group of processes, except for the children of PostgreSQL.
            for pid in [*_children(self.process.pid), self.process.pid]:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass  # a child that has just ended

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(
            command,
            env=self._environment,
            capture_output=True,
            user=self._as,
            group=self._as,
            extra_groups=[] if self._as else None,
            cwd=self._folder,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed:\n{done.stdout.decode()}{done.stderr.decode()}")

    def _install(self) -> None:
        """Make the data folder."""
        raise NotImplementedError

    def _command(self) -> list[str]:
        """Return the command that starts the server."""
        raise NotImplementedError

    def _answers(self) -> bool:
        """Return whether the server accepts connections."""
        raise NotImplementedError

    def _create(self) -> None:
        """Make the user and the database."""
        raise NotImplementedError


class Postgres(Server):
    """A PostgreSQL server."""

    package, account, scheme = "postgresql", "postgres", "postgresql"

    def _install(self) -> None:
        initdb = _postgres_program("initdb")
        self._run(initdb, "-D", self._data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync")

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._folder),
            "fsync": "off",
            "max_connections": "200",
        }
        arguments = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(_postgres_program("postgres")), "-D", str(self._data), *arguments, *self._options]

    def _answers(self) -> bool:
        ready = [str(_postgres_program("pg_isready")), "-h", "127.0.0.1", "-p", str(self.port), "-q"]
        return subprocess.run(ready, env=self._environment, check=False).returncode == 0

    def _create(self) -> None:
        self._run(_postgres_program("createdb"), "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, DATABASE)


class Standby(Postgres):
    """A standby with the data that another PostgreSQL server has now. It receives nothing later, so it lags."""

    def __init__(self, primary: Server) -> None:
        super().__init__()
        self._primary = primary

    def _install(self) -> None:
        port = str(self._primary.port)
        copy = _postgres_program("pg_basebackup")
        self._run(copy, "-h", "127.0.0.1", "-p", port, "-U", USER, "-D", self._data, "-c", "fast", "--no-sync")
        self._run(shutil.which("touch") or "touch", self._data / "standby.signal")

    def _create(self) -> None:
        pass  # the copy has the user and the database

    def promote(self) -> None:
        """Make it a server of its own, which takes writes."""
        self._run(_postgres_program("pg_ctl"), "promote", "-w", "-D", self._data)


class MariaDB(Server):
    """A MariaDB server."""

    package, account, scheme = "mariadb-server", "mysql", "mysql"

    def _install(self) -> None:
        install = _program("mariadb-install-db", "mysql_install_db")
        self._run(
            install,
            "--no-defaults",
            f"--datadir={self._data}",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
        )

    def _command(self) -> list[str]:
        return [
            _program("mariadbd", "mysqld"),
            "--no-defaults",
            f"--datadir={self._data}",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            f"--socket={self._socket()}",
            f"--pid-file={self._folder / 'pid'}",
            "--innodb-flush-log-at-trx-commit=0",
            "--max-connections=300",
            *self._options,
        ]

    def _socket(self) -> Path:
        return self._folder / "socket"

    def _answers(self) -> bool:
        # The server greets a client only when it can serve it.
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as sock:
                sock.settimeout(1.0)
                return bool(sock.recv(1))
        except OSError:
            return False

    def _create(self) -> None:
        text = (
            f"CREATE DATABASE {DATABASE}; CREATE USER {USER}@'127.0.0.1'; CREATE USER {USER}@localhost;"
            f"GRANT ALL ON *.* TO {USER}@'127.0.0.1'; GRANT ALL ON *.* TO {USER}@localhost"
        )
        self._run(_program("mariadb", "mysql"), "--no-defaults", f"--socket={self._socket()}", "-u", "root", "-e", text)


class Pgbouncer:
    """A pgbouncer before a PostgreSQL server; it runs between ``__enter__`` and ``__exit__``.

    Args:
        server: the server.
        mode: what a client keeps its backend for: "session", "transaction" or "statement".
        size: how many backends there are for all clients.
    """

    def __init__(self, server: Server, mode: str = "transaction", size: int = 4) -> None:
        self._server, self._mode, self._size = server, mode, size
        self._folder = Path(tempfile.mkdtemp(prefix="redlatch-pgbouncer-"))
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, driver: str = "psycopg") -> str:
        """Return the URL of the database for SQLAlchemy."""
        return f"postgresql+{driver}://{USER}@127.0.0.1:{self._port}/{DATABASE}"

    def __enter__(self) -> Pgbouncer:
        try:
            program = _program("pgbouncer")
        except FileNotFoundError:
            shutil.rmtree(self._folder)
            pytest.skip("there is no pgbouncer here (Debian: apt install pgbouncer)")
        self._folder.chmod(0o755)
        (self._folder / "users").write_text(f'"{USER}" ""\n')
        (self._folder / "pgbouncer.ini").write_text(
            f"[databases]\n{DATABASE} = host=127.0.0.1 port={self._server.port} user={USER}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self._port}\nauth_type = any\nunix_socket_dir =\n"
            f"pool_mode = {self._mode}\ndefault_pool_size = {self._size}\nserver_round_robin = 1\n"
            f"auth_file = {self._folder / 'users'}\n"
        )
        root = os.geteuid() == 0
        self._process = subprocess.Popen(
            [program, str(self._folder / "pgbouncer.ini")],
            env=_without_sanitizers(),
            user="nobody" if root else None,
            extra_groups=[] if root else None,
            stderr=subprocess.DEVNULL,
        )
        await_true(self._listens)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), 1.0).close()
            return True
        except OSError:
            return False


KINDS: dict[str, type[Server]] = {"postgresql": Postgres, "mariadb": MariaDB}


def server_of(kind: str, environment: Mapping[str, str] | None = None, options: tuple[str, ...] = ()) -> Server:
    """Return a server of a kind, not started yet; skip the test if it is not installed."""
    chosen = KINDS[kind]
    try:
        _postgres_program("postgres") if chosen is Postgres else _program("mariadbd", "mysqld")
    except FileNotFoundError:
        pytest.skip(f"there is no {kind} server here (Debian: apt install {chosen.package})")
    return chosen(environment, options)


def _postgres_program(name: str) -> Path:
    """Return a program of the newest PostgreSQL that is installed; Debian keeps them apart from the PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    there = [folder / name for folder in folders if (folder / name).exists()]
    return there[0] if there else Path(_program(name))


def _program(*names: str) -> str:
    for name in names:
        found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/libexec")
        if found is not None:
            return found
    raise FileNotFoundError(names[0])


def _children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def _runs(pid: int) -> bool:
    """Return whether a thread of a process has not stopped yet after SIGSTOP."""
    states = []
    for path in Path("/proc", str(pid), "task").glob("*/stat"):
        # Threads may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The name of the program stands in parentheses before the state.
            states.append(path.read_text().rpartition(")")[2].split()[0])
    return not {"T", "Z", "X"}.issuperset(states)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
