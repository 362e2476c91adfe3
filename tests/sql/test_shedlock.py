"""The table of ShedLock."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.databases import Server, server_of
from support.faces import PATIENCE

from redlatch import ConfigurationError
from redlatch.sql.shedlock import is_shedlock_name, layout_of, shedlock_table

from .conftest import SqlFace, execute

PROJECT = Path(__file__).with_name("shedlock")

TABLES = {
    "postgresql": "CREATE TABLE IF NOT EXISTS shedlock (name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, "
    "locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))",
    "mariadb": "CREATE TABLE IF NOT EXISTS shedlock (name VARCHAR(64) NOT NULL, lock_until TIMESTAMP(3) NOT NULL, "
    "locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL, "
    "PRIMARY KEY (name))",
}
DRIVERS = {"postgresql": "psycopg", "mariadb": "pymysql"}


@pytest.mark.parametrize(
    ("key", "fits"),
    [(b"job", True), (b"x" * 64, True), (b"x" * 65, False), (b"\xff", False), (b"a\0b", False), (b"", False)],
)
def test_a_name_must_fit_the_column(key: bytes, fits: bool) -> None:
    assert is_shedlock_name(key) is fits


def test_the_columns_are_those_that_shedlock_documents() -> None:
    assert [column.name for column in shedlock_table().columns] == ["name", "lock_until", "locked_at", "locked_by"]
    layout = layout_of(shedlock_table("app.jobs"))
    assert layout.fence is None and layout.as_text and layout.table.fullname == "app.jobs"


@pytest.mark.parametrize("kind", list(TABLES))
def test_a_name_that_does_not_fit_is_refused_before_the_database(
    threads: SqlFace, databases: Callable[[str], Server], kind: str
) -> None:
    client = threads(databases(kind).url(DRIVERS[kind]), dialect="shedlock")
    for call in (lambda: client.lock("x" * 65), lambda: client.raw.acquire_many([b"\xff"])):
        with pytest.raises(ConfigurationError, match="at most 64 characters"):
            call()
    with pytest.raises(ConfigurationError, match="fence"):
        client.lock("a", fence=True)


@pytest.mark.parametrize("kind", list(TABLES))
def test_locks_in_the_table_of_shedlock(
    threads: SqlFace, databases: Callable[[str], Server], kind: str, name: str
) -> None:
    url = databases(kind).url(DRIVERS[kind])
    execute(url, TABLES[kind])
    client, other = threads(url, dialect="shedlock"), threads(url, dialect="shedlock")
    lock = client.lock(name)
    for _ in range(2):
        assert lock.acquire(timeout=PATIENCE) and not other.lock(name).acquire(blocking=False)
        lock.extend(20.0)
        assert lock.owned()
        lock.release()
    assert lock.acquire(timeout=PATIENCE)
    waiting = other.lock(name).start("acquire", timeout=PATIENCE)
    lock.release()
    assert waiting.result(PATIENCE)


# --- a real ShedLock ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def jar() -> list[str]:
    """Build the Maven project once; return the command that runs a ShedLock."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("there is no Maven or no JVM here (Debian: apt install maven default-jdk)")
    built = subprocess.run(
        ["mvn", "-q", "-B", "package", "dependency:copy-dependencies"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    if built.returncode:
        pytest.skip(f"Maven cannot get ShedLock or build the project: {(built.stdout + built.stderr)[-300:]}")
    return ["java", "-cp", f"{PROJECT}/target/classes{os.pathsep}{PROJECT}/target/dependency/*", "Holder"]


class ShedLock:
    """A process with a real ShedLock on the table."""

    def __init__(self, command: list[str], kind: str, server: Server) -> None:
        scheme = "postgresql" if kind == "postgresql" else "mariadb"
        url = f"jdbc:{scheme}://127.0.0.1:{server.port}/locks?user=redlatch"
        self._process = subprocess.Popen(
            [*command, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(self, *words: object) -> bool:
        """Send "lock NAME MILLISECONDS" or "unlock NAME"; return whether it succeeded."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        return bool(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.mark.slow("it needs a Java program")
@pytest.mark.parametrize(
    ("kind", "options"), [("postgresql", ()), ("mariadb", ()), ("mariadb", ("--default-time-zone=+05:00",))]
)
def test_a_real_shedlock_and_a_client_exclude_each_other(
    threads: SqlFace, jar: list[str], kind: str, options: tuple[str, ...], name: str
) -> None:
    with server_of(kind, options=options) as server:
        url = server.url(DRIVERS[kind])
        execute(url, TABLES[kind])
        theirs = ShedLock(jar, kind, server)
        try:
            client = threads(url, dialect="shedlock")
            lock = client.lock(name)
            for _ in range(3):
                assert lock.acquire(timeout=PATIENCE)
                assert not theirs.ask("lock", name, 60_000)
                lock.release()
                assert theirs.ask("lock", name, 60_000)
                assert not client.lock(name).acquire(blocking=False)
                assert client.lock(name).locked()
                assert theirs.ask("unlock", name)
            # Both see when the other one's lock expires.
            short = client.lock(name, ttl=0.5)
            assert short.acquire(timeout=PATIENCE)
            while not theirs.ask("lock", name, 500):
                pass
            assert short.remaining() == 0
            assert lock.acquire(timeout=PATIENCE)
        finally:
            theirs.close()
