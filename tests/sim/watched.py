"""Calls a function after each step of a coroutine."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Watched:
    """Awaits a coroutine.

    Args:
        look: called whenever the coroutine waits for something, and when it has ended.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], look: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._look = look

    def __await__(self) -> Generator[Any, Any, T]:
        step = partial(self._coroutine.send, None)
        while True:
            try:
                awaited = step()
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self._look()
            try:
                yield awaited
            except BaseException as error:
                # The coroutine handles its own cancellation.
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, None)
