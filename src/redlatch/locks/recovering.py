"""Recover from a call that failed or was interrupted; twice, if an interrupt strikes the recovery, too.

These functions are compiled in no build: Python may raise an interrupt just after a compiled function has returned. And
each has the handler in it, because a second interrupt may come before the `try` of a function that the handler calls.

A release, the end of a ``with``, and the calls of `Lock` and of batches repeat the handler instead. An interrupt before
their `try` would leave the lock held, so no call may come before it, except while nothing is claimed yet; and the last
two save the time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")
Recover = Callable[[BaseException], object]


def recovering(call: Callable[[], Result], recover: Recover) -> Result:
    """Make a call; if it raises, call `recover` with the exception, and again after an interrupt."""
    try:
        return call()
    except BaseException as error:
        try:
            recover(error)
        except BaseException:
            recover(error)
            raise
        raise


async def recovering_task(call: Callable[[], Awaitable[Result]], recover: Recover) -> Result:
    try:
        return await call()
    except BaseException as error:
        try:
            recover(error)
        except BaseException:
            recover(error)
            raise
        raise
