"""The tree of errors: the base classes of each error, its attributes, and the secrets that it never shows."""

from __future__ import annotations

import copy
import pickle

import pytest
import redis.exceptions

import redlatch
from redlatch import errors

TREE = {
    "LockError": redis.exceptions.LockError,
    "Retryable": errors.LockError,
    "LockTimeout": errors.Retryable,
    "LockBusy": errors.Retryable,
    "DuplicateTask": errors.LockBusy,
    "LockLost": errors.LockError,
    "NotOwned": errors.LockError,
    "AlreadyHeld": errors.LockError,
    "QuorumUnavailable": errors.Retryable,
    "ClientUnusable": errors.LockError,
    "ClientClosed": errors.ClientUnusable,
    "ClientForked": errors.ClientUnusable,
    "WrongLoop": errors.ClientUnusable,
    "MasterRefused": errors.LockError,
    "MasterQuarantined": errors.MasterRefused,
    "NotReplicated": errors.LockError,
    "ConfigurationError": errors.LockError,
}
every_error = pytest.mark.parametrize("kind", [getattr(errors, name) for name in TREE])


def test_the_tree_is_the_one_that_is_drawn() -> None:
    defined = {
        name: value.__bases__[0]
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert defined == TREE


@pytest.mark.parametrize("name", TREE)
def test_every_error_is_in_the_drawing_once(name: str) -> None:
    drawing = [line for line in (errors.__doc__ or "").splitlines() if "──" in line or "every error below" in line]
    assert sum(name in line.replace("──", " ").split() for line in drawing) == 1


@every_error
def test_every_error_is_public(kind: type) -> None:
    assert getattr(redlatch, kind.__name__) is kind


@every_error
def test_every_error_is_one_of_redis_pys_lock_errors_and_a_value_error(kind: type) -> None:
    assert issubclass(kind, redis.exceptions.LockError)
    assert issubclass(kind, ValueError)


def test_only_a_lock_timeout_is_a_timeout_error() -> None:
    assert {name for name in TREE if issubclass(getattr(errors, name), TimeoutError)} == {"LockTimeout"}


@every_error
def test_an_error_carries_name_elapsed_and_causes(kind: type[errors.LockError]) -> None:
    cause = ConnectionResetError("gone")
    error = kind("text", name="sku:42", elapsed=1.5, causes={"a:1": cause})
    assert (error.name, error.elapsed, error.causes) == ("sku:42", 1.5, {"a:1": cause})


@every_error
def test_an_error_without_details_has_empty_ones(kind: type[errors.LockError]) -> None:
    error = kind("text")
    assert (error.name, error.elapsed, error.causes) == (None, 0.0, {})
    assert str(error) == "text"


def test_an_error_without_a_message_has_an_empty_one() -> None:
    assert str(errors.LockError()) == ""


def test_the_causes_of_one_error_are_its_own() -> None:
    causes: dict[str, BaseException] = {}
    error = errors.QuorumUnavailable("text", causes=causes)
    causes["a:1"] = OSError()
    assert error.causes == {}


def test_the_text_names_each_master_with_its_cause() -> None:
    error = errors.QuorumUnavailable("no quorum", causes={"a:1": OSError("refused"), "b:2": TimeoutError()})
    assert str(error) == "no quorum [a:1: refused; b:2: TimeoutError]"


def test_the_repr_shows_the_kind_and_the_text() -> None:
    assert repr(errors.LockLost("gone", name="n")) == "LockLost('gone')"


@every_error
@pytest.mark.parametrize("copied", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_an_error_survives_pickling_and_copying(kind: type[errors.LockError], copied: object) -> None:
    error = kind("text", name=b"sku", elapsed=0.25, causes={"a:1": ConnectionResetError("gone")})
    again = copied(error)  # type: ignore[operator]
    assert type(again) is kind
    assert (str(again), again.name, again.elapsed) == (str(error), b"sku", 0.25)
    assert repr(again.causes) == repr(error.causes)


@pytest.mark.parametrize("copied", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_a_lock_busy_error_keeps_its_depth_when_it_is_copied(copied: object) -> None:
    assert errors.LockBusy("text").depth == 0
    again = copied(errors.LockBusy("text", name="sku:42", depth=7))  # type: ignore[operator]
    assert (again.depth, again.name, str(again)) == (7, "sku:42", "text")


RETRYABLE = ["Retryable", "LockTimeout", "LockBusy", "DuplicateTask", "QuorumUnavailable"]


def test_these_errors_may_be_retried_and_no_other() -> None:
    assert [name for name in TREE if issubclass(getattr(errors, name), errors.Retryable)] == RETRYABLE


@pytest.mark.parametrize("name", RETRYABLE)
@pytest.mark.parametrize("copied", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_an_error_that_may_be_retried_says_when_and_keeps_that(name: str, copied: object) -> None:
    kind = getattr(errors, name)
    assert kind("text").retry_after > 0
    again = copied(kind("text", retry_after=2.5))  # type: ignore[operator]
    assert (again.retry_after, again.http_headers) == (2.5, {"Retry-After": "3"})


def test_a_client_is_asked_to_wait_for_a_whole_second_at_least() -> None:
    assert errors.LockBusy("text", retry_after=0.05).http_headers == {"Retry-After": "1"}


STATUS = {"LockTimeout": 423, "LockBusy": 423, "DuplicateTask": 409, "QuorumUnavailable": 503, "ClientClosed": 503}


@pytest.mark.parametrize("name", sorted(set(TREE) - {"LockError", "Retryable"}))
def test_each_error_has_a_status_and_only_those_that_may_be_retried_have_headers(name: str) -> None:
    error = getattr(errors, name)("text")
    assert error.http_status == STATUS.get(name, 500)
    assert bool(error.http_headers) == (name in RETRYABLE)


def test_a_full_queue_is_an_overload_of_the_service() -> None:
    error = pickle.loads(pickle.dumps(errors.LockBusy("text", depth=3)))
    assert error.http_status == 503


def test_notes_survive_pickling() -> None:
    error = errors.LockLost("gone")
    error.add_note("while it rained")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while it rained"]
