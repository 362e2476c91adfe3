"""Conditions without masters: their keys, and arguments that cannot work."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from support.faces import Face

import redlatch
from redlatch import ConfigurationError, impl
from redlatch.votes.key import MAX_SUFFIX


@pytest.fixture(params=[redlatch.Client, redlatch.AsyncClient])
def client(request: pytest.FixtureRequest, implementation: impl.Implementation) -> Any:
    """A client of each face that is not connected."""
    return request.param("redis://127.0.0.1:1", prefix="p:")


def test_conditions_of_one_lock_have_one_key_for_each_name(client: Any) -> None:
    def key(name: str | bytes) -> bytes:
        return bytes(client.lock("n").condition(name)._queue.key)

    assert key("") == b"{p:n}\0cond"
    assert key("full") == key(b"full") != key("free")
    assert len({key(""), key("full"), key("free")}) == 3
    # The longest key of a waiter.
    assert len(key("x" * 1000)) + len(b":%d" % (1 << 53)) - len(b"p:n") <= MAX_SUFFIX


def test_a_condition_belongs_to_its_lock(client: Any) -> None:
    lock = client.lock("n")
    assert lock.condition().lock is lock


@pytest.mark.parametrize("name", [None, 7, ["x"]])
def test_a_name_is_text(client: Any, name: Any) -> None:
    with pytest.raises(TypeError, match=r"^name: "):
        client.lock("n").condition(name)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_condition_cannot_be_copied(client: Any, how: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="belongs to one lock object"):
        how(client.lock("n").condition())


@pytest.mark.parametrize(
    ("call", "argument", "error", "match"),
    [
        ("notify", True, TypeError, "^n: "),
        ("notify", "1", TypeError, "^n: "),
        ("notify", 0, ConfigurationError, "^n: "),
        ("wait", "1", TypeError, "^timeout: "),
        ("wait", -1, ConfigurationError, "^timeout: "),
    ],
)
def test_arguments_that_cannot_work_are_refused(
    connect: Face, url: str, name: str, call: str, argument: Any, error: type[Exception], match: str
) -> None:
    lock = connect(url).lock(name)
    assert lock.acquire()
    with pytest.raises(error, match=match):
        lock.condition().start(call, argument).result(10.0)
    lock.check()
