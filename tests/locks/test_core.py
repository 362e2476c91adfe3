"""The fields of a lock object, in both builds."""

from __future__ import annotations

import gc
import weakref

import pytest
from support.builds import implementation_named

from redlatch import impl
from redlatch.locks.lock import BaseLock


@pytest.fixture(params=["c", "python"])
def core(request: pytest.FixtureRequest) -> type:
    found: type = implementation_named(request.param).module("locks.core").Core
    return found


def test_the_fields_are_those_of_the_call(core: type) -> None:
    made = core("shared", "hold", 1 << 62, None)
    fields = made._shared, made._hold, made._ttl_ms, made._timeout, made.upkeep
    assert fields == ("shared", "hold", 1 << 62, None, None)
    assert core("shared", "hold", 1, timeout=0.5)._timeout == 0.5


def test_an_object_has_no_other_attributes(core: type) -> None:
    with pytest.raises(AttributeError):
        core("shared", "hold", 1, None).other = 1


def test_a_cycle_through_the_care_of_a_lock_is_collected(core: type) -> None:
    made = core("shared", "hold", 1, None)
    made.upkeep = [made]
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None


def test_locks_are_made_of_the_build_of_the_process() -> None:
    assert issubclass(BaseLock, impl.load(impl.current.name).module("locks.core").Core)
