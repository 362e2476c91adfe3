"""What a client makes of its arguments: the locks, their kinds and keys, and the tokens."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import time
from typing import Any
from unittest.mock import create_autospec

import pytest

from redlatch import AsyncClient, Client, ConfigurationError, impl
from redlatch.locks.factory import draw_tokens, label_of_now
from redlatch.votes.label import owner_of

URL = "redis://localhost:6379"


@pytest.fixture
def client(implementation: impl.Implementation) -> Any:
    """Return a client that never connects."""
    return Client(URL, prefix="locks:", ttl=10)


def kind_of(lock: Any) -> str:
    return type(lock._hold.kind).__name__


def test_each_call_makes_a_lock_of_its_kind_in_the_build_of_the_client(
    client: Any, implementation: impl.Implementation
) -> None:
    locks = {
        "Plain": client.lock("x"),
        "Fenced": client.lock("x", fence=True),
        "Fair": client.fair_lock("x"),
        "Slot": client.semaphore("x", 3),
        "Reader": client.rw_lock("x").read(),
        "Writer": client.rw_lock("x").write(),
    }
    assert [kind_of(lock) for lock in locks.values()] == list(locks)
    package = "redlatch._c." if implementation.name == "c" else "redlatch.quorum."
    assert all(type(lock._hold.kind).__module__.startswith(package) for lock in locks.values())
    assert type(locks["Plain"]._hold).__module__.startswith(package)


def test_kinds_that_do_not_exclude_each_other_have_different_keys(client: Any) -> None:
    keys = {kind: lock._hold.key for kind, lock in {
        "plain": client.lock("x"), "fair": client.fair_lock("x"), "slot": client.semaphore("x", 3),
        "reader": client.rw_lock("x").read(), "writer": client.rw_lock("x").write(),
    }.items()}  # fmt: skip
    assert keys["plain"] == keys["fair"] == b"locks:x"
    assert keys["reader"] == keys["writer"]
    assert len({keys["plain"], keys["slot"], keys["reader"]}) == 3
    # No name can contain the NUL of a suffix.
    assert all(key.startswith(b"{locks:x}\0") for key in (keys["slot"], keys["reader"]))


def test_locks_wait_as_long_as_the_client_says_unless_they_say_it(implementation: impl.Implementation) -> None:
    client = Client(URL, timeout=2.5)
    for make in (client.lock, client.fair_lock):
        assert make("x")._timeout == make("x", timeout=None)._timeout == 2.5
        assert make("x", timeout=1.0)._timeout == 1.0
    assert client.semaphore("x", 3)._timeout == client.rlock("x")._model._timeout == 2.5
    assert client.lock("x", timeout=math.inf)._timeout is None
    assert client.lock("x", timeout=0)._timeout == 0
    assert client.multi_lock(["x", "y"])._timeout == 2.5
    assert client.multi_lock(["x", "y"], timeout=1)._timeout == 1
    assert client.rw_lock("x").read()._timeout == client.rw_lock("x").write()._timeout == 2.5
    assert Client(URL).lock("x")._timeout is None
    with pytest.raises(ConfigurationError, match="timeout: seconds of at least 0"):
        Client(URL, timeout=-1)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"fence": True, "fair": True}, "^fence: only plain locks"),
        ({"max_hold": 5.0}, "^max_hold: it limits auto_renew"),
    ],
)
def test_options_that_contradict_each_other_are_refused(client: Any, options: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        client.lock("x", **options)


@pytest.mark.parametrize("option", ["fence", "fair", "auto_renew"])
def test_a_switch_is_true_or_false(client: Any, option: str) -> None:
    with pytest.raises(TypeError, match=f"^{option}: True or False"):
        client.lock("x", **{option: 1})


MAKERS = ("lock", "rlock", "fair_lock", "rw_lock", "semaphore", "locked")


@pytest.mark.parametrize("face", [Client, AsyncClient])
@pytest.mark.parametrize("maker", MAKERS)
def test_help_and_mocks_know_each_option(face: Any, maker: str) -> None:
    parameters = inspect.signature(getattr(face, maker)).parameters
    defaults = {name: each.default for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}
    expected = {"timeout": None, "auto_renew": False, "max_hold": None, "on_lost": None, "group": None}
    expected |= {"fence": False, "fair": False} if maker in ("lock", "rlock", "locked") else {}
    assert defaults == expected | ({"cancel_on_loss": False} if face is AsyncClient else {})
    assert all(each.kind is not each.VAR_KEYWORD for each in parameters.values())
    assert "ForwardRef" not in str(inspect.signature(getattr(face, maker)))
    mock = create_autospec(face, instance=True)
    getattr(mock, maker)("x", *([3] if maker == "semaphore" else []), timeout=1)
    with pytest.raises(TypeError):
        getattr(mock, maker)("x", *([3] if maker == "semaphore" else []), time_out=1)


@pytest.mark.parametrize(("face", "option"), [(Client, "cancel_on_loss"), (Client, "time_out"), (AsyncClient, "tll")])
def test_an_option_that_does_not_exist_is_refused(face: Any, option: str) -> None:
    with pytest.raises(TypeError, match=f"^{option}: there is no such option; the options are timeout, auto_renew"):
        face(URL).lock("x", **{option: True})
    with pytest.raises(TypeError, match=f"^{option}: there is no such option"):
        face(URL).rlock("x", timeout=1, **{option: True})


def test_a_lock_has_an_upkeep_only_if_it_is_renewed_or_its_loss_is_reported(client: Any) -> None:
    assert client.lock("x")._upkeep is None
    assert client.lock("x", auto_renew=True)._upkeep is not None
    assert client.lock("x", on_lost=print)._upkeep is not None
    assert Client(URL, on_lost=print).lock("x")._upkeep is not None


def test_a_ttl_that_was_accepted_before_is_still_checked_for_another_value(client: Any) -> None:
    ttl = 5.0
    assert client.lock("x", ttl).ttl == client.lock("x", ttl).ttl == 5.0
    assert client.lock("x", 6).ttl == 6.0
    with pytest.raises(ConfigurationError, match=r"^ttl: "):
        client.lock("x", -1)
    assert client.lock("x").ttl == 10.0


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_client_cannot_be_copied(client: Any, clone: Any) -> None:
    with pytest.raises(TypeError, match="one per process"):
        clone(client)


def test_tokens_are_random_and_never_repeat() -> None:
    tokens = [*draw_tokens(), *draw_tokens()]
    assert len(set(tokens)) == len(tokens) == 200
    assert all(len(token) == 32 and bytes.fromhex(token.decode()) for token in tokens)


def test_the_label_of_now_has_the_second_and_the_owner() -> None:
    before = int(time.time())
    owner, second = owner_of(draw_tokens()[0] + label_of_now("web-1"))
    assert owner == "web-1"
    assert before <= second <= time.time()
