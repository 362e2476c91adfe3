"""The client for threads: its arguments, and that it is the client of redlatch in all else."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import redlatch
from redlatch import sql
from redlatch.client import Lock

from .conftest import FindUrl, SqlFace


def test_its_locks_are_those_of_redlatch(threads: SqlFace, with_table: FindUrl, name: str) -> None:
    client = threads(with_table("sqlite")).raw
    assert isinstance(client, redlatch.Client)
    assert type(client.lock(name)) is Lock


def test_it_takes_what_a_client_takes_but_for_masters_and_guard() -> None:
    theirs, ours = inspect.signature(redlatch.Client).parameters, inspect.signature(sql.Client).parameters
    assert set(ours) - set(theirs) == {"database", "table", "mode", "dialect"}
    assert set(theirs) - set(ours) == {"masters", "guard", "next", "gil_patience", "host_map", "scripts", "synced"}
    for name in set(ours) & set(theirs) - {"retry", "attempt_timeout", "on_lost"}:
        assert ours[name].default == theirs[name].default, name


def test_an_invalid_argument_is_named() -> None:
    with pytest.raises(redlatch.ConfigurationError, match=r"^ttl: "):
        sql.Client("sqlite:///x.db", ttl=0)
    with pytest.raises(TypeError, match=r"^database: "):
        sql.Client(None)  # type: ignore[arg-type]


def test_its_repr_names_the_database_without_a_password() -> None:
    client = sql.Client("postgresql+psycopg://me:s3cr3t@host/shop")
    assert repr(client) == "<Client of postgresql://host/shop (not connected)>"


def test_without_sqlalchemy_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['sqlalchemy'] = None; import redlatch.sql"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'redlatch[sql]'" in done.stderr.splitlines()[-1]
