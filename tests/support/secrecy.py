"""Searches the log records and errors of a whole run for tokens and passwords.

Every password in the tests contains "s3cr3t". The scanner learns each token when it is drawn. It also finds a part of a
token: any 24 digits in a row, or the first 16.
"""

from __future__ import annotations

import logging
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redlatch import LockError
from redlatch.locks import factory

PASSWORD = re.compile("s3cr", re.IGNORECASE)
DIGITS = re.compile(r"[0-9a-f]{16,}")

# The number of errors of each kind that are also pickled; the text of every error is searched.
PICKLED = 200


class Scanner(logging.Handler):
    """Records every text that contains a secret.

    Attributes:
        leaks: the texts with a secret, and where they were seen.
        read: how many texts were searched.
    """

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.leaks: list[str] = []
        self.read = 0
        # The two halves of each token, as numbers to save memory.
        self._tokens: set[int] = set()
        self._pickled: dict[type, int] = {}
        self._one_at_a_time = threading.Lock()

    def know(self, tokens: list[bytes]) -> None:
        """Record tokens that were drawn."""
        # Any 24 digits in a row contain one of these halves.
        for token in tokens:
            self._tokens.update((int(token[:16], 16), int(token[8:24], 16)))

    def look(self, text: str, where: str) -> None:
        """Search a text."""
        self.read += 1
        secret = PASSWORD.search(text)
        found = any(
            int(word[place : place + 16], 16) in self._tokens
            for word in DIGITS.findall(text)
            for place in range(len(word) - 15)
        )
        if secret or found:
            self.leaks.append(f"{where}: {text[:500]}")

    def emit(self, record: logging.LogRecord) -> None:
        """Search a log record, with its traceback."""
        self.look(logging.Formatter().format(record), f"log of {record.name}")

    def look_at(self, error: BaseException) -> None:
        """Search an error in all its forms."""
        kind = type(error)
        self.look(f"{error} {error!r}", kind.__name__)
        with self._one_at_a_time:
            times = self._pickled[kind] = self._pickled.get(kind, 0) + 1
        if times <= PICKLED:
            self.look(str(pickle.dumps(error)), f"pickle of {kind.__name__}")


def _watching(init: Callable[..., None], scanner: Scanner) -> Callable[..., None]:
    def watched(self: LockError, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        scanner.look_at(self)

    return watched


@contextmanager
def scanning() -> Iterator[Scanner]:
    """Search all log records and errors while the context lasts."""
    scanner = Scanner()
    draw, init = factory.draw_tokens, LockError.__init__

    def drawing() -> list[bytes]:
        drawn = draw()
        scanner.know(drawn)
        return drawn

    factory.draw_tokens = drawing
    LockError.__init__ = _watching(init, scanner)  # type: ignore[method-assign]
    logger = logging.getLogger("redlatch")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logging.getLogger().addHandler(scanner)
    try:
        yield scanner
    finally:
        logging.getLogger().removeHandler(scanner)
        logger.setLevel(level)
        factory.draw_tokens = draw
        LockError.__init__ = init  # type: ignore[method-assign]
