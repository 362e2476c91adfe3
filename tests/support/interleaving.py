"""Containers in which another thread runs in the middle of a call, where CPython could switch in the pure build."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def interpose(kind: type, call: str, meets: Callable[[Any], None], before: bool = False) -> Any:
    """Return a container whose method `call` lets another thread run once, before or after its own work."""

    def method(self: Any, *args: Any) -> Any:
        own = getattr(kind, call)
        steps, self.meets = self.meets, None
        if before and steps is not None:
            steps(self)
        result = own(self, *args)
        if not before and steps is not None:
            steps(self)
        return result

    return type("Interposed", (kind,), {"meets": staticmethod(meets), call: method})
