"""Celery: tasks that run one at a time, and a beat that only one process runs.

`Singleton` is a base class for tasks, `RedBeatScheduler` a scheduler for ``celery beat`` (see docs/celery.md). This
package needs the extra ``celery``. The names are loaded on first use, because only the scheduler needs RedBeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..lazy import load as _load

if TYPE_CHECKING:
    from ..errors import DuplicateTask
    from .beat import RedBeatScheduler
    from .singleton import Singleton

__all__ = ["DuplicateTask", "RedBeatScheduler", "Singleton"]

_HOMES = {"DuplicateTask": "..errors", "RedBeatScheduler": ".beat", "Singleton": ".singleton"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_load(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
