"""A call that raises is recovered once, and once more if an interrupt strikes the recovery."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from redlatch.locks.recovering import recovering, recovering_task


def recover_threads(call: Callable[[], object], recover: Callable[[BaseException], object]) -> object:
    return recovering(call, recover)


def recover_task(call: Callable[[], object], recover: Callable[[BaseException], object]) -> object:
    async def awaited() -> object:
        return call()

    return asyncio.run(recovering_task(awaited, recover))


each_face = pytest.mark.parametrize("run", [recover_threads, recover_task])


class Recovery:
    """A recovery that is struck by the given exceptions, one at each call."""

    def __init__(self, *strikes: BaseException) -> None:
        self.causes: list[BaseException] = []
        self._strikes = list(strikes)

    def __call__(self, error: BaseException) -> None:
        self.causes.append(error)
        if self._strikes:
            raise self._strikes.pop(0)


def fail(error: BaseException) -> Any:
    raise error


@each_face
def test_a_call_that_succeeds_is_not_recovered(run: Any) -> None:
    recovery = Recovery()
    assert run(lambda: 7, recovery) == 7
    assert recovery.causes == []


@each_face
def test_a_call_that_fails_is_recovered_once_and_raises_its_own_exception(run: Any) -> None:
    recovery, error = Recovery(), ValueError("no")
    with pytest.raises(ValueError, match="no"):
        run(lambda: fail(error), recovery)
    assert recovery.causes == [error]


@each_face
def test_an_interrupt_of_the_recovery_has_it_repeated_and_is_raised(run: Any) -> None:
    recovery, error = Recovery(SystemExit(3)), ValueError("no")
    with pytest.raises(SystemExit) as raised:
        run(lambda: fail(error), recovery)
    assert recovery.causes == [error, error]
    assert raised.value.__context__ is error


@each_face
def test_a_third_interrupt_ends_it(run: Any) -> None:
    recovery = Recovery(SystemExit(2), SystemExit(3))
    with pytest.raises(SystemExit, match="3"):
        run(lambda: fail(ValueError("no")), recovery)
    assert len(recovery.causes) == 2
