"""Locks for many readers or one writer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic

from ..votes.kinds import READER, WRITER, Declaration
from .batch import AnyLock


class RWLock(Generic[AnyLock]):
    """A maker of readers' and writers' locks on one name; `read()` and `write()` return a new lock for each holder.

    Attributes:
        name: the name as it was given.
    """

    def __init__(
        self, make: Callable[..., AnyLock], kinds: Mapping[Declaration, Any], owner: Callable[[], Any]
    ) -> None:
        self._make = make
        holders: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._reader = partial(kinds[READER], holders=holders, owner=owner)
        self._writer = partial(kinds[WRITER], holders=holders, owner=owner)
        model = self.write()
        self.name = model.name
        self._shown = f"<RWLock[{type(model).__name__}] {self.name!r}>"

    def __repr__(self) -> str:
        return self._shown

    def read(self) -> AnyLock:
        """Make a reader's lock: any number of readers may hold one while no writer holds or waits for the lock.

        A thread or task that reads through this object may read again, even while a writer waits. If it writes through
        this object, acquiring the lock raises AlreadyHeld.
        """
        return self._make(declared=READER, make=self._reader)

    def write(self) -> AnyLock:
        """Make a writer's lock: one writer at a time may hold it, while no reader does.

        If the same thread or task reads or writes through this object, acquiring the lock raises AlreadyHeld,
        because it would wait for itself.
        """
        return self._make(declared=WRITER, make=self._writer)
