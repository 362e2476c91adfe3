"""What the package logs while a schedule runs: a report of a loss goes to the oracle, and an error breaks a rule."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from .outcome import told
from .reports import Reports
from .world import World

# The beginning of a warning about a lost lock without an `on_lost`. Its first argument is the name of the lock.
LOST = "lock %r was lost"


class Logs(logging.Handler):
    """Takes the records of the package's logger."""

    def __init__(self, world: World, reports: Reports) -> None:
        super().__init__(logging.WARNING)
        self._world = world
        self._reports = reports

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            error = record.exc_info[1] if record.exc_info else None
            self._world.violate(f"logged: {record.getMessage()}: {told(error)}")
        elif record.msg.startswith(LOST) and isinstance(record.args, tuple):
            self._reports.logged(record.args[0])


@contextmanager
def taken(handler: logging.Handler) -> Iterator[None]:
    """Give all records of the package's logger to this handler, and to no other."""
    logger = logging.getLogger("redlatch")
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(handler.level)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
