"""The fields of a lock object, in both builds."""

from __future__ import annotations

import gc
import weakref
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.builds import implementation_named

from redlatch import impl
from redlatch.locks.lock import BaseLock


@pytest.fixture(params=["c", "python"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return implementation_named(request.param).module("locks.core")


@pytest.fixture
def shared(module: ModuleType) -> Any:
    return shared_of(module)


def shared_of(module: ModuleType) -> Any:
    """Return what the locks of a client share, with a driver that runs nothing."""
    return module.SharedFields(SimpleNamespace(run=None), "quorum", True, None)


@pytest.fixture
def core(module: ModuleType) -> type:
    found: type = module.Core
    return found


def test_the_fields_are_those_of_the_call(core: type, shared: Any) -> None:
    made = core(shared, "hold", 1 << 62, None)
    fields = made._shared, made._hold, made._ttl_ms, made._timeout, made._upkeep
    assert fields == (shared, "hold", 1 << 62, None, None)
    assert core(shared, "hold", 1, timeout=0.5)._timeout == 0.5


def test_new_locks_are_of_the_class_that_the_caller_gives(module: ModuleType, core: type, shared: Any) -> None:
    made: Any = type("Made", (core,), {"__slots__": ()})
    lock = module.new_lock(made, shared, lambda *words: words, b"p:", "name", "plain", 7, 0.5)
    assert type(lock) is made
    assert (lock._shared, lock._hold, lock._ttl_ms) == (shared, (b"p:", "name", "plain"), 7)
    assert (lock._timeout, lock._upkeep) == (0.5, None)
    locks = module.new_locks(made, shared, lambda *words: words, b"p:", ["a", b"b"], "plain", 7)
    assert [(type(each), each._hold[1], each._timeout, each._upkeep) for each in locks] == [
        (made, "a", None, None),
        (made, b"b", None, None),
    ]


def test_an_object_has_no_other_attributes(core: type, shared: Any) -> None:
    with pytest.raises(AttributeError):
        core(shared, "hold", 1, None).other = 1


def test_a_cycle_through_the_care_of_a_lock_is_collected(core: type, shared: Any) -> None:
    made = core(shared, "hold", 1, None)
    made._upkeep = [made]
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("_acquire", (True, 1.0, "ticket")), ("_acquire_in_task", (True, 1.0, object)), ("_release", (True,))],
)
def test_a_lock_that_was_never_initialised_raises(core: Any, method: str, arguments: tuple[object, ...]) -> None:
    """A subclass may forget ``super().__init__``. Then compiled fields are None, and must not be read in C."""
    with pytest.raises(AttributeError):
        getattr(core.__new__(core), method)(*arguments)


def test_locks_are_made_of_the_build_of_the_process() -> None:
    assert issubclass(BaseLock, impl.load(impl.current.name).module("locks.core").Core)


def test_a_batch_asks_its_locks(module: ModuleType, core: type, shared: Any) -> None:
    locks = [core(shared, f"hold {number}", number, None) for number in (7, 9, 8)]
    assert module.holds_of(locks) == ["hold 7", "hold 9", "hold 8"]
    assert (module.longest_ttl_ms(locks), module.longest_ttl_ms([])) == (9, 0)
    assert module.present([None, locks[0], None, locks[1]]) == locks[:2]


@pytest.mark.parametrize("foreign", ["a name", 7, object()])
def test_a_batch_finds_the_first_element_that_is_no_lock_of_its_client(
    module: ModuleType, core: type, shared: Any, foreign: object
) -> None:
    lock, other = core(shared, "hold", 1, None), core(shared_of(module), "hold", 1, None)
    ours = lock._shared
    assert module.first_foreign([], ours) == module.first_foreign([None, lock, None], ours) == -1
    assert module.first_foreign([lock, None, foreign, other], ours) == 2
    assert module.first_foreign([lock, other, foreign], ours) == 1
