"""Dial one server without a client, and expect it to be refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from redlatch.masters.listed import masters_of
from redlatch.masters.master import Master
from redlatch.wire.dial.connect import Connection, HandshakeExtension, dial

PATIENCE = 10.0


def master_of(url: str) -> Master:
    [master] = masters_of(url)
    return master


@contextlib.contextmanager
def dialled(url: str) -> Iterator[Connection]:
    connection = dial(master_of(url), PATIENCE)
    try:
        yield connection
    finally:
        connection.sock.close()


def refusal(url: str, extension: HandshakeExtension | None = None, timeout: float = PATIENCE) -> BaseException:
    """Dial what cannot be reached and return why."""
    with pytest.raises(Exception) as caught:
        dial(master_of(url), timeout, extension=extension).sock.close()
    return caught.value
