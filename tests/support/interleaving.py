"""Let another thread run in the middle of a call, where CPython could switch in the pure build."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pytest


def interrupt() -> NoReturn:
    raise KeyboardInterrupt


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


def meet(monkeypatch: pytest.MonkeyPatch, kind: type, method: str, meets: Callable[[], object]) -> None:
    """Let another thread run once, at the next call of a method of `kind`, before its own work."""
    own = getattr(kind, method)

    def first(self: Any, *args: Any) -> Any:
        monkeypatch.setattr(kind, method, own)
        meets()
        return own(self, *args)

    monkeypatch.setattr(kind, method, first)
