"""Celery: tasks that run one at a time, and a beat that only one process runs (extra ``celery``, docs/celery.md).

The names are loaded on first use, because only the scheduler needs RedBeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import attributes as _attributes

if TYPE_CHECKING:
    from ..errors import DuplicateTask
    from .beat import RedBeatScheduler
    from .singleton import Singleton

__all__ = ["DuplicateTask", "RedBeatScheduler", "Singleton"]

__getattr__ = _attributes(
    __name__, {"DuplicateTask": "..errors", "RedBeatScheduler": ".beat", "Singleton": ".singleton"}
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
